"""Predictions against real training on this machine's processors: probe, calibrate, predict, train, compare.

A model of each size trains in plain torch (`small_training`) as one and as two processes. Before that the probe of its
spec runs with as many processes, since processes share cores and memory, and the profile of this machine is calibrated
by its file. torch runs in another interpreter, which `--python` names. Other work on the machine shows as error.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autodeploy import planner
from autodeploy.importers.spec_file import read_spec_document
from autodeploy.probe.document import read_probe_file
from autodeploy.probe.fit import fit_probe
from autodeploy.probe.own_cpu import facts, profile_yaml
from autodeploy.probe.script import request_of, script_of
from hardware_profiles import load_profile
from tests.support.figures import report

STEP_LIMIT, MEMORY_LIMIT = 0.15, 0.20
STEPS = 5
TRAINING = Path(__file__).with_name("small_training.py")
# hidden_size, layers, heads, vocabulary, sequence, sequences a process
SIZES = {
    "small": (256, 4, 4, 4096, 256, 4),
    "medium": (512, 6, 8, 8192, 512, 2),
    "large": (768, 8, 12, 8192, 512, 2),
}
# Of torch's eager kernels: attention and norms are one operator each; DDP moves each gradient into its bucket.
FEATURES = ["flash_attention", "fused_rmsnorm", "unfused_gradient_accumulation"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """One run: predicted and measured seconds of a step, and bytes beside what importing torch took."""

    size: str
    processes: int
    predicted_s: float
    measured_s: float
    predicted_bytes: float
    measured_bytes: float

    @property
    def step_error(self) -> float:
        """Of the step time, as a share of the measured one."""
        return self.predicted_s / self.measured_s - 1.0

    @property
    def memory_error(self) -> float:
        """Of the memory."""
        return self.predicted_bytes / self.measured_bytes - 1.0

    @property
    def holds(self) -> bool:
        """Whether both are within their limits."""
        return abs(self.step_error) <= STEP_LIMIT and abs(self.memory_error) <= MEMORY_LIMIT


def spec_document(size: str, processes: int, profile: str, overlay: Any) -> dict[str, Any]:
    """The run as a spec."""
    width, layers, heads, vocabulary, length, sequences = SIZES[size]
    return {
        "model": {
            "name": f"gpt {size}",
            "hidden_size": width,
            "num_hidden_layers": layers,
            "num_attention_heads": heads,
            "intermediate_size": 4 * width,
            "vocab_size": vocabulary,
            "hidden_act": "gelu",
            "learned_position_embeddings": length,
        },
        "cluster": {"profile": profile, "num_npus": processes, "overlay": overlay},
        "training": {"seq_length": length, "global_batch_size": sequences * processes, "precision": "fp32"},
        "search": {"target": "any"},
        "strategy": {"micro_batch_size": sequences, "distributed_optimizer": False, "features": FEATURES},
    }


def launched(python: str, processes: int, *arguments: str) -> None:
    """Runs a script as that many processes on this machine."""
    launcher = [python, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    done = subprocess.run([*launcher, *arguments], capture_output=True, text=True, check=False, timeout=1800)
    if done.returncode:
        raise RuntimeError(f"{arguments[0]}: {done.stderr[-2000:]}")


def compared(directory: Path, python: str, size: str, processes: int, seconds: float) -> Outcome:
    """Probe, calibration, prediction and measurement of one run."""
    profile = f"cpu_{processes}.yaml"
    (directory / profile).write_text(profile_yaml(facts(), processes), encoding="utf-8")
    spec = read_spec_document(spec_document(size, processes, profile, "none"), base_dir=directory)
    script, probed = directory / f"probe_{size}_{processes}.py", directory / f"probe_{size}_{processes}.json"
    script.write_text(script_of(request_of(spec, [planner.estimate(spec)], ranks=processes)), encoding="utf-8")
    launched(python, processes, str(script), "-o", str(probed), "--seconds", str(seconds))
    overlay = fit_probe(load_profile(directory / profile), read_probe_file(probed)).overlay
    plan = planner.estimate(read_spec_document(spec_document(size, processes, profile, overlay), base_dir=directory))
    model = spec.model.model_dump(mode="json")
    run = {"model": model, "seq_length": spec.training.seq_length, "micro_batch_size": SIZES[size][-1], "steps": STEPS}
    trained = directory / f"trained_{size}_{processes}.json"
    launched(python, processes, str(TRAINING), json.dumps(run), str(trained))
    ranks = json.loads(trained.read_text(encoding="utf-8"))["ranks"]
    return Outcome(
        size,
        processes,
        plan.step_time_s,
        max(statistics.median(rank["seconds"]) for rank in ranks),
        plan.peak_memory_gib * 2**30,
        max(rank["peak"] - rank["after_import"] for rank in ranks),
    )


def table(outcomes: list[Outcome]) -> str:
    """A line a run."""
    lines = [f"{'size':<8}{'processes':>10}{'step s':>18}{'error':>8}{'memory MiB':>18}{'error':>8}"]
    for each in outcomes:
        step = f"{each.predicted_s:.3f} of {each.measured_s:.3f}"
        memory = f"{each.predicted_bytes / 2**20:.0f} of {each.measured_bytes / 2**20:.0f}"
        errors = f"{100 * each.step_error:+.1f} %", f"{100 * each.memory_error:+.1f} %"
        said = "" if each.holds else "  outside"
        lines.append(f"{each.size:<8}{each.processes:>10}{step:>18}{errors[0]:>8}{memory:>18}{errors[1]:>8}{said}")
    return "\n".join(lines)


def main() -> None:
    """All sizes, as one process and as two; exit code 1 where one is outside its limits."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--python", required=True, help="interpreter with torch")
    parser.add_argument("--seconds", type=float, default=40.0, help="of each probe")
    parser.add_argument("--processes", type=int, nargs="*", default=[1, 2])
    parser.add_argument("--sizes", nargs="*", default=list(SIZES), choices=list(SIZES))
    parser.add_argument("--keep", type=Path, default=None, help="folder for the files of the probes")
    wanted = parser.parse_args()
    outcomes = []
    with tempfile.TemporaryDirectory(prefix="autodeploy_probe_") as made:
        directory = wanted.keep or Path(made)
        directory.mkdir(exist_ok=True)
        for processes in wanted.processes:
            for size in wanted.sizes:
                found = compared(directory, wanted.python, size, processes, wanted.seconds)
                case = f"{size}, {processes} processes, FP32 on the CPU, of the measured"
                report("real_training_step_error", found.step_error, "fraction", case)
                report("real_training_memory_error", found.memory_error, "fraction", case)
                outcomes.append(found)
    sys.stderr.write(table(outcomes) + "\n")
    sys.exit(0 if all(each.holds for each in outcomes) else 1)


if __name__ == "__main__":
    main()
