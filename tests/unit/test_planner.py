"""From a small spec to ranked plans: order, identities, determinism, progress, refusals."""

from __future__ import annotations

from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest

from autodeploy.kit.errors import SpecError
from autodeploy.kit.version import ENGINE_VERSION
from autodeploy.search.planner import Progress, describe_hashes, estimate, place, plan, timeline, why_not
from autodeploy.search.ranking.regret import WORTH_TIE
from autodeploy.search.ranking.uncertainty import LEAST_P_FITS
from autodeploy.specs.planset import PARTS, Plan, PlanSet
from autodeploy.specs.reading import read_spec_document
from autodeploy.specs.strategy import Strategy

if TYPE_CHECKING:
    from autodeploy.specs.spec import Spec


def spec_of(*, training: dict[str, Any] | None = None, **search: Any) -> Spec:
    """Llama2-7B on one node of eight, on two stages at most."""
    return read_spec_document(
        {
            "model": "llama2-7b",
            "cluster": {"profile": "ascend-800t-a2", "num_npus": 8},
            "training": {"seq_length": 4096, "global_batch_size": 64, "tokens": 1e9, **(training or {})},
            "search": {"effort": "fast", "allow": {"pp": [1, 2], "vpp": [1], "cp": [1]}, **search},
        }
    )


@cache
def planned() -> tuple[PlanSet, tuple[Progress, ...]]:
    events: list[Progress] = []
    result = plan(spec_of(), search_id="srch_1", created_at="2026-01-01T00:00:00Z", progress=events.append)
    return result, tuple(events)


def plans() -> tuple[Plan, ...]:
    return planned()[0].plans


def parts_s(chosen: Plan) -> list[float]:
    return [getattr(chosen.breakdown, name) for name in PARTS]


def test_plans_are_ranked_by_expected_cost() -> None:
    assert len(plans()) == 5
    assert [p.rank for p in plans()] == [1, 2, 3, 4, 5]
    risk = planned()[0].risk
    assert risk is not None
    first, second, *_ = plans()
    if (first.p_fits or 0.0) >= LEAST_P_FITS:
        assert risk.instead is None, "the first starts surely enough: none is shown next out of order"
    else:
        assert risk.instead == second.plan_id, "the one to launch where the first does not start is next"
        assert (second.p_fits or 0.0) > (first.p_fits or 0.0)
    assert min(p.p_fits or 0.0 for p in plans()) >= risk.least_p_fits
    costs = [p.expected_step_time_s or 0.0 for p in plans()]
    assert all(later >= earlier * (1.0 - WORTH_TIE) for earlier, later in pairwise(costs)), "but for ties"


def test_no_plan_is_listed_twice() -> None:
    assert len({p.plan_id for p in plans()}) == len(plans()), "no plan twice"
    assert len({p.strategy.model_dump_json() for p in plans()}) == len(plans())


def test_parts_sum_to_the_step_time() -> None:
    reference = planned()[0].reference
    assert reference is not None
    for chosen in (*plans(), reference):
        assert sum(parts_s(chosen)) == pytest.approx(chosen.step_time_s, rel=1e-9)
        assert min(parts_s(chosen)) >= 0.0


def test_every_plan_fits_and_uses_every_card() -> None:
    for chosen in plans():
        s = chosen.strategy
        assert s.dp is not None
        assert chosen.fits
        assert chosen.peak_memory_gib <= chosen.memory_limit_gib
        assert chosen.peak_memory_gib == pytest.approx(max(stage.total_gib for stage in chosen.stages))
        assert s.tp * s.pp * s.cp * s.dp == chosen.num_npus_used == 8
        assert chosen.micro_batches * s.micro_batch_size * s.dp == 64
        assert sum(sum(stage.layers) for stage in chosen.stages) == 32


def test_memory_of_a_stage_is_the_sum_of_what_occupies_it() -> None:
    for stage in plans()[0].stages:
        assert sum(stage.memory_gib.model_dump().values()) == pytest.approx(stage.total_gib, rel=1e-9)


def test_rates_and_durations_follow_from_the_step_time() -> None:
    for chosen in plans():
        assert chosen.tokens_per_s == pytest.approx(64 * 4096 / chosen.step_time_s)
        assert chosen.tokens_per_s_per_npu == pytest.approx(chosen.tokens_per_s / 8)
        assert chosen.days == pytest.approx(1e9 / chosen.tokens_per_s / 86_400)
        assert chosen.npu_hours == pytest.approx((chosen.days or 0.0) * 24 * 8)
        assert 0.0 < chosen.mfu < 1.0
        assert chosen.uncertainty.low_s < chosen.step_time_s < chosen.uncertainty.high_s


def test_the_bound_certifies_the_gap() -> None:
    found, fastest = planned()[0].optimality, planned()[0].fastest
    assert found.bound is not None
    assert found.gap is not None
    assert fastest is not None
    assert found.bound <= fastest.step_time_s <= plans()[0].step_time_s
    assert found.gap == pytest.approx(1.0 - found.bound / fastest.step_time_s)
    assert found.proved == (found.gap <= 1e-9)
    for chosen in plans():
        assert chosen.gap == pytest.approx(1.0 - found.bound / chosen.step_time_s)


def test_every_candidate_is_accounted_for() -> None:
    counts = planned()[0].counts
    assert counts.enumerated == sum(counts.rejected.values()) + counts.too_big + counts.pruned + counts.solved
    assert counts.solved >= len(plans())


def test_equal_specs_give_equal_plan_sets_but_for_timing() -> None:
    again = plan(spec_of(), search_id="srch_1", created_at="2026-01-01T00:00:00Z")
    first = planned()[0]
    assert again.model_copy(update={"timing": first.timing}) == first
    assert first.reproducible
    assert again.timing.total_s >= again.timing.solve_s > 0.0


def test_the_answer_survives_json() -> None:
    assert PlanSet.model_validate_json(planned()[0].model_dump_json()) == planned()[0]


def test_an_estimate_of_a_plan_is_the_plan() -> None:
    for chosen in plans():
        again = estimate(spec_of().model_copy(update={"strategy": chosen.strategy}))
        assert again.step_time_s == pytest.approx(chosen.step_time_s, rel=1e-12)
        assert again.peak_memory_gib == pytest.approx(chosen.peak_memory_gib, rel=1e-12)
        assert again.allocator_peak_gib == pytest.approx(chosen.allocator_peak_gib, rel=1e-12)
        assert parts_s(again) == pytest.approx(parts_s(chosen), rel=1e-9, abs=1e-12)
        assert again.memory_menu == chosen.memory_menu


def test_hashes_name_the_answer() -> None:
    search = planned()[0].search
    assert (search.spec_hash, search.profile_hash, search.engine_version) == describe_hashes(spec_of())
    assert search.engine_version == ENGINE_VERSION
    assert (search.id, search.created_at) == ("srch_1", "2026-01-01T00:00:00Z")
    assert describe_hashes(spec_of(top_k=3))[0] != search.spec_hash


def test_progress_runs_from_enumerated_to_finished() -> None:
    events = planned()[1]
    assert [events[0].kind, events[-1].kind] == ["enumerated", "finished"]
    assert {e.kind for e in events} <= {"enumerated", "incumbent", "bound", "solved", "finished"}
    elapsed = [e.elapsed_s for e in events]
    assert elapsed == sorted(elapsed)
    incumbents = [e.incumbent_s for e in events if e.incumbent_s is not None]
    assert incumbents == sorted(incumbents, reverse=True)
    fastest = planned()[0].fastest
    assert fastest is not None
    assert incumbents[-1] == fastest.step_time_s
    assert {e.enumerated for e in events} == {planned()[0].counts.enumerated}


def test_pins_and_top_k_are_obeyed() -> None:
    found = plan(spec_of(fix={"tp": 4, "micro_batch_size": 2}, top_k=2)).plans
    assert len(found) == 2
    assert {(p.strategy.tp, p.strategy.micro_batch_size) for p in found} == {(4, 2)}
    assert found[0].step_time_s >= plans()[0].step_time_s * (1 - 1e-9), "fewer strategies are never faster"


def test_a_cancelled_search_says_so() -> None:
    found = plan(spec_of(), should_cancel=lambda: True)
    assert found.status == "cancelled"
    assert not found.reproducible
    assert found.infeasible is None


def test_a_feature_that_nobody_knows_is_refused_by_name() -> None:
    with pytest.raises(SpecError, match="there is no feature 'dualpipevv'") as caught:
        plan(spec_of(features={"dualpipevv": "on"}))
    assert caught.value.errors[0].path == "/search/features/dualpipevv"
    assert "dualpipev" in caught.value.errors[0].hint


def test_an_estimate_needs_a_strategy_that_the_cluster_can_hold() -> None:
    with pytest.raises(SpecError, match="strategy is required") as missing:
        estimate(spec_of())
    assert missing.value.errors[0].path == "/strategy"
    with pytest.raises(SpecError, match="tp x pp x cp = 16 exceeds world 8"):
        estimate(spec_of().model_copy(update={"strategy": Strategy(tp=8, pp=2)}))


def whole(**changes: Any) -> Strategy:
    """A strategy that leaves nothing to be completed: without recomputation or swap."""
    axes = {"tp": 1, "pp": 1, "vpp": 1, "cp": 1, "micro_batch_size": 1, "schedule": "1f1b"}
    return Strategy.model_validate(axes | {"recompute": {"granularity": "none"}} | changes)


def test_why_not_judges_a_whole_strategy_as_it_stands() -> None:
    illegal = why_not(spec_of(), whole(tp=8, vpp=2))
    assert illegal.rule == "chunks_need_stages"
    assert "vpp > 1 needs pp > 1" in illegal.message
    too_big = why_not(spec_of(), whole(micro_batch_size=8), best=planned()[0])
    assert too_big.rule == "memory"
    assert "GiB" in too_big.message
    assert too_big.fitting is None or too_big.fitting.fits
    saves = why_not(spec_of(), whole(tp=2, micro_batch_size=4), best=planned()[0])
    assert saves.rule == "memory"
    assert saves.fitting is not None, "recomputation or swap makes it fit"
    assert saves.fitting.fits
    assert (saves.fitting.strategy.tp, saves.fitting.strategy.micro_batch_size) == (2, 4)
    assert saves.step_time_s == saves.fitting.step_time_s
    assert saves.against_best_pct == pytest.approx(100 * (saves.step_time_s / plans()[0].step_time_s - 1))
    hopeless = why_not(spec_of(memory_limit_gib=8.0), whole(), best=planned()[0])
    assert hopeless.rule == "memory"
    assert hopeless.fitting is None
    assert "no placement" in hopeless.message
    slower = why_not(spec_of(), whole(tp=8))
    assert slower.rule is None
    assert slower.completed is None
    assert slower.step_time_s is not None
    assert slower.against_best_pct is not None
    assert slower.against_best_pct == pytest.approx(100 * (slower.step_time_s / plans()[0].step_time_s - 1))
    assert slower.against_best_pct > 0.0


def test_an_estimate_refuses_a_fraction_of_an_expert_replica() -> None:
    spec = read_spec_document(
        {
            "model": "qwen3-30b-a3b",
            "cluster": {"profile": "ascend-800t-a2", "num_npus": 24},
            "training": {"seq_length": 4096, "global_batch_size": 48},
            "strategy": {"tp": 2, "pp": 1, "ep": 16, "etp": 1, "micro_batch_size": 1},
        }
    )
    with pytest.raises(SpecError, match="etp x ep = 16 does not divide tp x cp x dp = 24"):
        estimate(spec)
    told = why_not(spec, spec.strategy)
    assert "expert_world_divides" in told.broken_rules


@pytest.mark.parametrize(
    ("degrees", "path", "message"),
    [
        ({"tp": 2, "pp": 5}, "/strategy/pp", "tp x pp x cp = 10 does not divide world 32"),
        ({"tp": 3, "pp": 2}, "/strategy/tp", "tp x pp x cp = 6 does not divide world 32"),
        (
            {"tp": 2, "cp": 4, "cp_algo": "hybrid", "ulysses_degree": 3},
            "/strategy/ulysses_degree",
            "does not divide cp 4",
        ),
        ({"tp": 2, "ep": 6, "etp": 1}, "/strategy/ep", "ep 6 does not divide n_routed_experts 128"),
        ({"tp": 2, "pp": 2, "ep": 16, "etp": 2}, "/strategy/ep", "etp x ep = 32 does not divide tp x cp x dp = 16"),
    ],
)
def test_fractions_of_a_group_are_refused_wherever_a_strategy_is_predicted(
    degrees: dict[str, Any], path: str, message: str
) -> None:
    spec = read_spec_document(
        {
            "model": "qwen3-30b-a3b",
            "cluster": {"profile": "ascend-800t-a2", "num_npus": 32},
            "training": {"seq_length": 4096, "global_batch_size": 64},
            "strategy": degrees,
        }
    )
    assert spec.strategy is not None
    for predict in (estimate, place, lambda asked: timeline(asked, asked.strategy)):
        with pytest.raises(SpecError, match=message) as refused:
            predict(spec)
        (error,) = refused.value.errors
        assert error.path == path
        assert error.hint


def test_a_strategy_that_a_search_does_not_plan_is_told() -> None:
    asked = spec_of(fix={"tp": 2, "pp": 1}, top_k=1)
    said = [
        [text for text in plan(spec).warnings if "`why-not` compares it" in text]
        for spec in (asked, asked.model_copy(update={"strategy": Strategy(tp=8)}))
    ]
    assert [len(texts) for texts in said] == [0, 1]
