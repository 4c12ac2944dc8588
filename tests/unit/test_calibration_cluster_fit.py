"""One cluster's overlay from few runs, and benchmarks as measured efficiencies."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
import pytest

from autodeploy.analysis.trace_comparison import predicted_parts
from autodeploy.calibration.benchmarks import collective_overlay, collective_s, gemm_overlay
from autodeploy.calibration.cluster_fit import (
    ClusterFit,
    ClusterRun,
    Overlay,
    Scenario,
    cluster_parameters,
    fit_cluster,
    overlay_with,
)
from autodeploy.calibration.fit import NUISANCES, UNFITTED, differences
from autodeploy.calibration.overlays import covariance_of
from autodeploy.costs.inputs.machine import Machine, machine_of
from autodeploy.search.planner import breakdowns_in, estimate, profile_hash
from autodeploy.search.ranking.uncertainty import parameter_variance
from autodeploy.service.clusters.calibration import benchmark_overlay
from autodeploy.specs.measured_run import CollectivePoint, GemmPoint, MeasuredRun
from autodeploy.specs.spec import Spec, parse_spec
from cost_models.compute import gemm_s
from hardware_profiles import apply_overlay, cluster_topology, list_profiles, load_profile
from hardware_profiles.errors import ProfileError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autodeploy.calibration.fit import FitParameter
    from autodeploy.specs.planset import Breakdown, Plan
    from cost_models.arrays import Floats

NAME = "ascend-800t-a2"


@cache
def spec(tp: int = 8) -> Spec:
    return parse_spec(
        {
            "model": "llama2-70b",
            "cluster": {"profile": NAME, "num_npus": 32},
            "training": {"seq_length": 4096, "global_batch_size": 256},
            "strategy": {"tp": tp, "pp": 2, "micro_batch_size": 1, "recompute": {"granularity": "full"}},
        }
    )


@cache
def planned(tp: int) -> Plan:
    return estimate(spec(tp))


def step_s(tp: int, overlay: Overlay) -> float:
    """As the service asks for it: the step time alone."""
    return on_cluster(spec(tp), planned(tp), overlay).step_time_s


def on_cluster(of: Spec, plan: Plan, overlay: Overlay) -> Breakdown:
    return breakdowns_in(under(of, overlay), plan, (), [{}])[0]


def under(of: Spec, overlay: Overlay) -> Spec:
    return of.model_copy(update={"cluster": of.cluster.model_copy(update={"overlay": overlay})})


def run(factor: float, tp: int = 8, truth: Overlay | None = None) -> ClusterRun:
    def moved(overlay: Overlay, numbers: Sequence[FitParameter], worlds: Sequence[Scenario]) -> list[dict[str, float]]:
        parts = breakdowns_in(under(spec(tp), overlay), planned(tp), numbers, worlds)
        return [{"step": each.step_time_s} for each in parts]

    seconds = factor * step_s(tp, truth or {"profile": NAME})
    return ClusterRun(str(tp), str(tp), seconds, 0.0, moved)


@cache
def fitted_to_one_run(factor: float) -> ClusterFit:
    """The shipped profile fitted to one run that took so much longer than predicted."""
    return fit_cluster(load_profile(NAME), [run(factor)], {"profile": NAME}, "one run")


def machine() -> Machine:
    profile = load_profile(NAME)
    return machine_of(profile, profile.device(), cluster_topology(profile, num_npus=8), precision="bf16")


@pytest.mark.parametrize("factor", [0.85, 1.0, 1.2])
def test_one_run_moves_the_prediction_most_of_the_way(factor: float) -> None:
    found = fitted_to_one_run(factor)
    assert found.before[0] == pytest.approx(-math.log(factor), abs=1e-9)
    assert abs(found.after[0]) <= 0.27 * abs(found.before[0]) + 1e-6
    assert step_s(8, found.overlay) == pytest.approx(math.exp(found.after[0]) * run(factor).measured_s)
    assert apply_overlay(load_profile(NAME), found.overlay).quantity("release_factors.current").kind == "fitted"


def test_slopes_of_all_factors_together_are_those_of_one_after_the_other() -> None:
    """But for the digits of an overlay's numbers, which are rounded."""
    together, one, profile = fitted_to_one_run(1.2).fit, run(1.2), load_profile(NAME)

    @differences
    def linear(log_factors: Floats) -> Floats:
        moved = ((p, value, 0.0) for p, value in zip(together.parameters, log_factors, strict=True))
        overlay = overlay_with(profile, {"profile": NAME}, moved, "one run")
        return np.log([sum(one.predict(overlay, (), [{}])[0].values()) / one.measured_s])

    assert together.jacobian == pytest.approx(linear(together.log_factors)[1], abs=2e-3)


def test_what_a_run_does_not_use_stays_as_shipped() -> None:
    factors = fitted_to_one_run(1.2).fit.factors()
    assert factors["experts"] == pytest.approx(1.0, abs=1e-12) == factors["permute"]
    assert factors["software"] > 1.0
    assert factors["gemm"] < 1.0


def test_a_slow_network_is_told_from_slow_cards_by_two_runs() -> None:
    truth: Overlay = {"profile": NAME, "hccs": {"efficiency": 0.6 * load_profile(NAME).tier("hccs").efficiency}}
    runs = [run(1.0, tp, truth) for tp in (8, 1)]
    found = fit_cluster(load_profile(NAME), runs, {"profile": NAME}, "two runs")
    factors = found.fit.factors()
    assert factors["link_hccs"] < 0.8
    assert factors["gemm"] > 0.95
    assert np.abs(found.after).max() < 0.5 * np.abs(found.before).max()
    assert np.isfinite(found.left_out).all()


def parts_s(tp: int, overlay: Overlay) -> dict[str, float]:
    return predicted_parts(on_cluster(spec(tp), planned(tp), overlay))


def profiled(truth: Overlay, slower: float = 1.0) -> ClusterRun:
    """A run whose parts a profiler told apart."""
    parts = {name: slower * seconds for name, seconds in parts_s(8, truth).items()}

    def moved(overlay: Overlay, numbers: Sequence[FitParameter], worlds: Sequence[Scenario]) -> list[dict[str, float]]:
        found = breakdowns_in(under(spec(), overlay), planned(8), numbers, worlds)
        return [predicted_parts(each) for each in found]

    seconds = sum(parts.values())
    return ClusterRun("trace", "8", seconds, 0.05, moved, parts)


def test_a_profiled_step_tells_a_slow_network_from_slow_cards() -> None:
    truth: Overlay = {"profile": NAME, "hccs": {"efficiency": 0.6 * load_profile(NAME).tier("hccs").efficiency}}
    whole = fit_cluster(load_profile(NAME), [run(1.0, 8, truth)], {"profile": NAME}, "a log")
    split = fit_cluster(load_profile(NAME), [run(1.0, 8, truth), profiled(truth)], {"profile": NAME}, "log and trace")
    off = {
        name: abs(math.log(found.fit.factors()["link_hccs"] / 0.6)) for name, found in (("log", whole), ("both", split))
    }
    assert off["both"] < 0.5 * off["log"]
    assert split.fit.factors()["gemm"] > whole.fit.factors()["gemm"]
    assert len(split.before) == len(split.after) == len(split.left_out) == 2


def test_a_step_and_its_parts_count_once() -> None:
    plain: Overlay = {"profile": NAME}
    trace = profiled(plain, 1.15)
    alone = fit_cluster(load_profile(NAME), [trace], plain, "a trace")
    whole = fit_cluster(load_profile(NAME), [replace(trace, parts={})], plain, "its step")
    assert alone.fit.weights[0] == 0.0
    assert whole.fit.weights[0] == pytest.approx(1.0 / np.hypot(0.06, trace.spread) ** 2)
    assert alone.after[0] == pytest.approx(whole.after[0], abs=0.03)


def test_a_trace_beside_its_log_says_how_the_step_splits_and_not_how_long_it_takes() -> None:
    plain: Overlay = {"profile": NAME}
    slowed = fit_cluster(load_profile(NAME), [run(1.0), profiled(plain, 1.05)], plain, "log and slow trace")
    exact = fit_cluster(load_profile(NAME), [run(1.0), profiled(plain)], plain, "log and trace")
    assert slowed.fit.log_factors == pytest.approx(exact.fit.log_factors, abs=1e-9)
    assert slowed.after[0] == pytest.approx(0.0, abs=1e-9)
    assert slowed.after[1] == pytest.approx(-math.log(1.05), abs=1e-9)


def test_a_cluster_near_the_peak_of_its_cards_moves_what_can_move() -> None:
    found = fit_cluster(load_profile("cloudmatrix-384"), [_a3_run(0.75)], {"profile": "cloudmatrix-384"}, "one run")
    peak = load_profile("cloudmatrix-384").efficiency["gemm_peak_fraction"]
    assert found.fit.factors()["gemm"] == pytest.approx(1.0 / peak, rel=1e-3)
    assert abs(found.after[0]) <= 0.27 * abs(found.before[0])


def _a3_run(factor: float) -> ClusterRun:
    of = parse_spec(
        {
            "model": "llama3.1-70b",
            "cluster": {"profile": "cloudmatrix-384", "num_npus": 16, "overlay": "none"},
            "training": {"seq_length": 4096, "global_batch_size": 256},
            "strategy": {"tp": 4, "pp": 2, "micro_batch_size": 1, "recompute": {"granularity": "full"}},
        }
    )
    plan = estimate(of)

    def moved(overlay: Overlay, numbers: Sequence[FitParameter], worlds: Sequence[Scenario]) -> list[dict[str, float]]:
        return [predicted_parts(each) for each in breakdowns_in(under(of, overlay), plan, numbers, worlds)]

    seconds = factor * plan.step_time_s
    return ClusterRun("a3", "a3", seconds, 0.0, moved)


def test_one_outlier_among_three_configurations_hardly_counts() -> None:
    plain: Overlay = {"profile": NAME}
    even = [run(1.0, tp) for tp in (8, 4, 2)]
    wrong = [*even[:2], replace(even[2], measured_s=2.0 * even[2].measured_s)]
    found = fit_cluster(load_profile(NAME), wrong, plain, "three runs")
    assert abs(found.after[0]) < 0.05
    assert abs(found.after[1]) < 0.05


def test_what_a_benchmark_measured_no_run_moves() -> None:
    pinned: Overlay = {"profile": NAME, "hccs": {"efficiency": {"value": 0.5, "kind": "measured"}}}
    names = {p.name for p in cluster_parameters(load_profile(NAME), pinned)}
    assert "link_hccs" not in names
    assert {"gemm", "link_scale_out", "software"} <= names
    base = load_profile(NAME, overlay=pinned)
    found = fit_cluster(base, [run(1.2)], pinned, "one run")
    assert found.overlay["hccs"] == pinned["hccs"]


@pytest.mark.parametrize("name", list_profiles())
def test_every_profile_has_parameters_for_its_clusters(name: str) -> None:
    profile = load_profile(name)
    parameters = cluster_parameters(profile, {"profile": name})
    assert {f"link_{tier.name}" for tier in profile.tiers} < {p.name for p in parameters}
    assert len([p for p in parameters if p not in NUISANCES]) <= 10


def test_a_hidden_gemm_curve_is_found() -> None:
    profile, rates = load_profile(NAME), machine().rates
    hidden = {"gemm_peak_fraction": 0.80, "gemm_k_half": 700.0, "gemm_mn_half": 25.0}
    truth = apply_overlay(profile, {"profile": NAME, "efficiency": hidden})
    true_rates = machine_of(truth, truth.device(), cluster_topology(truth, num_npus=8), precision="bf16").rates
    shapes = [(m, n, k) for m in (512, 2048, 8192) for n in (1024, 8192) for k in (512, 1024, 4096, 16384)]
    points = [GemmPoint(m=m, n=n, k=k, seconds=float(gemm_s(m, n, k, true_rates))) for m, n, k in shapes]
    overlay = gemm_overlay(profile, rates, points, "GEMM benchmark")
    measured = apply_overlay(profile, overlay)
    for name, value in hidden.items():
        # Narrow matrices are bound by memory in part, so the prior holds their term back a little.
        tolerance = 0.10 if name == "gemm_mn_half" else 0.05
        assert measured.efficiency[name] == pytest.approx(value, rel=tolerance), name
    quantity = measured.quantity("efficiency.gemm_k_half")
    assert quantity.kind == "measured"
    assert quantity.measured_over == {"m": (512, 8192), "n": (1024, 8192), "k": (512, 16384)}


def test_one_shape_is_enough_to_begin_with() -> None:
    profile = load_profile(NAME)
    exact = float(gemm_s(4096, 4096, 4096, machine().rates))
    overlay = gemm_overlay(profile, machine().rates, [GemmPoint(m=4096, n=4096, k=4096, seconds=1.1 * exact)], "one")
    assert 0.88 < overlay["efficiency"]["gemm_peak_fraction"]["value"] / profile.efficiency["gemm_peak_fraction"] < 1.0


@pytest.mark.parametrize("op", ["all_gather", "reduce_scatter", "all_reduce", "all_to_all"])
def test_a_hidden_link_rate_is_found_on_each_tier_that_was_crossed(op: str) -> None:
    profile = load_profile(NAME)
    hidden = {"profile": NAME, "hccs": {"efficiency": 0.40}, "scale_out": {"efficiency": 0.55}}
    truth = apply_overlay(profile, hidden)
    true = machine_of(truth, truth.device(), cluster_topology(truth, num_npus=32), precision="bf16")
    points = []
    for ranks in (8, 32):
        for size in (2**20, 2**26, 2**30):
            point = CollectivePoint(op=op, ranks=ranks, message_bytes=size, seconds=1.0)
            seconds = collective_s(op, size, true.group(1, ranks), true)
            points.append(point.model_copy(update={"seconds": seconds}))
    measured = apply_overlay(profile, collective_overlay(profile, machine(), points, "hccl_test"))
    assert measured.tier("hccs").efficiency == pytest.approx(0.40, rel=0.05)
    assert measured.tier("scale_out").efficiency == pytest.approx(0.55, rel=0.05)
    assert measured.quantity("hccs.efficiency").measured_over == {"ranks": (8, 32), "bytes": (2**20, 2**30)}
    inside = collective_overlay(profile, machine(), points[:3], "hccl_test")
    assert "scale_out" not in inside


def test_benchmarks_alone_make_an_overlay() -> None:
    gemm = MeasuredRun(source="gemm_benchmark", gemm=(GemmPoint(m=4096, n=4096, k=4096, seconds=5e-4),))
    overlay = benchmark_overlay(load_profile(NAME), [gemm])
    assert set(overlay) == {"profile", "efficiency"}
    plain = spec().cluster
    assert profile_hash(plain) != profile_hash(plain.model_copy(update={"overlay": overlay}))


def test_an_overlay_says_how_well_its_runs_know_the_factors() -> None:
    shipped = load_profile(NAME)
    none, two_runs = (
        fit_cluster(shipped, runs, {"profile": NAME}, "its runs") for runs in ([], [run(1.2, tp) for tp in (8, 1)])
    )
    fits = (none, fitted_to_one_run(1.2), two_runs)
    covariances = [covariance_of(apply_overlay(shipped, fit.overlay)) for fit in fits]
    names = [factor.name for factor in covariances[0].factors]
    assert names == [p.name for p in (*cluster_parameters(shipped, {"profile": NAME}), *UNFITTED[len(NUISANCES) :])]
    assert covariances[0].in_residuals == pytest.approx(0.10**2)
    before, one, two = (covariance.matrix() for covariance in covariances)
    assert before == pytest.approx(np.diag(np.diag(before)))
    at = names.index("software")
    assert two[at, at] < one[at, at] < before[at, at]
    # Plans of a cluster that ran nothing are as uncertain as the class: its software is in others' residuals already.
    of_software = np.eye(len(names))[at]
    assert parameter_variance(covariances[0], of_software) == 0.0


def test_a_covariance_that_is_none_is_refused() -> None:
    good = fit_cluster(load_profile(NAME), [], {"profile": NAME}, "no run").overlay
    rows = good["covariance"]["log_covariance"]
    for bad, message in (
        ([*rows[:-1], rows[-1][:-1]], "lower triangle"),
        ([[-0.1], *rows[1:]], "is outside"),
        ([rows[0], [0.9, *rows[1][1:]], *rows[2:]], "correlation above 1"),
    ):
        overlay = {**good, "covariance": {**good["covariance"], "log_covariance": bad}}
        with pytest.raises(ProfileError, match=message) as caught:
            apply_overlay(load_profile(NAME), overlay)
        assert caught.value.problems[0].path.startswith("/covariance")
