"""The page of stability, from made-up results; and that every spec of it is one."""

from __future__ import annotations

from typing import Any

from docs.stability import FAR, LOST, page, specs


def result(name: str, draws: list[list[float]], ends: dict[str, list[float]]) -> dict[str, Any]:
    return {"name": name, "plans": ["TP2", "TP4"], "p_fits": [0.95, 0.5], "draws": draws, "ends": ends}


def test_every_spec_is_valid_and_there_are_twelve() -> None:
    assert len(specs()) == 12


def test_draws_far_behind_and_lost_ones_are_counted() -> None:
    draws = [[0.0, LOST], [2 * FAR, 0.0], [0.0, LOST], [0.01, 2 * FAR]]
    text = page([result("one", draws, {"experts low": [0.01, 0.04], "experts high": [0.02, 0.0]})])
    rows = [line for line in text.splitlines() if line.startswith("| ")]
    recommended, fastest = rows[-2], rows[-1]
    assert "25.0%" in recommended, "one of four is more than 5 % behind"
    assert "75.0%" in fastest, "of which two do not fit"
    assert "50.0%" in fastest
    assert "experts high" in recommended
    assert "experts low" in fastest
    assert "recommended: far behind in at most 20% of the draws in 0 of 1 specs (worst 25.0%)" in text
    assert "at most 3% at the ends in 1 of 1" in text
