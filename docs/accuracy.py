"""Writes docs/accuracy.md: the records' errors beside their aims, and the published ladder. Run by `make accuracy`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from autodeploy.calibration.shipped.strategy_groups import gains
from autodeploy.calibration.shipped.tables import shipped_records
from autodeploy.reports.figures.charts import SPEED_FILE
from docs.accuracy_page.measures import measure
from docs.accuracy_page.plot import write_accuracy
from docs.backtest_groups import backtests
from docs.backtest_groups import lines as chosen_lines
from docs.ladder import ladder_section
from docs.scoreboard import ladder_lines, published_lines, vendor_lines

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autodeploy.specs.record import Record

DOCS = Path(__file__).resolve().parent
CALIBRATION = DOCS.parent / "autodeploy" / "calibration"


def main(
    records: Sequence[Record] | None = None,
    docs: Path = DOCS,
    calibration: Path = CALIBRATION,
    *,
    published: bool = True,
) -> None:
    """Write the page, its plot and its points, of these records or of all; `published`: with published effects."""
    points_file = calibration / SPEED_FILE
    records = shipped_records() if records is None else records
    measures = measure(records)
    first = vendor_lines(records, measures.calibrations)
    chosen = backtests(records, measures.calibrations, gains(records, list(measures.calibrations.values())))
    last = [*chosen_lines(chosen), *ladder_lines(), *(published_lines() if published else ())]
    write_accuracy(docs, points_file, measures, records, first=first, last=last, more=[ladder_section()])
    sys.stdout.write(f"written: {docs}/accuracy.md, {docs}/images/accuracy.svg, {points_file}\n")


if __name__ == "__main__":
    main()
