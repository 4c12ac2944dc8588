"""The program `autodeploy serve`: it says where to open, and its first answers are as quick as the next ones."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

from api.server import address_of
from autodeploy.cli import main
from autodeploy.kit.settings import Settings
from autodeploy.service.runner import fork_server
from tests.support import plain_http

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.integration

SPEC = {
    "model": "qwen3-30b-a3b",
    "cluster": {"profile": "ascend-800t-a2", "num_npus": 64},
    "training": {"seq_length": 4096, "global_batch_size": 512},
    "strategy": {"tp": 1, "pp": 2, "ep": 8},
}


@pytest.mark.parametrize(
    ("host", "prefix", "address"),
    [
        ("127.0.0.1", "", "http://127.0.0.1:8000/"),
        ("0.0.0.0", "", "http://127.0.0.1:8000/"),
        ("::", "", "http://127.0.0.1:8000/"),
        ("::1", "", "http://[::1]:8000/"),
        ("localhost", "/planner", "http://localhost:8000/planner/"),
    ],
)
def test_the_address_is_one_that_a_browser_here_can_open(host: str, prefix: str, address: str) -> None:
    assert address_of(Settings(host=host, path_prefix=prefix), 8000) == address


@pytest.mark.parametrize(
    ("arguments", "started"), [(["serve"], True), (["worker", "--workers", "2"], True), (["serve", "--help"], False)]
)
def test_a_service_imports_the_planner_beside_all_else(
    arguments: list[str], started: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process that does it is started before the command; of commands that search themselves there is none."""
    done: list[str] = []
    monkeypatch.setattr(fork_server.forkserver, "ensure_running", lambda: done.append("started"))
    monkeypatch.setattr(main, "run", lambda: done.append("run"))
    monkeypatch.setattr(main, "leave", lambda code: done.append(f"left {code}"))
    for asked, expected in ((arguments, started), (["plan", "serve"], False)):
        done.clear()
        monkeypatch.setattr(sys, "argv", ["autodeploy", *asked])
        main.run_alone()
        assert done == ["started"] * expected + ["run", "left 0"]


def test_a_started_server_is_ready(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "autodeploy.cli.main", "serve", "--port", "0", "--lang", "zh"]
    environment = {**os.environ, "AUTODEPLOY_DATABASE_URL": f"sqlite:///{tmp_path / 'served.db'}"}
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as server:
        try:
            assert server.stdout is not None
            starts, ready = server.stdout.readline(), server.stdout.readline()
            assert "正在启动" in starts
            address = re.findall(r"http://127\.0\.0\.1:\d+/", ready)[0]
            with plain_http.Client(base_url=address, timeout=60.0) as reader:
                for ask in (
                    lambda: reader.post("v1/estimates", json=SPEC),
                    lambda: reader.get("accuracy"),
                    lambda: reader.get("static/plotly.min.js"),
                ):
                    took_s = []
                    for _ in range(3):
                        began_s = time.perf_counter()
                        assert ask().status_code == 200
                        took_s.append(time.perf_counter() - began_s)
                    # A process that starts and reads everything takes two seconds where these take a tenth of one.
                    assert took_s[0] < 0.6 + 4 * min(took_s[1:]), took_s
        finally:
            server.terminate()
        assert server.wait(60) == 0
