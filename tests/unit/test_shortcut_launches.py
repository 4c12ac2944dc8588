"""Launches of LongCat-Flash: flags out and in, what MindSpeed-LLM has for its layer, and the overlap it has not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from autodeploy.costs.inputs.build_context import profile_of, spec_context
from autodeploy.costs.layers.unit_costs import layer_inputs, unit_costs
from autodeploy.costs.workload.generation import rank_work
from autodeploy.formats.import_document import import_document
from autodeploy.formats.registry import export
from autodeploy.kit.errors import UnsupportedError
from autodeploy.space.facts import facts_of
from autodeploy.space.feature_choice import choose_features
from autodeploy.space.rules import launchable
from autodeploy.specs.presets import load_preset
from autodeploy.specs.search import SearchSpec
from autodeploy.specs.spec import Spec, parse_spec
from autodeploy.specs.strategy import Strategy
from autodeploy.specs.tuning import unmodelled_with_adapters
from autodeploy.stack.releases import release_of
from hardware_profiles import load_profile
from tests import factories
from tests.support.accounting.cases import candidates_of
from tests.support.accounting.ranks import Degrees

if TYPE_CHECKING:
    from autodeploy.space.feature_choice import FeatureChoice
    from autodeploy.specs.planset import Plan, PlanSet

LONGCAT = load_preset("longcat-flash")
ON = {"flash_attention", "grouped_gemm", "fused_operators", "fused_swiglu"}
CUT = Degrees(128, tp=2, pp=2, ep=32, micro_batches=8, sequence_parallel=True)


def spec(target: str = "any") -> Spec:
    return parse_spec(
        {
            "model": "longcat-flash",
            "cluster": {"profile": "cloudmatrix-384", "num_npus": 64},
            "training": {"seq_length": 4096, "global_batch_size": 256},
            "search": {"target": target},
        }
    )


def planned() -> tuple[PlanSet, Plan]:
    strategy = Strategy(
        tp=2,
        pp=2,
        dp=32,
        ep=32,
        etp=1,
        sequence_parallel=True,
        layers_per_stage=(14, 14),
        moe_dispatcher="alltoall",
        features=("flash_attention", "grouped_gemm"),
    )
    made = spec()
    plan = factories.plan(1, spec=made, strategy=strategy, stages=(), run=None, micro_batches=8, num_npus_used=64)
    return factories.plan_set(1, spec=made), plan


def choose(target: str, **features: Any) -> FeatureChoice:
    return choose_features(SearchSpec(target=target, features=features), LONGCAT, load_profile("cloudmatrix-384"))


def test_a_launch_says_its_layer_and_experts_and_is_read_back() -> None:
    text = export(*planned(), "mindspeed-llm").text
    for flag in ("--spec mindspeed_llm.tasks.models.spec.longcat_spec layer_spec", "--num-zero-experts 256"):
        assert flag in text
    for flag in (
        "--enable-mla-scale-q-lora",
        "--moe-router-load-balancing-type softmax_topk",
        "--ffn-hidden-size 12288",
    ):
        assert flag in text
    read = import_document(text, "plan.sh").spec().model
    told = {"name", "recipe"}
    assert read.model_dump(exclude=told) == LONGCAT.model_dump(exclude=told)


@pytest.mark.parametrize("target", ["megatron", "mindformers", "mindspeed-llm-fsdp2", "torchtitan-npu"])
def test_other_frameworks_refuse_it_by_name(target: str) -> None:
    with pytest.raises(UnsupportedError, match=r"cannot set|cannot launch"):
        export(*planned(), target)


def test_a_layer_without_its_spec_is_not_the_shortcut_of_the_flags() -> None:
    plain = "\n".join(
        line for line in export(*planned(), "mindspeed-llm").text.splitlines() if "longcat_spec" not in line
    )
    read = import_document(plain, "plan.sh").spec().model
    assert (read.shortcut_moe, read.n_zero_experts) == (False, 256)


def test_what_replaces_the_layer_of_experts_is_not_launched() -> None:
    choice = choose("mindspeed-llm")
    assert not {"moe_alltoall_overlap", "shared_expert_overlap", "capacity_drop", "shortcut_overlap"} & choice.on
    assert "n_zero_experts" in choice.off_reasons["moe_alltoall_overlap"]


def test_the_shortcut_hides_nothing_unless_it_is_asked_for() -> None:
    assert "shortcut_overlap" not in choose("any").on
    assert "shortcut_overlap" in choose("any", shortcut_overlap="on").on
    with pytest.raises(UnsupportedError, match="shortcut_overlap"):
        choose("mindspeed-llm", shortcut_overlap="on")


def test_adapters_and_generation_of_it_are_refused_by_name() -> None:
    assert "shortcut_moe" in (unmodelled_with_adapters(lambda field: getattr(LONGCAT, field, None)) or "")
    with pytest.raises(UnsupportedError, match="shortcut experts"):
        rank_work(LONGCAT, 1, 1, 1)


def test_memory_choices_that_pass_the_layer_by_are_closed() -> None:
    found = {}
    for name in ("longcat-flash", "deepseek-v3"):
        release = release_of("mindspeed-llm", "huawei")
        facts = facts_of(
            load_preset(name),
            world=128,
            seq_length=4096,
            global_batch=256,
            node_ranks=16,
            tp_limit=16,
            features=ON,
            release=release,
        )
        found[name] = launchable(candidates_of([CUT]), facts, "mindspeed-llm")
    assert found["deepseek-v3"] - found["longcat-flash"] == {"norm", "activation", "swap_attention"}
    assert {"full", "mla_up_proj"} <= found["longcat-flash"]


def exposed_s(*features: str) -> tuple[float, float, float]:
    """Of a layer: exposed and whole expert exchanges of both passes, and its time."""
    made, candidates = spec(), candidates_of([CUT])
    context = spec_context(made, profile_of(made.cluster), frozenset(ON | set(features)))
    (cost,) = unit_costs(context, candidates).layers
    shown = cost.ep_shown_forward_s + cost.ep_shown_backward_s
    return float(shown[0]), float(cost.ep_total_s[0]), float(cost.alone_s[0])


def test_the_dense_path_hides_the_exchange_of_the_experts() -> None:
    shown, whole, alone = exposed_s()
    assert shown == pytest.approx(whole)
    less, same, faster = exposed_s("shortcut_overlap")
    assert same == pytest.approx(whole)
    # Two MLPs and an attention, 1.2 GFLOP a token, against 12 rows of it on the supernode's links.
    assert less < 0.2 * whole
    assert alone - faster == pytest.approx(shown - less)


def test_the_exchange_of_both_kinds_of_experts_is_priced() -> None:
    made = spec()
    context = spec_context(made, profile_of(made.cluster), frozenset(ON))
    (inputs, count), *_ = layer_inputs(context, candidates_of([CUT]))
    assert count == 28.0
    sent = {e.name: float(np.ravel(e.message_bytes)[0]) for e in inputs.table.exchanges if e.kind == "dispatch"}
    assert sent == {"dispatch": 2.0 * 6144 * 2048, "zero_dispatch": 2.0 * 6144 * 2048}
