"""Lines in which two launch files differ."""

from __future__ import annotations

from api.ui.plan_routes import DiffLine, difference

BEFORE = """#!/bin/bash
# plan p_aaaaaaaa, 12.0 s a step
TP=4
PP=8
ARGS="
    --num-layers 64
    --hidden-size 8192
    --seq-length 4096
    --micro-batch-size 1
"
torchrun pretrain_gpt.py $ARGS
"""


def test_comments_and_blank_lines_are_no_difference() -> None:
    assert difference(BEFORE, BEFORE.replace("p_aaaaaaaa, 12.0", "p_bbbbbbbb, 14.5").replace("PP=8", "PP=8\n")) == []


def test_a_changed_line_stands_with_its_neighbours() -> None:
    found = difference(BEFORE, BEFORE.replace("--micro-batch-size 1", "--micro-batch-size 2").replace("TP=4", "TP=2"))
    assert found == [
        DiffLine("skipped", ""),
        DiffLine("removed", "TP=4"),
        DiffLine("added", "TP=2"),
        DiffLine("same", "PP=8"),
        DiffLine("skipped", ""),
        DiffLine("same", "    --seq-length 4096"),
        DiffLine("removed", "    --micro-batch-size 1"),
        DiffLine("added", "    --micro-batch-size 2"),
        DiffLine("same", '"'),
    ]


def test_a_line_that_looks_like_a_mark_keeps_its_text() -> None:
    assert difference("a\n", "a\n-- b\n")[-1] == DiffLine("added", "-- b")
    assert difference("a\n+c\n", "a\n")[-1] == DiffLine("removed", "+c")
