"""A feature that the spec switches on is used by every plan, or the spec has none and says why."""

from __future__ import annotations

from typing import Any

import pytest

from autodeploy.search.planner import plan
from autodeploy.space.rules import load_rules
from autodeploy.specs.reading import read_spec_document

ASKED = {name.removeprefix("asked_") for rule in load_rules() for name in rule.names() if name.startswith("asked_")}
TARGETS = {"keep_gathered": "mindspeed-llm-fsdp2"}  # that have it; "any" has all others
EXPERTS = {"mindspeed-llm-fsdp2": "qwen3-30b-a3b"}  # of which it has a class
WITH = {"hsdp": ("fsdp", "torch_fsdp2")}  # on only where the spec asks for what they need
# Asked for together where strategies have them together; each of the others alone.
TOGETHER = (
    ("adaptive_pipe", "expert_migration", "hierarchical_a2a", "reuse_fp32_param"),
    ("dualpipev", "mutual_routing", "swap_optimizer", "tp_extend_ep"),
    ("moe_alltoall_overlap", "overlap_grad_reduce", "overlap_param_gather", "virtual_optimizer"),
)
GROUPS = (*TOGETHER, *((name,) for name in sorted(ASKED - {name for group in TOGETHER for name in group})))
FEW = {"tp": [2], "pp": [2], "vpp": [1, 2], "cp": [1], "ep": [8], "micro_batch_size": [1]}
ELSEWHERE = {  # what such a feature asks of the others
    **{name: {"cp": [4]} for name in ("ring", "ulysses", "hybrid_cp")},
    "tp_pp_dp_mapping": {"pp": [4], "vpp": [1], "ep": [1]},
}
SHORTCUT = {
    **{
        "name": "shortcut",
        "hidden_size": 2048,
        "num_hidden_layers": 8,
        "num_attention_heads": 16,
        "vocab_size": 32_000,
    },
    **{"intermediate_size": 4096, "moe_intermediate_size": 1024, "shortcut_moe": True},
    **{"n_routed_experts": 16, "n_zero_experts": 8, "num_experts_per_tok": 4},
}
SHARDED = {"tp": [1], "pp": [1], "vpp": [1], "micro_batch_size": [1]}  # FSDP2 cuts no layer and has no pipeline


def answered(features: dict[str, str], *, target: str = "any", alone: bool = True, **training: Any):
    allowed = SHARDED if target in TARGETS.values() or "torch_fsdp2" in features else FEW
    for name in features:
        allowed = allowed | ELSEWHERE.get(name, {})
    dense = bool({"mc2", "coc"} & set(features))
    if dense:
        allowed = allowed | {"ep": [1]}
    return plan(
        read_spec_document(
            {
                "model": SHORTCUT
                if "shortcut_overlap" in features
                else "llama2-7b"
                if dense
                else EXPERTS.get(target, "mixtral-8x7b"),
                "cluster": {"profile": "ascend-800t-a2", "num_npus": 32},
                "training": {"seq_length": 4096, "global_batch_size": 128, "routing_imbalance": 1.3, **training},
                "search": {
                    "target": target,
                    "effort": 0.02,
                    "features": features,
                    "top_k": 2,
                    "risk": "neutral",  # what is legal is the same under each
                    "allow": allowed,
                },
            }
        ),
        alone=alone,
    )


@pytest.mark.parametrize("names", GROUPS, ids=" ".join)
def test_what_is_on_is_used_by_every_plan(names: tuple[str, ...]) -> None:
    first = names[0]
    found = answered(dict.fromkeys((*names, *WITH.get(first, ())), "on"), target=TARGETS.get(first, "any"))
    assert found.plans
    for each in found.plans:
        assert set(names) <= set(each.strategy.features)


def test_what_mindspeed_moves_experts_with_is_used_too() -> None:
    found = answered({"mutual_routing": "on"}, target="megatron")
    assert found.plans
    for each in found.plans:
        assert each.strategy.schedule in {"adaptive_pipe", "dualpipev"}
        assert {"mutual_routing", "grouped_gemm"} <= set(each.strategy.features)


def test_features_that_no_strategy_has_together_leave_none_and_say_so() -> None:
    found = answered({"adaptive_pipe": "on", "overlap_grad_reduce": "on"}, alone=False)
    assert found.status == "infeasible"
    assert found.infeasible is not None
    said = " ".join(found.infeasible.binding_rules)
    assert "adaptive_pipe_is_on" in said
    assert "data_parallel_overlap_is_on" in said
    changes = {each.change for each in found.infeasible.nearest}
    assert {"search.features.adaptive_pipe: auto", "search.features.overlap_grad_reduce: auto"} <= changes


def test_auto_and_off_ask_for_nothing() -> None:
    free, off = (answered({"hierarchical_a2a": switch}) for switch in ("auto", "off"))
    assert not {name for name in (*free.counts.rejected, *off.counts.rejected) if name.endswith(("_is_on", "_are_on"))}
    assert all("hierarchical_a2a" not in each.strategy.features for each in off.plans)
