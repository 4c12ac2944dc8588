"""Figures as JSON lines: {"figure", "value", "unit", "case"}."""

from __future__ import annotations

import json
import sys


def report(figure: str, value: float, unit: str, case: str) -> None:
    """Print one figure."""
    line = {"figure": figure, "value": float(f"{value:.6g}"), "unit": unit, "case": case}
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()
