"""How far a predicted memory may be off: the spread of the records' peaks by class, wider with the distance from them.

Nothing in the memory model is fitted, so that every record's residual is one of a run that was left out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from autodeploy.calibration.coverage import ASSUMED_BESIDE_ALLOCATOR, axes_in_words, coverage, widened
from autodeploy.calibration.spreads import Z80
from autodeploy.messages import Message
from autodeploy.specs.planset import MemoryInterval

if TYPE_CHECKING:
    from collections.abc import Mapping

    from autodeploy.calibration.memory_belief import Belief


STEADY, FEW_ITERATIONS = "steady", "few iterations"
# Standard deviation of log memory that each doubling beyond the records of an axis adds, and each feature that none of
# them has used: judgement, as for time. A rank's memory hardly knows how many ranks there are.
PER_DOUBLING = {"seq_length": 0.02, "pp": 0.02, "ep": 0.02, "cp": 0.02}
PER_UNSEEN = 0.02


@dataclass(frozen=True, slots=True)
class MemorySpread:
    """Relative spread of a predicted peak.

    peaks : measured ones that it rests on. belief : what runs of the same cluster and family of models have said.
    """

    log_sigma: float
    basis: str
    extrapolated: tuple[str, ...]
    peaks: int = 0
    belief: Belief | None = None

    def interval(self, gib: float) -> MemoryInterval:
        """80 % interval around a predicted peak; where runs have said something, of what they leave probable."""
        if self.belief is not None:
            low, high = (gib * math.exp(self.belief.quantile(p)) for p in (0.1, 0.9))
            return MemoryInterval(low_gib=low, high_gib=high, basis=self.basis, extrapolated=self.extrapolated)
        width = math.exp(Z80 * self.log_sigma)
        return MemoryInterval(
            low_gib=gib / width, high_gib=gib * width, basis=self.basis, extrapolated=self.extrapolated
        )


def names_of(maker: str, regime: str) -> tuple[str, ...]:
    """Classes of a peak, the narrowest first."""
    return f"{maker}, {regime}", maker, "all"


def memory_spread(maker: str, run: Mapping[str, Any], *, regime: str = STEADY, on_card: bool = True) -> MemorySpread:
    """Spread of the peak of a run.

    Parameters
    ----------
    maker : of the chip, the first word of its family. run : seq_length, pp, ep, cp, features. on_card : what is
        beside the allocator counts, which is assumed.
    """
    table = coverage().get("memory", {"classes": {}, "records": []})
    found = ((name, table["classes"].get(name)) for name in names_of(maker, regime))
    name, entry = next(((n, e) for n, e in found if e), ("all", {"log_sigma": coverage()["memory_log_sigma"], "n": 0}))
    records = [r for r in table["records"] if name == "all" or r["vendor_family"] == maker]
    variance = float(entry["log_sigma"]) ** 2 + (ASSUMED_BESIDE_ALLOCATOR**2 if on_card else 0.0)
    extrapolated: list[str] = []
    if records:
        variance, extrapolated = widened(variance, run, records, PER_DOUBLING, PER_UNSEEN)
    basis = Message("calibration.peaks_of", count=entry["n"], group=name)
    return MemorySpread(math.sqrt(variance), basis, axes_in_words(extrapolated), int(entry["n"]))
