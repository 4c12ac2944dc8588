"""Processor time and memory of `autodeploy plan`, on the specs that recommendations are held on.

`python -m tests.benchmarks.processor_time [FILE ...] [--tree PATH] [--write FILE] [--against FILE]`: one JSON line a
figure. Processor seconds are those of the program and its processes, over those of a fixed loop that runs before and
after it: a loaded or slow machine lengthens both. Exit code 1 where, against the figures of an earlier tree, the median
or the largest has not fallen by a third, or where a program holds more memory than it may.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
from ruamel.yaml import YAML

from autodeploy.cli.exits import DONE, INFEASIBLE
from tests.soak.recommended import SPECS
from tests.support.figures import report

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

ROOT: Final = Path(__file__).resolve().parents[2]
SMALL: Final = Path(__file__).with_name("small.yaml")
LESS: Final = 1.0 / 3.0
MOST_MB: Final = 400.0
MEASURED: Final = """
import json, resource, subprocess, sys
code = subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode
used = resource.getrusage(resource.RUSAGE_CHILDREN)
print(json.dumps([code, used.ru_utime + used.ru_stime, used.ru_maxrss]))
"""
"""Runs a program from a small process: what a large one starts counts its memory at first."""
LOOPS: Final = 12
TURNS: Final = 20_000


@dataclass(frozen=True)
class Spent:
    """processor_s : of a program and its processes. in_loops : the same, in fixed loops. peak_mb : of the largest."""

    processor_s: float
    in_loops: float
    peak_mb: float


def loop_s() -> float:
    """Processor seconds of a fixed loop of Python and numpy, as a search is."""
    started = time.process_time()
    numbers = np.arange(200_000, dtype=np.float64)
    total = 0.0
    for _ in range(LOOPS):
        total += sum(place * place % 7 for place in range(TURNS))
        total += float(np.sqrt(numbers * 1.5 + 1.0).cumsum()[-1])
        total += float(np.argsort(np.sin(numbers[::5]), kind="stable")[0])
    assert total > 0.0
    return time.process_time() - started


def spent(path: Path, tree: Path, data: Path) -> Spent:
    """Processor time and memory of a source tree's program that plans the spec of a file; data : of its database."""
    before = loop_s()
    command = [sys.executable, "-m", "autodeploy", "plan", str(path), "-f", "json"]
    environment = {**os.environ, "PYTHONPATH": str(tree), "XDG_DATA_HOME": str(data)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # what is installed has been compiled
    if tree != ROOT:
        environment["PYTHONPYCACHEPREFIX"] = str(data)  # a tree of others stays as it is
    measuring = [sys.executable, "-S", "-c", MEASURED, *command]
    told = subprocess.run(measuring, cwd=tree, env=environment, check=True, capture_output=True, text=True)
    code, processor_s, peak_kib = json.loads(told.stdout)
    if code not in {DONE, INFEASIBLE}:
        raise SystemExit(f"{path}: exit code {code}")
    return Spent(processor_s, 2.0 * processor_s / (before + loop_s()), peak_kib / 1024.0)


def judged(now: Mapping[str, Spent], before: Mapping[str, float] | None) -> bool:
    """Whether peaks are low enough, and the median and the largest have fallen, with a line of each figure."""
    loops = {name: each.in_loops for name, each in now.items()}
    report("median", statistics.median(loops.values()), "loops", f"{len(now)} specs")
    report("largest", max(loops.values()), "loops", max(loops, key=lambda name: loops[name]))
    peak = max(now, key=lambda name: now[name].peak_mb)
    report("peak", now[peak].peak_mb, "MB", peak)
    kept = now[peak].peak_mb <= MOST_MB
    if before is not None:
        both = sorted(now.keys() & before.keys())
        for figure, of in (("median", statistics.median), ("largest", max)):
            ratio = of([loops[name] for name in both]) / of([before[name] for name in both])
            report(f"{figure}_against", ratio, "ratio", f"{len(both)} specs")
            kept &= ratio <= 1.0 - LESS
    return kept


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure the specs one after the other."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.processor_time")
    parser.add_argument("files", nargs="*", type=Path)
    parser.add_argument("--only", nargs="*", help="names of specs")
    parser.add_argument("--tree", type=Path, default=ROOT, help="source tree whose program runs")
    parser.add_argument("--write", type=Path, help="keep the figures, for --against")
    parser.add_argument("--against", type=Path, help="figures of an earlier tree")
    asked = parser.parse_args(arguments)
    now: dict[str, Spent] = {}
    with tempfile.TemporaryDirectory() as folder:
        files: list[Path] = [path.resolve() for path in asked.files]
        if not files:
            yaml = YAML()
            for name, document in yaml.load(SPECS.read_text(encoding="utf-8")).items():
                if asked.only is not None and name not in asked.only:
                    continue
                files.append(Path(folder, f"{name}.yaml"))
                yaml.dump(document, files[-1])
        tree, data = asked.tree.resolve(), Path(folder, "data")
        spent(SMALL, tree, data)  # makes the database, and compiles
        for path in files:
            now[path.stem] = found = spent(path, tree, data)
            report("processor_time", found.in_loops, "loops", path.stem)
            report("processor_time", found.processor_s, "s", path.stem)
            report("peak", found.peak_mb, "MB", path.stem)
    if asked.write:
        kept = {name: each.in_loops for name, each in now.items()}
        asked.write.write_text(json.dumps(kept, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    before = None if asked.against is None else json.loads(asked.against.read_text(encoding="utf-8"))
    return 0 if judged(now, before) else 1


if __name__ == "__main__":
    sys.exit(main())
