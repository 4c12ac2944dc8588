"""The fit of efficiencies: known factors come back, outliers and empty data move nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from autodeploy.calibration.fit import FitParameter, differences, fit, left_out_residuals, limits_of, values_of

if TYPE_CHECKING:
    from cost_models.arrays import Floats

PARAMETERS = (
    FitParameter("compute", ("gemm_peak_fraction",), 0.3, "rate of matrix multiplications"),
    FitParameter("links", ("link_a", "link_b"), 0.3, "rate of collectives"),
)
TRUTH = {"compute": 0.8, "links": 1.25}
RUNS = 24


def parts() -> tuple[Floats, Floats]:
    """Seconds of computation and communication of each run at factors of one."""
    draw = np.random.default_rng(3)
    compute = draw.uniform(1.0, 20.0, RUNS)
    return compute, compute * draw.uniform(0.05, 1.5, RUNS)


def step_s(log_factors: Floats) -> Floats:
    compute, links = parts()
    return np.asarray(compute / np.exp(log_factors[0]) + links / np.exp(log_factors[1]))


def measured_s() -> Floats:
    return step_s(np.log([TRUTH["compute"], TRUTH["links"]]))


def residuals_against(measured: Floats):  # type: ignore[no-untyped-def]
    return lambda log_factors: np.log(step_s(log_factors) / measured)


SIGMA = np.full(RUNS, 0.02)


def test_known_factors_come_back() -> None:
    found = fit(PARAMETERS, differences(residuals_against(measured_s())), SIGMA)
    assert found.factors() == pytest.approx(TRUTH, rel=0.01)
    assert np.abs(found.residuals).max() < 0.005
    assert (np.sqrt(np.diag(found.covariance)) < [p.prior_sigma for p in PARAMETERS]).all()


def test_the_prior_holds_what_the_runs_do_not_say() -> None:
    # Without communication in any run the links' factor stays where the prior has it, with the prior's spread.
    compute, _ = parts()
    found = fit(PARAMETERS, differences(lambda t: np.log(compute / np.exp(t[0]) / (compute / 0.8))), SIGMA)
    assert found.factors() == pytest.approx({"compute": 0.8, "links": 1.0}, rel=0.01)
    assert np.sqrt(found.covariance[1, 1]) == pytest.approx(0.3)


def test_one_mislabelled_run_does_not_move_the_fit() -> None:
    measured = measured_s()
    measured[5] *= 3.0
    found = fit(PARAMETERS, differences(residuals_against(measured)), SIGMA)
    assert found.factors() == pytest.approx(TRUTH, rel=0.02)
    assert found.weights[5] < 0.01 * np.median(found.weights)
    least_squares = np.exp(np.mean(residuals_against(measured)(np.log(list(TRUTH.values())))))
    assert least_squares < 0.97, "without robust weights the run would have moved the fit"


def test_without_runs_the_priors_stand() -> None:
    found = fit(PARAMETERS, differences(lambda _: np.zeros(0)), np.zeros(0))
    assert found.factors() == {"compute": 1.0, "links": 1.0}
    assert np.diag(found.covariance) == pytest.approx([0.09, 0.09])


def test_equal_fits_are_equal() -> None:
    first, second = (fit(PARAMETERS, differences(residuals_against(measured_s())), SIGMA) for _ in range(2))
    assert np.array_equal(first.log_factors, second.log_factors)
    assert np.array_equal(first.covariance, second.covariance)


def test_left_out_runs_are_predicted_by_the_others() -> None:
    # A family 10 % off the rest pulls the fit towards itself; predicted without it, it is farther off.
    measured = measured_s()
    groups = ["other" if run % 4 == 0 else "most" for run in range(RUNS)]
    odd = np.array([group == "other" for group in groups])
    measured[odd] *= 1.1
    found = fit(PARAMETERS, differences(residuals_against(measured)), np.full(RUNS, 0.1))
    left_out = left_out_residuals(found, groups)
    assert (np.abs(left_out[odd]) > np.abs(found.residuals[odd])).all()
    assert left_out[odd].mean() == pytest.approx(np.log(1 / 1.1), abs=0.01)
    others = differences(lambda t: residuals_against(measured)(t)[~odd])
    rest = fit(PARAMETERS, others, np.full(int((~odd).sum()), 0.1))
    assert left_out[odd] == pytest.approx(residuals_against(measured)(rest.log_factors)[odd], abs=0.005)


def test_values_under_factors_are_the_profiles_times_theirs() -> None:
    base = {"gemm_peak_fraction": 0.9, "hbm": 0.8, "link_a": 0.5}
    found = values_of(PARAMETERS, np.log([0.5, 2.0]), base)
    assert found == pytest.approx({"gemm_peak_fraction": 0.45, "hbm": 0.8, "link_a": 1.0, "link_b": 2.0})
    assert base["link_a"] == 0.5


def test_a_fraction_of_a_peak_stays_below_one() -> None:
    # Where the fit would raise it above, the overlay that ships could not follow.
    found = values_of(PARAMETERS, np.log([2.0, 2.0]), {"gemm_peak_fraction": 0.9, "link_a": 0.5})
    assert found["gemm_peak_fraction"] == 1.0
    assert found["link_a"] == 1.0


def test_a_fit_and_its_refits_stop_at_a_limit() -> None:
    measured = measured_s()
    free = fit(PARAMETERS, differences(residuals_against(measured)), np.full(RUNS, 0.1))
    limit = np.array([free.log_factors[0] - 0.05, np.inf])
    held = fit(PARAMETERS, differences(residuals_against(measured)), np.full(RUNS, 0.1), upper=limit)
    assert held.log_factors[0] == pytest.approx(limit[0])
    second = differences(lambda t: residuals_against(measured)(np.array([limit[0], *t])))
    fixed = fit(PARAMETERS[1:], second, np.full(RUNS, 0.1))
    assert held.log_factors[1] == pytest.approx(fixed.log_factors[0], abs=1e-3)
    groups = [str(run % 3) for run in range(RUNS)]
    assert not np.allclose(left_out_residuals(held, groups), left_out_residuals(free, groups), atol=1e-3)


def test_limits_are_those_of_fractions() -> None:
    base = {"gemm_peak_fraction": 0.5, "gemm_k_half": 100.0}
    found = limits_of(
        [FitParameter("a", ("gemm_peak_fraction",), 0.2, ""), FitParameter("b", ("link_x",), 0.2, "")], base
    )
    assert found == pytest.approx([np.log(2.0), np.inf])


@pytest.mark.parametrize("gap", [0.02, 0.4])
def test_a_prior_with_heavy_tails_lets_go_of_what_lies_far_off(gap: float) -> None:
    def left(degrees: float) -> float:
        parameter = FitParameter("software", ("release_current",), 0.1, "all of it", degrees=degrees)
        found = fit((parameter,), differences(lambda t: t[:1] - gap), np.array([0.06]), degrees=np.inf)
        return float(found.residuals[0])

    assert left(np.inf) == pytest.approx(-gap * 0.06**2 / (0.06**2 + 0.1**2), rel=1e-6)
    assert abs(left(4.0)) < 0.5 * abs(left(np.inf)) if gap > 0.1 else abs(left(4.0)) > abs(left(np.inf))
    # Of a Student distribution the pull is (n + 1) x / (n + x^2), in standard deviations.
    at = gap + left(4.0)
    assert 5.0 * (at / 0.1) / (4.0 + (at / 0.1) ** 2) / 0.1 == pytest.approx(-left(4.0) / 0.06**2, rel=2e-3)
