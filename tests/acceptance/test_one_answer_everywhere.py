"""The command line, curl and the client give the same PlanSet; a restarted server still has it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from autodeploy.client import Client
from tests.support.postgresql import free_port
from tests.support.programs import Program, wait_until_ready

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.acceptance

ROOT = Path(__file__).resolve().parents[2]
FIXED = {"micro_batch_size": 1, "vpp": 1, "cp": 1, "schedule": "1f1b"}
SPEC: dict[str, Any] = {
    "model": "llama2-7b",
    "cluster": {"profile": "ascend-800t-a2", "num_npus": 8},
    "training": {"seq_length": 4096, "global_batch_size": 64},
    "search": {"top_k": 2, "effort": 0.02, "fix": FIXED, "allow": {"tp": [2, 4], "pp": [1, 2]}},
}


@contextmanager
def served(database: str, port: int, directory: Path) -> Iterator[str]:
    """`autodeploy serve` until it is ready."""
    url = f"http://127.0.0.1:{port}"
    arguments, environment = ["serve", "--port", str(port)], {"AUTODEPLOY_DATABASE_URL": database}
    program = Program(arguments, environment, directory / "server.log", forked=True)
    program.start()
    try:
        wait_until_ready(url, program)
        yield url
    finally:
        program.stop()


def comparable(plan_set: dict[str, Any]) -> dict[str, Any]:
    """A PlanSet without what differs between equal searches."""
    kept = {k: v for k, v in plan_set.items() if k not in {"timing", "cached", "progress", "tags", "note"}}
    kept["search"] = {k: v for k, v in plan_set["search"].items() if k not in {"id", "created_at"}}
    return kept


def test_command_line_curl_and_client_agree_and_a_restart_loses_nothing(tmp_path: Path) -> None:
    (tmp_path / "spec.yaml").write_text(json.dumps(SPEC), encoding="utf-8")
    own, shared = f"sqlite:///{tmp_path / 'own.db'}", f"sqlite:///{tmp_path / 'server.db'}"
    command = [sys.executable, "-m", "autodeploy.cli.main", "plan", str(tmp_path / "spec.yaml"), "-f", "json"]
    environment = {**os.environ, "AUTODEPLOY_DATABASE_URL": own, "PYTHONPATH": str(ROOT)}
    printed = subprocess.run(
        command, env=environment, cwd=ROOT, capture_output=True, text=True, check=True, timeout=120
    )
    expected = comparable(json.loads(printed.stdout))
    assert expected["plans"]
    port = free_port()
    with served(shared, port, tmp_path) as url:
        with Client(url) as client:
            by_client = client.plan(SPEC, wait_s=120)
        assert comparable(by_client.model_dump(mode="json")) == expected
        curl = shutil.which("curl")
        assert curl is not None, "curl is part of every machine this runs on"
        command = [curl, "-sS", "-H", "Content-Type: application/json", "-H", "Prefer: wait=60"]
        command += ["-H", "Cache-Control: no-cache", "-d", json.dumps(SPEC), f"{url}/v1/searches"]
        answer = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
        assert comparable(json.loads(answer.stdout)) == expected
    with served(shared, port, tmp_path) as url, Client(url) as client:
        assert client.get(by_client.search.id).plan_set == by_client
