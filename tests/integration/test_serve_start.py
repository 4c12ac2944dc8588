"""The program `autodeploy serve`: it says where to open, and its first answers are as quick as the next ones."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING

import pytest
import uvicorn

from api.server import address_of, server_config
from autodeploy.cli import main
from autodeploy.kit.settings import Settings
from autodeploy.service.runner import fork_server
from autodeploy.service.store.database import Database
from autodeploy.service.store.migration import upgrade
from tests.integration.conftest import eventually
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


def test_a_server_on_a_file_for_reading_only_says_so_and_no_trace(tmp_path: Path) -> None:
    path = tmp_path / "read.db"
    database = Database(f"sqlite:///{path}", pool_size=1)
    upgrade(database)
    database.close()
    environment = {**os.environ, "AUTODEPLOY_DATABASE_URL": f"sqlite:///file:{path}?mode=ro&uri=true"}
    command = [sys.executable, "-m", "autodeploy.cli.main", "serve", "--port", "0"]
    served = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=60)
    assert served.returncode == 4
    assert "AUTODEPLOY_DATABASE_URL" in served.stderr
    assert "Traceback" not in served.stdout + served.stderr


@pytest.mark.parametrize(
    ("trusted", "told"), [("", "127.0.0.1"), ("10.0.0.7", "127.0.0.1"), ("127.0.0.1", "203.0.113.9")]
)
def test_only_a_named_proxy_tells_whom_it_speaks_for(trusted: str, told: str, tmp_path: Path) -> None:
    """Nor one on this machine: whoever may choose an address is not throttled by it."""

    async def whom(scope, _receive, send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": scope["client"][0].encode()})

    settings = Settings(trusted_proxies=trusted, database_url=f"sqlite:///{tmp_path / 'a.db'}")
    config = server_config(whom, settings)  # type: ignore[arg-type]
    config.lifespan, config.port = "off", 0
    server = uvicorn.Server(config)
    serving = threading.Thread(target=server.run)
    serving.start()
    try:
        eventually(lambda: server.started)
        port = server.servers[0].sockets[0].getsockname()[1]
        with plain_http.Client(base_url=f"http://127.0.0.1:{port}/", timeout=60.0) as reader:
            assert reader.get("", headers={"X-Forwarded-For": "203.0.113.9"}).text == told
    finally:
        server.should_exit = True
        serving.join()


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
