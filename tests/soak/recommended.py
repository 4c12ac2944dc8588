"""`python -m tests.soak.recommended SPEC ...`: laws of the recommended plan on whole specs; a JSON line a comparison.

What forces a feature on, or fixes axes to those of a plan that was considered, only takes freedom away: it must not
recommend what is better by the rule. Exit code 1 where it does, or where the first plan is dominated.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from autodeploy.kit.errors import FieldError, SpecError, UnsupportedError
from autodeploy.specs.reading import read_spec_file
from docs.stability import specs
from tests.support.joint_costs import advised, held, is_dominated

if TYPE_CHECKING:
    from autodeploy.specs.spec import Spec

FEATURES: Final = ("swap_optimizer", "virtual_optimizer")
AXES: Final = ("tp", "pp", "vpp", "cp", "ep", "micro_batch_size", "schedule")
TOLERANCE: Final = 0.002


def forced(spec: Spec, **changes: Any) -> Spec:
    """The spec with another search."""
    return spec.model_copy(update={"search": spec.search.model_copy(update=changes)})


def judge(name: str, spec: Spec, fixes: int) -> bool:
    """Reports each comparison of a spec; whether all laws hold."""
    own = advised(spec)
    if own is None:
        return True
    features = spec.search.features
    cases = {f: forced(spec, features={**features, f: "on"}) for f in FEATURES if f not in features}
    for place, each in enumerate(own.weighed[:fixes]):
        axes = {axis: each.axes[axis] for axis in AXES if axis not in {"ep"} or spec.model.is_moe}
        cases[f"fix #{place + 1}"] = forced(spec, fix={**spec.search.fix, **axes})
    kept = not is_dominated(own)
    for case, other in cases.items():
        try:
            found = advised(other)
        except (SpecError, UnsupportedError, FieldError):
            continue
        if found is None or found.weighed[0].p_fits < own.price.floor:
            continue
        result = held(own, found)
        line = {
            "spec": name,
            "forced": case,
            "own_s": round(result.own.step_s, 4),
            "own_p_fits": round(result.own.p_fits, 3),
            "forced_s": round(result.other.step_s, 4),
            "forced_p_fits": round(result.other.p_fits, 3),
            "excess_pct": round(100.0 * result.excess, 3),
        }
        sys.stdout.write(json.dumps(line) + "\n")
        sys.stdout.flush()
        kept &= result.excess <= TOLERANCE
    return kept


def main() -> int:
    """Judge spec files, or those of docs/stability.md."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak.recommended")
    parser.add_argument("files", nargs="*", type=Path)
    parser.add_argument("--effort", default=None, help="instead of that of the specs")
    parser.add_argument("--fixes", type=int, default=1, help="plans whose axes are fixed")
    asked = parser.parse_args()
    chosen = {path.stem: read_spec_file(path) for path in asked.files} or specs()
    kept = True
    for name, spec in chosen.items():
        kept &= judge(name, forced(spec, effort=asked.effort) if asked.effort else spec, asked.fixes)
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
