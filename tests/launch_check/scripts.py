"""The command line that a launch script would start, seen by running it in bash with stand-ins for every program."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import pathlib

VARIABLES = {
    "TOKENIZER_PATH": "x",
    "DATA_PATH": "x",
    "CKPT_SAVE_DIR": "x",
    "CKPT_LOAD_DIR": "x",
    "MASTER_ADDR": "localhost",
    "NODE_RANK": "0",
    "LR": "1e-4",
    "MIN_LR": "1e-5",
    "WARMUP_ITERS": "10",
    "ROTARY_BASE": "10000",
    "TRAIN_ITERS": "100",
}
STOOD_IN = (
    *("apt", "cp", "curl", "hostname", "mkdir", "msrun", "mv", "nohup", "npu-smi", "nvidia-smi", "pip", "pip3"),
    *("python", "python3", "rm", "sbatch", "srun", "ssh", "tee", "torchrun", "wget"),
)
_STAND_IN = """#!{python}
import json, os, sys

with open(os.environ["SEEN"], "a") as seen:
    print(json.dumps([os.path.basename(sys.argv[0]), *sys.argv[1:]]), file=seen)
"""
_PLACEHOLDERS = frozenset(
    {"your", "model", "tokenizer", "ckpt", "path", "save", "data", "huggingface", "config", "dir", "load"}
)


class Started(NamedTuple):
    """Arguments of the trainer, ranks of the job and of a node."""

    argv: list[str]
    world: int
    devices: int


def started(script: pathlib.Path, work: pathlib.Path) -> Started | str:
    """What the script starts, or why it starts nothing.

    Parameters
    ----------
    work : a folder for stand-ins, in which the script runs.
    """
    stand_ins = work / "bin"
    if not stand_ins.exists():
        stand_ins.mkdir()
        (work / "x").mkdir(exist_ok=True)  # what VARIABLES point to
        for name in STOOD_IN:
            (stand_ins / name).write_text(_STAND_IN.format(python=sys.executable))
            (stand_ins / name).chmod(0o755)
    seen = work / "seen.jsonl"
    seen.unlink(missing_ok=True)
    done = subprocess.run(
        ["bash", str(script.resolve())],
        cwd=work,
        env={"PATH": f"{stand_ins}:/usr/bin:/bin", "SEEN": str(seen), "HOME": str(work), **VARIABLES},
        capture_output=True,
        text=True,
        timeout=30,
        stdin=subprocess.DEVNULL,
        check=False,
    )
    commands = [json.loads(line) for line in seen.read_text().splitlines()] if seen.exists() else []
    commands = [words for words in commands if "--num-layers" in words]
    if not commands:
        return f"starts nothing with --num-layers: exit {done.returncode} {done.stderr.strip()[-200:]}"
    words = _joined(commands[-1])
    entry = next((place for place, word in enumerate(words) if word.endswith(".py")), 0)
    devices = _number(words, "--nproc_per_node")
    return Started(words[entry + 1 :], _number(words, "--nnodes") * devices, devices)


def _number(words: list[str], flag: str, otherwise: int = 1) -> int:
    return int(words[words.index(flag) + 1]) if flag in words else otherwise


def _joined(words: list[str]) -> list[str]:
    """A placeholder of several words, as "your tokenizer path", stands unquoted in published scripts: one word."""
    out: list[str] = []
    for word in words:
        if word in _PLACEHOLDERS and out and (out[-1] == "x" or out[-1].startswith("--")):
            if out[-1] != "x":
                out.append("x")
        else:
            out.append(word)
    return out
