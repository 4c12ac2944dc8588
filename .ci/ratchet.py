"""Holds counts that may only fall: docstrings that begin with a question word, text keys of five words or more.

The counts stand in `ratchet.toml`. A lower count has to be written there in the same commit, so that it stays.
"""

from __future__ import annotations

import ast
import json
import sys
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parent.parent
HELD = Path(__file__).with_name("ratchet.toml")
PRODUCT = ("autodeploy", "api", "cost_models", "hardware_profiles", "migrations")
QUESTION_WORDS = frozenset({"What", "Who", "Whoever", "Whose", "Where", "Which", "How"})
LONG_KEY_WORDS = 5
# Sections whose keys are names of fields.
OF_FIELDS = ("label.", "prior.")


def docstrings(source: str) -> Iterator[str]:
    """Every docstring of a module: its own, of classes and of functions."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield ast.get_docstring(node) or ""


def question_docstrings(root: Path = ROOT) -> int:
    """Docstrings of the product that begin with a question word; "Whether" says what a truth value means."""
    paths = (path for package in PRODUCT for path in (root / package).rglob("*.py"))
    texts = (text for path in paths for text in docstrings(path.read_text(encoding="utf-8")))
    return sum(text.split(" ", 1)[0].rstrip(",") in QUESTION_WORDS for text in texts)


def _keys(texts: dict[str, Any], prefix: str = "") -> Iterator[str]:
    for name, value in texts.items():
        if isinstance(value, dict):
            yield from _keys(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}"


def long_keys(root: Path = ROOT) -> int:
    """Text keys whose last part has five words or more; names of fields keep theirs."""
    texts = json.loads((root / "autodeploy" / "messages" / "en.json").read_text(encoding="utf-8"))
    return sum(
        len(key.rsplit(".", 1)[-1].split("_")) >= LONG_KEY_WORDS
        for key in _keys(texts)
        if not key.startswith(OF_FIELDS)
    )


def counted(root: Path = ROOT) -> dict[str, int]:
    """Today's counts by the name that `ratchet.toml` gives them."""
    return {"question_docstrings": question_docstrings(root), "long_text_keys": long_keys(root)}


def main() -> int:
    """Compare with the held counts; exit code 1 where they differ."""
    held, found = tomllib.loads(HELD.read_text(encoding="utf-8")), counted()
    for name, count in found.items():
        if count > held[name]:
            print(f"{name}: {count}, at most {held[name]}", file=sys.stderr)
        elif count < held[name]:
            print(f"{name}: {count}; write it into {HELD.name}, where {held[name]} stands", file=sys.stderr)
    print(f"ratchet: {', '.join(f'{name} {count}' for name, count in found.items())}")
    return int(found != held)


if __name__ == "__main__":
    sys.exit(main())
