"""The graph's makespan: published bubbles, gaps that add up, closed forms of equal stages."""

from __future__ import annotations

import numpy as np
import pytest

from cost_models.schedule import (
    Sends,
    StageClasses,
    closed_form_classes_s,
    closed_form_s,
    critical_path,
    makespan_s,
    operation_order,
    pair_counts,
    simulate,
)
from tests.support.bubbles import bubble_fraction, dualpipev_bubble_s, paired_share

F, B = 1.0, 2.0


def equal(kind: str, pp: int, vpp: int, m: int, hidden: float = 0.0) -> tuple[float, float]:
    """Simulated and closed-form makespan of equal chunks."""
    forward, backward = np.full((1, pp, vpp), F), np.full((1, pp, vpp), B)
    pair = np.full((1, pp, vpp, vpp), hidden)
    graph = makespan_s(operation_order(kind, pp, vpp, m), forward, backward, pair)[0]
    return float(graph), float(closed_form_s(kind, forward, backward, m, pair).makespan_s[0])


@pytest.mark.parametrize(("pp", "m"), [(1, 4), (4, 2), (4, 8), (16, 32), (16, 7)])
def test_1f1b_bubble(pp: int, m: int) -> None:
    assert equal("1f1b", pp, 1, m) == pytest.approx(((m + pp - 1) * (F + B),) * 2)


@pytest.mark.parametrize(("pp", "vpp", "m"), [(4, 2, 4), (4, 2, 8), (8, 3, 32), (4, 2, 6), (4, 3, 9)])
def test_interleaving_divides_the_bubble(pp: int, vpp: int, m: int) -> None:
    assert equal("interleaved", pp, vpp, m) == pytest.approx(((m * vpp + pp - 1) * (F + B),) * 2)


@pytest.mark.parametrize(("m", "published"), [(16, 0.3043), (96, 0.0680)])
def test_pangu_ultra_bubble(m: int, published: float) -> None:
    # arXiv 2504.07866: PP8, 16 micro batches; VPP6 turns 30.45 % (7 / 23) into 6.8 % (7 / 103).
    kind, vpp = ("1f1b", 1) if m == 16 else ("interleaved", 6)
    time = simulate(operation_order(kind, 8, vpp, 16), np.full((1, 8, vpp), F), np.full((1, 8, vpp), B))
    share = time.idle_s[0] / time.makespan_s[0]
    assert share == pytest.approx([7 / (7 + m)] * 8)
    assert share[0] == pytest.approx(published, abs=5e-5)
    assert share[0] == pytest.approx(bubble_fraction(8, vpp, 16))


@pytest.mark.parametrize(("pp", "m"), [(2, 4), (4, 8), (8, 32)])
@pytest.mark.parametrize("hidden", [0.0, 0.5])
def test_dualpipev_bubble_of_mindspeed(pp: int, m: int, hidden: float) -> None:
    work = 2 * m * (F + B) - hidden * pair_counts("dualpipev", pp, 2, m).sum(axis=(1, 2))[-1]
    bubble = (pp - 1) * (F + B - hidden + B) - F
    assert equal("dualpipev", pp, 2, m, hidden) == pytest.approx((work + bubble,) * 2)


@pytest.mark.parametrize(("pp", "m", "exact"), [(2, 8, False), (4, 16, False), (8, 32, True), (16, 64, True)])
@pytest.mark.parametrize("hidden", [0.0, 0.5])
def test_dualpipev_splits_weight_gradients(pp: int, m: int, exact: bool, hidden: float) -> None:
    # MindSpeed's (P - 1)(F&B + B - W) - F; short pipelines keep another path through one or two whole backwards.
    weight, chunk = 0.8, np.ones((1, pp, 2))
    pair, sends = np.full((1, pp, 2, 2), hidden), Sends(0.0, None, weight * chunk)
    order = operation_order("dualpipev", pp, 2, m)
    time = simulate(order, F * chunk, B * chunk, pair, sends)
    bubble, published = time.idle_s[0, -1], dualpipev_bubble_s(pp, F, B, weight, F + B - hidden)
    whole = dualpipev_bubble_s(pp, F, B, 0.0, F + B - hidden)
    assert published - 1e-9 <= bubble <= whole
    assert bubble == pytest.approx(published) or not exact
    closed = closed_form_s("dualpipev", F * chunk, B * chunk, m, pair, sends).makespan_s[0]
    assert closed <= time.makespan_s[0] * (1 + 1e-12)
    assert closed == pytest.approx(time.makespan_s[0]) or not exact


def test_adaptive_pipe_hides_in_the_steady_phase_only() -> None:
    pp, vpp, m, hidden = 4, 2, 16, 0.9
    order = operation_order("adaptive_pipe", pp, vpp, m)
    time = simulate(order, np.full((1, pp, vpp), F), np.full((1, pp, vpp), B), np.full((1, pp, vpp, vpp), hidden))
    ahead = 2 * (pp - 1 - np.arange(pp)) + (vpp - 1) * pp + 1
    assert time.paired_hidden_s[0] == pytest.approx((m * vpp - ahead) * hidden)
    graph, closed = equal("adaptive_pipe", pp, vpp, m, hidden)
    assert closed == pytest.approx(graph)


@pytest.mark.parametrize(("pp", "vpp", "m"), [(4, 2, 16), (4, 2, 6), (4, 3, 9), (8, 2, 8), (16, 2, 64), (2, 4, 5)])
def test_paired_share_is_that_of_the_graph(pp: int, vpp: int, m: int) -> None:
    pairs = pair_counts("adaptive_pipe", pp, vpp, m).sum(axis=(1, 2))
    assert [paired_share(pp, vpp, m, stage=p) for p in range(pp)] == pytest.approx(pairs / (m * vpp))


@pytest.mark.parametrize(
    ("kind", "pp", "vpp", "m"),
    [
        ("1f1b", 5, 1, 9),
        ("interleaved", 4, 3, 8),
        ("adaptive_pipe", 4, 2, 12),
        ("dualpipev", 4, 2, 9),
        ("dualpipe", 4, 2, 10),
    ],
)
def test_gaps_and_work_fill_the_makespan(kind: str, pp: int, vpp: int, m: int) -> None:
    rng = np.random.default_rng(3)
    forward, backward = rng.uniform(1, 2, (7, pp, vpp)), rng.uniform(1, 4, (7, pp, vpp))
    hidden = rng.uniform(0, 1, (7, pp, vpp, vpp))
    order = operation_order(kind, pp, vpp, m)
    time = simulate(order, forward, backward, hidden, 0.1, keep_times=True)
    assert (time.idle_s >= 0.0).all()
    assert time.busy_s + time.idle_s == pytest.approx(np.repeat(time.makespan_s[:, None], pp, axis=1))
    share = m / 2 if kind == "dualpipe" else m
    whole = share * (forward + backward).sum(axis=2)
    assert time.busy_s + time.paired_hidden_s == pytest.approx(whole)
    assert time.end_s is not None
    assert time.end_s.max() == pytest.approx(time.makespan_s[0])
    path = critical_path(order, forward[0], backward[0], hidden[0], 0.1)
    assert path.length_s(forward[:1], backward[:1], hidden[:1], 0.1)[0] == pytest.approx(time.makespan_s[0])


def test_a_last_stage_bottleneck_is_exact_in_1f1b() -> None:
    rng = np.random.default_rng(4)
    forward, backward = rng.uniform(1, 2, (50, 8, 1)), rng.uniform(2, 4, (50, 8, 1))
    forward[:, -1], backward[:, -1] = 2.0, 4.0
    graph = makespan_s(operation_order("1f1b", 8, 1, 32), forward, backward)
    closed = closed_form_s("1f1b", forward, backward, 32)
    assert closed.makespan_s == pytest.approx(graph)
    assert closed.work_s + closed.bubble_s == pytest.approx(closed.makespan_s)


@pytest.mark.parametrize(("kind", "vpp"), [("1f1b", 1), ("interleaved", 2), ("adaptive_pipe", 2), ("dualpipev", 2)])
@pytest.mark.parametrize("pp", [1, 2, 3, 8])
def test_stage_classes_give_the_same_numbers(kind: str, vpp: int, pp: int) -> None:
    rng = np.random.default_rng(pp)
    n, m = 20, 24
    forward, backward = rng.uniform(1, 2, (n, 3, vpp)), rng.uniform(1, 4, (n, 3, vpp))
    hidden = rng.uniform(0, 0.9, (n, 3)) if kind in ("adaptive_pipe", "dualpipev") else np.zeros((n, 3))
    where = [2 if p == pp - 1 else min(p, 1) for p in range(pp)]
    pair = np.broadcast_to(hidden[:, where, None, None], (n, pp, vpp, vpp))
    long = closed_form_s(kind, forward[:, where], backward[:, where], m, pair, 0.05)
    stages = StageClasses(
        forward.sum(axis=2),
        backward.sum(axis=2),
        forward[..., 0],
        backward[..., 0],
        forward[..., -1],
        backward[..., -1],
        hidden,
    )
    short = closed_form_classes_s(kind, stages, np.full(n, pp), np.full(n, vpp), np.full(n, m), 0.05)
    assert short.makespan_s == pytest.approx(long.makespan_s)
    assert short.work_s + short.bubble_s == pytest.approx(short.makespan_s)
    assert (short.bubble_s >= 0).all()


def test_wrong_shapes_are_refused() -> None:
    with pytest.raises(ValueError, match="shape"):
        makespan_s(operation_order("1f1b", 4, 1, 8), np.ones((2, 3, 1)), np.ones((2, 3, 1)))
