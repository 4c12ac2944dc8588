"""`python -m docs.shipped_calibration`: make the shipped overlays and the coverage table anew."""

from __future__ import annotations

import sys
from pathlib import Path

from docs.shipped_calibration.shipped import write_shipped

ROOT = Path(__file__).resolve().parents[2]


def main() -> None:
    """Fit every family to the shipped records and write what ships."""
    done = write_shipped(
        ROOT / "hardware_profiles" / "data" / "calibrated", ROOT / "autodeploy" / "calibration" / "coverage.json"
    )
    for calibration in done:
        factors = ", ".join(f"{name} {value:.3f}" for name, value in calibration.fit.factors().items())
        sys.stdout.write(f"{calibration.profile.family}: {len(calibration.records)} records; {factors}\n")


if __name__ == "__main__":
    main()
