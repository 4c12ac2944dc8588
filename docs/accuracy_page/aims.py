"""What the predictions are held to, from fits made on the spot: each figure beside its aim.

Fits start from the shipped factors and see uncommitted changes of formulas, profiles and parameters. Refits without a
family, a source or a device are one weighted solve on the model linearised at the full fit.
"""

from __future__ import annotations

import math
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from autodeploy.calibration.families import family_of
from autodeploy.calibration.fit import ELSEWHERE, PARAMETERS, nuisances_of, values_of
from autodeploy.calibration.profile_fit import calibrate, configuration_of, fitted_together
from autodeploy.calibration.record_prediction import counts_for_time, fits_time, is_update_phase, predict_record
from autodeploy.calibration.shipped.tables import fitted_profiles
from autodeploy.specs.software import stack_of
from docs.accuracy_page.errors import carried_over, errors_of, layout_groups, residuals_at, runs_of
from docs.accuracy_page.refits import residuals_without
from docs.accuracy_page.sets import A100, ASCEND, H100
from docs.accuracy_page.splits import left_out_intervals
from hardware_profiles.loader import load_profile

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from autodeploy.calibration.profile_fit import Calibration
    from autodeploy.specs.record import Record
    from cost_models.arrays import Floats
    from docs.accuracy_page.errors import Errors
    from docs.accuracy_page.splits import Held
    from hardware_profiles.profile import Profile

ENOUGH_CONFIGURATIONS = 30  # configurations from which a share inside its interval is judged by itself
LEAST_P_VALUE = 0.10  # of a binomial test, for fewer
LARGE_GIB = 20.0
CONTRADICTED = ("ST_minicpm_2b_tp1_pp1", "ST104")  # by their own log or script
SERIES = "grok1"  # of one source, most of the rows with experts on H100
TAU = {"GPT-18.4B": (0.62, 0.045), "GPT-39.1B": (0.57, 0.0)}  # least tau and most regret


@dataclass(frozen=True, slots=True)
class Line:
    """One figure: what it is now, what it should be, and whether it is; None where it is told, not judged."""

    figure: str
    now: str
    aim: str
    met: bool | None = None

    def text(self) -> str:
        """As a line of the scoreboard."""
        verdict = {True: "met", False: "MISSED", None: "-"}[self.met]
        return f"{verdict:7}{self.figure:66} {self.now:46} {self.aim}"


def fits(records: Sequence[Record], iterations: int = 4) -> dict[str, Calibration]:
    """The fit of every fitted device around its shipped factors, two at a time."""
    used = [r for r in records if fits_time(r)]
    with ProcessPoolExecutor(max_workers=2) as pool:
        jobs = {name: pool.submit(_fit, used, name, iterations) for name in fitted_profiles()}
        return {name: job.result() for name, job in jobs.items()}


def _fit(records: Sequence[Record], name: str, iterations: int) -> Calibration:
    return calibrate(records, name, start=shipped_start(name), iterations=iterations)


def shipped_start(name: str) -> Floats:
    """Log factors of the shipped overlay on the profile's priors; 0 for a parameter that it does not know."""
    prior, shipped = load_profile(name, calibrated=False), load_profile(name)
    factors = []
    for parameter in (*PARAMETERS[prior.family], *nuisances_of(prior)):
        values = [_number(profile, parameter.multiplies[0]) for profile in (shipped, prior)]
        factors.append(math.log(values[0] / values[1]) if all(values) else 0.0)
    return np.array(factors)


def _number(profile: Profile, name: str) -> float:
    if name.startswith("link_"):
        return next((float(t.efficiency) for t in profile.tiers if t.name == name.removeprefix("link_")), 0.0)
    if name.startswith("release_"):
        return profile.release_factors.get(name.removeprefix("release_"), 1.0)
    if name in ELSEWHERE:
        return profile.quantity(ELSEWHERE[name]).value
    return profile.efficiency.get(name, 0.0)


def record_lines(records: Sequence[Record], fitted: Mapping[str, Calibration]) -> list[Line]:
    """Every figure that the records alone decide."""
    return [
        *expert_lines(records, fitted[ASCEND]),
        *h100_expert_lines(records, fitted[H100]),
        *memory_lines(records),
        *interval_lines(fitted.values()),
        *dense_lines(records, fitted),
        *series_lines(fitted[A100]),
    ]


def expert_lines(records: Sequence[Record], fitted: Calibration) -> list[Line]:
    """Experts on Ascend: pre-training left out, and what is told apart."""
    seen = [r.model.is_moe for r in fitted.records]
    inside = runs_of(fitted).of(seen)
    apart = apart_of(records, fitted.profile.name)
    other = residuals_of(apart, fitted)
    doubtful = [not is_update_phase(r) and r.model.is_moe for r in apart]
    twelve = errors_of(np.concatenate([inside.left_out, other[doubtful]]))
    sure, sample = errors_of(inside.left_out), errors_of(inside.in_sample)
    told = errors_of(other[[r.model.is_moe for r in apart]])
    each = ", ".join(f"{r.id} {100 * np.expm1(-x):+.0f} %" for r, x in zip(apart, other, strict=True) if r.model.is_moe)
    return [
        Line(
            f"experts on A2 and A3, {twelve.n} pre-training runs, left out: mean / p90",
            f"{_pc(twelve.mape)} / {_pc(twelve.p90_ape)}",
            "9 / 18 %",
            twelve.mape <= 0.09 and twelve.p90_ape <= 0.18,
        ),
        Line(
            f"  without those of low confidence, {sure.n} runs; in sample",
            f"{_pc(sure.mape)} / {_pc(sure.p90_ape)}; {_pc(sample.mape)} / {_pc(sample.p90_ape)}",
            "told",
        ),
        *(
            Line(f"    {r.id} ({r.model.name}): left out / in sample", f"{_sg(-a)} / {_sg(-b)}", "told")
            for r, a, b in zip(inside.records, inside.left_out, inside.in_sample, strict=True)
        ),
        Line("RL updates and low confidence, in no fit: median", _pc(told.median_ape), "25 %", told.median_ape <= 0.25),
        Line(f"  {each}", "", "told"),
    ]


def apart_of(records: Sequence[Record], name: str) -> list[Record]:
    """Timed records of a device and its kin that are in no fit."""
    group = fitted_together(name)
    return [r for r in records if r.cluster.profile in group and counts_for_time(r) and not fits_time(r)]


def residuals_of(records: Sequence[Record], fitted: Calibration) -> Floats:
    """log(predicted / measured) of records at a fit [records]."""
    group = fitted_together(fitted.profile.name)
    parameters, factors = fitted.fit.parameters, fitted.fit.log_factors
    values = {name: values_of(parameters, factors, each.efficiency) for name, each in group.items()}
    return np.array([residuals_at([r], values[r.cluster.profile])[0] for r in records], dtype=np.float64)


def h100_expert_lines(records: Sequence[Record], fitted: Calibration) -> list[Line]:
    """Experts on H100: the mean over models and number formats, with the series of one source left out and seen."""
    lines = []
    for (title, means), aim in zip(h100_groups(records, fitted).items(), (0.15, 0.08), strict=True):
        count = sum(each.n for each in means.values())
        mean = float(np.mean([e.mape for e in means.values()]))
        bias = float(np.mean([e.bias for e in means.values()]))
        lines.append(
            Line(
                f"experts on H100, {count} runs of {len(means)} models x precision, {title}: mean, bias",
                f"{_pc(mean)}, {_sg_error(bias)}",
                f"{100 * aim:.0f} %, +- 8 %",
                mean <= aim and abs(bias) <= 0.08,
            )
        )
        lines.append(Line("  " + "; ".join(f"{n} {_sg_error(e.bias)}" for n, e in means.items()), "", "told"))
    return lines


def h100_groups(records: Sequence[Record], fitted: Calibration) -> dict[str, dict[str, Errors]]:
    """Errors of each model in each number format: by a fit without the series of one source, and by the full fit."""
    apart = [r for r in apart_of(records, H100) if r.model.is_moe]
    other = residuals_of(apart, fitted)
    errors_by_group: dict[str, dict[str, Errors]] = {}
    for title, residuals in (
        (f"{SERIES} left out whole", residuals_without(fitted, lambda r: family_of(r) == SERIES)),
        ("in sample", fitted.fit.residuals),
    ):
        groups: dict[str, list[float]] = {}
        for record, residual in (*zip(fitted.records, residuals, strict=True), *zip(apart, other, strict=True)):
            if record.model.is_moe:
                groups.setdefault(_model_and_precision(record), []).append(float(residual))
        errors_by_group[title] = {name: errors_of(np.array(each)) for name, each in groups.items()}
    return errors_by_group


def _model_and_precision(record: Record) -> str:
    """A model, its copies of fewer layers with it, in a number format."""
    name = f"{family_of(record)} h{record.model.hidden_size} {record.training.precision}"
    return name if fits_time(record) else f"{name} (in no fit)"


def dense_lines(records: Sequence[Record], fitted: Mapping[str, Calibration]) -> list[Line]:
    """Dense runs: Ascend left out, H100 from a fit that has seen no run on it, A100 left out."""
    ascend = runs_of(fitted[ASCEND])
    dense = errors_of(ascend.of([not r.model.is_moe for r in ascend.records]).left_out)
    plain = [r for r in records if r.cluster.profile == H100 and fits_time(r) and not r.model.is_moe]
    carried = carried_over(fitted[A100], plain, H100).plain
    prior = errors_of(residuals_at(plain, load_profile(H100, calibrated=False).efficiency))
    torch = [r for r in apart_of(records, H100) if stack_of(r) == "torchtitan"]
    torch_error = errors_of(residuals_of(torch, fitted[H100]))
    return [
        Line(
            f"dense on Ascend, {dense.n} runs, left out: mean / p90",
            f"{_pc(dense.mape)} / {_pc(dense.p90_ape)}",
            "6 / 12 %",
            dense.mape <= 0.06 and dense.p90_ape <= 0.12,
        ),
        Line(
            f"dense on H100, {carried.n} runs, fit without any H100 record: median",
            f"{_pc(carried.median_ape)} (A100's factors), {_pc(prior.median_ape)} (priors)",
            "4 %",
            carried.median_ape <= 0.04,
        ),
        Line(
            f"torchtitan on H100, {torch_error.n} runs, in no fit: mean",
            _pc(torch_error.mape),
            "30 %",
            torch_error.mape <= 0.30,
        ),
    ]


def series_lines(fitted: Calibration) -> list[Line]:
    """A100, left out, and the order of its two series."""
    runs = runs_of(fitted)
    errors = errors_of(runs.left_out)
    lines = [
        Line(
            f"A100, {errors.n} runs, left out: mean / p90",
            f"{_pc(errors.mape)} / {_pc(errors.p90_ape)}",
            "6.8 / 14.9 %",
            round(errors.mape, 3) <= 0.068 and round(errors.p90_ape, 3) <= 0.149,
        )
    ]
    for group in layout_groups(runs):
        tau, regret = next(limits for name, limits in TAU.items() if group.name.startswith(name))
        met = round(group.tau, 2) >= tau and round(group.regret, 3) <= regret
        now = f"{group.tau:.2f}, {_pc(group.regret)}"
        lines.append(Line(f"{group.name}: tau, regret", now, f"{tau}, {_pc(regret)}", met))
    return lines


def memory_lines(records: Sequence[Record]) -> list[Line]:
    """Peaks of the framework's allocator on Ascend: nothing in memory is fitted."""
    peaks = ascend_peaks(records)
    sizes = np.array([abs(error) for _, _, error in peaks])
    large = np.array([abs(error) for _, peak, error in peaks if peak > LARGE_GIB])
    sound = np.array([error for r, peak, error in peaks if peak > LARGE_GIB and r.id not in CONTRADICTED])
    low = [(r.id, error) for r, _, error in peaks if error < -0.08]
    worst = sorted(peaks, key=lambda each: -abs(each[2]))[:8]
    p90 = [float(np.percentile(each, 90)) for each in (sizes, large)]
    return [
        Line(
            f"memory, {len(sizes)} rows on Ascend: mean / p90",
            f"{_pc(sizes.mean())} / {_pc(p90[0])}",
            "8 / 14 %",
            bool(sizes.mean() <= 0.08 and p90[0] <= 0.14),
        ),
        Line(
            f"  above {LARGE_GIB:.0f} GiB, {len(large)} rows: mean / p90",
            f"{_pc(large.mean())} / {_pc(p90[1])}",
            "5 / 9 %",
            bool(large.mean() <= 0.05 and p90[1] <= 0.09),
        ),
        Line(
            f"  above {LARGE_GIB:.0f} GiB, {len(sound)} rows that nothing of theirs contradicts: mean, worst under",
            f"{_pc(float(abs(sound).mean()))}, {_sg_error(float(sound.min()))}",
            "4 %, -8 %",
            bool(abs(sound).mean() <= 0.04 and sound.min() >= -0.08),
        ),
        Line(
            "  under-predicted by more than 8 %",
            f"{len(low)} of {len(peaks)}",
            "at most 1 of 20",
            len(low) * 20 <= len(peaks),
        ),
        Line("  worst: " + ", ".join(f"{r.id} {_sg_error(e)} of {p:.0f}" for r, p, e in worst), "", "told"),
    ]


def ascend_peaks(records: Sequence[Record]) -> list[tuple[Record, float, float]]:
    """Records with a measured peak on Ascend: the peak (GiB) and the error of the predicted one, counted alike."""
    group = fitted_together(ASCEND)
    peaks = []
    for record in records:
        peak = record.measured.peak_memory_gib
        if peak is not None and record.cluster.profile in group:
            peaks.append((record, peak, predict_record(record, calibrated=False).memory_gib / peak - 1.0))
    return peaks


def interval_lines(fitted: Collection[Calibration]) -> list[Line]:
    """80 % intervals of runs whose family was left out, one a configuration, pooled over devices."""
    intervals = [each for calibration in fitted for each in left_out_intervals(calibration, fitted)]
    lines = []
    for title, moe in (("experts", True), ("dense", False)):
        by_run = by_configuration([h for h in intervals if h.record.model.is_moe is moe])
        inside = sum(h.inside for h in by_run)
        share, chance = inside / len(by_run), binomial_chance(inside, len(by_run))
        half = float(np.median([math.sinh(h.half_width) for h in by_run]))
        p90 = errors_of(np.array([h.residual for h in by_run])).p90_ape
        met = 0.72 <= share <= 0.88 if len(by_run) >= ENOUGH_CONFIGURATIONS else chance >= LEAST_P_VALUE
        lines.append(
            Line(
                f"80 % intervals, {title}, {len(by_run)} configurations, left out: inside",
                f"{_pc(share)} ({inside}), binomial {chance:.2f}",
                "72 to 88 %" if len(by_run) >= ENOUGH_CONFIGURATIONS else "binomial >= 0.10",
                met,
            )
        )
        lines.append(Line("  median half-width / p90 of the errors", f"{_pc(half)} / {_pc(p90)}", "<=", half <= p90))
    return lines


def by_configuration(intervals: Iterable[Held]) -> list[Held]:
    """One run for each configuration: the one in the middle of how far they fill their intervals."""
    groups: dict[str, list[Held]] = {}
    for each in intervals:
        groups.setdefault(configuration_of(each.record), []).append(each)
    return [sorted(group, key=lambda h: h.filled)[len(group) // 2] for group in groups.values()]


def binomial_chance(inside: int, count: int, share: float = 0.8) -> float:
    """Two-sided: the probability of a number at most as likely as the one found, where intervals hold `share`."""
    chances = [math.comb(count, k) * share**k * (1.0 - share) ** (count - k) for k in range(count + 1)]
    return min(1.0, sum(chance for chance in chances if chance <= chances[inside] * (1.0 + 1e-9)))


def _pc(value: float) -> str:
    return f"{100 * value:.1f} %"


def _sg(log_speed: float) -> str:
    return _sg_error(math.expm1(log_speed))


def _sg_error(value: float) -> str:
    return f"{100 * value:+.1f} %"
