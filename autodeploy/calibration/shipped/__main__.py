"""`python -m autodeploy.calibration.shipped`: make the shipped overlays and the coverage table anew."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from autodeploy.calibration.shipped.tables import shipped_records, write_shipped

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autodeploy.specs.record import Record

ROOT = Path(__file__).resolve().parents[3]
OVERLAYS = ROOT / "hardware_profiles" / "data" / "calibrated"
COVERAGE = ROOT / "autodeploy" / "costs" / "coverage.json"


def main(records: Sequence[Record] | None = None, overlays: Path = OVERLAYS, coverage: Path = COVERAGE) -> None:
    """Fit every family to these records, or to those shipped, and write what ships."""
    done = write_shipped(overlays, coverage, shipped_records() if records is None else records)
    for calibration in done:
        factors = ", ".join(f"{name} {value:.3f}" for name, value in calibration.fit.factors().items())
        sys.stdout.write(f"{calibration.profile.family}: {len(calibration.records)} records; {factors}\n")


if __name__ == "__main__":
    main()
