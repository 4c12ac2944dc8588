"""Rules are written once and read twice: as array masks over candidates, and as one CP-SAT model over all axes."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from ortools.sat.python import cp_model

from autodeploy.costs.sweep.sweep import sweep
from autodeploy.search.branch_and_bound.best_first import best_first
from autodeploy.search.branch_and_bound.candidate import solve_candidate
from autodeploy.search.branch_and_bound.frontier import SearchRequest
from autodeploy.search.branch_and_bound.search_space import candidate_grid, legal_candidates
from autodeploy.search.choices.effort import FAST, Budget
from autodeploy.search.cp_sat.legality_model import AXES, LegalityModel
from autodeploy.search.cp_sat.model import new_solver
from autodeploy.search.planner import Prepared, prepare
from autodeploy.search.ranking.nearest_legal import rules_in_the_way
from autodeploy.space.candidates import DISPATCHERS, SCHEDULES, Candidates
from autodeploy.space.grid import grid_of
from autodeploy.space.rules import judge, load_rules, values_of
from autodeploy.space.space import KNOBS, allowed_values, default_space, log2_ratio, restrict
from autodeploy.specs.reading import read_spec_document
from tests.support.cut_costs import cut_costs
from tests.support.examples import examples

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autodeploy.specs.search import SearchSpec

SPACES = settings(max_examples=examples(12), deadline=None, suppress_health_check=list(HealthCheck))
TIMED = settings(max_examples=examples(12), deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
TINY: dict[str, Any] = {
    "name": "tiny",
    "hidden_size": 1024,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "intermediate_size": 4096,
    "vocab_size": 32_000,
}
TINY_EXPERTS = TINY | {"n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 512}
MODELS = ("qwen3-0.6b", "deepseek-v2-lite", "mixtral-8x7b")
DEGREES = (1, 2, 3, 4, 8, 16)
# What enumeration leaves out before rules are asked, because it could not be counted otherwise.
ENUMERATED_AWAY = {"world_divides", "schedule_fits_vpp", "chunks_need_stages"}


def pins(**values: Sequence[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Some of the axes pinned, restricted or with forbidden values."""
    one = st.fixed_dictionaries({}, optional={axis: st.sampled_from(v) for axis, v in values.items()})
    some = {axis: st.lists(st.sampled_from(v), min_size=1, max_size=2, unique=True) for axis, v in values.items()}
    return st.fixed_dictionaries(
        {
            "fix": one,
            "allow": st.fixed_dictionaries({}, optional=some),
            "forbid": st.fixed_dictionaries({}, optional=some),
        }
    )


ANY_PINS = pins(
    tp=DEGREES,
    pp=DEGREES,
    vpp=(1, 2, 3),
    dp=(1, 2, 4),
    cp=(1, 2, 4),
    cp_algo=("ring", "ulysses"),
    ep=DEGREES,
    etp=(1, 2),
    micro_batch_size=(1, 2),
    schedule=[s for s in SCHEDULES if s != "dualpipe"][:2],
    moe_dispatcher=DISPATCHERS[:2],
)


@st.composite
def specs(
    draw: st.DrawFn, searched: st.SearchStrategy[dict[str, Any]] = ANY_PINS, models: Sequence[Any] = MODELS
) -> Prepared:
    """A small spec, resolved."""
    return prepare(
        read_spec_document(
            {
                "model": draw(st.sampled_from(models)),
                "cluster": {"profile": "ascend-800t-a2", "num_npus": draw(st.sampled_from([8, 16, 24]))},
                "training": {
                    "seq_length": draw(st.sampled_from([4096, 8192])),
                    "global_batch_size": draw(st.sampled_from([7, 8, 32, 48])),
                },
                "search": {
                    "target": draw(st.sampled_from(["mindspeed-llm", "megatron", "mindformers", "any"])),
                    "numerics": draw(st.sampled_from(["exact", "reordered"])),
                    **draw(searched),
                },
            }
        )
    )


def model_of(prepared: Prepared, also: Candidates | None = None) -> LegalityModel:
    return LegalityModel(
        prepared.spec.search,
        prepared.context,
        prepared.choice.switches,
        ranks_per_node=prepared.profile.ranks_per_node,
        also=also,
    )


def legal_of(prepared: Prepared) -> Candidates:
    return legal_candidates(prepared.spec.search, prepared.context, prepared.profile, prepared.choice)[0]


def enumerated(prepared: Prepared, search: SearchSpec) -> Candidates:
    """Everything before rules, under the pins of a search."""
    context = prepared.context
    space = default_space(
        context.model,
        context.world,
        prepared.profile.ranks_per_node,
        context.seq_length,
        context.global_batch,
        prepared.choice.switches,
    )
    found = (
        grid_of(
            restrict(space, search), world=context.world, global_batch=context.global_batch, moe=context.model.is_moe
        )
        .whole()
        .candidates()
    )
    keep = np.ones(len(found), dtype=bool)
    for axis in ("dp", "etp"):
        values = getattr(found, axis)
        keep &= np.isin(values, allowed_values(search, axis, np.unique(values).tolist()))
    return found.take(np.flatnonzero(keep))


def rows(candidates: Candidates) -> set[tuple[int, ...]]:
    columns = [np.asarray(getattr(candidates, axis)).astype(np.int64) for axis in AXES]
    return set(map(tuple, np.stack(columns, axis=1).tolist()))


def every(legality: LegalityModel) -> set[tuple[int, ...]]:
    """Every legal strategy that the model knows, once each."""
    legality.model.add_bool_and(legality.literals)
    variables, found = list(legality.axes.values()), []

    class Collect(cp_model.CpSolverSolutionCallback):
        def on_solution_callback(self) -> None:
            found.append(tuple(self.value(variable) for variable in variables))

    solver = new_solver()
    solver.parameters.enumerate_all_solutions = True
    solver.solve(legality.model, Collect())
    assert len(set(found)) == len(found), "none twice"
    return set(found)


@SPACES
@given(specs())
def test_masks_and_model_admit_the_same_strategies(prepared: Prepared) -> None:
    legal = legal_of(prepared)
    assume(len(legal) < 3000)
    assert every(model_of(prepared)) == rows(legal)


@SPACES
@given(specs())
def test_a_conflict_is_there_when_nothing_is_legal_and_minimal(prepared: Prepared) -> None:
    reasons = model_of(prepared).conflict()
    assert bool(reasons) == (len(legal_of(prepared)) == 0)
    for left_out in (None, *reasons):
        kept = [reason for reason in reasons if reason is not left_out]
        if left_out is not None and left_out.name in ENUMERATED_AWAY:
            continue
        # Read as masks: only the pins and the rules of the set, and then one fewer.
        pinned = {reason.name for reason in kept if reason.is_pin}
        said = {
            f: {k: v for k, v in getattr(prepared.spec.search, f).items() if k in pinned}
            for f in ("fix", "allow", "forbid")
        }
        search = prepared.spec.search.model_copy(update=said)
        found = enumerated(prepared, search)
        values = values_of(found, prepared.context.facts)
        named = {reason.name for reason in kept if not reason.is_pin}
        masks = [np.broadcast_to(r.mask(values), (len(found),)) for r in load_rules() if r.name in named]
        left = np.logical_and.reduce([np.ones(len(found), dtype=bool), *masks])
        if reasons:
            assert left.any() == (left_out is not None), (left_out, reasons)


@SPACES
@given(specs())
def test_rules_read_from_candidates_exclude_all_of_them_and_none_is_spare(prepared: Prepared) -> None:
    search, context = prepared.spec.search, prepared.context
    found = rules_in_the_way(search, context, prepared.profile, prepared.choice)
    candidates = candidate_grid(search, context, prepared.profile, prepared.choice).whole().candidates()
    assert bool(found) == (len(candidates) > 0 and len(legal_of(prepared)) == 0)
    values, names = values_of(candidates, context.facts), [name for name, _ in found]
    of_name = {rule.name: np.broadcast_to(rule.mask(values), (len(candidates),)) for rule in load_rules()}
    for left_out in (None, *names) if found else ():
        obeyed = np.logical_and.reduce([of_name[name] for name in names if name != left_out] or [np.True_])
        assert np.any(obeyed) == (left_out is not None)


@SPACES
@given(specs(), st.randoms(use_true_random=False))
def test_the_nearest_legal_strategy_changes_least(prepared: Prepared, random: Any) -> None:
    legal = legal_of(prepared)
    free = prepared.spec.search.model_copy(update={"fix": {}, "allow": {}, "forbid": {}})
    anything = enumerated(prepared, free)
    number = random.randrange(len(anything))
    current = anything.take(slice(number, number + 1))
    found = model_of(prepared, current).nearest(current)
    if found is not None:
        assert judge(found.candidate, prepared.context.facts, prepared.spec.search.target).legal.all()
        assert cost(current, found.candidate) == (len(found.changed), pytest.approx(found.distance))
    if not len(legal):
        return
    assert found is not None
    costs = [cost(current, legal.take(slice(i, i + 1))) for i in range(len(legal))]
    best = min(costs)
    assert (len(found.changed), found.distance) <= (best[0], best[1] + 0.01)
    if rows(current) <= rows(legal):
        assert found.changed == ()


def cost(before: Candidates, after: Candidates) -> tuple[int, float]:
    """Axes changed, and the sum of |log2 ratio|, of one strategy against another."""
    changed, distance = 0, 0.0
    for knob in KNOBS:
        if knob.matters_with is not None and int(getattr(after, knob.matters_with)[0]) == 1:
            continue
        if any(int(getattr(before, c)[0]) != int(getattr(after, c)[0]) for c in knob.columns):
            changed += 1
            if knob.is_degree:
                distance += log2_ratio(int(getattr(before, knob.name)[0]), int(getattr(after, knob.name)[0]))
    return changed, distance


SMALL_PINS = st.fixed_dictionaries(
    {
        "fix": st.fixed_dictionaries({"micro_batch_size": st.just(1), "cp": st.just(1)}),
        "allow": st.fixed_dictionaries(
            {
                "tp": st.lists(st.sampled_from([1, 2, 4, 8]), min_size=1, max_size=2, unique=True),
                "pp": st.lists(st.sampled_from([1, 2, 4]), min_size=1, max_size=2, unique=True),
                "vpp": st.sampled_from([[1], [1, 2]]),
                "ep": st.lists(st.sampled_from([1, 2, 4, 8]), min_size=1, max_size=2, unique=True),
                "moe_dispatcher": st.just(["alltoall"]),
            }
        ),
        "features": st.just(dict.fromkeys(("reuse_fp32_param", "swap_optimizer", "virtual_optimizer"), "off")),
    }
)


@TIMED
@given(specs(SMALL_PINS, (TINY, TINY_EXPERTS)))
def test_one_model_over_all_axes_and_time_has_the_optimum_of_the_two_levels(prepared: Prepared) -> None:
    """Time is an element of a table; what is illegal is tabled as free of charge, so that the rules must exclude it."""
    search, context = prepared.spec.search, prepared.context
    everything = enumerated(prepared, search)
    verdict = judge(everything, context.facts, search.target)
    numbers = np.flatnonzero(verdict.legal)
    legal = everything.take(numbers)
    assume(0 < len(legal) <= 12)
    costs_s = np.zeros(len(everything))
    for place, number in enumerate(numbers):
        solution = solve_candidate(legal.take(slice(place, place + 1)), context, place, None).solution
        costs_s[number] = solution.step_s if solution.plan is not None else math.inf
    budget = Budget(quick=10**6, slots=math.inf, refined=0, effort=FAST)
    costs = cut_costs(legal, context)
    levels = best_first(SearchRequest(legal, sweep(legal, context), lambda _: context, 1, 0.0, budget, costs))
    one = fastest_of_one_model(model_of(prepared), everything, costs_s)
    if one is None:
        assert not levels.best
        return
    assert levels.incumbent_s is not None
    assert abs(one - levels.incumbent_s) <= 1e-6 * one


def fastest_of_one_model(legality: LegalityModel, everything: Candidates, costs_s: np.ndarray) -> float | None:
    """Least time over all axes, with every rule assumed."""
    model = legality.model
    for literal in legality.literals:
        model.add(literal == 1)
    possible = np.isfinite(costs_s)
    columns = np.stack([np.asarray(getattr(everything, axis)).astype(np.int64) for axis in AXES], axis=1)[possible]
    nanoseconds = [round(1e9 * cost) for cost in costs_s[possible]]
    if not nanoseconds:
        return None
    number = model.new_int_var(0, len(nanoseconds) - 1, "number")
    model.add_allowed_assignments(
        [*(legality.axes[axis] for axis in AXES), number], [(*row, i) for i, row in enumerate(columns.tolist())]
    )
    time = model.new_int_var(0, max(nanoseconds), "time")
    model.add_element(number, nanoseconds, time)
    model.minimize(time)
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    if solver.solve(model) != cp_model.OPTIMAL:
        return None
    return solver.value(time) / 1e9
