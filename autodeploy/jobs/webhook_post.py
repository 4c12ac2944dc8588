"""One POST to a receiver of webhooks: to a judged address, within one deadline, without following anything.

By hand on a socket, because the address is pinned, the deadline is that of the whole exchange (a receiver that sends a
byte now and then gains nothing), and of the answer only the status is read.
"""

from __future__ import annotations

import ipaddress
import re
import socket
import ssl
import time
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from autodeploy.jobs.webhook_targets import Target, Targets

MAX_HEAD_BYTES = 16_384
_STATUS_LINE = re.compile(rb"HTTP/1\.[01] ([1-5][0-9][0-9])(?: |\r?\n)")


class Refused(Exception):
    """The target is one that is never called; trying again would not help."""


def resolve(host: str, port: int) -> list[str]:
    """The addresses of a name, each once, in the resolver's order."""
    addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(address[0]) for *_, address in addresses))


def post(
    target: Target,
    body: bytes,
    headers: Mapping[str, str],
    *,
    targets: Targets,
    timeout_s: float,
    resolve: Callable[[str, int], list[str]] = resolve,
) -> int:
    """Sends the body; the status of the answer.

    Parameters
    ----------
    timeout_s : of everything together, in seconds.

    Raises
    ------
    Refused
        when the name has no address that may be connected to.
    OSError
        when there is no answer, or none in time.
    """
    end_s = time.monotonic() + timeout_s
    texts = resolve(target.host, target.port)
    addresses = [text for text in texts if targets.allows_address(ipaddress.ip_address(text.partition("%")[0]))]
    if not addresses:
        raise Refused(f"{target.host} is {', '.join(texts[:4]) or 'nowhere'}: an address of a private network")
    with _connected(addresses, target.port, end_s) as plain, _secured(plain, target, end_s) as connection:
        _limit(connection, end_s)
        connection.sendall(_request(target, body, headers))
        return _status(connection, end_s)


def _connected(addresses: list[str], port: int, end_s: float) -> socket.socket:
    """To the first address that answers; each gets its part of the time."""
    failure: OSError = TimeoutError("the time is over")
    for index, address in enumerate(addresses):
        left_s = _left_s(end_s)
        try:
            return socket.create_connection((address, port), timeout=left_s / (len(addresses) - index))
        except OSError as error:
            failure = error
    raise failure


def _secured(connection: socket.socket, target: Target, end_s: float) -> socket.socket:
    if target.scheme == "http":
        return connection
    _limit(connection, end_s)
    return _tls().wrap_socket(connection, server_hostname=target.host)


@cache
def _tls() -> ssl.SSLContext:
    return ssl.create_default_context()


def _request(target: Target, body: bytes, headers: Mapping[str, str]) -> bytes:
    given = {"Host": target.authority, **headers, "Content-Length": str(len(body)), "Connection": "close"}
    lines = "".join(f"{name}: {value}\r\n" for name, value in given.items())
    return f"POST {target.path} HTTP/1.1\r\n{lines}\r\n".encode("ascii") + body


def _status(connection: socket.socket, end_s: float) -> int:
    """The status of the first answer that is final; 1xx come before it."""
    head = b""
    while len(head) < MAX_HEAD_BYTES:
        match = _STATUS_LINE.match(head)
        if match is not None and not match[1].startswith(b"1"):
            return int(match[1])
        if match is not None and b"\r\n\r\n" in head:
            head = head.partition(b"\r\n\r\n")[2]
            continue
        _limit(connection, end_s)
        piece: Any = connection.recv(4096)
        if not piece:
            break
        head += piece
    raise OSError("this is no answer of HTTP")


def _limit(connection: socket.socket, end_s: float) -> None:
    connection.settimeout(_left_s(end_s))


def _left_s(end_s: float) -> float:
    left_s = end_s - time.monotonic()
    if left_s <= 0:
        raise TimeoutError("the time is over")
    return left_s
