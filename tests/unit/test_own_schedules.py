"""Schedules of one's own, registered as objects: searched, estimated and launched with no product file edited."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from pydantic import ValidationError

from autodeploy.costs.sweep.sweep import sweep
from autodeploy.formats.registry import export, formats_of
from autodeploy.kit.errors import UnsupportedError
from autodeploy.search.branch_and_bound.search_space import legal_candidates
from autodeploy.search.planner import estimate, plan, prepare
from autodeploy.specs.reading import read_spec_document
from autodeploy.specs.strategy import Strategy
from autodeploy.stack.features import LaunchFlag, Variant
from autodeploy.stack.schedules import frameworks_with, launched, variants_of
from cost_models.schedule import (
    SCHEDULES,
    Schedule,
    StageClasses,
    closed_form_classes_s,
    closed_form_s,
    fused_pairs,
    in_flight,
    in_flight_closed,
    makespan_s,
    model_parts,
    operation_order,
    pair_counts,
    registered,
    schedule,
    schedules,
    warm_up_slots,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from autodeploy.specs.spec import Spec

MODEL = {
    "name": "small-experts",
    "hidden_size": 2048,
    "num_hidden_layers": 16,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "vocab_size": 32_000,
    "n_routed_experts": 32,
    "num_experts_per_tok": 4,
    "moe_intermediate_size": 1024,
    "n_shared_experts": 1,
}
FEATURES = ("flash_attention", "fused_swiglu", "fused_rmsnorm", "grouped_gemm")
NONE = -1


def v_without_pairs(pp: int, vpp: int, micro_batches: int) -> list[np.ndarray]:
    """A V whose device runs each micro batch down and up before it awaits any gradient, then backwards in turn.

    Device p runs 2 (P - p) - 1 + M forwards or so ahead: a simple order that exists for any numbers.
    """
    rows = []
    for _ in range(pp):
        forwards = [(m, chunk, NONE, NONE, 0) for chunk in (0, 1) for m in range(micro_batches)]
        backwards = [(NONE, NONE, m, chunk, 0) for chunk in (1, 0) for m in range(micro_batches)]
        rows.append(np.array(forwards + backwards).T)
    return rows


DEEPER = Schedule("deeper_pipe", title="Deeper Pipe", least_chunks=2, extra_warm_up=2, pairs=True)
STEEPER = Schedule(
    "steeper_v",
    title="Steeper V",
    title_zh="陡 V",
    least_chunks=2,
    most_chunks=2,
    pairs=True,
    folded=True,
    least_micro_batches=lambda pp: 2 * pp,
)
OWN_ORDER = Schedule("whole_v", title="Whole V", least_chunks=2, most_chunks=2, folded=True, order=v_without_pairs)
ALL = pytest.mark.parametrize("own", [DEEPER, STEEPER, OWN_ORDER], ids=lambda each: each.name)


@pytest.fixture
def known(own: Schedule) -> Iterator[Schedule]:
    with registered(own):
        yield own


def spec_of(target: str = "any", **search: Any) -> Spec:
    return read_spec_document(
        {
            "model": MODEL,
            "cluster": {"profile": "ascend-800t-a2", "num_npus": 32},
            "training": {"seq_length": 4096, "global_batch_size": 256},
            "search": {"target": target, "effort": 0.02, "risk": "neutral", **search},
        }
    )


def strategy(name: str, **changes: Any) -> Strategy:
    document = {"tp": 2, "pp": 4, "vpp": 2, "ep": 4, "etp": 1, "schedule": name, "features": FEATURES}
    return Strategy.model_validate(document | changes)


@ALL
@pytest.mark.parametrize(("pp", "vpp", "m"), [(2, 2, 8), (4, 2, 8), (4, 2, 16), (4, 3, 12), (8, 2, 32), (4, 2, 10)])
def test_formulas_say_what_the_graph_does(known: Schedule, pp: int, vpp: int, m: int) -> None:
    if known.chunks is not None:
        vpp = known.chunks
    sizes = np.full(pp, pp), np.full(pp, vpp), np.full(pp, m)
    stages = np.arange(pp)
    assert (
        in_flight_closed(known.name, stages, *sizes).tolist() == in_flight(known.name, pp, vpp, m).sum(axis=1).tolist()
    )
    assert (
        fused_pairs(known.name, stages, *sizes).tolist()
        == pair_counts(known.name, pp, vpp, m).sum(axis=(1, 2)).tolist()
    )
    rng = np.random.default_rng(7)
    forward = rng.uniform(0.5, 1.5, (20, pp, vpp))
    backward = rng.uniform(1.0, 3.0, (20, pp, vpp))
    hidden = np.broadcast_to(
        0.3 * np.minimum(forward, backward).min(axis=(1, 2))[:, None, None, None], (20, pp, vpp, vpp)
    )
    graph = makespan_s(operation_order(known.name, pp, vpp, m), forward, backward, hidden)
    assert (closed_form_s(known.name, forward, backward, m, hidden).makespan_s <= graph * (1 + 1e-9)).all()


@ALL
def test_closed_forms_of_classes_are_bounds(known: Schedule) -> None:
    rng, n, m = np.random.default_rng(3), 30, 24
    vpp = 2
    for pp in (2, 4, 6):
        of_class = rng.uniform(0.5, 1.5, (2, n, 3)) * np.array([1.0, 2.0])[:, None, None]
        where = [0, *[1] * (pp - 2), 2]
        forward, backward = (np.repeat(each[:, where, None] / vpp, vpp, axis=2) for each in of_class)
        hides = 0.2 * forward.min(axis=(1, 2)) if known.pairs else np.zeros(n)
        hidden = np.broadcast_to(hides[:, None, None, None], (n, pp, vpp, vpp))
        stages = StageClasses(
            *of_class,
            *(np.asfortranarray(each / vpp) for each in (*of_class, *of_class)),
            np.repeat(hides[:, None], 3, 1),
        )
        graph = makespan_s(operation_order(known.name, pp, vpp, m), forward, backward, hidden)
        short = closed_form_classes_s(known.name, stages, np.full(n, pp), np.full(n, vpp), np.full(n, m)).makespan_s
        assert (short <= graph * (1 + 1e-9)).all()
        assert (short >= 0.6 * graph).all()


def test_extra_warm_up_forwards_are_in_the_order() -> None:
    with registered(DEEPER):
        usual, deeper = (warm_up_slots(name, 4, 2, 16) for name in ("adaptive_pipe", DEEPER.name))
        assert (deeper == usual + 1).all()
        assert model_parts(DEEPER.name, 4, 2) == model_parts("interleaved", 4, 2)


@ALL
def test_it_is_searched_and_estimated_alike(known: Schedule) -> None:
    fixed = {"schedule": known.name, "tp": 2, "pp": 4, "vpp": 2, "cp": 1, "micro_batch_size": 1}
    found = plan(spec_of(fix=fixed, top_k=1), alone=True)
    best = found.plans[0]
    assert best.strategy.schedule == known.name
    assert estimate(spec_of().model_copy(update={"strategy": best.strategy})).step_time_s == best.step_time_s
    assert found.optimality.bound is None or found.optimality.bound <= best.step_time_s * (1 + 1e-9)


@ALL
def test_the_sweep_is_near_the_estimate(known: Schedule) -> None:
    prepared = prepare(spec_of(fix={"schedule": known.name, "tp": 2, "pp": 4, "vpp": 2, "ep": 4}))
    legal, _ = legal_candidates(prepared.spec.search, prepared.context, prepared.profile, prepared.choice)
    assert len(legal)
    assert {SCHEDULES[place] for place in legal.schedule.tolist()} == {known.name}
    swept = sweep(legal, prepared.context)
    assert (swept.bound_s <= swept.step_time_s * (1 + 1e-9)).all()
    for index in range(0, len(legal), max(1, len(legal) // 8)):
        axes = legal.axes_at(index)
        document = strategy(
            known.name,
            micro_batch_size=axes["micro_batch_size"],
            etp=axes["etp"],
            moe_dispatcher=axes["moe_dispatcher"],
            sequence_parallel=axes["sequence_parallel"],
            swap_optimizer=axes["swap_optimizer"],
            reuse_fp32_param=axes["reuse_fp32_param"],
            features=tuple(sorted(prepared.context.features)),
        )
        if axes["virtual_optimizer"]:
            continue
        exact = estimate(prepared.spec.model_copy(update={"strategy": document})).step_time_s
        assert swept.bound_s[index] <= exact * (1 + 1e-9)
        assert swept.step_time_s[index] == pytest.approx(exact, rel=0.2)


def test_folded_stages_hold_both_ends() -> None:
    with registered(STEEPER):
        found = estimate(spec_of().model_copy(update={"strategy": strategy(STEEPER.name, vpp=1)}))
        usual = estimate(spec_of().model_copy(update={"strategy": strategy("dualpipev", vpp=1)}))
        assert found.stages[0].holds == ("embedding", "head")
        assert found.step_time_s == usual.step_time_s


def test_more_warm_up_holds_more() -> None:
    with registered(DEEPER):
        deeper, usual = (
            estimate(spec_of().model_copy(update={"strategy": strategy(name)}))
            for name in (DEEPER.name, "adaptive_pipe")
        )
        assert deeper.stages[0].in_flight == usual.stages[0].in_flight + 0.5
        assert deeper.hidden.paired_share < usual.hidden.paired_share


def test_it_is_known_as_long_as_the_context_lasts() -> None:
    places = {each.name: place for place, each in enumerate(schedules())}
    with registered(DEEPER):
        assert schedule("deeper_pipe") is DEEPER
        assert {each.name: place for place, each in enumerate(schedules())} == places | {"deeper_pipe": len(places)}
        with pytest.raises(ValueError, match="there is a schedule"), registered(DEEPER):
            pass
    assert list(places) == ["1f1b", "interleaved", "dualpipev", "dualpipe", "adaptive_pipe"]
    with pytest.raises(ValueError, match="known: 1f1b"):
        schedule("deeper_pipe")
    with pytest.raises(ValidationError, match="'adaptive_pipe'"):
        strategy("deeper_pipe")


def test_two_of_one_name_are_two() -> None:
    shallow = Schedule(DEEPER.name, title="Another", least_chunks=2, extra_warm_up=1, pairs=True)
    found = []
    for each in (DEEPER, shallow):
        with registered(each):
            found.append((operation_order(each.name, 4, 2, 8).pairs.sum(), in_flight(each.name, 4, 2, 8).sum()))
    assert found[0][0] < found[1][0]
    assert found[0][1] > found[1][1]


@pytest.mark.parametrize(
    ("attributes", "match"),
    [
        ({"name": "two words"}, "identifier"),
        ({"least_chunks": 3, "most_chunks": 2}, "chunks a device"),
        ({"folded": True, "pairs": True}, "two chunks a device"),
        ({"copies": 3}, "one place or two"),
        ({"copies": 2, "pairs": True, "least_chunks": 2, "most_chunks": 2}, "estimated, not searched"),
        ({"folded": True, "least_chunks": 2, "most_chunks": 2}, "order of its own"),
        ({"pairs": True}, "wait for itself"),
        ({"extra_warm_up": 9}, "order of their own"),
        ({"ahead_per_stage": 1}, "alternate"),
    ],
)
def test_attributes_that_no_pipeline_has_are_refused(attributes: dict[str, Any], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        Schedule(**{"name": "own", "title": "Own"} | attributes)


def test_it_is_launched_by_the_flags_that_its_record_says() -> None:
    flags = (LaunchFlag("--schedules-method", values=("dualpipev",)), LaunchFlag("--moe-fb-overlap", when="ep > 1"))
    with registered(STEEPER):
        fixed = {"schedule": STEEPER.name, "tp": 2, "pp": 4, "vpp": 2}
        with launched(STEEPER.name, Variant("mindspeed", by="schedule", flags=flags)):
            found = plan(spec_of("mindspeed-llm", fix=fixed, top_k=1), alone=True)
            text = export(found, found.plans[0], "mindspeed-llm").text
            assert "--schedules-method dualpipev" in text
            assert "--moe-fb-overlap" in text
            assert "陡 V" in export(found, found.plans[0], "markdown", lang="zh").text
            assert "Steeper V" in export(found, found.plans[0], "markdown").text
            assert set(formats_of(STEEPER.name)) >= {"mindspeed-llm", "megatron", "json"}
            with pytest.raises(ValueError, match="known already"), launched(STEEPER.name):
                pass
        assert "mindspeed-llm" not in formats_of(STEEPER.name)
        with pytest.raises(UnsupportedError, match="cannot launch schedule steeper_v"):
            export(found, found.plans[0], "mindspeed-llm")


def test_what_a_schedule_is_launched_with_is_registered_somewhere() -> None:
    for each in schedules():
        frameworks = frameworks_with(each.name)
        assert frameworks or not each.searched
        if variants_of(each.name):
            assert frameworks, f"no release has the flags of {each.name}"
