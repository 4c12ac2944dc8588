"""A fused pair: no lane that gets faster makes it slower, and nothing but exchanges is hidden in it."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autodeploy.costs.layers.unit_costs import unit_costs
from autodeploy.costs.stages.step_classes import Priced, step_classes
from autodeploy.costs.steps.estimate import Estimate, Layout, estimate_layout, template_layers
from cost_models.schedule import (
    BackwardHalf,
    ExpertExchange,
    ForwardHalf,
    Lanes,
    fused_pairs,
    pair_counts,
    pair_time,
)
from tests.support.accounting.cases import LATENT, Case, candidates_of, case_of, cluster
from tests.support.accounting.ranks import Degrees
from tests.support.examples import examples

SECONDS = st.floats(0.0, 10.0).map(lambda x: np.array([x]))
ROUNDING = 1e-9


@st.composite
def lanes(draw: st.DrawFn) -> Lanes:
    return Lanes(draw(SECONDS), draw(SECONDS), draw(SECONDS), (draw(SECONDS), draw(SECONDS)))


@st.composite
def exchanges(draw: st.DrawFn) -> ExpertExchange:
    """Tiers run side by side: none takes longer than the exchange."""
    seconds = draw(SECONDS)
    return ExpertExchange(seconds, tuple(seconds * draw(st.floats(0.0, 1.0)) for _ in range(2)))


@st.composite
def pairs(draw: st.DrawFn) -> tuple[ForwardHalf, BackwardHalf]:
    forward = ForwardHalf(draw(lanes()), draw(lanes()), draw(exchanges()), draw(exchanges()))
    return forward, BackwardHalf(
        draw(lanes()), draw(SECONDS), draw(lanes()), draw(SECONDS), draw(exchanges()), draw(exchanges())
    )


def faster(value: Any, share: float, chosen: list[bool]) -> Any:
    """The same with some of its numbers shrunk; `chosen` is used up number by number."""
    if isinstance(value, np.ndarray):
        return value * share if chosen.pop() else value
    if isinstance(value, tuple):
        return tuple(faster(one, share, chosen) for one in value)
    return replace(value, **{f.name: faster(getattr(value, f.name), share, chosen) for f in fields(value)})


@settings(max_examples=examples(100), deadline=None)
@given(pairs(), st.floats(0.0, 1.0), st.lists(st.booleans(), min_size=60, max_size=60))
def test_a_faster_lane_never_lengthens_a_pair(
    pair: tuple[ForwardHalf, BackwardHalf], share: float, chosen: list[bool]
) -> None:
    before = pair_time(*pair)
    after = pair_time(*faster(pair, share, chosen))
    assert after.inner_s[0] <= before.inner_s[0] + ROUNDING
    assert after.inner_s[0] + after.first_s[0] <= before.inner_s[0] + before.first_s[0] + ROUNDING


@settings(max_examples=examples(100), deadline=None)
@given(pairs())
def test_a_pair_runs_all_work_and_hides_no_more_than_exchanges(pair: tuple[ForwardHalf, BackwardHalf]) -> None:
    forward, backward = pair
    work = sum(half.stream_s[0] for half in (forward.around, forward.middle, backward.around, backward.middle))
    work += backward.expert_dw[0] + backward.left_over_dw[0]
    sent = sum(h.dispatch.seconds[0] + h.combine.seconds[0] for h in (forward, backward))
    time = pair_time(forward, backward)
    assert time.first_s[0] >= -ROUNDING
    assert time.inner_s[0] >= work - ROUNDING
    # Tiers that collectives keep busy beside computation can hold an exchange up: no longer than they are busy.
    busy = sum(
        max(t[0] for t in half.tiers_s) for half in (forward.around, forward.middle, backward.around, backward.middle)
    )
    assert time.inner_s[0] <= work + sent + busy + ROUNDING


@settings(max_examples=examples(50), deadline=None)
@given(st.sampled_from(["adaptive_pipe", "dualpipev", "dualpipe"]), st.integers(1, 6), st.integers(2, 4), st.data())
def test_pairs_by_formula(kind: str, pp: int, vpp: int, data: st.DataObject) -> None:
    pp, vpp = (2 * pp, 2) if kind == "dualpipe" else (pp, 2) if kind == "dualpipev" else (pp, vpp)
    m = data.draw(st.integers({"adaptive_pipe": 1}.get(kind, 2 * pp), 4 * pp + 3))
    m += m % 2 if kind == "dualpipe" else 0
    counts = pair_counts(kind, pp, vpp, m).sum(axis=(1, 2))  # type: ignore[arg-type]
    sizes = (np.full(pp, size) for size in (pp, vpp, m))
    assert fused_pairs(kind, np.arange(pp), *sizes).tolist() == counts.tolist()  # type: ignore[arg-type]


def estimated(case: Case, d: Degrees) -> Estimate:
    candidates = candidates_of([d])
    classes = step_classes(unit_costs(case.context, candidates), candidates, case.context)
    counts = tuple(c.count for c in classes.layers)
    layers = template_layers(counts, d.pp, d.vpp, kind=d.schedule)  # type: ignore[arg-type]
    return estimate_layout(Priced(classes, candidates, case.context), Layout(layers, {}))


@pytest.mark.parametrize("pp", [2, 4])
@pytest.mark.parametrize("rounds", [8, 16])
def test_one_more_warm_up_hides_as_much_as_dualpipe_with_half_the_parameters(pp: int, rounds: int) -> None:
    model = LATENT | {"num_hidden_layers": 16, "first_k_dense_replace": 0, "num_nextn_predict_layers": 0}
    case = case_of(model, cluster("supernodes"), frozenset({"flash_attention", "grouped_gemm", "fused_swiglu"}))
    one = Degrees(
        world=case.world, pp=pp, vpp=2, ep=8, micro_batch_size=1, micro_batches=rounds * pp, schedule="adaptive_pipe"
    )
    adaptive, folded, both = (
        estimated(case, replace(one, schedule=s)) for s in ("adaptive_pipe", "dualpipev", "dualpipe")
    )
    for other in (folded, both):
        assert adaptive.hidden["ep_share_step"] == pytest.approx(other.hidden["ep_share_step"], abs=0.05)
        assert adaptive.hidden["ep_share_steady"] == pytest.approx(other.hidden["ep_share_steady"], abs=0.05)
    inner = slice(1, pp - 1) if pp > 2 else slice(0, pp)
    ends = 2.0 if pp > 2 else pytest.approx(2.0, rel=0.5)  # embedding and head weigh on both ends
    assert both.memory["weights"][inner].sum() / adaptive.memory["weights"][inner].sum() == ends
    assert folded.memory["weights"].sum() == pytest.approx(adaptive.memory["weights"].sum())
    np.testing.assert_allclose(both.memory["optimizer"].sum(), adaptive.memory["optimizer"].sum(), rtol=0.02)
