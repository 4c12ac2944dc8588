"""Compiled loops: kept from one process to the next, and loaded without what only compiling needs."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

LOOPS = """
import sys
import numpy as np
from cost_models.compiled import compiled

@compiled
def doubled(values):
    found = np.empty(len(values))
    for place in range(len(values)):
        found[place] = 2.0 * values[place]
    return found

@compiled
def total(values):
    found = 0.0
    for each in doubled(values):
        found += each
    return found
"""


KNOWS_ALL = "'numba.np.arraymath' in sys.modules"


def printed(folder: Path, *values: str) -> str:
    """Of values that a new process computes with the loops of a file in this folder."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(folder), os.getcwd()])}
    words = [sys.executable, "-c", f"from loops import *; print({', '.join(values)})"]
    return subprocess.run(words, env=environment, check=True, capture_output=True, text=True).stdout


def test_what_is_kept_is_loaded_without_what_compiling_needs(tmp_path: Path) -> None:
    (tmp_path / "loops.py").write_text(LOOPS, encoding="utf-8")
    twice, of_twice = "doubled(np.ones(3))", "total(np.ones(3))"
    assert printed(tmp_path, twice, KNOWS_ALL) == "[2. 2. 2.] True\n"
    # What is loaded so can be called by what is compiled later.
    assert printed(tmp_path, twice, KNOWS_ALL, of_twice, KNOWS_ALL) == "[2. 2. 2.] False 6.0 True\n"
