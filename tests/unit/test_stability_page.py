"""The page of stability, from made-up results; and that every spec of it is one."""

from __future__ import annotations

from typing import Any

from docs.stability import LARGE_REGRET, LOST, page, specs

Draws = list[list[float]]


def result(name: str, draws: Draws, memory_known: Draws, ends: dict[str, list[float]]) -> dict[str, Any]:
    plans = {"plans": ["TP2", "TP4"], "p_fits": [0.95, 0.5]}
    both = [0.0, 0.0, 2 * LARGE_REGRET, 0.01]
    return {"name": name, "draws": draws, "memory_known": memory_known, "known_to_both": both, "ends": ends} | plans


def test_every_spec_is_valid_and_there_are_twelve() -> None:
    assert len(specs()) == 12


def test_draws_far_behind_and_lost_ones_are_counted() -> None:
    draws = [[0.0, 0.01], [2 * LARGE_REGRET, 0.0], [0.0, 0.02], [0.01, 2 * LARGE_REGRET]]
    memory_known = [[0.0, LOST], [LOST, 0.0], [2 * LARGE_REGRET, LOST], [2 * LARGE_REGRET, 2 * LARGE_REGRET]]
    text = page([result("one", draws, memory_known, {"experts low": [0.01, 0.04], "experts high": [0.02, 0.0]})])
    recommended, fastest = ([cell.strip() for cell in row.split("|")] for row in text.splitlines()[-7:-5])
    assert recommended[4:9] == ["25.0%", "0.5%", "25.0%", "75.0%", "25.0%"], (
        "one of four; with memory known one lost, two slow"
    )
    assert fastest[4:9] == ["25.0%", "1.5%", "", "75.0%", "50.0%"]
    assert recommended[9:11] == ["2.0%", "experts high"]
    assert fastest[9:11] == ["4.0%", "experts low"]
    assert (
        "recommended: far behind in at most 20% of the draws in 0 of 1 specs (worst 25.0%), with memory known" in text
    )
    assert "at most 3% at the ends in 1." in text
