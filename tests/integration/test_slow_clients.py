"""Clients that send half a request, or do not take the answer: they go, and others are answered meanwhile."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, NamedTuple

import pytest

from tests import factories
from tests.integration.conftest import eventually
from tests.quick_planner import SLOW
from tests.support import plain_http
from tests.support.postgresql import free_port
from tests.support.programs import Program, wait_until_ready

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.integration

HEADER_S = 0.4
LATE_S = 3.0  # later than that nobody is told, also on a machine that has other work
OPENED_TOGETHER_S = 1.5  # six hundred connections are, also on a machine that has other work
HALF_HEAD = b"GET /livez HTTP/1.1\r\nHost: x\r\nX-Slow: "
HALF_BODY = (
    b'POST /v1/searches HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n{"model":'
)
WHOLE = b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n"


class Running:
    """A server as a process."""

    def __init__(self, port: int, program: Program) -> None:
        self.port = port
        self.program = program
        self.url = f"http://127.0.0.1:{port}"

    def connect(self, data: bytes = b"") -> socket.socket:
        """A client that has sent that much."""
        client = socket.create_connection(("127.0.0.1", self.port), 10)
        client.sendall(data)
        return client

    def open_files(self) -> int:
        """How many the process has."""
        return len(os.listdir(f"/proc/{self.program.pid}/fd"))

    def files_at_rest(self) -> int:
        """How many it has once those of earlier clients are closed: the number of a while without a change."""
        found, since_s = self.open_files(), time.monotonic()
        while time.monotonic() < since_s + HEADER_S:
            time.sleep(0.02)
            if (now := self.open_files()) != found:
                found, since_s = now, time.monotonic()
        return found


@contextmanager
def running(directory: Path, **settings: object) -> Iterator[Running]:
    port = free_port()
    environment = {
        "AUTODEPLOY_DATABASE_URL": f"sqlite:///{directory / 'autodeploy.db'}",
        "AUTODEPLOY_SHUTDOWN_GRACE_S": "0.2",
        **{
            name.upper() if name.startswith("tests_") else f"AUTODEPLOY_{name.upper()}": str(value)
            for name, value in settings.items()
        },
    }
    environment["AUTODEPLOY_PORT"] = str(port)
    program = Program([], environment, directory / "server.log", module="tests.support.quick_server", forked=True)
    program.start()
    try:
        wait_until_ready(f"http://127.0.0.1:{port}", program)
        yield Running(port, program)
    finally:
        program.stop()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    directory = tmp_path_factory.mktemp("slow")
    with running(directory, header_timeout_s=HEADER_S, body_timeout_s=HEADER_S, max_connections=700) as server:
        yield server


@pytest.fixture
def patient_server(tmp_path: Path) -> Iterator[Running]:
    late_s = OPENED_TOGETHER_S
    with running(tmp_path, header_timeout_s=late_s, body_timeout_s=late_s, max_connections=700) as server:
        yield server


def read_all(client: socket.socket) -> bytes:
    """What the server says until it closes."""
    client.settimeout(10)
    parts = []
    with contextlib.suppress(ConnectionResetError):
        while part := client.recv(65_536):
            parts.append(part)
    return b"".join(parts)


def closed(clients: list[socket.socket]) -> int:
    """How many the server has closed."""
    count = 0
    for client in clients:
        client.setblocking(False)
        try:
            while client.recv(65_536):
                pass
            count += 1
        except BlockingIOError:
            pass
        except ConnectionResetError:
            count += 1
    return count


@pytest.mark.parametrize("files", [64, 96, 256, 400, 1024])
def test_connections_follow_the_files_that_a_process_may_have(tmp_path, files):
    """Beyond them a client is told so; the log gets a line now and then, not one for each."""
    with (
        running(tmp_path, header_timeout_s=20, max_connections=1000, tests_files=files) as server,
        ExitStack() as stack,
    ):
        clients = [stack.enter_context(server.connect(HALF_HEAD)) for _ in range(files + 40)]
        assert clients
        began_s = time.monotonic()
        assert plain_http.get(f"{server.url}/livez", timeout=30).status_code == 200  # the oldest went for it
        assert time.monotonic() - began_s < 10
        assert server.open_files() < files
        log = server.program.log_path.read_text()
        assert len(log.splitlines()) < 3 * len(clients) + 100
        assert "Traceback" not in log


def test_six_hundred_half_open_connections_are_shed(patient_server):
    server = patient_server
    before = server.open_files()
    with ExitStack() as stack:
        began_s = time.monotonic()
        clients = [
            stack.enter_context(server.connect(data)) for data in (b"", HALF_HEAD, HALF_BODY) for _ in range(200)
        ]
        took_s, most = [], 0
        with plain_http.Client(base_url=server.url, timeout=30) as client:
            while time.monotonic() < began_s + OPENED_TOGETHER_S or not took_s:
                asked_s = time.monotonic()
                assert client.get("/livez").status_code == 200
                took_s.append(time.monotonic() - asked_s)
                most = max(most, server.open_files())
                time.sleep(0.02)
        assert most >= before + 550, "they were open at the same time"
        assert sorted(took_s)[len(took_s) // 2] < 0.5
        eventually(lambda: closed(clients) == 600, within_s=20.0)
        eventually(lambda: server.open_files() <= before + 2, within_s=10)


class Heard(NamedTuple):
    """What a late client was told, and how long after what it had sent."""

    answer: bytes
    after_s: float


def hear(server: Running, data: bytes, drop: bytes = b"") -> Heard:
    """What the server tells a client that has sent that much and sends drops from then on."""
    with server.connect(data) as client:
        began_s = time.monotonic()
        with contextlib.suppress(OSError):
            while drop and time.monotonic() < began_s + 2 * LATE_S:
                client.sendall(drop)
                time.sleep(0.05)
        return Heard(read_all(client), time.monotonic() - began_s)


@pytest.fixture(scope="module")
def heard(server: Running) -> dict[str, Heard]:
    """What clients hear that are late in all ways at the same time."""
    sent = {
        "headers": (HALF_HEAD,),
        "body": (HALF_BODY,),
        "drops": (HALF_HEAD, b"x"),
        "nothing": (b"",),
        "pipelined": (3 * WHOLE + HALF_HEAD,),
    }
    with ThreadPoolExecutor(len(sent)) as clients:
        return dict(zip(sent, clients.map(lambda each: hear(server, *each), sent.values()), strict=True))


@pytest.mark.parametrize("late", ["headers", "body"])
def test_who_is_late_is_told(heard, late):
    assert heard[late].after_s > HEADER_S - 0.1
    assert heard[late].answer.startswith(b"HTTP/1.1 408 Request Timeout\r\n")
    assert b"application/problem+json" in heard[late].answer


def test_a_drop_at_a_time_is_late_too(heard):
    """The time is for all of it: bytes that still come do not lengthen it."""
    assert heard["drops"].after_s < LATE_S


def test_who_sent_nothing_hears_nothing(heard):
    """A browser opens connections ahead; an answer to none of its requests would be shown for the next one."""
    assert heard["nothing"].answer == b""


def test_pipelined_requests_are_all_answered(heard):
    answer = heard["pipelined"].answer
    assert answer.count(b"HTTP/1.1 200 OK") == 3
    assert answer.count(b"HTTP/1.1 408") == 1


def test_a_connection_may_be_used_again_and_its_next_request_is_awaited_as_long(server):
    with server.connect() as client:
        for _ in range(5):
            client.sendall(WHOLE)
            answer = b""
            while not answer.endswith(b"}}"):
                answer += client.recv(65_536)
            assert answer.startswith(b"HTTP/1.1 200 OK")
            time.sleep(HEADER_S / 4)
        client.sendall(HALF_HEAD)
        began_s = time.monotonic()
        assert read_all(client).startswith(b"HTTP/1.1 408")
        assert HEADER_S - 0.1 < time.monotonic() - began_s < LATE_S


def test_a_long_wait_and_a_stream_are_no_slow_clients(server):
    """The client has sent everything: the server may take its time."""
    spec = factories.spec_document(model=factories.DEEPSEEK_V3 | {"name": SLOW})
    made = plain_http.post(f"{server.url}/v1/searches", json=spec, timeout=30).json()
    search = f"{server.url}/v1/searches/{made['search']['id']}"
    began_s = time.monotonic()
    waited = plain_http.get(search, params={"wait": 1.5 * HEADER_S}, timeout=60)
    assert waited.status_code == 200
    assert time.monotonic() - began_s > 1.5 * HEADER_S - 0.1
    assert waited.json()["status"] == "running"
    with plain_http.stream("GET", f"{search}/events", timeout=60) as stream:
        began_s = time.monotonic()
        assert any(time.monotonic() - began_s > 1.5 * HEADER_S for _ in stream.iter_lines())
    plain_http.post(f"{search}/cancel", timeout=30)


def test_who_does_not_take_the_answer_is_dropped(server):
    """Five requests for a large file, and not one byte read."""
    before = server.files_at_rest()
    request = b"GET /static/plotly.min.js HTTP/1.1\r\nHost: x\r\n\r\n"
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect(("127.0.0.1", server.port))
        client.sendall(5 * request)
        eventually(lambda: server.open_files() > before, within_s=5)
        eventually(lambda: server.open_files() <= before, within_s=2 * LATE_S)


@pytest.fixture
def small_server(tmp_path: Path) -> Iterator[Running]:
    with running(tmp_path, max_connections=20, header_timeout_s=60, body_timeout_s=60) as server:
        yield server


def test_no_more_connections_than_allowed(small_server):
    """A newcomer takes the place of whoever has waited longest without a request; of those that have one, none goes."""
    server = small_server
    with ExitStack() as stack:
        idle = [stack.enter_context(server.connect(HALF_HEAD)) for _ in range(20)]
        for _ in range(3):
            assert plain_http.get(f"{server.url}/livez", timeout=10).status_code == 200
        eventually(lambda: closed(idle) >= 1, within_s=5)
        assert closed(idle[10:]) == 0, "those that have waited longest go first"
        busy = [stack.enter_context(server.connect(HALF_BODY)) for _ in range(20)]
        eventually(lambda: closed(idle) == 20, within_s=5)
        with server.connect(WHOLE) as client:
            answer = read_all(client)
        assert answer.startswith(b"HTTP/1.1 503 Service Unavailable\r\n")
        assert b"Retry-After: 2\r\n" in answer
        assert closed(busy) == 0
        busy[0].close()
        eventually(lambda: plain_http.get(f"{server.url}/livez", timeout=10).status_code == 200, within_s=5)
