"""Plans of published models to be rehearsed: dense, with experts, with latent attention, on A2 and on A3."""

from __future__ import annotations

from functools import cache
from typing import Any

from autodeploy.kit.version import ENGINE_VERSION
from autodeploy.search import planner
from autodeploy.specs.planset import Optimality, Plan, PlanSet, SearchInfo
from autodeploy.specs.spec import parse_spec, spec_hash

A2, A3, H100 = "ascend-800t-a2", "cloudmatrix-384", "nvidia-h100"
COMMON = ("flash_attention", "fused_operators", "fused_rmsnorm", "fused_swiglu")
EXPERTS = (*COMMON, "grouped_gemm")
ZERO_MEMORY = {"granularity": "selective", "modules": ["moe_zero_memory_level0"]}
# preset, profile, cards, sequences of a step, strategy
PLANS: dict[str, tuple[str, str, int, int, dict[str, Any]]] = {
    "dense A2": (
        *("llama3.1-70b", A2, 128, 256),
        {"tp": 8, "pp": 4, "vpp": 2, "schedule": "interleaved", "features": COMMON}
        | {"recompute": {"granularity": "full", "per_stage": [{"full": 6}] * 4}, "swap_optimizer": False},
    ),
    "dense A3": ("llama3.1-70b", A3, 64, 256, {"tp": 4, "pp": 8, "schedule": "1f1b", "features": COMMON}),
    "experts A2": (
        *("qwen3-235b-a22b", A2, 128, 1024),
        {"pp": 8, "vpp": 2, "ep": 8, "etp": 1, "schedule": "interleaved", "features": EXPERTS}
        | {"recompute": {"granularity": "full"}},
    ),
    "experts A3": (
        *("glm-4.5", A3, 128, 1024),
        {"tp": 4, "pp": 8, "vpp": 2, "ep": 32, "etp": 1, "schedule": "interleaved"}
        | {"features": (*EXPERTS, "moe_alltoall_overlap"), "recompute": ZERO_MEMORY},
    ),
    "MLA A2": (
        *("deepseek-v3", A2, 512, 2048),
        {"tp": 8, "pp": 8, "vpp": 2, "ep": 32, "etp": 1, "schedule": "dualpipev", "micro_batch_size": 1}
        | {"features": (*EXPERTS, "dualpipev"), "recompute": ZERO_MEMORY},
    ),
    "MLA A3": (
        *("deepseek-v3", A3, 256, 3840),
        {"tp": 2, "pp": 8, "vpp": 2, "ep": 32, "etp": 1, "schedule": "dualpipev"}
        # As a search lists them, with facts of the stack beside what flags switch.
        | {"features": (*EXPERTS, "dualpipev", "regathers_latents", "regathers_shared")}
        | {"layers_per_stage": [[4, 1], *[[4, 4]] * 7], "recompute": ZERO_MEMORY, "swap": ["core_attn_out"]},
    ),
}
# Of another framework than those above: preset and so on, likewise.
OF_MEGATRON: dict[str, tuple[str, str, int, int, dict[str, Any]]] = {
    "dense H100": (
        *("llama3.1-70b", H100, 128, 256),
        {"tp": 4, "pp": 4, "vpp": 5, "schedule": "interleaved", "micro_batch_size": 1}
        | {"features": ("flash_attention", "fused_swiglu", "fused_rmsnorm")},
    ),
}


def searched(name: str) -> tuple[PlanSet, Plan]:
    """A plan of that name, in the answer of a search."""
    return _searched(name)


@cache
def _searched(name: str) -> tuple[PlanSet, Plan]:
    preset, profile, npus, batch, strategy = (PLANS | OF_MEGATRON)[name]
    spec = parse_spec(
        {
            "model": preset,
            "cluster": {"profile": profile, "num_npus": npus, "overlay": "none"},
            "training": {"seq_length": 4096, "global_batch_size": batch},
            "search": {"target": "mindspeed-llm" if name in PLANS else "megatron"},
            "strategy": strategy,
        }
    )
    plan = planner.estimate(spec)
    info = SearchInfo(
        id="srch_06f2qk8v4w3t0001",
        spec=spec.model_copy(update={"strategy": None}).model_dump(mode="json"),
        spec_hash=spec_hash(spec),
        profile_hash="0" * 64,
        engine_version=ENGINE_VERSION,
        created_at="2026-11-20T12:00:00Z",
    )
    return PlanSet(search=info, status="feasible", optimality=Optimality(objective="step_time"), plans=(plan,)), plan
