"""The job that the header of a batch script asks SLURM for: nodes, tasks and accelerators."""

from __future__ import annotations

import re
from dataclasses import dataclass

_DIRECTIVE = re.compile(r"^#SBATCH[ \t]+(--?[A-Za-z][\w-]*)(?:[ \t]*=[ \t]*|[ \t]+|(?=\d))([^\s#]+)", re.MULTILINE)
# Options of sbatch(1) by what they ask for; a count may follow the kind of accelerator, as in `gpu:a100:8`.
_OPTIONS = {
    **dict.fromkeys(("--nodes", "-N"), "nodes"),
    **dict.fromkeys(("--ntasks", "-n"), "tasks"),
    "--ntasks-per-node": "tasks_per_node",
    **dict.fromkeys(("--gpus-per-node", "--gres"), "devices_per_node"),
    **dict.fromkeys(("--gpus", "-G"), "devices"),
    "--gpus-per-task": "devices_per_task",
}
_COUNT = re.compile(r"(?:[\w.-]+[:=]){0,3}(\d{1,7})(?:-\d{1,7})?(?:\(\S*\))?(?:,\S*)?")
# Variables that SLURM sets for the job, by what they count; source: sbatch(1), output environment variables.
_VARIABLES = {
    "nodes": ("SLURM_NNODES", "SLURM_JOB_NUM_NODES"),
    "tasks": ("SLURM_NTASKS", "SLURM_NPROCS"),
    "tasks_per_node": ("SLURM_NTASKS_PER_NODE",),
    "devices_per_node": ("SLURM_GPUS_PER_NODE", "SLURM_GPUS_ON_NODE"),
    "devices": ("SLURM_GPUS",),
    "devices_per_task": ("SLURM_GPUS_PER_TASK",),
}


@dataclass(frozen=True, slots=True)
class SlurmJob:
    """Resources that the directives of a script ask for; `counts` by their kind."""

    counts: dict[str, int]

    @property
    def variables(self) -> dict[str, str]:
        """Values of the variables that SLURM sets for the script."""
        return {name: str(count) for kind, count in self._whole.items() for name in _VARIABLES[kind]}

    @property
    def ranks(self) -> int | None:
        """Accelerators of the job, else its tasks where there are several on a node; None where it says neither."""
        whole = self._whole
        tasks = whole.get("tasks") if whole.get("tasks_per_node", 0) > 1 or "nodes" not in whole else None
        return whole.get("devices") or tasks

    @property
    def _whole(self) -> dict[str, int]:
        """The counts, and those that follow from them."""
        counts = dict(self.counts)
        if {"nodes", "tasks_per_node"} <= counts.keys():
            counts.setdefault("tasks", counts["nodes"] * counts["tasks_per_node"])
        if {"tasks", "devices_per_task"} <= counts.keys():
            counts.setdefault("devices", counts["tasks"] * counts["devices_per_task"])
        if "devices_per_node" in counts:
            counts.setdefault("devices", counts.get("nodes", 1) * counts["devices_per_node"])
        return counts


def slurm_job(text: str) -> SlurmJob:
    """Reads the directives of a batch script; other accelerators' `--gres` than those of `gpu` and `npu` are left."""
    counts: dict[str, int] = {}
    for option, value in _DIRECTIVE.findall(text):
        kind = _OPTIONS.get(option)
        count = _COUNT.fullmatch(value)
        if kind is None or count is None or (option == "--gres" and not value.startswith(("gpu", "npu"))):
            continue
        if int(count[1]) > 0:
            counts[kind] = int(count[1])
    return SlurmJob(counts)
