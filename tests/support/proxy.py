"""Reverse proxies with TLS before a server: nginx with the example of the documentation, and a stand-in for it."""

from __future__ import annotations

import contextlib
import re
import shutil
import socket
import socketserver
import ssl
import subprocess
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from tests.support.postgresql import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "deploy" / "nginx.conf"
PREFIX = "/autodeploy"
START_LIMIT_S = 20.0
_KEY = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
_NAMES = ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
_FOLDERS = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
_END_OF_HEAD = b"\r\n\r\n"


@dataclass(frozen=True)
class Certificate:
    """Files of a certificate that its own key has signed."""

    chain: Path
    key: Path


def self_signed(directory: Path) -> Certificate:
    """A certificate of 127.0.0.1, made by openssl."""
    made = Certificate(directory / "chain.pem", directory / "key.pem")
    subprocess.run(
        ["openssl", "req", "-x509", "-days", "2", *_KEY, *_NAMES, "-keyout", str(made.key), "-out", str(made.chain)],
        check=True,
        capture_output=True,
    )
    return made


def nginx_path() -> str | None:
    """The path of nginx, which is not always on the path of people who are not root."""
    return shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/usr/local/sbin")


@contextlib.contextmanager
def nginx(server_port: int, certificate: Certificate, directory: Path) -> Iterator[int]:
    """nginx with the example, on a free port of its own, before that port; gives its port."""
    program = nginx_path()
    assert program is not None, "nginx is here"
    port = free_port()
    text = EXAMPLE.read_text(encoding="utf-8")
    folders = "".join(f"  {name}_temp_path {directory}/{name};\n" for name in _FOLDERS)
    for told, here in (
        (r"pid /run/nginx.pid;", f"pid {directory}/nginx.pid; daemon off; error_log stderr;"),
        (r"worker_processes auto;", "worker_processes 1;"),
        (r"server 127.0.0.1:8000;", f"server 127.0.0.1:{server_port};"),
        (r"listen 80;", f"listen 127.0.0.1:{free_port()};"),
        (r"listen 443 ssl;", f"listen 127.0.0.1:{port} ssl;"),
        (r"/etc/nginx/tls/fullchain.pem", str(certificate.chain)),
        (r"/etc/nginx/tls/privkey.pem", str(certificate.key)),
        (r"http \{", f"http {{\n{folders}  access_log off;"),
    ):
        text, count = re.subn(told, here, text)
        assert count == 1, told
    configuration = directory / "nginx.conf"
    configuration.write_text(text, encoding="utf-8")
    log_path = directory / "nginx.log"
    with log_path.open("ab") as log:
        process = subprocess.Popen([program, "-p", str(directory), "-c", str(configuration)], stderr=log, stdout=log)
    try:
        _wait_until_open(port, process, log_path)
        yield port
    finally:
        process.terminate()
        process.wait()


def _wait_until_open(port: int, process: subprocess.Popen[bytes], log_path: Path) -> None:
    end_s = time.monotonic() + START_LIMIT_S
    while time.monotonic() < end_s and process.poll() is None:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(0.02)
    raise RuntimeError(f"the proxy did not start:\n{log_path.read_text(errors='replace')}")


@contextlib.contextmanager
def stand_in(server_port: int, certificate: Certificate, *, strips: bool) -> Iterator[int]:
    """A proxy that does what the example says, and no more; `strips`: it takes the prefix away. Gives its port."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate.chain, certificate.key)

    class Handler(_StandIn):
        tls = context
        to = ("127.0.0.1", server_port)
        strips_prefix = strips

    with _Server(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            thread.join()


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 64


class _StandIn(socketserver.BaseRequestHandler):
    """One request a connection, handed on when it is there, and its answer as it comes."""

    tls: ClassVar[ssl.SSLContext]
    to: ClassVar[tuple[str, int]]
    strips_prefix: ClassVar[bool]

    def handle(self) -> None:
        with contextlib.suppress(OSError), self.tls.wrap_socket(self.request, server_side=True) as client:
            request = b""
            while not _is_whole(request):
                if not (more := client.recv(65_536)):
                    return
                request += more
            head, _, body = request.partition(_END_OF_HEAD)
            with socket.create_connection(self.to) as server:
                server.sendall(self._handed_on(head) + body)
                while data := server.recv(65_536):
                    client.sendall(data)

    def _handed_on(self, head: bytes) -> bytes:
        request, *lines = head.decode("latin-1").split("\r\n")
        method, target, version = request.split(" ")
        if self.strips_prefix:
            target = target.removeprefix(PREFIX) or "/"
        kept = [line for line in lines if not line.lower().startswith(("connection:", "x-forwarded-"))]
        added = ["Connection: close", f"X-Forwarded-For: {self.client_address[0]}", "X-Forwarded-Proto: https"]
        return "\r\n".join([f"{method} {target} {version}", *kept, *added, "", ""]).encode("latin-1")


def _is_whole(request: bytes) -> bool:
    head, end, body = request.partition(_END_OF_HEAD)
    length = re.search(rb"\ncontent-length: *(\d+)", head, re.IGNORECASE)
    return bool(end) and len(body) >= (int(length[1]) if length else 0)
