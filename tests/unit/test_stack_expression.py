"""The language of legality rules: what it says and what it refuses."""

from __future__ import annotations

import gc
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np
import pytest

from autodeploy.stack.expression import evaluate, names

if TYPE_CHECKING:
    from collections.abc import Iterator

VALUES = {"tp": np.array([1, 2, 4, 8]), "pp": np.array([4, 4, 2, 1]), "layers": 8, "moe": True, "interleaved": 1}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("tp * pp == layers", [False, True, True, True]),
        ("layers % tp == 0", [True, True, True, True]),
        ("tp + pp - 1 < 6", [True, True, True, False]),
        ("layers // pp >= 4", [False, False, True, True]),
        ("min(tp, pp) == 2", [False, True, True, False]),
        ("max(tp, 3) == 3", [True, True, False, False]),
        ("1 < tp < 8", [False, True, True, False]),
        ("tp == 1 or pp == 1", [True, False, False, True]),
        ("not tp > 2 and moe", [True, True, False, False]),
        ("tp != 2", [True, False, True, True]),
        ("moe", True),
        ("interleaved == 1", True),
        ("tp > 1 and pp > 1 and tp != pp", [False, True, True, False]),
        ("(tp + 1) * 2 <= 6", [True, True, False, False]),
    ],
)
def test_arithmetic_comparisons_and_logic(text: str, expected: object) -> None:
    assert np.asarray(evaluate(text, VALUES)).tolist() == expected


@pytest.mark.parametrize(
    "text",
    [
        "tp.shape == 1",
        "tp[0] == 1",
        "__import__('os')",
        "print(tp)",
        "tp ** 2 == 4",
        "tp / 2 == 1",
        "tp @ pp",
        "tp << 1 == 4",
        "tp & 1 == 0",
        "-tp < 0",
        "~tp",
        "+tp",
        "tp is pp",
        "tp is not pp",
        "tp in pp",
        "tp not in pp",
        "'a' == 'a'",
        "b'a'",
        "None",
        "...",
        "1j",
        "[tp]",
        "(tp, pp)",
        "{tp: pp}",
        "{tp}",
        "tp if moe else pp",
        "lambda: tp",
        "(x := tp)",
        "[t for t in tp]",
        "{t for t in tp}",
        "{t: t for t in tp}",
        "(t for t in tp)",
        "f'{tp}'",
        "tp[1:2]",
    ],
)
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="a rule cannot use"):
        evaluate(text, {**VALUES, "x": 1})


@pytest.mark.parametrize(
    "text", ["tp = 1", "import os", "del tp", "tp ==", "", "tp; pp", "return tp", "await tp", "yield"]
)
def test_statements_are_not_expressions(text: str) -> None:
    with pytest.raises((SyntaxError, ValueError)):
        evaluate(text, VALUES)


def test_an_unknown_name_is_an_error() -> None:
    with pytest.raises(KeyError, match="speed"):
        evaluate("speed > 1", VALUES)


def test_names_lists_what_an_expression_reads() -> None:
    assert names("tp * pp <= layers and not (schedule == adaptive_pipe)") == {
        "tp",
        "pp",
        "layers",
        "schedule",
        "adaptive_pipe",
    }


def test_a_refused_part_is_refused_even_where_another_part_decides() -> None:
    with pytest.raises(ValueError, match="a rule cannot use"):
        evaluate("tp == 1 and open('x')", VALUES)
    with pytest.raises(ValueError, match="a rule cannot use"):
        evaluate("moe or exit()", VALUES)


@contextmanager
def threads_that_take_turns_at_every_collection() -> Iterator[None]:
    def hand_over(phase: str, _info: object) -> None:
        time.sleep(0)

    before = gc.get_threshold()
    gc.callbacks.append(hand_over)
    gc.set_threshold(5)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.callbacks.remove(hand_over)


def test_threads_read_expressions_at_the_same_time() -> None:
    """Trees of CPython 3.11 that are built by turns end in a SystemError."""
    texts = [f"tp * pp + {number} * (layers - tp * (pp + {number})) >= {number}" for number in range(200)]
    with threads_that_take_turns_at_every_collection(), ThreadPoolExecutor(4) as threads:
        found = list(threads.map(names, texts))
    assert found == [{"tp", "pp", "layers"}] * len(texts)
