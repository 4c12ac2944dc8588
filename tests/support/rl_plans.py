"""Plans of post-training as PlanSets, without a search: their layouts are those of the frameworks' own examples."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from autodeploy.specs.presets import load_preset
from autodeploy.specs.spec import Spec
from autodeploy.specs.strategy import Strategy
from tests import factories

if TYPE_CHECKING:
    from collections.abc import Mapping

    from autodeploy.specs.planset import Plan, PlanSet

LENGTHS: dict[str, Any] = {
    "prompt_length": {"mean": 256.0, "max": 1024},
    "response_length": {"mean": 900.0, "cv": 0.8, "max": 2048},
}
# MindSpeed-RL, configs/grpo_deepseek_r1_671b_A3.yaml: 128 cards of two dies.
DEEPSEEK: dict[str, Any] = {
    "model": "deepseek-v3",
    "num_npus": 128,
    "rl": {**LENGTHS, "prompts_per_step": 512, "responses_per_prompt": 16},
    "strategy": {
        **{"tp": 4, "pp": 8, "ep": 32, "etp": 1, "moe_dispatcher": "alltoall_seq", "sequence_parallel": True},
        "layers_per_stage": (7, 7, 8, 8, 8, 8, 8, 7),
        "recompute": {"granularity": "full", "num_layers": 4},
        **{"swap_optimizer": True, "features": ("grouped_gemm", "moe_alltoall_overlap", "tp_extend_ep")},
        "rl": {
            "placement": "colocated",
            "generation": {
                **{"tp": 4, "dp": 64, "ep": 256, "engine": "vllm-ascend", "mode": "eager"},
                **{"memory_fraction": 0.7, "max_num_seqs": 128},
            },
            "offload": ("gradients", "parameters"),
            "pack_tokens": 4096,
        },
    },
}
# MindSpeed-RL, configs/grpo_qwen25_7b_A3.yaml: one node of sixteen dies.
DENSE: dict[str, Any] = {
    "model": "qwen2.5-7b",
    "num_npus": 8,
    "rl": {**LENGTHS, "prompts_per_step": 32, "responses_per_prompt": 8},
    "strategy": {
        **{"tp": 2, "pp": 2, "micro_batch_size": 4, "sequence_parallel": True},
        "rl": {
            "placement": "colocated",
            "generation": {"tp": 1, "dp": 16, "engine": "vllm-ascend", "memory_fraction": 0.4, "max_num_seqs": 1024},
            "offload": ("optimizer", "gradients", "parameters"),
        },
    },
}
# verl, fully_async_policy/shell/grpo_qwen3_235b_megatron_npu.sh: eight nodes train, eight generate.
ASYNC: dict[str, Any] = {
    "model": "qwen3-235b-a22b",
    "num_npus": 128,
    "rl": {**LENGTHS, "prompts_per_step": 128, "responses_per_prompt": 16},
    "strategy": {
        **{"tp": 4, "pp": 8, "ep": 4, "etp": 1, "moe_dispatcher": "alltoall", "sequence_parallel": True},
        "layers_per_stage": (11, 12, 12, 12, 12, 12, 12, 11),
        "recompute": {"granularity": "full"},
        "rl": {
            **{"placement": "async", "generation_npus": 64, "staleness": 2, "partial_rollout": True},
            "generation": {
                **{"tp": 8, "dp": 8, "ep": 64, "engine": "vllm-ascend", "mode": "graph"},
                **{"memory_fraction": 0.75, "max_num_seqs": 64},
            },
            "pack_tokens": 8192,
        },
    },
}
CASES = {"deepseek": DEEPSEEK, "dense": DENSE, "async": ASYNC}


def changed(case: Mapping[str, Any], *, rl: Mapping[str, Any] | None = None, **strategy: Any) -> dict[str, Any]:
    """The case with other numbers of its training and its strategy; `layout` changes where and how it generates."""
    layout = strategy.pop("layout", {})
    own = case["strategy"]
    generation = own["rl"]["generation"] | layout.get("generation", {})
    return {
        **case,
        "rl": case["rl"] | (rl or {}),
        "strategy": own | strategy | {"rl": own["rl"] | layout | {"generation": generation}},
    }


def rl_plan_set(
    case: Mapping[str, Any], target: str = "verl", profile: str = "cloudmatrix-384"
) -> tuple[PlanSet, Plan]:
    """A PlanSet with one plan of this layout; its times are of no model."""
    document = {
        "model": load_preset(case["model"]).model_dump(mode="json", exclude_unset=True),
        "cluster": {"profile": profile, "num_npus": case["num_npus"]},
        "training": {"kind": "rl_post_training", "rl": case["rl"], **case.get("training", {})},
        "search": {"target": target},
    }
    spec = Spec.model_validate(document)
    base = factories.plan_set(1)
    plan = base.plans[0].model_copy(
        update={"strategy": Strategy.model_validate(case["strategy"]), "stages": (), "num_npus_used": case["num_npus"]}
    )
    search = base.search.model_copy(update={"spec": spec.model_dump(mode="json", exclude_unset=True)})
    return base.model_copy(update={"search": search, "plans": (plan,)}), plan
