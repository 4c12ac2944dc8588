"""Every figure that predictions are held to beside its aim, from fits made on the spot.

`make scoreboard` prints it. Uncommitted formulas, profiles and parameters count; shipped overlays are where fits start.
"""

from __future__ import annotations

import math
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from autodeploy.analysis.ablation.cases import CASES, read_case
from autodeploy.analysis.ablation.comparison_sides import Runs
from autodeploy.analysis.ablation.published import METRICS, ablate_published
from autodeploy.analysis.launch_checks.launch import launch_of
from autodeploy.calibration.shipped.class_spreads import covering
from autodeploy.calibration.shipped.strategy_groups import gains
from autodeploy.calibration.shipped.tables import coverage_table, shipped_records
from autodeploy.formats.import_document import import_file
from autodeploy.search import planner
from docs.accuracy_page.aims import Line, fits, record_lines
from docs.accuracy_page.refits import overlays_of, without
from docs.accuracy_page.sets import ASCEND
from docs.backtest_groups import backtests
from docs.backtest_groups import lines as chosen_lines
from docs.ladder import LADDER, PUBLISHED, points_of
from hardware_profiles.loader import recalibrated

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from autodeploy.calibration.profile_fit import Calibration
    from autodeploy.specs.record import Record

LAUNCHES = Path(__file__).resolve().parent.parent / "autodeploy" / "calibration" / "records" / "launches"


def launches(records: Sequence[Record]) -> list[tuple[Record, Path]]:
    """Records whose public launch script is at hand, by the name of the file."""
    return [(r, LAUNCHES / f"{r.id}.sh") for r in records if (LAUNCHES / f"{r.id}.sh").is_file()]


def vendor_lines(records: Sequence[Record], fits_by_name: Mapping[str, Calibration]) -> list[Line]:
    """Each public script with a published speed, as `autodeploy check` predicts it by a fit without its run.

    fits_by_name : of all devices, the one of the scripts' with it: what lies between classes is read off all of them.
    """
    launched, fitted = launches(records), fits_by_name[ASCEND]
    others = [each for name, each in fits_by_name.items() if name != ASCEND]
    lines = []
    for record, path in launched:
        rest = without(fitted, partial(_same, record))
        error, low, high, basis = predicted(record, path, [rest, *others], records)
        inside = low <= 0.0 <= high
        lines.append(
            Line(
                f"vendor script {record.id} {record.model.name}, fit without it",
                f"{100 * error:+.1f} % ({_ends(error, low, high)})",
                "within 12 % and inside",
                abs(error) <= 0.12 and inside,
            )
        )
        lines.append(Line(f"    interval from {basis}", "", "told"))
    names = {record.id for record, _ in launched}
    every = without(fitted, lambda r: r.id in names)
    for record, path in launched:
        error, low, high, _ = predicted(record, path, [every, *others], records)
        lines.append(
            Line(
                f"  {record.id}, all {len(launched)} out",
                f"{100 * error:+.1f} % ({_ends(error, low, high)})",
                "inside, error told",
                low <= 0.0 <= high,
            )
        )
    return lines


def _same(one: Record, other: Record) -> bool:
    return one.id == other.id


def predicted(
    record: Record, path: Path, fitted: Sequence[Calibration], records: Sequence[Record]
) -> tuple[float, float, float, str]:
    """Error of the speed of a launch as `check` predicts it, the errors at the ends of its interval, and its basis."""
    with recalibrated(overlays_of(*fitted)), covering(coverage_table(fitted, records)):
        launch = launch_of(import_file(path), record.cluster.profile, record.cluster.device)
        plan = planner.estimate(launch.spec)
    measured = record.measured.tokens_per_s_per_npu or math.nan
    # Of a launch that was measured a plan has the measured time; what counts here is what the model says by itself.
    ratio = 1.0 if plan.rescaled is None else plan.rescaled.ratio
    tokens = plan.tokens_per_s_per_npu * plan.step_time_s
    rates = [ratio * tokens / s for s in (plan.step_time_s, plan.uncertainty.high_s, plan.uncertainty.low_s)]
    error, slow, fast = (rate / measured - 1.0 for rate in rates)
    return error, slow, fast, plan.uncertainty.basis


def ladder_lines() -> list[Line]:
    """The three MFUs of the published ladder."""
    case = read_case(CASES / f"{LADDER}.yaml")
    points = points_of(case, Runs())
    mfu_values = [METRICS["mfu_full_attention_pct"](run, run) for run in points]
    errors = [value / mfu - 1.0 for value, (mfu, _) in zip(mfu_values, PUBLISHED, strict=True)]
    return [
        Line(
            "Pangu Ultra MoE, MFU in % of " + " / ".join(f"{mfu:.1f}" for mfu, _ in PUBLISHED),
            " / ".join(f"{value:.1f} ({100 * e:+.0f} %)" for value, e in zip(mfu_values, errors, strict=True)),
            "15 % relative",
            bool(np.max(np.abs(errors)) <= 0.15),
        )
    ]


def published_lines() -> list[Line]:
    """How many published effects the model reproduces."""
    report = ablate_published(ends=False)
    counted = [each for each in report.systems if each.verdict != "not_countable"]
    met = sum(each.verdict == "met" for each in counted)
    missed = "; ".join(f"{row.case}: {row.feature}" for row in report.rows if row.verdict == "missed")
    return [
        Line("systems of ablate --published", f"{met} met of {len(counted)} that count", ">= 16", met >= 16),
        Line(f"  missed: {missed}", "", "told"),
    ]


def _ends(error: float, low: float, high: float) -> str:
    return f"{100 * low:+.0f} to {100 * high:+.0f} %, half {100 * ((1 + high) / (1 + error) - 1):.0f} %"


def lines(records: Sequence[Record], fitted: Mapping[str, Calibration], *, published: bool = True) -> list[Line]:
    """The whole scoreboard."""
    all_lines = [*vendor_lines(records, fitted), *record_lines(records, fitted)]
    all_lines += chosen_lines(backtests(records, fitted, gains(records, list(fitted.values())))) if published else []
    with recalibrated(overlays_of(*fitted.values())), covering(coverage_table(list(fitted.values()), records)):
        all_lines += ladder_lines()
        all_lines += published_lines() if published else []
    return all_lines


def main(records: Sequence[Record] | None = None) -> None:
    """Print the scoreboard, of these records or of all; `--quick`: no published effects, no groups of strategies."""
    records = shipped_records() if records is None else records
    fitted = fits(records)
    for each in fitted.values():
        factors = ", ".join(f"{name} {value:.3f}" for name, value in each.fit.factors().items())
        sys.stdout.write(f"{each.profile.name}: {factors}\n")
    for line in lines(records, fitted, published="--quick" not in sys.argv[1:]):
        sys.stdout.write(f"{line.text()}\n")


if __name__ == "__main__":
    main()
