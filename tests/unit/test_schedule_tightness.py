"""How near the closed forms come to the graph where stages differ: a bound that gives more away is found here."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from cost_models.schedule import (
    Sends,
    StageClasses,
    closed_form_classes_s,
    closed_form_s,
    critical_path,
    in_step_s,
    makespan_s,
    operation_order,
)

if TYPE_CHECKING:
    from cost_models.arrays import Floats

N = 30

# Mean of closed form / makespan, rounded down: even stages, and one half as slow again (first, middle, last).
# Few micro batches, M <= P, and many, whole groups and a larger last one.
SHARES = {
    ("1f1b", 4, 1, 3): (0.992, 0.991, 0.992, 1.0),
    ("1f1b", 4, 1, 5): (0.985, 0.982, 0.994, 1.0),
    ("1f1b", 6, 1, 24): (0.986, 0.993, 0.997, 1.0),
    ("interleaved", 4, 2, 3): (0.959, 0.969, 0.970, 0.973),
    ("interleaved", 4, 2, 4): (0.972, 0.993, 0.997, 1.0),
    ("interleaved", 4, 2, 6): (0.981, 0.987, 0.998, 1.0),
    ("interleaved", 4, 3, 16): (0.989, 0.998, 0.999, 1.0),
    ("adaptive_pipe", 4, 2, 3): (0.912, 0.933, 0.936, 0.977),
    ("adaptive_pipe", 4, 2, 6): (0.972, 0.949, 0.977, 1.0),
    ("adaptive_pipe", 4, 3, 16): (0.959, 0.986, 0.993, 1.0),
    ("dualpipev", 4, 2, 7): (0.967, 0.945, 0.982, 1.0),
    ("dualpipev", 4, 2, 20): (0.967, 0.980, 0.993, 1.0),
    ("dualpipe", 8, 2, 14): (0.961, 0.943, 1.0, 0.945),
    ("dualpipe", 8, 2, 40): (0.968, 0.979, 1.0, 0.979),
}


def times(pp: int, vpp: int, slow: int | None) -> tuple[Floats, Floats, Floats, Sends]:
    """Forward, backward, hidden, sends of stages that differ by up to a fifth, one of them half as slow again."""
    rng = np.random.default_rng(5)
    forward, backward = rng.uniform(1, 1.2, (N, pp, vpp)), rng.uniform(2, 2.4, (N, pp, vpp))
    if slow is not None:
        forward[:, slow] *= 1.5
        backward[:, slow] *= 1.5
    hidden = rng.uniform(0, 0.5, (N, pp, vpp, vpp))
    return forward, backward, hidden, Sends(0.1, rng.uniform(0, 0.2, hidden.shape), 0.4 * backward)


@pytest.mark.parametrize(("schedule", "shares"), SHARES.items(), ids=lambda value: str(value[:4]))
def test_closed_forms_come_near_the_graph(schedule: tuple[str, int, int, int], shares: tuple[float, ...]) -> None:
    kind, pp, vpp, m = schedule
    for slow, share in zip((None, 0, pp // 2, pp - 1), shares, strict=True):
        forward, backward, hidden, sends = times(pp, vpp, slow)
        graph = makespan_s(operation_order(kind, pp, vpp, m), forward, backward, hidden, sends)
        closed = closed_form_s(kind, forward, backward, m, hidden, sends).makespan_s / graph
        assert closed.max() <= 1 + 1e-12
        assert closed.mean() >= share - 1e-9, slow


def classes(forward: Floats, backward: Floats, hidden: Floats, split: Floats | float = 0.0) -> StageClasses:
    """Of a first, a middle and a last stage [n, 3, vpp]."""
    whole = forward.sum(axis=2), backward.sum(axis=2)
    return StageClasses(*whole, forward[..., 0], backward[..., 0], forward[..., -1], backward[..., -1], hidden, split)


@pytest.mark.parametrize(
    ("kind", "pp", "vpp", "m"),
    [
        *(("1f1b", pp, 1, m) for pp, m in ((1, 3), (2, 5), (5, 2), (5, 4), (5, 5), (6, 9))),
        *(("interleaved", pp, vpp, m) for pp, vpp, m in ((2, 2, 6), (4, 3, 6), (4, 3, 2), (4, 2, 4), (5, 2, 11))),
        *(("adaptive_pipe", pp, vpp, m) for pp, vpp, m in ((2, 2, 6), (4, 3, 6), (4, 2, 4), (5, 2, 11))),
        *(("dualpipev", pp, 2, m) for pp, m in ((1, 3), (2, 3), (2, 4), (5, 9), (5, 30))),
        *(("dualpipe", pp, 2, m) for pp, m in ((2, 2), (4, 8), (8, 14), (8, 40))),
    ],
)
@pytest.mark.parametrize("slow", [None, 0, 1, 2])
def test_stage_classes_see_what_the_whole_pipeline_shows(
    kind: str, pp: int, vpp: int, m: int, slow: int | None
) -> None:
    forward, backward, hidden, _ = times(3, vpp, slow)
    pair = hidden.min(axis=(2, 3)) * (kind not in ("1f1b", "interleaved"))
    split = 0.4 * backward[..., -1]
    where = np.array([2 if p == pp - 1 else min(p, 1) for p in range(pp)])
    if kind == "dualpipe":  # both ends are first, both at the centre last; chunks change sides there
        half = [2 if p == pp // 2 - 1 else min(p, 1) for p in range(pp // 2)]
        where = np.array([*half, *half[::-1]])
    of_stages = forward[:, where].copy(), backward[:, where].copy()
    late = 0.4 * of_stages[1]
    if kind == "dualpipe":
        for table in (*of_stages, late):
            table[:, pp // 2 :] = table[:, pp // 2 :, ::-1]
    sends = Sends(0.1, np.full((N, pp, vpp, vpp), 0.04), late)
    hides = np.broadcast_to(pair[:, where, None, None], (N, pp, vpp, vpp))
    whole = closed_form_s(kind, *of_stages, m, hides, sends).makespan_s
    sizes = np.full(N, pp), np.full(N, vpp), np.full(N, m)
    short = closed_form_classes_s(kind, classes(forward, backward, pair, split), *sizes, 0.1, 0.06).makespan_s
    assert (short <= whole * (1 + 1e-12)).all()
    if m >= pp:
        assert short == pytest.approx(whole)
    else:
        assert (short / whole).mean() > 0.985


@pytest.mark.parametrize(("kind", "pp", "vpp", "m"), [("interleaved", 4, 2, 16), ("adaptive_pipe", 2, 3, 12)])
def test_in_step_equal_chunks_take_what_interleaving_takes(kind: str, pp: int, vpp: int, m: int) -> None:
    # arXiv 2104.04473, section 2.2: M (F + B) + (P - 1) (F + B) / V, less what pairs hide.
    forward, backward = np.full((1, 3, vpp), 1.0), np.full((1, 3, vpp), 2.0)
    hidden = np.full((1, 3), 0.5 * (kind == "adaptive_pipe"))
    sizes = np.array([pp]), np.array([vpp]), np.array([m])
    found = in_step_s(kind, classes(forward, backward, hidden), *sizes)
    pairs = m * vpp - (2 * (pp - 1 - min(1, pp - 1)) + (vpp - 1) * pp + 1)
    expected = 3.0 * vpp * m + 3.0 * (pp - 1) - hidden[0, 0] * pairs
    assert found == pytest.approx([expected])


@pytest.mark.parametrize(("stage", "chunk"), [(2, -1), (0, 0)])
def test_a_chunk_longer_than_its_neighbours_holds_all_stages_up(stage: int, chunk: int) -> None:
    # A head on the last chunk, an embedding on the first: M times what it is longer.
    pp, vpp, m, more = 4, 2, 16, 1.5
    forward, backward = np.full((1, 3, vpp), 1.0), np.full((1, 3, vpp), 2.0)
    backward[:, stage, chunk] += more
    sizes = np.array([pp]), np.array([vpp]), np.array([m])
    nothing = np.zeros((1, 3))
    found = in_step_s("interleaved", classes(forward, backward, nothing), *sizes)
    assert found == pytest.approx([m * (6.0 + more) + (pp - 1) * 3.0])
    where = [0, 1, 1, 2]
    graph = makespan_s(operation_order("interleaved", pp, vpp, m), forward[:, where], backward[:, where])
    assert found == pytest.approx(graph, rel=0.05)


@pytest.mark.parametrize(("kind", "vpp", "pp"), [("1f1b", 1, 4), ("interleaved", 1, 4), ("adaptive_pipe", 2, 1)])
def test_nothing_keeps_step_without_interleaving(kind: str, vpp: int, pp: int) -> None:
    forward, backward, hidden, _ = times(3, vpp, None)
    sizes = np.full(N, pp), np.full(N, vpp), np.full(N, 8)
    assert not in_step_s(kind, classes(forward, backward, hidden.min(axis=(2, 3))), *sizes).any()


@pytest.mark.parametrize(("pp", "m"), [(4, 3), (5, 4), (8, 3), (8, 6), (8, 12)])
def test_a_first_stage_slower_than_others_forward_and_back_goes_down_only_as_far_as_is_free(pp: int, m: int) -> None:
    # While micro batches are short of stages a path loses nothing by going down; then each step costs a forward.
    forward, backward, _, _ = times(3, 1, None)
    forward[:, 0] *= 6.0
    backward[:, 0] *= 2.0
    where = [2 if p == pp - 1 else min(p, 1) for p in range(pp)]
    whole = closed_form_s("1f1b", forward[:, where], backward[:, where], m).makespan_s
    sizes = np.full(N, pp), np.full(N, 1), np.full(N, m)
    short = closed_form_classes_s("1f1b", classes(forward, backward, np.zeros((N, 3))), *sizes).makespan_s
    assert short == pytest.approx(whole)


@pytest.mark.parametrize(
    ("kind", "vpp"), [("1f1b", 1), ("interleaved", 2), ("adaptive_pipe", 2), ("dualpipev", 2), ("dualpipe", 2)]
)
@pytest.mark.parametrize("slow", [0, 3, 5])
def test_the_slowest_stage_sets_the_pace(kind: str, vpp: int, slow: int) -> None:
    forward, backward, hidden, sends = times(6, vpp, slow)
    assert (closed_form_s(kind, forward, backward, 24, hidden, sends).pacing_stage == slow).all()


@pytest.mark.parametrize("vpp", [2, 3])
def test_one_micro_batch_waits_for_all_others_at_the_slowest_chunk(vpp: int) -> None:
    # The path through all chunks is counted at the last stage, whichever stage is slow.
    forward, backward, _, _ = times(3, vpp, 1)
    backward[:, 1, 1] *= 8.0
    where = np.array([0, 1, 1, 2])
    whole = closed_form_s("interleaved", forward[:, where], backward[:, where], 2)
    sizes = np.full(N, 4), np.full(N, vpp), np.full(N, 2)
    assert (whole.pacing_stage == 3).all()
    through = (forward[:, where] + backward[:, where]).sum(axis=(1, 2))
    slowest = forward.max(axis=(1, 2)) + backward.max(axis=(1, 2))
    assert whole.makespan_s == pytest.approx(through + slowest)
    # Chunks between a stage's first and last are not seen one by one.
    backward[:, 1, 1], backward[:, 1, -1] = 2.0, 20.0
    short = closed_form_classes_s("interleaved", classes(forward, backward, np.zeros((N, 3))), *sizes)
    assert (short.pacing_stage == 3).all()


def test_a_path_stays_on_the_pacing_device_where_inputs_come_at_the_same_moment() -> None:
    # Equal stages of 1F1B: down once, back once; every micro batch of one device in between, though others tie.
    pp, m = 4, 8
    path = critical_path(operation_order("1f1b", pp, 1, m), np.full((pp, 1), 1.0), np.full((pp, 1), 2.0))
    assert path.edges == 2 * (pp - 1)
    assert sorted(path.forward.ravel().tolist()) == [1] * (pp - 1) + [m]
    assert sorted(path.backward.ravel().tolist()) == [1] * (pp - 1) + [m]
