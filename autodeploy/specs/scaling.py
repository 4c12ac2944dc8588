"""How a training scales: the best step on fewer and on more cards."""

from __future__ import annotations

from autodeploy.specs.base import Document
from autodeploy.specs.strategy import Strategy


class ScalingRow(Document):
    """One number of cards. Without figures nothing fits; `efficiency` is speed a card against the spec's own."""

    num_npus: int
    strategy: Strategy | None = None
    step_time_s: float | None = None
    tokens_per_s: float | None = None
    tokens_per_s_per_npu: float | None = None
    efficiency: float | None = None
    mfu: float | None = None
    peak_memory_gib: float | None = None
    days: float | None = None


class ScalingReport(Document):
    """Rows by number of cards, with the same global batch."""

    rows: tuple[ScalingRow, ...]
    engine_version: str
