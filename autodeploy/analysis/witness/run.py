"""One rank of a launch run by the framework itself, in the environment that has torch."""

from __future__ import annotations

import json
import os
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autodeploy.kit.errors import SpecError
from autodeploy.messages import Message

if TYPE_CHECKING:
    from collections.abc import Mapping

    from autodeploy.analysis.witness.toy import ToyLaunch

PROGRAM = Path(__file__).parent / "stand_ins"
ENTRIES = {"megatron": "megatron/core", "mindspeed": "mindspeed", "mindspeed-llm": "pretrain_gpt.py"}
NEEDS = ("torch", "numpy", "einops", "packaging")


def refuse_missing(python: str, trees: Mapping[str, Path], *, adapters: bool = False) -> None:
    """Refuses what can't run: an interpreter without torch, a folder that is no tree of its framework.

    adapters : the launch trains adapters, which are peft's modules.

    Raises SpecError with the option and what to do about it.
    """
    for name, tree in trees.items():
        if not (tree / ENTRIES[name]).exists():
            raise SpecError(
                Message("witness.no_tree", folder=str(tree), name=name, file=ENTRIES[name]),
                path=f"--{name}",
                hint=Message("witness.export_a_tree"),
            )
    needs = (*NEEDS, "peft") if adapters else NEEDS
    asked = f"import importlib.util as u; print(' '.join(n for n in {needs!r} if u.find_spec(n) is None))"
    try:
        done = subprocess.run([python, "-c", asked], capture_output=True, text=True, timeout=60, check=False)
    except OSError as error:
        raise SpecError(Message("witness.no_python", python=python, error=str(error)), path="--python") from None
    missing = done.stdout.strip() if done.returncode == 0 else " ".join(needs)
    if missing:
        raise SpecError(
            Message("witness.no_torch", python=python, names=missing),
            path="--python",
            hint=Message("witness.install_torch"),
        )


def run_rank(
    toy: ToyLaunch, trees: Mapping[str, Path], rank: int, *, python: str, folder: Path, timeout_s: float
) -> tuple[dict[str, Any], float]:
    """The rank's answer and the seconds that it took; one that doesn't answer says why in `error`."""
    out, asked = folder / f"rank{rank}.json", folder / f"request{rank}.json"
    out.unlink(missing_ok=True)
    request = {
        "trees": {name: str(tree.resolve()) for name, tree in trees.items()},
        "entry": toy.entry,
        "argv": list(toy.argv),
        "environment": toy.environment,
        "rank": rank,
        "world": toy.ranks,
        "devices": toy.devices,
        "ascend": "mindspeed" in trees,
        "real_widths": toy.real_widths,
        "out": str(out),
    }
    asked.write_text(json.dumps(request))
    # One thread a process, and no compiler: the CPU is shared.
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TORCH_COMPILE_DISABLE": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    begun = time.monotonic()
    try:
        done = subprocess.run(
            [python, str(PROGRAM), str(asked)],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
        said = done.stderr.strip()[-600:]
    except subprocess.TimeoutExpired:
        said = f"no answer in {timeout_s:.0f} s"
    seconds = time.monotonic() - begun
    if out.exists():
        return json.loads(out.read_text()), seconds
    return {"error": said or "no answer", "where": None}, seconds
