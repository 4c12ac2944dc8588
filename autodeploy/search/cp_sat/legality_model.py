"""The legality rules read a second time: one CP-SAT model over all axes, with one assumption literal a rule and a pin.

The rules stay the rows of `rules.yaml`. Each is evaluated by the same expression that makes the array masks, over the
joint domain of the few axes it names; what that forbids becomes a table constraint. So the model answers what masks
cannot: which rules together leave nothing, and which legal strategy is nearest to one that is not.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from ortools.sat.python import cp_model

from autodeploy.messages import Message
from autodeploy.search.cp_sat.model import new_solver
from autodeploy.space.candidates import CP_ALGOS, DISPATCHERS, HYBRID_DEGREES, Candidates
from autodeploy.space.rules import WORDS, load_rules, scope_of
from autodeploy.space.space import (
    KNOBS,
    RESTRICTED,
    Knob,
    allowed_values,
    default_space,
    log2_ratio,
    pin_text,
    values_left,
)
from autodeploy.specs.derived_fields import OPTIMIZER_MEMORY

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    import numpy.typing as npt

    from autodeploy.costs.inputs.context import Context
    from autodeploy.space.rules import Rule
    from autodeploy.space.space import Space
    from autodeploy.specs.search import SearchSpec

AXES: Final = tuple(f.name for f in fields(Candidates))
FILTERED: Final = ("dp", "etp")  # pins on what follows from other axes
MOST_ROWS: Final = 4_000_000  # of one rule's joint domain
DISTANCE_UNITS: Final = 1000  # integers a doubling
AN_AXIS: Final = 1_000_000  # one changed axis outweighs every distance


@dataclass(frozen=True, slots=True)
class Reason:
    """One member of a minimal set that leaves nothing: a rule of the target, or what the spec pins."""

    name: str
    text: str
    is_pin: bool = False


@dataclass(frozen=True, slots=True)
class Nearest:
    """The nearest legal strategy, and the knobs that have to be turned."""

    candidate: Candidates
    changed: tuple[str, ...]
    distance: float  # sum of |log2 ratio| over the changed degrees


class LegalityModel:
    """The strategies of a context, legal where every assumption holds.

    also : a candidate whose values are looked at too, where the default space leaves them out.
    """

    def __init__(
        self,
        search: SearchSpec,
        context: Context,
        switches: Mapping[str, str],
        *,
        ranks_per_node: int,
        also: Candidates | None = None,
    ) -> None:
        self.model = cp_model.CpModel()
        self.reasons: list[Reason] = []
        self.literals: list[cp_model.IntVar] = []
        self._known = {**WORDS.places(), **context.facts}
        default = default_space(
            context.model,
            context.world,
            ranks_per_node,
            context.seq_length,
            context.global_batch,
            switches,
            deepep=context.launches_deepep,
        )
        left = {axis: values_left(search, axis, getattr(default, axis)) for axis in RESTRICTED}
        space = {axis: sorted({*getattr(default, axis), *left[axis]}) for axis in RESTRICTED}
        self.domains = _domains(space, default, context, also)
        self.axes = {
            name: self.model.new_int_var_from_domain(cp_model.Domain.from_values(values), name)
            for name, values in self.domains.items()
        }
        for names, allowed in _definitions(context):
            self._hold(names, allowed)
        pinned = [axis for axis in RESTRICTED if left[axis] != list(getattr(default, axis))]
        pins = {axis: self._pin(search, axis, left[axis]) for axis in pinned}
        for axis in FILTERED:
            values = allowed_values(search, axis, self.domains[axis])
            if len(values) != len(self.domains[axis]):
                self._pin(search, axis, values)
        for axis, with_ in (("moe_dispatcher", "ep"), ("cp_algo", "cp")):
            self._one_spelling(axis, with_, getattr(default, axis), left[axis], pins.get(axis))
        scope = scope_of(context.facts, search.target)
        for rule in load_rules():
            if rule.binds(scope):
                self._add(rule)

    # -- build -------------------------------------------------------------------------------------------------------

    def _assume(self, reason: Reason) -> cp_model.IntVar:
        literal = self.model.new_bool_var(reason.name)
        self.reasons.append(reason)
        self.literals.append(literal)
        return literal

    def _add(self, rule: Rule) -> None:
        """A rule, as what it forbids among the values of the axes it names."""
        literal = self._assume(Reason(rule.name, rule.said(self._known)))
        for part in rule.parts():
            names = [name for name in AXES if name in part.names()]
            self._hold(names, lambda values, part=part: part.mask({**self._known, **values}), literal)

    def _hold(self, names: Sequence[str], allowed: Any, literal: Any = None) -> None:
        """Keep the values of a few axes to those for which `allowed` is true, where the literal is."""
        rows = self._joint(names)
        mask = np.broadcast_to(np.asarray(allowed(dict(zip(names, rows.T, strict=True))), dtype=bool), (len(rows),))
        if mask.all():
            return
        if not mask.any():
            self.model.add_bool_or([] if literal is None else [literal.negated()])
            return
        variables = [self.axes[name] for name in names]
        if np.count_nonzero(mask) <= len(rows) // 2:
            constraint = self.model.add_allowed_assignments(variables, rows[mask].tolist())
        else:
            constraint = self.model.add_forbidden_assignments(variables, rows[~mask].tolist())
        if literal is not None:
            constraint.only_enforce_if(literal)

    def _joint(self, names: Sequence[str]) -> npt.NDArray[np.int64]:
        """Every combination of the values of a few axes [rows, names]."""
        sizes = [len(self.domains[name]) for name in names]
        if int(np.prod(sizes, dtype=np.int64)) > MOST_ROWS:
            raise ValueError(Message("solver.rule_too_wide", names=", ".join(names)))
        grid = np.meshgrid(*[np.asarray(self.domains[n], dtype=np.int64) for n in names], indexing="ij")
        return np.stack([g.ravel() for g in grid], axis=1) if names else np.zeros((1, 0), dtype=np.int64)

    def _pin(self, search: SearchSpec, axis: str, values: Sequence[int]) -> cp_model.IntVar:
        literal = self._assume(Reason(axis, pin_text(search, axis), is_pin=True))
        self._hold([axis], lambda of: np.isin(of[axis], list(values)), literal)
        return literal

    def _one_spelling(
        self, axis: str, with_: str, default: Sequence[int], pinned: Sequence[int], pin: cp_model.IntVar | None
    ) -> None:
        """A choice without an effect is the first one, as enumeration spells it."""
        for values, literal in ((default, None if pin is None else pin.negated()), (pinned, pin)):
            if not values or (pin is None and values is pinned):
                continue
            only = values[0]
            self._hold([axis, with_], lambda of, only=only: (of[with_] > 1) | (of[axis] == only), literal)

    # -- ask ---------------------------------------------------------------------------------------------------------

    def conflict(self) -> tuple[Reason, ...]:
        """A minimal set of rules and pins that leaves nothing: without any one of them something is legal.

        Empty where something is legal. Deletion filter: rules are dropped before pins, the last of the file first, so
        that what stays is what the spec says and the rules that every framework has.
        """
        core = self._core(range(len(self.literals)))
        if core is None:
            return ()
        for number in sorted(core, key=lambda n: (self.reasons[n].is_pin, -n)):
            smaller = self._core(n for n in core if n != number) if number in core else None
            core = core if smaller is None else smaller
        return tuple(self.reasons[number] for number in sorted(core))

    def _core(self, numbers: Iterable[int]) -> list[int] | None:
        """Of these assumptions, some that cannot hold together; None where all can."""
        chosen = list(numbers)
        self.model.clear_objective()  # type: ignore[no-untyped-call]
        self.model.clear_assumptions()
        self.model.add_assumptions([self.literals[n] for n in chosen])
        solver = new_solver()
        solver.parameters.cp_model_presolve = False  # takes several times as long as such a question
        if solver.solve(self.model) != cp_model.INFEASIBLE:
            return None
        index = {self.literals[n].index: n for n in chosen}
        return sorted(index[i] for i in solver.sufficient_assumptions_for_infeasibility() if i in index)

    def liftable(self) -> tuple[Reason, ...]:
        """The fewest pins to lift so that something is legal; empty where nothing helps, or nothing has to."""
        pins = [n for n, reason in enumerate(self.reasons) if reason.is_pin]
        self.model.clear_assumptions()
        self.model.add_assumptions([self.literals[n] for n in range(len(self.literals)) if n not in pins])
        self.model.maximize(cp_model.LinearExpr.sum([self.literals[n] for n in pins]))
        solver = new_solver()
        status = solver.solve(self.model)
        if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
            return ()
        return tuple(self.reasons[n] for n in pins if not solver.boolean_value(self.literals[n]))

    def nearest(self, current: Candidates, *, ignore: frozenset[str] = frozenset()) -> Nearest | None:
        """The legal strategy with the fewest axes changed, then the least sum of |log2 ratio|; None without any.

        current : one strategy, built into the model as `also`.
        ignore : knobs that the strategy leaves open: changing them counts nothing.
        """
        costs = [self._cost(knob, current) for knob in KNOBS if knob.name not in ignore]
        self.model.clear_assumptions()
        self.model.add_assumptions(self.literals)
        self.model.minimize(cp_model.LinearExpr.sum(costs))
        solver = new_solver()
        if solver.solve(self.model) not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
            return None
        values = {name: solver.value(variable) for name, variable in self.axes.items()}
        candidate = _candidates({name: np.asarray([value]) for name, value in values.items()})
        changed = [knob for knob in KNOBS if knob.name not in ignore and _turned(knob, current, values) > 0]
        distance = sum(log2_ratio(values[k.name], int(getattr(current, k.name)[0])) for k in changed if k.is_degree)
        return Nearest(candidate, tuple(k.name for k in changed), distance)

    def _cost(self, knob: Knob, current: Candidates) -> cp_model.IntVar:
        """Cost of turning a knob: an axis, and for a degree how far it goes."""
        names = list(knob.columns) + ([knob.matters_with] if knob.matters_with else [])
        rows = self._joint(names)
        costs = [_turned(knob, current, dict(zip(names, row, strict=True))) for row in rows.tolist()]
        cost = self.model.new_int_var_from_domain(
            cp_model.Domain.from_values(sorted(set(costs))), f"cost of {knob.name}"
        )
        table = [(*row, c) for row, c in zip(rows.tolist(), costs, strict=True)]
        self.model.add_allowed_assignments([*(self.axes[name] for name in names), cost], table)
        return cost


def _candidates(columns: Mapping[str, npt.NDArray[np.int64]]) -> Candidates:
    flags = {"sequence_parallel", "keep_gathered", "tp_pp_dp_mapping", *OPTIMIZER_MEMORY}
    typed: dict[str, Any] = {n: c.astype(np.bool_) if n in flags else c for n, c in columns.items()}
    return Candidates(**typed)


def _turned(knob: Knob, current: Candidates, values: Mapping[str, int]) -> int:
    """Cost of the values of a knob against those of the current strategy."""
    if knob.matters_with is not None and values[knob.matters_with] == 1:
        return 0
    if all(values[name] == int(getattr(current, name)[0]) for name in knob.columns):
        return 0
    if not knob.is_degree:
        return AN_AXIS
    ratio = log2_ratio(values[knob.name], int(getattr(current, knob.name)[0]))
    return AN_AXIS + round(DISTANCE_UNITS * ratio)


def _domains(
    space: dict[str, list[int]], default: Space, context: Context, also: Candidates | None
) -> dict[str, list[int]]:
    """Values of every axis: of the space and of the candidate looked at too, and what follows from them."""
    extra = {axis: [] if also is None else [int(getattr(also, axis)[0])] for axis in AXES}
    domains = {axis: sorted({*values, *extra[axis]}) for axis, values in space.items()}
    tp, pp, cp = (np.asarray(domains[axis], dtype=np.int64) for axis in ("tp", "pp", "cp"))
    ranks = tp[:, None, None] * pp[:, None] * cp
    dp = np.unique(context.world // ranks)
    sequences = np.asarray(domains["micro_batch_size"], dtype=np.int64)[:, None] * np.maximum(dp, 1)
    other_order = context.facts["asked_tp_pp_dp_mapping"] or extra["tp_pp_dp_mapping"] == [1]
    whole = [1, *domains["tp"]] if context.model.is_moe else [1]
    domains |= {
        "dp": sorted({*dp.tolist(), *extra["dp"]}),
        "micro_batches": sorted({*np.unique(context.global_batch // sequences).tolist(), *extra["micro_batches"]}),
        "etp": sorted({*whole, *extra["etp"]}),
        "ulysses": sorted({1, *domains["cp"], *HYBRID_DEGREES, *extra["ulysses"]}),
        "sequence_parallel": [0, 1],
        "keep_gathered": sorted({*default.keep_gathered, *extra["keep_gathered"]}),
        **{name: [0, 1] if name in default.memory_modes or extra[name] == [1] else [0] for name in OPTIMIZER_MEMORY},
        "tp_pp_dp_mapping": [0, 1] if other_order else [0],
    }
    return {axis: domains[axis] for axis in AXES}


def _definitions(context: Context) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Definitions of axes, rule or no rule: (axes, mask over their values)."""
    ulysses, hybrid = CP_ALGOS.index("ulysses"), CP_ALGOS.index("hybrid")

    def split(of: Mapping[str, Any]) -> Any:
        cut, algo, degree = of["cp"] > 1, of["cp_algo"], of["ulysses"]
        return np.where(
            cut & (algo == hybrid),
            np.isin(degree, HYBRID_DEGREES),
            degree == np.where(cut & (algo == ulysses), of["cp"], 1),
        )

    yield ("tp", "pp", "cp", "dp"), lambda of: of["dp"] == context.world // (of["tp"] * of["pp"] * of["cp"])
    yield (
        ("micro_batch_size", "dp", "micro_batches"),
        lambda of: of["micro_batches"] == context.global_batch // (of["micro_batch_size"] * np.maximum(of["dp"], 1)),
    )
    yield ("tp", "sequence_parallel"), lambda of: of["sequence_parallel"] == (of["tp"] > 1)
    yield ("cp", "cp_algo", "ulysses"), split
    # The sequential dispatcher differs from the plain one by what it does with tensor parallelism.
    sequential = DISPATCHERS.index("alltoall_seq")
    yield ("tp", "moe_dispatcher"), lambda of: (of["tp"] > 1) | (of["moe_dispatcher"] != sequential)
