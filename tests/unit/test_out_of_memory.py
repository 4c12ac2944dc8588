"""A run that ran out of memory moves P(fits) of its cluster and family of models, and of no other."""

from __future__ import annotations

import math
import sys
from functools import cache
from typing import TYPE_CHECKING, Any

import pytest

from autodeploy.calibration.families import family_digest
from autodeploy.cli import main
from autodeploy.costs.prediction_spread import belief
from autodeploy.formats.measurements.measured_file import read_measured_text
from autodeploy.kit.errors import SpecError
from autodeploy.kit.settings import load_settings
from autodeploy.search import planner
from autodeploy.service.clusters.calibration import StoredRun, calibrate_cluster, reestimated
from autodeploy.service.clusters.overlays import check_run, stage_of
from autodeploy.service.session import open_services
from autodeploy.specs.measured_run import MeasuredRun, OutOfMemory
from autodeploy.specs.presets import load_preset
from autodeploy.specs.reading import read_spec_file
from autodeploy.specs.spec import Spec, parse_spec
from hardware_profiles import load_profile
from hardware_profiles.evidence import MemorySeen

if TYPE_CHECKING:
    from pathlib import Path

    from autodeploy.specs.planset import Plan, PlanSet

# The line as torch_npu prints it, with the sizes of a card of 61 GiB.
NPU = (
    "[rank5]: RuntimeError: NPU out of memory. Tried to allocate 2.00 GiB (NPU 5; 60.97 GiB total capacity; 55.89 GiB "
    "already allocated; 55.89 GiB current active; 1.50 GiB free; 57.94 GiB reserved in total by PyTorch) If reserved "
    "memory is >> allocated memory try setting max_split_size_mb to avoid fragmentation.\n"
)
CUDA = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of 79.15 GiB "
    "of which 3.25 MiB is free. Of the allocated memory 70.00 GiB is allocated by PyTorch\n"
)
A2, A3 = "ascend-800t-a2", "cloudmatrix-384"
FEW_EXPERTS: dict[str, list[Any]] = {"vpp": [1], "cp": [1], "ep": [8], "schedule": ["1f1b"]}
CASES: dict[str, tuple[str, str, int, int, int, dict[str, list[Any]]]] = {
    "dense": ("llama2-7b", A2, 8, 4096, 32, {"tp": [1], "pp": [2], "vpp": [1, 6, 8], "cp": [1]}),
    "long": (
        "llama3.1-8b",
        A2,
        16,
        16384,
        32,
        {"tp": [1], "pp": [2], "vpp": [1], "cp": [2, 4], "micro_batch_size": [1]},
    ),
    "experts": ("mixtral-8x7b", A2, 32, 4096, 128, {"tp": [1], "pp": [2, 4], **FEW_EXPERTS, "micro_batch_size": [1]}),
    "mla": (
        "deepseek-v2-lite",
        A3,
        16,
        4096,
        256,
        {"tp": [1], "pp": [1, 2], **FEW_EXPERTS, "micro_batch_size": [1, 2]},
    ),
}


def spec_of(case: str) -> Spec:
    model, profile, npus, seq_length, batch, few = CASES[case]
    return parse_spec(
        {
            "model": model,
            "cluster": {"profile": profile, "num_npus": npus},
            "training": {"seq_length": seq_length, "global_batch_size": batch},
            "search": {"effort": 0.02, "top_k": 3, "allow": few},
        }
    )


@cache
def searched(case: str) -> PlanSet:
    return planner.plan(spec_of(case), alone=True)


def run_of(case: str, **measured: Any) -> StoredRun:
    found = searched(case)
    spec = Spec.model_validate(found.search.spec)
    return StoredRun("run", spec, found.plans[0], MeasuredRun.model_validate(measured))


def overlaid(spec: Spec, *runs: StoredRun) -> Spec:
    overlay, _ = calibrate_cluster("hall", list(runs), planner)
    return spec.model_copy(update={"cluster": spec.cluster.model_copy(update={"overlay": overlay})})


FLOOR = 0.75  # of `search.risk`


def told(plan: Plan) -> tuple[object, ...]:
    return plan.strategy, plan.step_time_s, plan.peak_memory_gib, plan.p_fits, plan.memory_interval


@pytest.mark.parametrize("case", ["long", "mla"])  # of each cluster
def test_the_recommended_plan_ran_out_of_memory(case: str) -> None:
    first = searched(case).plans[0]
    assert first.p_fits is not None
    assert first.p_fits >= FLOOR
    under = overlaid(spec_of(case), run_of(case, out_of_memory={}))
    after = planner.plan(under, alone=True)
    instead = after.plans[0]
    assert instead.strategy != first.strategy
    assert instead.p_fits is not None
    assert instead.p_fits >= FLOOR
    assert instead.peak_memory_gib < first.peak_memory_gib
    again = planner.reestimate(under, first)
    assert again.p_fits == pytest.approx(0.0, abs=1e-4)
    assert again.memory_interval is not None
    assert again.memory_interval.low_gib >= first.memory_limit_gib
    assert again.step_time_s == first.step_time_s


@pytest.mark.parametrize("case", ["dense", "mla"])  # one plan of three still fits
def test_stored_plans_that_no_longer_fit_come_last(case: str) -> None:
    run = run_of(case, out_of_memory={})
    overlay, _ = calibrate_cluster("hall", [run], planner)
    rows = reestimated("s", run.spec, searched(case).plans, overlay, planner)
    ranks = {row["plan_id"]: row["rank"] for row in rows}
    under = overlaid(run.spec, run)
    fits = {plan.plan_id: planner.reestimate(under, plan).p_fits or 0.0 for plan in searched(case).plans}
    assert fits[run.plan.plan_id] == pytest.approx(0.0, abs=1e-4)
    fitting = [ranks[plan] for plan, share in fits.items() if share >= FLOOR]
    gone = [ranks[plan] for plan, share in fits.items() if share < FLOOR]
    assert fitting
    assert max(fitting) < min(gone)


def test_other_families_of_models_do_not_follow() -> None:
    elsewhere = planner.plan(overlaid(spec_of("long"), run_of("dense", out_of_memory={})), alone=True)
    assert [told(plan) for plan in elsewhere.plans] == [told(plan) for plan in searched("long").plans]
    families = {family_digest(load_preset(CASES[case][0])) for case in CASES}
    assert len(families) == len(CASES)


def test_other_clusters_do_not_follow(tmp_path: Path) -> None:
    def named(name: str) -> Spec:
        document = spec_of("dense").model_dump(mode="json", exclude_unset=True)
        document["search"]["top_k"] = 1
        return parse_spec({**document, "cluster": {**document["cluster"], "name": name}})

    settings = load_settings(database_url=f"sqlite:///{tmp_path / 'halls.db'}")
    with open_services(settings) as services:
        here = services.searches.plan_and_store(named("hall"))
        outcome = services.add_run(here.plans[0].plan_id, MeasuredRun.model_validate({"out_of_memory": {}}))
        assert outcome.cluster is not None
        assert outcome.cluster.cluster == "hall"
        again, moved = (services.searches.plan_and_store(named(name)) for name in ("yard", "hall"))
    assert [told(plan) for plan in again.plans] == [told(plan) for plan in here.plans]
    assert moved.plans[0].strategy != here.plans[0].strategy


def test_a_timed_run_narrows_the_intervals_of_its_family() -> None:
    plan, spec = searched("mla").plans[0], spec_of("mla")
    on = overlaid(spec, run_of("mla", step_time_s=plan.step_time_s))
    assert isinstance(on.cluster.overlay, dict)
    assert on.cluster.overlay["evidence"]["timed"] == [family_digest(spec.model)]
    now = planner.reestimate(on, plan).uncertainty
    assert "device family" in plan.uncertainty.extrapolated
    assert "device family" not in now.extrapolated
    assert now.high_s / now.low_s < plan.uncertainty.high_s / plan.uncertainty.low_s
    elsewhere = overlaid(spec_of("dense"), run_of("long", step_time_s=searched("long").plans[0].step_time_s))
    assert now.basis.startswith("runs of this cluster; ")
    assert not planner.reestimate(elsewhere, searched("dense").plans[0]).uncertainty.basis.startswith("runs of")


def test_an_overlay_names_no_model() -> None:
    overlay, _ = calibrate_cluster("hall", [run_of("mla", out_of_memory={})], planner)
    assert set(overlay) == {"profile", "evidence", "report"}
    assert "deepseek" not in str(overlay)
    assert load_profile(A3, overlay=overlay).content_hash != load_profile(A3).content_hash


def test_a_measured_peak_takes_back_what_a_failure_suggested() -> None:
    plan, spec = searched("dense").plans[0], spec_of("dense")
    failed = planner.reestimate(overlaid(spec, run_of("long", out_of_memory={})), plan)
    assert failed.p_fits == plan.p_fits
    low = planner.reestimate(overlaid(spec, run_of("dense", peak_memory_gib=0.95 * plan.allocator_peak_gib)), plan)
    assert low.p_fits is not None
    assert plan.p_fits is not None
    assert low.p_fits >= plan.p_fits
    assert low.memory_interval is not None
    assert plan.memory_interval is not None
    assert low.memory_interval.high_gib < plan.memory_interval.high_gib


def test_a_run_outside_its_interval_widens_it() -> None:
    plan, spec = searched("dense").plans[0], spec_of("dense")

    def scale(step_s: float) -> float:
        section = overlaid(spec, run_of("dense", step_time_s=step_s)).cluster.overlay
        assert isinstance(section, dict)
        return float(section.get("evidence", {}).get("time_scale", 1.0))

    assert scale(plan.step_time_s) == 1.0
    assert 1.0 < scale(1.2 * plan.uncertainty.high_s) < scale(1.5 * plan.uncertainty.high_s)
    wide = {"profile": A2, "evidence": {"memory": [], "time_scale": 1.5}}
    on = spec.model_copy(update={"cluster": spec.cluster.model_copy(update={"overlay": wide})})
    told_now = planner.reestimate(on, plan).uncertainty
    before = math.log(plan.uncertainty.high_s / plan.uncertainty.low_s)
    assert math.log(told_now.high_s / told_now.low_s) == pytest.approx(1.5 * before)


def test_the_lines_of_the_frameworks() -> None:
    (npu,) = read_measured_text("starting\n" + NPU)
    assert npu.source == "out_of_memory"
    assert npu.out_of_memory == OutOfMemory(
        asked_gib=2.0, allocated_gib=55.89, free_gib=1.5, reserved_gib=57.94, capacity_gib=60.97, rank=5
    )
    (cuda,) = read_measured_text(CUDA)
    assert cuda.out_of_memory is not None
    assert cuda.out_of_memory.asked_gib == pytest.approx(20.0 / 1024)
    assert (cuda.out_of_memory.capacity_gib, cuda.out_of_memory.allocated_gib) == (79.15, 70.0)
    log = " iteration 1/ 9 | elapsed time per iteration (ms): 3100.0 | global batch size: 32 |\n" + NPU
    (both,) = read_measured_text(log)
    assert both.step_time_s == pytest.approx(3.1)
    assert both.out_of_memory == npu.out_of_memory


@pytest.mark.parametrize(
    "bad",
    [
        "NPU out of memory. Tried to allocate lots",
        "NPU out of memory. Tried to allocate 1.2.3 GiB",
        "NPU out of memory. Tried to allocate 0.00 GiB",
        "NPU out of memory. Tried to allocate 99999999999999999999 TiB",
        "NPU out of memory. Tried to allocate 9999999 TiB (NPU 0; 1.00 GiB total capacity",
        NPU.replace("60.97", "6.0.97"),
        NPU.replace("55.89", "9999999999"),
        NPU.replace("[rank5]", "[rank5]:\0"),
        "x" * 30_000 + NPU,
        NPU.replace("2.00 GiB", "nan GiB"),
    ],
)
def test_hostile_lines_are_refused_with_their_line(bad: str) -> None:
    with pytest.raises(SpecError, match="line 2"):
        read_measured_text("first\n" + bad)


def test_reports_that_can_not_be_of_the_plan() -> None:
    run = run_of("dense", out_of_memory={})
    for met, path in (
        ({"rank": 8}, "/out_of_memory/rank"),
        ({"stage": 7}, "/out_of_memory/stage"),
        ({"asked_gib": 0.25, "reserved_gib": 10.28}, "/out_of_memory/reserved_gib"),
    ):
        with pytest.raises(SpecError) as caught:
            check_run(MeasuredRun.model_validate({"out_of_memory": met}), run.spec, run.plan)
        assert [each.path for each in caught.value.errors] == [path]
    assert run.plan.strategy.pp == 2
    assert stage_of(OutOfMemory(rank=5), run.plan, 8) == 1
    assert stage_of(OutOfMemory(rank=3), run.plan, 8) == 0


def seen(log_ratio: float, configuration: str = "0" * 16, *, at_least: bool = True) -> MemorySeen:
    return MemorySeen(family="f" * 16, configuration=configuration, log_ratio=log_ratio, at_least=at_least)


def test_of_a_single_bound_the_posterior_is_the_truncated_normal() -> None:
    """x of the configuration itself given x > c: 1 - Q(x / s) / Q(c / s), whatever part of x is shared."""
    sigma, at = 0.06, 0.06
    own = belief((seen(at),), "0" * 16, sigma, 10**9)
    for x in (0.07, 0.1, 0.15):
        expected = 1.0 - math.erfc(x / sigma / math.sqrt(2)) / math.erfc(at / sigma / math.sqrt(2))
        assert own.at_most(x) == pytest.approx(expected, abs=1e-6)
        assert own.at_most(own.quantile(expected)) == pytest.approx(expected, abs=1e-6)
    # Of others the shared part alone: mean of b is half the truncated normal's, sigma h(1) / 2 with h(1) = 1.5251.
    other = belief((seen(at),), "1" * 16, sigma, 10**9)
    assert float(other.weights @ other.shared) == pytest.approx(0.5 * sigma * 1.52514, rel=1e-4)


def test_more_evidence_makes_plans_less_likely_to_fit() -> None:
    chances = [belief((seen(c),), "1" * 16, 0.06, 33).at_most(0.08) for c in (-0.1, 0.0, 0.05, 0.1, 0.3)]
    assert chances == sorted(chances, reverse=True)
    far = belief((seen(2.5),), "1" * 16, 0.06, 33)
    assert 0.0 <= far.at_most(0.0) < 1e-3
    assert far.omega > belief((seen(0.05),), "1" * 16, 0.06, 33).omega


def test_the_command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    monkeypatch.setenv("AUTODEPLOY_DATABASE_URL", f"sqlite:///{tmp_path / 'runs.db'}")
    file = tmp_path / "spec.yaml"
    file.write_text(
        "model: llama2-7b\ncluster: {profile: ascend-800t-a2, num_npus: 8}\n"
        "training: {seq_length: 4096, global_batch_size: 32}\n"
        "search: {effort: fast, top_k: 1, risk: neutral, fix: {tp: 1, pp: 2, vpp: 1, cp: 1}}\n"
    )
    with open_services(load_settings()) as services:
        plan_id = services.searches.plan_and_store(read_spec_file(file)).plans[0].plan_id

    def command(*arguments: str, code: int = 0) -> str:
        monkeypatch.setattr(sys, "argv", ["autodeploy", "runs", "add", plan_id, *arguments])
        with pytest.raises(SystemExit) as caught:
            main.run()
        said = capsys.readouterr()
        assert caught.value.code == code, said.err
        return said.err if code else said.out

    assert "--oom" in command(code=2)
    assert "ran out of memory" in command("--oom", "--stage", "0", "--asked", "2", "--allocated", "57")
    assert "显存不足" in command("--oom", "--lang", "zh")
