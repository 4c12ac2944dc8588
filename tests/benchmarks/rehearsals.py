"""How near one rehearsal brings the full plan's prediction, over hidden profiles.

python -m tests.benchmarks.rehearsals "MLA A3" 2nodes 20 [profiled]
"""

from __future__ import annotations

import sys

import numpy as np

from tests.support.hidden_profiles import trials

SEED = 20261123
NEAR = 0.08


def main(name: str, nodes: str, count: int, profiled: str = "") -> None:
    """One line a profile, and the sums."""
    found = trials(name, nodes, count, SEED, profiled=bool(profiled))
    for each in found:
        print(f"{each.before:+.3f} -> {each.after:+.3f}, measured {each.measured:+.3f}, inside {each.inside}")
    before, after, measured = (np.abs([getattr(e, n) for e in found]) for n in ("before", "after", "measured"))
    print(f"largest gap {before.max():.3f}; median {np.median(before):.3f} -> {np.median(after):.3f}")
    print(f"within {NEAR:.0%} of the hidden step: {np.sum(before <= NEAR)} -> {np.sum(after <= NEAR)} of {count}")
    print(f"within {NEAR:.0%} of a noisy run of the full plan: {np.sum(measured <= NEAR)} of {count}")
    inside = [sum(getattr(e, n) for e in found) for n in ("inside_before", "inside")]
    print(f"inside the interval: {inside[0]} -> {inside[1]} of {count}")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), *sys.argv[4:])
