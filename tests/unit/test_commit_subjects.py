"""The sample of a commit hook: subjects that it takes and refuses."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

HOOK = Path(__file__).resolve().parents[2] / ".ci" / "hooks" / "commit-msg"


def refused(folder: Path, message: str) -> str:
    """Words of a refusal; empty where the hook takes the message."""
    path = folder / "message"
    path.write_text(message, encoding="utf-8")
    run = subprocess.run([HOOK, path], capture_output=True, text=True, check=False)
    assert (run.returncode == 0) == (not run.stderr)
    return run.stderr


@pytest.mark.parametrize(
    "message",
    [
        "search: price safe plans in every optimizer mode\n\nWhy it matters.\n",
        "cost_models: add products in one order",
        "docs/how-to: name the release",
        "Merge branch 'x'",
        "a: " + "b" * 69,
    ],
)
def test_good_subjects_pass(tmp_path: Path, message: str) -> None:
    assert not refused(tmp_path, message)


@pytest.mark.parametrize(
    ("message", "word"),
    [
        ("Price safe plans", "form"),
        ("search: Price safe plans", "form"),
        ("search price safe plans", "form"),
        ("search: price safe plans.", "full stop"),
        ("a: " + "b" * 70, "73 characters"),
    ],
)
def test_other_subjects_are_refused(tmp_path: Path, message: str, word: str) -> None:
    assert word in refused(tmp_path, message)
