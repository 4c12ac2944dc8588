"""Holds what is recommended to laws, on whole specs: a JSON line a comparison, at last the counts of what was tried.

`python -m tests.soak.recommended [FILE ...] [--laws LAW ...] [--only NAME ...]`; without files recommended_specs.yaml.
Exit code 1 where a law is broken, or where a spec gave one nothing to compare.

forced : what forces a feature on or off, an axis, or all axes of a listed plan, only takes freedom away: it must not
    recommend what is better by the rule; and the first plan is not dominated.
neutral : the plan that is fastest by predicted times alone is no slower than any that is recommended.
efforts : more effort recommends nothing worse, from `fast` over the default to `deep`.
limits : however short the time, the first plan is above the floor where a listed one is, or one was in less time,
    within 1 % of the best listed by expected time, and not dominated by a listed one; what has a plan in less time has
    one in more.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from dataclasses import dataclass, field
from itertools import islice, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ruamel.yaml import YAML

from autodeploy.kit.errors import SpecError
from autodeploy.search import planner
from autodeploy.search.branch_and_bound.search_space import search_space
from autodeploy.search.planner import plan
from autodeploy.search.post_training.update_layouts import update_spec
from autodeploy.search.prepared import plan_context
from autodeploy.search.ranking.explanation import features_in_use
from autodeploy.search.ranking.selection import weight_of
from autodeploy.specs.reading import read_spec_document, read_spec_file
from autodeploy.specs.search import RL_AXES, value_of
from autodeploy.stack.features import FEATURES
from tests.support.joint_costs import (
    PostTraining,
    advised,
    advised_post_training,
    held,
    is_dominated,
    is_same_space,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from autodeploy.search.branch_and_bound.search_space import SearchSpace
    from autodeploy.search.ranking.advice import Advice
    from autodeploy.specs.planset import Plan
    from autodeploy.specs.spec import Spec

SPECS: Final = Path(__file__).with_name("recommended_specs.yaml")
AXES: Final = ("tp", "pp", "vpp", "cp", "ep", "micro_batch_size", "schedule")
CONTEXT_PARALLEL: Final = ("ring", "ulysses", "hybrid_cp")
BALANCE: Final = "virtual_pipeline_balance"
"""Frees layouts, which are no candidates of their own: without it the space is the same."""
TOLERANCE: Final = 0.002
OF_LISTED: Final = 0.01
LIMITS_S: Final = (4.0, 9.0, 30.0, 120.0)
EFFORTS: Final = ("fast", "default", "deep")


def forced(spec: Spec, **changes: Any) -> Spec:
    """The spec with another search."""
    return spec.model_copy(update={"search": spec.search.model_copy(update=changes)})


@dataclass(frozen=True)
class Extent:
    """Sizes of the laws: forced searches of each kind of which a spec has no more, and its number among the specs.

    features, axes : those of a spec are taken in turn, so that neighbouring specs force others. plans : listed.
    """

    features: int = 99
    axes: int = 99
    plans: int = 5
    number: int = 0

    def some(self, cases: list[Any], count: int) -> list[Any]:
        """So many of the cases, from the number's turn on."""
        start = (self.number * self.features) % max(1, len(cases))
        return [*cases[start:], *cases[:start]][:count]


@dataclass
class Tally:
    """Writes a line of each comparison, and counts them by law: kept, broken, and those that compare nothing."""

    counts: Counter[tuple[str, str]] = field(default_factory=Counter)

    def tell(self, name: str, law: str, case: str, *, kept: bool, **facts: Any) -> None:
        """A comparison."""
        short = {key: round(value, 4) if isinstance(value, float) else value for key, value in facts.items()}
        self._write({"spec": name, "law": law, "case": case, "kept": kept, **short})
        self.counts[law, "kept" if kept else "broken"] += 1

    def skip(self, law: str, why: str) -> None:
        """A case that compares nothing, by its reason."""
        self.counts[law, why] += 1

    def compared(self, law: str) -> int:
        """Comparisons of a law so far."""
        return self.counts[law, "kept"] + self.counts[law, "broken"]

    def total(self) -> bool:
        """Writes all counts; whether no law was broken or empty."""
        laws: dict[str, dict[str, int]] = {}
        for (law, what), count in sorted(self.counts.items()):
            laws.setdefault(law, {})[what] = count
        self._write({"tried": laws})
        return not any(what in {"broken", "nothing to compare"} for _, what in self.counts)

    @staticmethod
    def _write(line: dict[str, Any]) -> None:
        sys.stdout.write(json.dumps(line) + "\n")
        sys.stdout.flush()


def space_of(spec: Spec) -> SearchSpace:
    """The candidates of a spec of pre-training."""
    p = planner.prepare(spec)
    return search_space(p.spec, p.profile, p.choice, p.context)


def features_of(spec: Spec) -> list[str]:
    """Features that are left to the search, or on whatever it chooses."""
    p = planner.prepare(spec if spec.training.rl is None else update_spec(spec))
    return sorted(name for name, switch in p.choice.switches.items() if switch == "auto")


def switch_of(spec: Spec, space: SearchSpace, feature: str, switch: str) -> dict[str, Any]:
    """The search with a feature switched.

    Context parallelism that is asked for may leave a rank fewer tokens than one that is not: it keeps to the degrees of
    the space.
    """
    search = spec.search
    changes: dict[str, Any] = {"features": {**search.features, feature: switch}}
    if feature in CONTEXT_PARALLEL and "cp" not in search.fix:
        changes["allow"] = {**search.allow, "cp": tuple(sorted({int(cp) for cp in space.candidates.cp}))}
    return changes


def switched(
    spec: Spec, space: SearchSpace, own: Advice | None, extent: Extent, tally: Tally
) -> Iterator[tuple[str, Spec, SearchSpace]]:
    """Specs with a feature on that leaves out candidates, or off where the first plan has it, with their spaces."""
    first = None if own is None else own.weighed[0].solved
    used = set() if first is None else features_in_use(first.candidate, first.context)
    for feature in extent.some(features_of(spec), len(FEATURES)):
        narrows = False
        for switch in ("on", "off"):
            if switch == "off" and not (feature in used and (narrows or feature == BALANCE)):
                continue  # no choice of the search: without it all is slower
            less = forced(spec, **switch_of(spec, space, feature, switch))
            try:
                other = space_of(less)
            except SpecError:
                tally.skip("forced", "refused")
                continue
            narrows = not is_same_space(space, other)
            if narrows or switch == "off":
                yield f"{feature} {switch}", less, other
            else:
                tally.skip("forced", "same space")


def fixes_of(own: Advice, spec: Spec, extent: Extent) -> Iterator[tuple[str, dict[str, Any]]]:
    """Axes of listed plans, all together and one by one where they are not those of the first plan."""
    axes = [axis for axis in AXES if spec.model.is_moe or axis != "ep"]
    listed = [{axis: each.axes[axis] for axis in axes} for each in own.weighed[: extent.plans]]
    for place, fixed in enumerate(listed, start=1):
        yield f"plan {place}", fixed
    single = {(axis, each[axis]) for each in listed[1:] for axis in axes if each[axis] != listed[0][axis]}
    for axis, value in extent.some(sorted(single, key=str), extent.axes):
        yield f"{axis} {value}", {axis: value}


def hold_forced(name: str, spec: Spec, extent: Extent, tally: Tally) -> None:
    """No search of less freedom recommends a better plan."""
    space = space_of(spec)
    own = advised(spec, stepping=True, searched=space)
    if own is not None:
        facts = {"own_s": own.weighed[0].step_s, "p_fits": own.weighed[0].p_fits, "plans": len(own.weighed)}
        tally.tell(name, "undominated", "", kept=not is_dominated(own), **facts)
    elif not len(space.candidates):  # nor has any part of it
        tally.tell(name, "forced", "no candidates", kept=plan(spec).infeasible is not None)
        return
    tried = list(islice(switched(spec, space, own, extent, tally), extent.features))
    if own is not None:
        fixed = [(case, forced(spec, fix={**spec.search.fix, **axes})) for case, axes in fixes_of(own, spec, extent)]
        tried += [(case, less, space_of(less)) for case, less in fixed]
    for case, less, other in tried:
        found = advised(less, stepping=True, searched=other)
        if own is None:
            tally.tell(name, "forced", case, kept=found is None, own=None)
        elif found is None:
            tally.skip("forced", "no plan")
        else:
            _tell_held(name, case, own, found, tally)


def _tell_held(name: str, case: str, own: Any, found: Any, tally: Tally, law: str = "forced") -> None:
    """The comparison of two rankings: first by the floor, then by cost; below the floor by P(fits) alone."""
    mine, rival = (each.advice if isinstance(each, PostTraining) else each for each in (own, found))
    floor = mine.price.floor
    first, other = mine.weighed[0], rival.weighed[0]
    facts = {"own_s": first.step_s, "own_p_fits": first.p_fits, "other_s": other.step_s, "other_p_fits": other.p_fits}
    if other.p_fits < floor:
        tally.tell(name, law, case, kept=first.p_fits >= min(floor, other.p_fits - 0.01), below_floor=True, **facts)
        return
    excess = own.held(found).excess if isinstance(own, PostTraining) else held(own, found).excess
    kept = first.p_fits >= floor and excess <= TOLERANCE
    tally.tell(name, law, case, kept=kept, excess_pct=100.0 * excess, **facts)


def hold_forced_post_training(name: str, spec: Spec, extent: Extent, tally: Tally) -> None:
    """The same of post-training, with the axes of generation."""
    own = advised_post_training(spec)
    if own is None:
        return
    listed = own.advice.weighed[: extent.plans]
    first = listed[0]
    tally.tell(name, "undominated", "", kept=not is_dominated(own.advice), own_s=first.step_s, p_fits=first.p_fits)
    switches = extent.some(features_of(spec), extent.features)
    space = space_of(update_spec(spec))
    cases = [(f"{f} on", forced(spec, **switch_of(spec, space, f, "on"))) for f in switches]
    fixes: list[dict[str, Any]] = []
    for each in listed:
        generation = {axis: value_of(each.choice.layout, axis) for axis in RL_AXES}
        axes = {axis: each.axes[axis] for axis in AXES if spec.model.is_moe or axis != "ep"}
        fixes.append({axis: value for axis, value in {**axes, **generation}.items() if value is not None})
    cases += [(f"plan {place}", forced(spec, fix=fixed)) for place, fixed in enumerate(fixes, start=1)]
    single = {(axis, value) for each in fixes[1:] for axis, value in each.items() if value != fixes[0].get(axis)}
    chosen = extent.some(sorted(single, key=str), extent.axes)
    cases += [(f"{axis} {value}", forced(spec, fix={axis: value})) for axis, value in chosen]
    for case, less in cases:
        try:
            found = advised_post_training(less)
        except SpecError:
            tally.skip("forced", "refused")
            continue
        if found is None:
            tally.skip("forced", "no plan")
        else:
            _tell_held(name, case, own, found, tally)


def _value(spec: Spec, found: Plan) -> float:
    """The objective of a plan, a weight of its step time."""
    context = plan_context(spec, found) if spec.training.rl is None else None
    return found.step_time_s * (1.0 if context is None else weight_of(context, objective=spec.search.objective))


def hold_neutral(name: str, spec: Spec, _: Extent, tally: Tally) -> None:
    """The neutral ranking is no slower."""
    averse, neutral = plan(spec), plan(forced(spec, risk=spec.search.risk_terms.model_copy(update={"rule": "neutral"})))
    if not averse.plans and not neutral.plans:
        tally.tell(name, "neutral", "no plan", kept=True)
        return
    own = _value(spec, neutral.plans[0]) if neutral.plans else float("inf")
    other = min((_value(spec, each) for each in averse.plans), default=float("inf"))
    tally.tell(name, "neutral", "", kept=own <= other * (1.0 + 1e-6), own=own, other=other)


def hold_efforts(name: str, spec: Spec, _: Extent, tally: Tally) -> None:
    """Each effort recommends nothing worse than the one before."""
    look: Callable[[Spec], Any] = advised_post_training if spec.training.rl is not None else _stepping
    found = [look(forced(spec, effort=effort)) for effort in EFFORTS]
    for (less, other), (more, own) in pairwise(zip(EFFORTS, found, strict=True)):
        case = f"{less} >= {more}"
        if other is None or own is None:
            tally.tell(name, "efforts", case, kept=other is None, own=own is not None, other=other is not None)
        else:
            _tell_held(name, case, own, other, tally, "efforts")


def _stepping(spec: Spec) -> Advice | None:
    return advised(spec, stepping=True)


def hold_limits(name: str, spec: Spec, _: Extent, tally: Tally) -> None:
    """The floor and the order hold under every time limit."""
    floor, had_plan, had_safe = spec.search.risk_terms.floor, False, False
    for limit_s in LIMITS_S:
        case = f"{limit_s:g} s"
        try:
            found = plan(forced(spec, time_limit_s=limit_s))
        except SpecError:
            if had_plan:
                tally.tell(name, "limits", case, kept=False, why="a plan in less time, none in this")
            else:
                tally.skip("limits", f"no plan in {limit_s:g} s")
            continue
        plans, had_plan = found.plans, True
        if not plans:
            tally.tell(name, "limits", case, kept=found.infeasible is not None, plans=0)
            return
        chances = [1.0 if each.p_fits is None else each.p_fits for each in plans]
        times = [_value(spec, each) for each in plans]
        scale = [time / each.step_time_s for time, each in zip(times, plans, strict=True)]
        costs = [s * (each.expected_step_time_s or each.step_time_s) for s, each in zip(scale, plans, strict=True)]
        safe = [cost for cost, chance in zip(costs, chances, strict=True) if chance >= floor]
        holds = not safe or (chances[0] >= floor and costs[0] <= (1.0 + OF_LISTED) * min(safe))
        holds &= bool(safe) or not had_safe
        had_safe |= bool(safe)
        rests = [sum(line.runs == 0 for line in each.evidence) for each in plans]
        columns = list(zip(times, costs, [-chance for chance in chances], rests, strict=True))
        holds &= not any(
            each != columns[0] and all(a <= b for a, b in zip(each, columns[0], strict=True)) for each in columns
        )
        holds &= found.risk is not None and found.risk.risk == "averse"
        tally.tell(name, "limits", case, kept=holds, chances=chances[:2], costs=costs[:2], wall_s=found.timing.total_s)
        if found.reproducible:  # no limit ended it: none that is longer will
            tally.skip("limits", "longer than the search")
            return


LAWS: Final[dict[str, Callable[[str, Spec, Extent, Tally], None]]] = {
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
    parser.add_argument("--features", type=int, default=99, help="switches that are forced, of each spec")
    parser.add_argument("--axes", type=int, default=99, help="axes that are fixed to other values, of each spec")
    parser.add_argument("--plans", type=int, default=5, help="plans whose axes are fixed")
    asked = parser.parse_args()
    known = YAML(typ="safe").load(SPECS.read_text(encoding="utf-8"))
    chosen = {path.stem: read_spec_file(path) for path in asked.files}
    chosen = chosen or {name: read_spec_document(document) for name, document in known.items()}
    tally = Tally()
    for number, (name, spec) in enumerate(chosen.items()):
        if asked.only is not None and name not in asked.only:
            continue
        one = forced(spec, effort=asked.effort) if asked.effort else spec
        extent = Extent(asked.features, asked.axes, asked.plans, number)
        for law in asked.laws:
            before = tally.compared(law)
            hold = hold_forced_post_training if law == "forced" and spec.training.rl is not None else LAWS[law]
            hold(name, one, extent, tally)
            if tally.compared(law) == before:
                tally.skip(law, "nothing to compare")
    return 0 if tally.total() else 1


if __name__ == "__main__":
    sys.exit(main())
