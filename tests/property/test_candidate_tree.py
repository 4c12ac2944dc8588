"""A space judged by the levels of its axes is the space judged one candidate at a time."""

from __future__ import annotations

from dataclasses import fields, replace
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autodeploy.space.candidates import CP_ALGOS, DISPATCHERS, SCHEDULES, Candidates
from autodeploy.space.facts import facts_of
from autodeploy.space.grid import Grid, grid_of, judge_grid
from autodeploy.space.rules import Rule, judge
from autodeploy.space.space import Space
from autodeploy.space.tree import CUT_AXES, OPTIMIZER_STATE_AXES, CandidateTree, distinct_cuts, tree_of
from autodeploy.specs.presets import load_preset
from tests.support.examples import examples

if TYPE_CHECKING:
    from autodeploy.specs.model import ModelSpec

MODELS = ("deepseek-v3", "llama2-70b", "qwen3-235b-a22b")
TARGETS = ("any", "mindspeed-llm", "megatron", "mindformers")
FEATURES = ("grouped_gemm", "capacity_drop", "o2_optimizer", "quantized_optimizer", "tp_extend_ep")


def some(values: list[Any]) -> st.SearchStrategy[list[Any]]:
    return st.lists(st.sampled_from(values), min_size=1, max_size=3, unique=True).map(sorted)


spaces = st.builds(
    Space,
    tp=some([1, 2, 4, 8]),
    pp=some([1, 2, 4, 8, 16]),
    vpp=some([1, 2, 3, 5]),
    cp=some([1, 2, 4]),
    ep=some([1, 4, 8, 16]),
    micro_batch_size=some([1, 2, 3]),
    cp_algo=some([0, 1, 2]),
    schedule=some([0, 1, 2, 4]),
    moe_dispatcher=some([0, 1, 2, 3]),
    etp_modes=st.sampled_from([("whole", "as_tp"), ("as_tp",)]),
    memory_modes=st.sampled_from(
        [("",), ("", "reuse_fp32_param"), ("", "reuse_fp32_param", "swap_optimizer", "virtual_optimizer")]
    ),
    keep_gathered=st.sampled_from([(0,), (0, 1)]),
    dp_replicate=st.sampled_from([(1,), (1, 2), (3,)]),
    tp_pp_dp_mapping=st.sampled_from([(False,), (False, True)]),
)


@st.composite
def judged(draw: st.DrawFn) -> tuple[Grid, Candidates, dict[str, Any], str]:
    """A space as a grid and multiplied out, with facts and a target."""
    model = load_preset(draw(st.sampled_from(MODELS)))
    space, world, batch = draw(spaces), draw(st.sampled_from([16, 64, 96])), draw(st.sampled_from([32, 64, 96]))
    space = space if model.is_moe else replace(space, etp_modes=("as_tp",))
    facts = facts_of(
        model,
        world=world,
        seq_length=draw(st.sampled_from([4096, 4099])),
        global_batch=batch,
        node_ranks=8,
        tp_limit=8,
        features=set(draw(st.lists(st.sampled_from(FEATURES), unique=True))),
        exact_numerics=draw(st.booleans()),
        deterministic=draw(st.booleans()),
    )
    sizes = {"world": world, "global_batch": batch, "moe": model.is_moe}
    return grid_of(space, **sizes), grid_of(space, **sizes).whole().candidates(), facts, draw(st.sampled_from(TARGETS))


def plain_facts(model: ModelSpec, *, world: int, global_batch: int) -> dict[str, Any]:
    """Facts of a run on nodes of eight ranks without features."""
    sizes = {"world": world, "global_batch": global_batch, "seq_length": 4096}
    return facts_of(model, **sizes, node_ranks=8, tp_limit=8, features=set())


def rows(candidates: Candidates) -> np.ndarray:
    return np.stack([np.asarray(column, dtype=np.int64) for column in candidates.columns().values()], axis=1)


@settings(max_examples=examples(40), deadline=None)
@given(judged(), st.booleans())
def test_rules_by_level_give_the_same_candidates_and_counts(
    case: tuple[Grid, Candidates, dict[str, Any], str], by_replicas: bool
) -> None:
    grid, candidates, facts, target = case
    tree, rejected = judge_grid(grid, facts, target, by_replicas=by_replicas)
    verdict = judge(candidates, facts, target)
    assert len(grid) == len(candidates)
    assert rejected == verdict.rejected
    assert len(tree) == int(verdict.legal.sum())
    assert np.array_equal(rows(tree.candidates()), rows(candidates.take(np.flatnonzero(verdict.legal))))
    check_levels(tree, by_replicas)


@pytest.mark.parametrize("turned", [False, True])
def test_rules_of_a_mode_at_several_levels_are_all_counted(monkeypatch: pytest.MonkeyPatch, turned: bool) -> None:
    """Each mode breaks rules over cuts, over shapes and over both; which comes first in the file counts."""
    of_mode = ("tp > 1", "pp > 1", "tp * pp > 4", "vpp > 1")
    rules = [Rule(text, ("arithmetic",), f"not reuse_fp32_param or {text}", text, "") for text in of_mode]
    rules = tuple([*rules[::-1], Rule("dp", ("arithmetic",), "dp > 1", "", "")] if turned else rules)
    for module in ("rules", "grid"):
        monkeypatch.setattr(f"autodeploy.space.{module}.load_rules", lambda: rules)
    model = load_preset("llama2-70b")
    sizes: dict[str, Any] = {"world": 16, "global_batch": 32, "moe": False}
    space = Space(
        tp=[1, 2, 4],
        pp=[1, 2, 4],
        vpp=[1, 2],
        cp=[1],
        ep=[1],
        micro_batch_size=[1],
        cp_algo=[0],
        schedule=[0, 1],
        moe_dispatcher=[0],
        etp_modes=("as_tp",),
        memory_modes=("", "reuse_fp32_param", "swap_optimizer"),
    )
    facts = plain_facts(model, world=16, global_batch=32)
    grid = grid_of(space, **sizes)
    candidates = grid.whole().candidates()
    tree, rejected = judge_grid(grid, facts, "any")
    verdict = judge(candidates, facts, "any")
    assert len(rejected) >= 3
    assert rejected == verdict.rejected
    assert np.array_equal(rows(tree.candidates()), rows(candidates.take(np.flatnonzero(verdict.legal))))


def check_levels(tree: CandidateTree, by_replicas: bool) -> None:
    """Parents share the axes of their level with what hangs from them, and nothing is given twice."""
    assert len(np.unique(rows(tree.candidates()), axis=0)) == len(tree)
    for axis in CUT_AXES:
        assert np.array_equal(getattr(tree.cuts, axis)[tree.cut_of], getattr(tree.placed, axis))
    assert len(tree.cuts) == (len(tree.placed) if by_replicas else len(np.unique(tree.cut_of)))


@settings(max_examples=examples(20), deadline=None)
@given(judged(), st.randoms(use_true_random=False), st.booleans())
def test_any_candidates_make_a_tree(
    case: tuple[Grid, Candidates, dict[str, Any], str], random: Any, by_replicas: bool
) -> None:
    _, candidates, _, _ = case
    chosen = np.array([random.randrange(len(candidates)) for _ in range(9)] if len(candidates) else [], dtype=np.int64)
    some_of_them = candidates.take(chosen)
    tree, place = tree_of(some_of_them, by_replicas=by_replicas)
    assert np.array_equal(rows(tree.take(place)), rows(some_of_them))
    assert len(tree) == len(np.unique(rows(some_of_them), axis=0))
    check_levels(tree, by_replicas)


def test_a_space_is_every_combination_that_exists() -> None:
    space = Space(
        tp=[1, 2],
        pp=[1, 2],
        vpp=[1, 2],
        cp=[1, 4],
        ep=[1, 4],
        micro_batch_size=[1],
        cp_algo=[0, 2],
        schedule=[0, 1, 2, 4],
        moe_dispatcher=[0, 1],
        etp_modes=("whole", "as_tp"),
        memory_modes=("", "swap_optimizer"),
        keep_gathered=(0, 1),
        tp_pp_dp_mapping=(False, True),
    )
    found = set(map(tuple, rows(grid_of(space, world=16, global_batch=32, moe=True).whole().candidates()).tolist()))
    assert found == set(combinations(space))


def combinations(space: Space) -> list[tuple[int, ...]]:
    """The same, one loop after the other, for 16 ranks and a batch of 32."""
    made = []
    for tp in space.tp:
        for cp in space.cp:
            for pp in space.pp:
                for etp in {1, tp}:
                    for ep in space.ep:
                        for dispatcher in space.moe_dispatcher if ep > 1 else [0]:
                            if DISPATCHERS[dispatcher] == "alltoall_seq" and tp == 1:
                                continue
                            for algo, ulysses in [(0, 1)] if cp == 1 else [(0, 1), (2, 2)]:
                                assert CP_ALGOS[algo] in ("ring", "hybrid")
                                for schedule, vpp in ways(pp):
                                    dp = 16 // (tp * cp * pp)
                                    cut = (tp, pp, vpp, cp, algo, ulysses, ep, etp, dp, 1, 32 // dp)
                                    way = (SCHEDULES.index(schedule), dispatcher, int(tp > 1))
                                    other = pp > 1 and dp > 1 and tp * cp == etp * ep
                                    modes = product((0, 1), (0, 1), range(1 + other))
                                    made += [(*cut, *way, 0, swap, 0, keep, 1, o) for swap, keep, o in modes]
    return made


def ways(pp: int) -> list[tuple[str, int]]:
    if pp == 1:
        return [("1f1b", 1), ("adaptive_pipe", 1)]
    return [("1f1b", 1), ("interleaved", 2), ("dualpipev", 2), ("adaptive_pipe", 2)]


@pytest.mark.parametrize("target", TARGETS)
def test_an_empty_grid_is_judged(target: str) -> None:
    space = Space([4], [1], [1], [1], [1], [1], [0], [0], [0], ("as_tp",), ("",))
    grid = grid_of(space, world=2, global_batch=4, moe=False)
    facts = plain_facts(load_preset("llama2-70b"), world=2, global_batch=4)
    tree, rejected = judge_grid(grid, facts, target)
    assert len(grid) == len(tree) == len(tree.candidates()) == 0
    assert rejected == {}


def test_cuts_differ_by_replicas_only_where_these_count() -> None:
    ones = {f.name: np.ones(4, dtype=np.int64) for f in fields(Candidates)}
    flags = ("sequence_parallel", "keep_gathered", "tp_pp_dp_mapping", *OPTIMIZER_STATE_AXES)
    columns = ones | {name: np.zeros(4, dtype=np.bool_) for name in flags} | {"schedule": np.zeros(4, dtype=np.int64)}
    some = Candidates(**columns | {"tp": np.array([1, 1, 2, 2]), "dp": np.array([8, 4, 4, 4])})
    assert distinct_cuts(some)[1].tolist() == [0, 0, 1, 1]
    assert len(set(distinct_cuts(some, by_replicas=True)[1].tolist())) == 3
