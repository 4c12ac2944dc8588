"""Holds what is recommended to laws, on whole specs: a JSON line a comparison, exit code 1 where one is broken.

`python -m tests.soak.recommended [FILE ...] [--laws LAW ...] [--only NAME ...]`; without files recommended_specs.yaml.

forced : what forces a feature on, or fixes axes to those of a plan that was considered, only takes freedom away: it
    must not recommend what is better by the rule; and the first plan is not dominated.
neutral : the plan that is fastest by predicted times alone is no slower than the recommended one.
efforts : more effort recommends nothing worse, from `fast` over the default to `deep`.
limits : however short the time, the first plan is above the floor where a listed one is, and within 1 % of the best
    listed by expected time.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ruamel.yaml import YAML

from autodeploy.kit.errors import FieldError, SpecError, UnsupportedError
from autodeploy.search.planner import plan
from autodeploy.specs.reading import read_spec_document, read_spec_file
from tests.support.joint_costs import advised, held, is_dominated

if TYPE_CHECKING:
    from collections.abc import Callable

    from autodeploy.specs.spec import Spec

SPECS: Final = Path(__file__).with_name("recommended_specs.yaml")
FEATURES: Final = ("swap_optimizer", "virtual_optimizer")
AXES: Final = ("tp", "pp", "vpp", "cp", "ep", "micro_batch_size", "schedule")
TOLERANCE: Final = 0.002
OF_LISTED: Final = 0.01
LIMITS_S: Final = (4.0, 9.0, 30.0, 120.0)


def forced(spec: Spec, **changes: Any) -> Spec:
    """The spec with another search."""
    return spec.model_copy(update={"search": spec.search.model_copy(update=changes)})


def tell(name: str, law: str, *, kept: bool, **facts: Any) -> bool:
    """Writes the line of a comparison."""
    short = {key: round(value, 4) if isinstance(value, float) else value for key, value in facts.items()}
    sys.stdout.write(json.dumps({"spec": name, "law": law, "kept": kept, **short}) + "\n")
    sys.stdout.flush()
    return kept


def hold_forced(name: str, spec: Spec, fixes: int) -> bool:
    """Whether no search of less freedom recommends a better plan."""
    own = None if spec.training.rl is not None else advised(spec)
    if own is None:
        return True
    features = spec.search.features
    cases = {f: forced(spec, features={**features, f: "on"}) for f in FEATURES if f not in features}
    for place, each in enumerate(own.weighed[:fixes]):
        axes = {axis: each.axes[axis] for axis in AXES if axis not in {"ep"} or spec.model.is_moe}
        cases[f"fix #{place + 1}"] = forced(spec, fix={**spec.search.fix, **axes})
    kept = tell(name, "undominated", kept=not is_dominated(own), own_s=own.weighed[0].step_s)
    for case, other in cases.items():
        try:
            found = advised(other)
        except (SpecError, UnsupportedError, FieldError):
            continue
        if found is None or found.weighed[0].p_fits < own.price.floor:
            continue
        result = held(own, found)
        facts = {
            "own_s": result.own.step_s,
            "own_p_fits": result.own.p_fits,
            "other_s": result.other.step_s,
            "other_p_fits": result.other.p_fits,
            "excess_pct": 100.0 * result.excess,
        }
        kept &= tell(name, case, kept=result.excess <= TOLERANCE, **facts)
    return kept


def hold_neutral(name: str, spec: Spec, _: int) -> bool:
    """Whether the neutral ranking is no slower."""
    averse, neutral = plan(spec), plan(forced(spec, risk=spec.search.risk_terms.model_copy(update={"rule": "neutral"})))
    if not averse.plans or not neutral.plans or spec.search.objective != "step_time":
        return True
    own_s, other_s = (min(each.step_time_s for each in found.plans) for found in (neutral, averse))
    return tell(name, "neutral", kept=own_s <= other_s * (1.0 + 1e-6), own_s=own_s, other_s=other_s)


def hold_efforts(name: str, spec: Spec, _: int) -> bool:
    """Whether each effort recommends nothing worse than the one before."""
    if spec.training.rl is not None:
        return True
    found = {effort: advised(forced(spec, effort=effort)) for effort in ("fast", "default", "deep")}
    kept = True
    for less, more in (("fast", "default"), ("default", "deep")):
        one, other = found[more], found[less]
        if one is not None and other is not None and other.weighed[0].p_fits >= one.price.floor:
            excess = held(one, other).excess
            kept &= tell(name, f"{less} >= {more}", kept=excess <= TOLERANCE, excess_pct=100.0 * excess)
    return kept


def hold_limits(name: str, spec: Spec, _: int) -> bool:
    """Whether the floor and the order hold under every time limit."""
    kept, floor = True, spec.search.risk_terms.floor
    for limit_s in LIMITS_S:
        try:
            plans = plan(forced(spec, time_limit_s=limit_s)).plans
        except SpecError:
            continue  # no plan in time
        chances = [1.0 if each.p_fits is None else each.p_fits for each in plans]
        costs = [each.expected_step_time_s or each.step_time_s for each in plans]
        safe = [cost for cost, chance in zip(costs, chances, strict=True) if chance >= floor]
        holds = not safe or (chances[0] >= floor and costs[0] <= (1.0 + OF_LISTED) * min(safe))
        kept &= tell(name, f"{limit_s:g} s", kept=holds, chances=chances[:2], costs=costs[:2])
    return kept


LAWS: Final[dict[str, Callable[[str, Spec, int], bool]]] = {
    "forced": hold_forced,
    "neutral": hold_neutral,
    "efforts": hold_efforts,
    "limits": hold_limits,
}


def main() -> int:
    """Hold specs to the laws."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak.recommended")
    parser.add_argument("files", nargs="*", type=Path)
    parser.add_argument("--only", nargs="*", default=None, help="names of specs")
    parser.add_argument("--laws", nargs="*", choices=LAWS, default=list(LAWS))
    parser.add_argument("--effort", default=None, help="instead of that of the specs")
    parser.add_argument("--fixes", type=int, default=1, help="plans whose axes are fixed")
    asked = parser.parse_args()
    known = YAML(typ="safe").load(SPECS.read_text(encoding="utf-8"))
    chosen = {path.stem: read_spec_file(path) for path in asked.files}
    chosen = chosen or {name: read_spec_document(document) for name, document in known.items()}
    broken = 0
    for name, spec in chosen.items():
        if asked.only is not None and name not in asked.only:
            continue
        one = forced(spec, effort=asked.effort) if asked.effort else spec
        broken += sum(not LAWS[law](name, one, asked.fixes) for law in asked.laws)
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
