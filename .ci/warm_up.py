"""Bytecode for all that this project imports, and its compiled loops, by using it once: what a first start would do.

`warm_up.py loops` and `warm_up.py modules` do one of both.

pip would compile ten times as many files. Without bytecode every start compiles a thousand files where
PYTHONDONTWRITEBYTECODE is set, as in many containers.
"""

from __future__ import annotations

import contextlib
import importlib
import pkgutil
import sys

ROOMS = ("cost_models", "hardware_profiles", "autodeploy", "api")
# Between them these run through every loop that most searches run through.
SEARCHES = (
    ("llama2-7b", {"pp": [4], "schedule": ["interleaved"]}),
    ("llama2-7b", {"pp": [2], "schedule": ["1f1b"]}),
    ("deepseek-v2-lite", {"pp": [2], "ep": [4], "tp": [1], "schedule": ["dualpipev"]}),
)


def import_all() -> None:
    """Every module of the rooms, but for those that need what only developing installs."""
    for room in ROOMS:
        for found in pkgutil.walk_packages(importlib.import_module(room).__path__, f"{room}."):
            if not found.name.endswith("__main__"):
                with contextlib.suppress(ImportError):
                    importlib.import_module(found.name)


def compile_loops() -> None:
    """The compiled loops, and what a search imports late."""
    from autodeploy.search import planner
    from autodeploy.specs.reading import read_spec_document

    for model, allowed in SEARCHES:
        spec = {
            "model": model,
            "cluster": {"profile": "ascend-800t-a2", "num_npus": 8},
            "training": {"seq_length": 4096, "global_batch_size": 64},
            "search": {"effort": 0.2, "allow": allowed},
        }
        planner.plan(read_spec_document(spec))


if __name__ == "__main__":
    if sys.argv[1:] != ["loops"]:
        import_all()
    if sys.argv[1:] != ["modules"]:
        compile_loops()
