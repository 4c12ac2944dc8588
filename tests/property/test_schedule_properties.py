"""Closed forms never exceed the graph; a path of one candidate bounds every other; more work never ends sooner."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from cost_models.schedule import (
    Sends,
    StageClasses,
    closed_form_classes_s,
    closed_form_s,
    critical_path,
    makespan_s,
    operation_order,
)
from tests.support.examples import examples

if TYPE_CHECKING:
    from cost_models.arrays import Floats


Instance = tuple[str, int, int, int, "Floats", "Floats", "Floats", Sends]


@st.composite
def instances(draw: st.DrawFn) -> Instance:
    kind = draw(st.sampled_from(["1f1b", "interleaved", "adaptive_pipe", "dualpipev", "dualpipe"]))
    pp = draw(st.integers(1, 6)) if kind != "dualpipe" else 2 * draw(st.integers(1, 3))
    vpp = 1 if kind == "1f1b" else 2 if kind.startswith("dual") else draw(st.integers(1, 4))
    least = {"dualpipev": 2 * pp - 1, "dualpipe": 2 * pp}.get(kind, 1)
    m = draw(st.integers(least, least + 14))
    m += m % 2 if kind == "dualpipe" else 0
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    shape = (6, pp, vpp)
    forward, backward = rng.uniform(0.1, 2, shape), rng.uniform(0.1, 4, shape)
    hidden = rng.uniform(0, 1, (*shape, vpp)) * np.minimum(forward[..., None], backward[..., None, :])
    covering, split = rng.uniform(0, 0.5, (*shape, vpp)), rng.uniform(0, 1, shape) * backward
    sends = Sends(draw(st.sampled_from([0.0, 0.1, 1.0])), *draw(st.sampled_from([(None, None), (covering, split)])))
    return kind, pp, vpp, m, forward, backward, hidden, sends


@settings(max_examples=examples(80), deadline=None)
@given(instances())
def test_closed_forms_are_lower_bounds(case: Instance) -> None:
    kind, pp, vpp, m, forward, backward, hidden, p2p = case
    graph = makespan_s(operation_order(kind, pp, vpp, m), forward, backward, hidden, p2p)
    closed = closed_form_s(kind, forward, backward, m, hidden, p2p)
    assert (closed.makespan_s <= graph * (1 + 1e-12)).all()
    assert (closed.bubble_s >= 0).all()
    assert (closed.work_s >= 0).all()
    if kind == "dualpipe":
        return
    # The same stage everywhere: the short form for sweeps is a bound as well.
    one, two, pair = forward[:, [0] * 3], backward[:, [0] * 3], np.repeat(hidden[:, [0]].max(axis=(2, 3)), 3, axis=1)
    cover, late = (None if a is None else a[:, [0] * pp] for a in (p2p.covering_s, p2p.split_s))
    same = Sends(p2p.p2p_s, cover, late)
    split = 0.0 if late is None else np.repeat(late[:, [0], -1], 3, axis=1)
    stages = StageClasses(one.sum(2), two.sum(2), one[..., 0], two[..., 0], one[..., -1], two[..., -1], pair, split)
    sizes = np.full(6, pp), np.full(6, vpp), np.full(6, m)
    short = closed_form_classes_s(kind, stages, *sizes, p2p.p2p_s, same.least_s(6))
    graph = makespan_s(
        operation_order(kind, pp, vpp, m), forward[:, [0] * pp], backward[:, [0] * pp], hidden[:, [0] * pp], same
    )
    assert (short.makespan_s <= graph * (1 + 1e-12)).all()


@settings(max_examples=examples(40), deadline=None)
@given(instances())
def test_every_critical_path_is_a_cut(case: Instance) -> None:
    kind, pp, vpp, m, forward, backward, hidden, p2p = case
    order = operation_order(kind, pp, vpp, m)
    graph = makespan_s(order, forward, backward, hidden, p2p)
    path = critical_path(order, forward[0], backward[0], hidden[0], p2p.take(slice(1)))
    length = path.length_s(forward, backward, hidden, p2p)
    assert np.isclose(length[0], graph[0], rtol=1e-9)
    assert (length <= graph * (1 + 1e-12)).all()


@settings(max_examples=examples(30), deadline=None)
@given(instances())
def test_more_work_never_ends_sooner(case: Instance) -> None:
    kind, pp, vpp, m, forward, backward, hidden, p2p = case
    order = operation_order(kind, pp, vpp, m)
    graph = makespan_s(order, forward, backward, hidden, p2p)
    assert (makespan_s(order, forward * 1.01, backward, hidden, p2p) >= graph * (1 - 1e-12)).all()
    assert (makespan_s(order, forward, backward, hidden * 0.5, p2p) >= graph * (1 - 1e-12)).all()
    later = Sends(2.0 * p2p.p2p_s, p2p.covering_s, p2p.split_s)
    assert (makespan_s(order, forward, backward, hidden, later) >= graph * (1 - 1e-12)).all()
    assert (makespan_s(order, forward, backward, hidden, p2p.p2p_s) >= graph * (1 - 1e-12)).all()
