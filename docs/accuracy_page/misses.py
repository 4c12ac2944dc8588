"""Runs left aside with their reasons: what stands behind a missed figure."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from docs.accuracy_page.worst import diagnoses, doubted

if TYPE_CHECKING:
    from collections.abc import Iterable

    from docs.accuracy_page.errors import Runs


def left_aside(all_runs: Iterable[Runs]) -> str:
    """Each run whose own source or repeats contradict it: its error of speed with the family left out, and why."""
    lines, first = [], dict[str, str]()
    known = diagnoses()
    for runs in all_runs:
        for record, residual, mark in zip(runs.records, runs.left_out, doubted(runs), strict=True):
            if mark:
                text = known[record.id].text
                same = first.setdefault(text, record.id)
                reason = text if same == record.id else f"As `{same}`."
                lines.append(f"- `{record.id}` ({100 * np.expm1(-residual):+.1f} %): {reason}")
    return "\n".join(lines)
