"""The integer program of a stage finds what listing every combination of counts finds, and no bound is above it."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autodeploy.costs.stages.inner_problem import MemoryOption
from autodeploy.search.choices.layer_choices import least_extra_s
from autodeploy.search.choices.memory_options import cliques
from autodeploy.search.cp_sat.stage_program import StageProgram, SwapWindow

AMOUNTS = st.integers(1, 16).map(lambda eighths: eighths / 8.0)
"""Sums of them are exact: what just fits here just fits there."""


@dataclass(frozen=True)
class Stage:
    """A stage with one chunk that is short of memory."""

    options: tuple[MemoryOption, ...]
    layers: tuple[int, ...]
    need_bytes: float
    window: SwapWindow | None
    most_swap_bytes: float


@st.composite
def stages(draw: st.DrawFn) -> Stage:
    """Two classes of up to three layers, up to four options that compete with the one before or not."""
    options: list[MemoryOption] = []
    for number in range(draw(st.integers(1, 4))):
        swap, rival = draw(st.booleans()), draw(st.booleans())
        options.append(
            MemoryOption(
                f"o{number}",
                "swap" if swap else "recompute",
                draw(st.integers(0, 1)),
                draw(AMOUNTS),
                draw(AMOUNTS) * (0.125 if swap else 1.0),
                draw(AMOUNTS) if swap else 0.0,
                (f"o{number - 1}",) if rival else (),
            )
        )
    window = SwapWindow(draw(AMOUNTS), draw(AMOUNTS), draw(AMOUNTS))
    return Stage(
        tuple(options),
        (draw(st.integers(0, 3)), draw(st.integers(1, 3))),
        draw(st.integers(0, 64)) / 8.0,
        draw(st.sampled_from((None, window))),
        draw(st.sampled_from((float("inf"), 3.0))),
    )


def listed(stage: Stage) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """All legal counts that free enough [n, options], what they add to a forward and to a backward pass [n]."""
    most = [stage.layers[option.layer_class] for option in stage.options]
    counts = np.array(list(itertools.product(*(range(n + 1) for n in most))), dtype=np.int64)
    saved, extra, swap = (
        counts @ np.array([getattr(option, name) for option in stage.options])
        for name in ("saved_bytes", "extra_backward_s", "swap_bytes")
    )
    legal = (saved >= stage.need_bytes) & (swap <= stage.most_swap_bytes)
    for clique in cliques(stage.options):
        legal &= counts[:, list(clique)].sum(axis=1) <= most[clique[0]]
    forward, backward = np.zeros_like(extra), extra
    if stage.window is not None:
        link_s = swap / stage.window.host_link_bytes_per_s
        forward = np.maximum(0.0, link_s - stage.window.forward_s)
        backward = extra + np.maximum(0.0, link_s - stage.window.backward_s - extra)
    return counts[legal], forward[legal], backward[legal]


@given(stages())
def test_the_program_finds_the_least_of_all_counts(stage: Stage) -> None:
    counts, forward, backward = listed(stage)
    program = StageProgram(stage.options, stage.layers, stage.need_bytes, stage.window, stage.most_swap_bytes)
    found = program.both
    if not len(counts):
        assert found is None
        return
    assert found is not None
    assert found.counts is not None
    assert found.added_s == pytest.approx((forward + backward).min(), rel=1e-6, abs=1e-6)
    row = (counts == found.counts).all(axis=1)
    assert (forward + backward)[row] == pytest.approx([found.added_s], rel=1e-6, abs=1e-6)
    assert program.forward_s == pytest.approx(forward.min(), rel=1e-6, abs=1e-6)
    assert program.backward_s == pytest.approx(backward.min(), rel=1e-6, abs=1e-6)


@given(stages())
def test_the_hull_is_below_all_counts(stage: Stage) -> None:
    counts, _, _ = listed(stage)
    floor_s = least_extra_s(stage.options, np.array(stage.layers), stage.need_bytes)
    if not len(counts):
        return
    extra = counts @ np.array([option.extra_backward_s for option in stage.options])
    assert floor_s <= extra.min() * (1.0 + 1e-9)


def test_the_hull_is_what_whole_layers_of_the_cheapest_options_take() -> None:
    options = (
        MemoryOption("full", "recompute", 0, 10.0, 4.0, excludes=("norm", "attention")),
        MemoryOption("norm", "recompute", 0, 2.0, 0.1),
        MemoryOption("attention", "recompute", 0, 3.0, 0.6),
    )
    layers = np.array([4])
    assert least_extra_s(options, layers, 8.0) == pytest.approx(4 * 0.1)
    assert least_extra_s(options, layers, 20.0) == pytest.approx(4 * 0.7)
    # Between corners a layer is shared: half of them recomputed whole.
    assert least_extra_s(options, layers, 30.0) == pytest.approx(2 * 0.7 + 2 * 4.0)
    assert least_extra_s(options, layers, 40.1) == float("inf")
