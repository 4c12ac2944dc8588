"""Launch scripts print their command without starting it, keep a log, and run as a Slurm job on every node."""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING

import pytest

from autodeploy.formats.import_document import import_document
from autodeploy.formats.megatron.launch_script import asked_for
from autodeploy.formats.megatron.slurm import MARK
from autodeploy.formats.registry import export
from tests import factories

if TYPE_CHECKING:
    from pathlib import Path

# What a Slurm of two nodes would do: the names of its hosts, and a task on each with its number.
SCONTROL = "#!/bin/sh\nprintf 'first\\nsecond\\n'\n"
SRUN = '#!/bin/sh\nshift\nfor id in 0 1; do SLURM_NODEID=$id "$@"; done\n'


def given(text: str) -> dict[str, str]:
    return {name: "7" for name in asked_for(text)}


def run(script: Path, variables: dict[str, str], path: str = "") -> subprocess.CompletedProcess[str]:
    environment = {"PATH": path + os.environ["PATH"], "HOME": str(script.parent), **variables}
    return subprocess.run(
        ["bash", str(script)],
        env=environment,
        cwd=script.parent,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )


def exported(to: str) -> str:
    plan_set = factories.plan_set(1)
    return export(plan_set, plan_set.plans[0], to).text


@pytest.mark.parametrize("to", ["mindspeed-llm", "megatron"])
def test_a_dry_run_prints_the_command_and_starts_nothing(tmp_path: Path, to: str) -> None:
    script = tmp_path / "pretrain.sh"
    script.write_text(exported(to))
    done = run(script, {**given(script.read_text()), "DRY_RUN": "1", "ALLOW_OTHER_RELEASE": "1"})
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("torchrun --nproc_per_node ")
    assert "--num-layers" in done.stdout
    assert "HCCL_SOCKET_IFNAME" in done.stderr, "nobody said which interface leads to the other nodes"
    assert not list(tmp_path.glob("*.log"))


def test_a_run_keeps_its_log(tmp_path: Path) -> None:
    script, tool = tmp_path / "pretrain.sh", tmp_path / "bin" / "torchrun"
    script.write_text(exported("mindspeed-llm"))
    tool.parent.mkdir()
    tool.write_text("#!/bin/sh\necho started\nexit 3\n")
    tool.chmod(0o755)
    done = run(script, {**given(script.read_text()), "ALLOW_OTHER_RELEASE": "1"}, f"{tool.parent}:")
    assert done.returncode == 3, "the exit status is that of the training, not of tee"
    assert (tmp_path / "train_node7.log").read_text() == "started\n"


def test_a_slurm_job_starts_the_script_on_every_node(tmp_path: Path) -> None:
    text, tools = exported("slurm"), tmp_path / "bin"
    tools.mkdir()
    for name, program in (("scontrol", SCONTROL), ("srun", SRUN)):
        (tools / name).write_text(program)
        (tools / name).chmod(0o755)
    script = tmp_path / "job.sh"
    script.write_text(text)
    slurm = {"SLURM_JOB_NODELIST": "x", "SLURM_JOB_ID": "9", "SLURM_SUBMIT_DIR": str(tmp_path)}
    inner = text.split(f"<<'{MARK}'\n")[1].split(f"\n{MARK}\n")[0] + "\n"
    asked = {name: value for name, value in given(inner).items() if name not in {"NODE_RANK", "MASTER_ADDR"}}
    done = run(script, {**asked, **slurm, "DRY_RUN": "1", "ALLOW_OTHER_RELEASE": "1"}, f"{tools}:")
    assert done.returncode == 0, done.stderr
    commands = done.stdout.splitlines()
    assert [f"--node_rank {rank} --master_addr first" in command for rank, command in enumerate(commands)] == [True] * 2
    assert inner == exported("mindspeed-llm")
    assert "#SBATCH --nodes=48\n" in text
    assert all(name in text.split("set -euo")[0] for name in asked)


@pytest.mark.parametrize("job", [{}, {"SLURM_JOB_NODELIST": "x", "SLURM_JOB_ID": "9", "SLURM_SUBMIT_DIR": "nowhere"}])
def test_a_dry_run_outside_a_job_prints_what_the_first_node_runs(tmp_path: Path, job: dict[str, str]) -> None:
    text = exported("slurm")
    script = tmp_path / "job.sh"
    script.write_text(text)
    inner = text.split(f"<<'{MARK}'\n")[1].split(f"\n{MARK}\n")[0]
    asked = {name: value for name, value in given(inner).items() if name not in {"NODE_RANK", "MASTER_ADDR"}}
    done = run(script, {**asked, **job, "DRY_RUN": "1", "ALLOW_OTHER_RELEASE": "1"})
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("torchrun ")
    assert "--node_rank 0 --master_addr node0 " in done.stdout
    assert list(tmp_path.iterdir()) == [script]


def test_the_script_reads_back_as_its_strategy() -> None:
    imported = import_document(exported("mindspeed-llm"), "pretrain.sh", variables=given(exported("mindspeed-llm")))
    strategy = factories.plan_set(1).plans[0].strategy
    read = imported.document["strategy"]
    assert (read["tp"], read["pp"], read["ep"]) == (strategy.tp, strategy.pp, strategy.ep)
