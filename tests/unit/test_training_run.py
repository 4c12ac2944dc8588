"""The run of weeks: phases, layouts, priors, price, and that its parts add up."""

from __future__ import annotations

import itertools
import math
import random
from typing import TYPE_CHECKING, Any

import pytest

from autodeploy.costs.training_run.checkpoints import read_bytes
from autodeploy.costs.training_run.priors import priors
from autodeploy.costs.training_run.run_estimate import Step, cheapest_layouts, phases_of, planned_run
from autodeploy.kit.errors import SpecError
from autodeploy.messages import Message
from autodeploy.reports.run_facts import duration, run_facts, size
from autodeploy.reports.wording import quantity
from autodeploy.specs.spec import Spec, parse_spec
from tests import factories

if TYPE_CHECKING:
    from autodeploy.specs.planset import Plan
    from autodeploy.specs.training_run import TrainingRun

PARTS = ("training_days", "checkpoint_days", "lost_work_days", "restart_days", "layout_change_days")
PHASES = [
    {"tokens": 14e12, "ramp": {"start": 3840, "increment": 3840, "tokens": 3e12}},
    {"tokens": 0.5e12, "seq_length": 4400, "global_batch_size": 7680},
]


def spec(run: dict[str, Any] | None = None, *, tokens: float | None = None) -> Spec:
    document = factories.spec_document()
    document["training"]["tokens"] = tokens
    return parse_spec(document | {"run": run})


def run_of(run: dict[str, Any] | None = None, *, tokens: float | None = None, **more: Any) -> TrainingRun | None:
    asked = spec(run, tokens=tokens)
    plan = factories.plan(1, spec=asked, run=None)
    return planned_run(asked, plan, factories.step_elsewhere, host_link_bytes_per_s=40e9, **more)


def known(found: TrainingRun | None) -> TrainingRun:
    assert found is not None
    assert found.days is not None
    return found


def test_a_spec_without_tokens_has_no_run() -> None:
    assert run_of() is None


def test_tokens_alone_are_one_phase_at_the_plans_own_step() -> None:
    plan = factories.plan(1, spec=spec(tokens=14.8e12), run=None)
    found = known(run_of(tokens=14.8e12))
    assert found.training_days == pytest.approx(plan.days)
    assert [phase.batches for phase in found.phases] == [(15_360, 15_360)]
    assert {prior.name for prior in found.priors} == set(priors()) - {"recovered_share", "reboot_s"}


def test_the_parts_of_a_run_add_up() -> None:
    found = known(run_of({"phases": PHASES}))
    assert sum(getattr(found, part) for part in PARTS) == pytest.approx(found.days, rel=1e-12)
    assert found.goodput == pytest.approx((found.training_days or 0.0) / (found.days or 1.0))
    assert all(getattr(found, part) >= 0.0 for part in PARTS)


def test_users_numbers_take_the_place_of_priors() -> None:
    given = {"npu_failure_interval_h": 384.0, "restart_s": 60.0, "storage_gb_per_s": 100.0}
    found = known(run_of(given, tokens=14.8e12))
    assert found.priors == ()
    assert found.failure_interval_h == pytest.approx(1.0)
    assert found.checkpoint_s == pytest.approx(found.checkpoint_gb / 100.0)
    plan = factories.plan(1, spec=spec(tokens=14.8e12), run=None)
    assert found.restart_s == pytest.approx(60.0 + read_bytes(spec(tokens=14.8e12), plan) / 100e9)
    assert found.restart_s > 60.0 + found.checkpoint_s  # replicas read their weights too
    calm = known(run_of(given | {"npu_failure_interval_h": 38_400.0}, tokens=14.8e12))
    assert (calm.goodput or 0.0) > (found.goodput or 1.0)


def test_another_interval_than_the_optimum_takes_longer() -> None:
    best = known(run_of({}, tokens=14.8e12))
    for factor in (0.5, 2.0):
        other = known(run_of({"checkpoint_interval_s": factor * best.checkpoint_interval_s}, tokens=14.8e12))
        assert (other.days or 0.0) > (best.days or 0.0)


def test_asynchronous_checkpoints_pause_for_the_copy_to_the_host() -> None:
    waiting, beside = (known(run_of({"checkpoint": c}, tokens=1e12)) for c in ("synchronous", "asynchronous"))
    stage = factories.plan(1).stages[0].memory_gib
    assert beside.checkpoint_s == pytest.approx((stage.weights + stage.optimizer) * 2**30 / 40e9, rel=0.2)
    assert beside.checkpoint_interval_s >= waiting.checkpoint_s  # the write itself
    assert (beside.goodput or 0.0) > (waiting.goodput or 1.0)


def test_price_and_power() -> None:
    prices = {"price_per_npu_hour": 10.0, "npu_power_w": 1000.0, "power_usage_effectiveness": 1.5, "price_per_kwh": 0.5}
    found = known(run_of(prices, tokens=14.8e12))
    assert found.cost == pytest.approx(10.0 * (found.npu_hours or 0.0))
    assert found.energy_mwh == pytest.approx(1.5e-3 * (found.npu_hours or 0.0))
    assert found.energy_cost == pytest.approx(500.0 * (found.energy_mwh or 0.0))
    assert known(run_of({}, tokens=1e12)).cost is None


def test_spare_cards_are_held_too() -> None:
    asked = spec(tokens=14.8e12)
    spared = asked.model_copy(update={"cluster": asked.cluster.model_copy(update={"spare_npus": 16})})
    plan = factories.plan(1, spec=asked, run=None)
    found = planned_run(spared, plan, factories.step_elsewhere, host_link_bytes_per_s=40e9)
    assert found is not None
    assert found.npu_hours == pytest.approx((found.days or 0.0) * 24 * 400)


def test_a_ramp_is_megatrons() -> None:
    first, second = phases_of(spec({"phases": PHASES}))
    assert [s.global_batch for s in first.stretches] == [3840, 7680, 11_520, 15_360]
    assert [s.tokens for s in first.stretches] == pytest.approx([1e12, 1e12, 1e12, 11e12])
    assert [s.global_batch for s in second.stretches] == [7680]


@pytest.mark.parametrize(
    ("run", "where"),
    [
        (
            {"phases": [{"tokens": 1e12, "ramp": {"start": 15_360, "increment": 1, "tokens": 1e9}}]},
            "/run/phases/0/ramp",
        ),
        ({"phases": [{"tokens": 1e12, "ramp": {"start": 1, "increment": 2000, "tokens": 1e9}}]}, "/run/phases/0/ramp"),
        ({"phases": [{"tokens": 1e12, "ramp": {"start": 1, "increment": 1, "tokens": 1e9}}]}, "/run/phases/0/ramp"),
        ({"phases": [{"tokens": 1e12, "ramp": {"start": 8, "increment": 8, "tokens": 2e12}}]}, "/run/phases/0"),
        ({"failure_interval_h": 1.0, "npu_failure_interval_h": 1.0}, "/run"),
        ({"price_per_kwh": 1.0}, "/run"),
        ({"phases": [{"tokens": -1.0}]}, "/run/phases/0/tokens"),
    ],
)
def test_contradictions_are_named(run: dict[str, Any], where: str) -> None:
    with pytest.raises(SpecError) as caught:
        spec(run)
    assert where in {error.path for error in caught.value.errors}
    assert all(isinstance(error.message, Message) for error in caught.value.errors)  # which has its Chinese


def test_tokens_said_twice_must_agree() -> None:
    with pytest.raises(SpecError) as caught:
        spec({"phases": PHASES}, tokens=1e12)
    assert caught.value.errors[0].path == "/run/phases"


def test_a_phase_that_does_not_fit_leaves_no_total_and_says_why() -> None:
    found = run_of({"phases": [*PHASES, {"tokens": 1e11, "seq_length": 32_768, "global_batch_size": 1920}]})
    assert found is not None
    assert found.days is None
    assert found.phases[2].problem is not None
    assert "GiB" in found.phases[2].problem
    facts = run_facts(found, "en")
    assert any("run.layout_changes: allowed" in fact for fact in facts)
    whole, possible = (quantity(sum(p.tokens for p in phases)) for phases in (found.phases, found.phases[:2]))
    assert facts[0].startswith(f"{possible} of {whole} tokens: "), "its days are those of the phases that fit"


def test_days_are_those_of_the_whole_run() -> None:
    found = known(run_of({"phases": [{"tokens": 14e12}]}))
    said = run_facts(found, "en")[0]
    assert found.days is not None
    assert said.startswith(f"14T tokens: {found.days:.0f} days, ")
    assert "for checkpoints and failures" in said
    assert f"(failures: {found.failures:.0f})" in said


def test_a_rule_that_a_batch_breaks_is_the_problem() -> None:
    asked = spec({"phases": PHASES})

    def refused(plan: Plan, seq_length: int, global_batch: int) -> Step:
        return Step(1.0, 1.0, "a rule")

    found = planned_run(asked, factories.plan(1, spec=asked, run=None), refused, host_link_bytes_per_s=40e9)
    assert found is not None
    assert found.phases[0].problem == "a rule"


def test_a_batch_that_replicas_do_not_divide_is_lowered() -> None:
    found = known(run_of({"phases": [{"tokens": 1e12, "global_batch_size": 1000}]}))
    assert found.phases[0].batches == (984, 984)  # 24 replicas
    small = run_of({"phases": [{"tokens": 1e12, "global_batch_size": 8}]})
    assert small is not None
    assert "below 24" in (small.phases[0].problem or "")


def test_layouts_change_where_it_pays() -> None:
    long = {"tokens": 1e11, "seq_length": 32_768, "global_batch_size": 1920}
    run = {"phases": [*PHASES, long], "layout_changes": "allowed"}
    asked = spec(run)
    other = factories.plan(3, spec=asked, run=None)

    def step_of(plan: Plan, seq_length: int, global_batch: int) -> Step:
        roomy = plan.plan_id == other.plan_id
        return Step(200.0 if roomy else 50.0, 40.0 if roomy or seq_length < 32_768 else 90.0)

    def layouts_for(seq_length: int, global_batch: int) -> tuple[Plan, ...]:
        return (other,)

    plan = factories.plan(1, spec=asked, run=None)
    found = known(planned_run(asked, plan, step_of, host_link_bytes_per_s=40e9, layouts_for=layouts_for))
    assert [phase.strategy is not None for phase in found.phases] == [False, False, True]
    change_s = found.checkpoint_s + found.restart_s  # saved, started anew and read
    assert [phase.layout_change_s for phase in found.phases] == [0.0, 0.0, pytest.approx(change_s)]
    assert found.layout_change_days == pytest.approx(change_s / 86_400)


def test_the_cheapest_way_is_the_best_of_all_ways() -> None:
    dice = random.Random(3)
    for _ in range(200):
        layouts, phases, change = dice.randint(1, 4), dice.randint(1, 4), dice.uniform(0, 30)
        seconds = [
            [math.inf if dice.random() < 0.2 else dice.uniform(0, 100) for _ in range(layouts)] for _ in range(phases)
        ]

        def cost(way: tuple[int, ...], seconds: list[list[float]] = seconds, change: float = change) -> float:
            moves = sum(a != b for a, b in itertools.pairwise(way))
            return sum(row[i] for row, i in zip(seconds, way, strict=True)) + change * moves

        best = min(map(cost, itertools.product(range(layouts), repeat=phases)))
        found = cheapest_layouts(seconds, change)
        if math.isinf(best):
            assert found is None
        else:
            assert found is not None
            assert cost(found) == pytest.approx(best)


def test_priors_name_unit_kind_and_source() -> None:
    for prior in priors().values():
        assert prior.value > 0
        assert prior.unit
        assert len(prior.source) > 10


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (duration(4.0), "4.0 s"),
        (duration(45.0), "45 s"),
        (duration(240.0), "4.0 min"),
        (duration(13_790.0), "3.8 h"),
        (duration(475_000.0), "5.5 d"),
        (size(9557.0), "9.6 TB"),
        (size(94.2), "94 GB"),
    ],
)
def test_numbers_in_words(text: str, expected: str) -> None:
    assert text == expected


def recovered(*features: str, **run: Any) -> TrainingRun:
    asked = spec(run, tokens=14.8e12)
    plan = factories.plan(1, spec=asked, strategy=factories.strategy(1, features=features), run=None)
    return known(planned_run(asked, plan, factories.step_elsewhere, host_link_bytes_per_s=40e9))


def test_high_availability_loses_a_step_where_others_lose_work_since_the_checkpoint() -> None:
    none, dumped = recovered(), recovered("high_availability")
    rebooted = recovered("high_availability", "worker_reboot")
    assert [each.recovery for each in (none, dumped, rebooted)] == ["none", "ttp", "ttp+reboot"]
    assert (dumped.lost_work_days or 0.0) < (none.lost_work_days or 0.0)
    assert (rebooted.restart_days or 0.0) < (dumped.restart_days or 0.0)
    assert (rebooted.days or 0.0) < (dumped.days or 0.0) < (none.days or 0.0)
    assert dumped.checkpoint_interval_s > none.checkpoint_interval_s  # fewer failures lead back to one
    for each in (dumped, rebooted):
        assert sum(getattr(each, part) for part in PARTS) == pytest.approx(each.days, rel=1e-12)
        assert any(fact.startswith("recovery:") for fact in run_facts(each, "en"))
        assert any(fact.startswith("恢复：") for fact in run_facts(each, "zh"))
    assert {prior.name for prior in rebooted.priors} == set(priors())


def test_a_recovery_that_never_finds_a_copy_is_none() -> None:
    none, never = recovered(), recovered("high_availability", recovered_share=0.0)
    assert never.days == pytest.approx(none.days, rel=1e-12)
    assert never.failures == pytest.approx(none.failures, rel=1e-12)
