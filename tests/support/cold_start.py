"""What the processes of a test run do before they collect: each a share of what all would do in a fresh clone.

Rewriting the assertions of three hundred modules takes ten seconds of CPU, compiling the loops of a search a dozen.
Both are kept on disk, and none waits for another: what is not there yet when it is needed is made as it always is.
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from _pytest.assertion import rewrite

if TYPE_CHECKING:
    from collections.abc import Sequence

ROOT = Path(__file__).resolve().parents[2]
SEARCHED = ("cost_models/schedule", "autodeploy")
"""Where the loops of searches are."""


def share(config: pytest.Config) -> None:
    """The share of one of several workers that run the whole suite: the last compiles loops, the others modules.

    Where an installation has compiled them, the last rewrites its share too.
    """
    given = getattr(config, "workerinput", None)
    if given is None or given["workercount"] < 2 or sys.dont_write_bytecode or not _runs_all(config):
        return
    number, workers = int(given["workerid"].removeprefix("gw")), given["workercount"]
    compiles = loops_to_compile()
    if number < workers - 1 or not compiles:
        rewrite_modules(sorted((ROOT / "tests").rglob("test_*.py"))[number :: workers - compiles], config)
    else:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("AUTODEPLOY_CORES", "1")  # a second process would compile as well
            runpy.run_path(str(ROOT / ".ci/warm_up.py"))["compile_loops"]()


def _runs_all(config: pytest.Config) -> bool:
    wanted = [ROOT / name for name in config.getini("testpaths")]
    return [Path(config.rootpath, name).resolve() for name in config.args] == wanted


def rewrite_modules(paths: Sequence[Path], config: pytest.Config) -> int:
    """Rewrite modules for pytest as its import hook does, where that was not done; how many it was."""
    number = 0
    for path in paths:
        kept = rewrite.get_cache_dir(path) / (path.name[:-3] + rewrite.PYC_TAIL)
        if rewrite.try_makedirs(kept.parent) and rewrite._read_pyc(path, kept) is None:
            digest, code = rewrite._rewrite_test(path, config)
            rewrite._write_pyc(config.stash[rewrite.assertstate_key], code, digest, kept)
            number += 1
    return number


def loops_to_compile() -> bool:
    """Whether a file with loops of searches has none beside it that were compiled since it was written."""
    for room in SEARCHED:
        for path in (ROOT / room).rglob("*.py"):
            if "\n@compiled\n" in path.read_text(encoding="utf-8"):
                kept = path.parent.joinpath("__pycache__").glob(f"{path.stem}.*.nbi")
                if max((index.stat().st_mtime for index in kept), default=0.0) < path.stat().st_mtime:
                    return True
    return False
