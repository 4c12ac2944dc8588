"""Predictions against real training on this machine's processors: probe, calibrate, predict, train, compare.

A model of each size trains in plain torch (`small_training`) as one and as two processes. Before and after, the probe
of its spec runs with as many processes, since processes share cores and memory, and since the clock of a machine
drifts; by both files the profile of this machine is calibrated. No number of the prediction comes from the training.
Where the two probes differ much the run is made again, and of all attempts the steadiest counts, whatever its error.
torch runs in another interpreter, which `--python` names.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autodeploy.analysis.probe.document import ProbeFile, read_probe_file
from autodeploy.analysis.probe.fit import fit_probe
from autodeploy.analysis.probe.own_cpu import ENVIRONMENT, facts, profile_yaml
from autodeploy.analysis.probe.script import request_of, script_of
from autodeploy.search import planner
from autodeploy.specs.reading import read_spec_document
from hardware_profiles import load_profile
from tests.support.figures import report

STEP_LIMIT, MEMORY_LIMIT = 0.15, 0.20
STEPS = 5
STEADY, ATTEMPTS = 0.05, 3  # of the probes' times before and after, median of |log|; runs at most
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
    """One run: predicted and measured seconds of a step, and bytes beside what importing torch took.

    drift : how far the machine's speed before and after differ, median of |log| over the probe's measurements.
    """

    size: str
    processes: int
    predicted_s: float
    measured_s: float
    predicted_bytes: float
    measured_bytes: float
    drift: float

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
    """Runs a script as that many processes on this machine, in the environment that its profile says."""
    launcher = [python, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    command, environment = [*launcher, *arguments], {**os.environ, **ENVIRONMENT}
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=1800, env=environment)
    if done.returncode:
        raise RuntimeError(f"{arguments[0]}: {done.stderr[-2000:]}")


def joined(*files: Path) -> ProbeFile:
    """The measurements of several runs of one probe."""
    probes = [read_probe_file(file) for file in files]
    return probes[0].model_copy(update={"measurements": tuple(each for one in probes for each in one.measurements)})


def drift_of(before: Path, after: Path) -> float:
    """Median of |log| of the times of one probe's two runs."""
    times = [
        {(m.kind, m.name, m.part, str(m.shape)): m.median for m in read_probe_file(file).measurements}
        for file in (before, after)
    ]
    return statistics.median(abs(math.log(times[1][key] / times[0][key])) for key in times[0].keys() & times[1].keys())


def steadiest(directory: Path, python: str, size: str, processes: int, seconds: float) -> Outcome:
    """The run during which the machine kept its speed best, out of as many as it takes, up to three."""
    found: list[Outcome] = []
    while len(found) < ATTEMPTS and all(each.drift > STEADY for each in found):
        found.append(compared(directory, python, size, processes, seconds))
    return min(found, key=lambda each: each.drift)


def compared(directory: Path, python: str, size: str, processes: int, seconds: float) -> Outcome:
    """Probes around the measurement of one run, calibration and prediction."""
    profile = f"cpu_{processes}.yaml"
    (directory / profile).write_text(profile_yaml(facts(), processes), encoding="utf-8")
    spec = read_spec_document(spec_document(size, processes, profile, "none"), base_dir=directory)
    script = directory / f"probe_{size}_{processes}.py"
    script.write_text(script_of(request_of(spec, [planner.estimate(spec)], ranks=processes)), encoding="utf-8")
    before, after, trained = (directory / f"{name}_{size}_{processes}.json" for name in ("before", "after", "trained"))
    launched(python, processes, str(script), "-o", str(before), "--seconds", str(seconds))
    model = spec.model.model_dump(mode="json")
    run = {"model": model, "seq_length": spec.training.seq_length, "micro_batch_size": SIZES[size][-1], "steps": STEPS}
    launched(python, processes, str(TRAINING), json.dumps(run), str(trained))
    launched(python, processes, str(script), "-o", str(after), "--seconds", str(seconds))
    overlay = fit_probe(load_profile(directory / profile), joined(before, after)).overlay
    plan = planner.estimate(read_spec_document(spec_document(size, processes, profile, overlay), base_dir=directory))
    ranks = json.loads(trained.read_text(encoding="utf-8"))["ranks"]
    return Outcome(
        size,
        processes,
        plan.step_time_s,
        max(statistics.median(rank["seconds"]) for rank in ranks),
        plan.peak_memory_gib * 2**30,
        max(rank["peak"] - rank["after_import"] for rank in ranks),
        drift_of(before, after),
    )


def table(outcomes: list[Outcome]) -> str:
    """A line a run."""
    lines = [f"{'size':<8}{'processes':>10}{'step s':>18}{'error':>8}{'memory MiB':>18}{'error':>8}{'drift':>8}"]
    for each in outcomes:
        step = f"{each.predicted_s:.3f} of {each.measured_s:.3f}"
        memory = f"{each.predicted_bytes / 2**20:.0f} of {each.measured_bytes / 2**20:.0f}"
        errors = f"{100 * each.step_error:+.1f} %", f"{100 * each.memory_error:+.1f} %"
        said = "" if each.holds else "  outside"
        parts = f"{step:>18}{errors[0]:>8}{memory:>18}{errors[1]:>8}{100 * each.drift:>6.1f} %{said}"
        lines.append(f"{each.size:<8}{each.processes:>10}{parts}")
    return "\n".join(lines)


def main() -> None:
    """All sizes, as one process and as two; exit code 1 where one is outside its limits."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--python", required=True, help="interpreter with torch")
    parser.add_argument("--seconds", type=float, default=30.0, help="of each probe, of which there are two a run")
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
                found = steadiest(directory, wanted.python, size, processes, wanted.seconds)
                case = f"{size}, {processes} processes, FP32 on the CPU, of the measured"
                report("real_training_step_error", found.step_error, "fraction", case)
                report("real_training_memory_error", found.memory_error, "fraction", case)
                report("real_training_machine_drift", found.drift, "log", case.partition(",")[0])
                outcomes.append(found)
    sys.stderr.write(table(outcomes) + "\n")
    sys.exit(0 if all(each.holds for each in outcomes) else 1)


if __name__ == "__main__":
    main()
