"""Tells receivers of finished searches: a thread that looks for due deliveries, and one for each attempt.

A slow receiver keeps its own attempts waiting and nobody else's: at most PER_ORIGIN attempts go to one receiver and
PER_TEAM to those of one team at a time. Nothing of the service waits for any of them, its end neither: an attempt that
is cut off there is made again by whoever runs later.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import logging
import re
import socket
import ssl
import threading
import time
from base64 import urlsafe_b64encode
from collections import Counter
from datetime import timedelta
from functools import cache
from importlib.metadata import version
from socket import gaierror
from typing import TYPE_CHECKING, Any

from autodeploy.kit.errors import SpecError
from autodeploy.messages import Message
from autodeploy.service.store.base import to_json
from autodeploy.service.store.database import DATABASE_ERRORS
from autodeploy.service.store.events import Deliveries
from autodeploy.service.store.searches import Searches
from autodeploy.specs.resources import iso

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from autodeploy.kit.settings import Settings
    from autodeploy.service.store.database import Database
    from autodeploy.service.store.events import Due
    from autodeploy.service.store.tables import SearchRow
    from autodeploy.service.webhooks.service import Target, Targets


# One POST to a receiver of webhooks.
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

    timeout_s : of everything together, in seconds.

    Raises Refused when the name has no address that may be connected to; OSError when there is no answer, or none in
    time.
    """
    end_s = time.monotonic() + timeout_s
    texts = resolve(target.host, target.port)
    addresses = [text for text in texts if targets.allows_address(ipaddress.ip_address(text.partition("%")[0]))]
    if not addresses:
        raise Refused("not a public address")
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


AT_ONCE = 8
PER_ORIGIN = 2
PER_TEAM = 6
POLL_S = 1.0
# Attempts under way get so long when the process ends; what is cut off is made again.
LAST_WAIT_S = 1.0
# An attempt holds its row for its own time and this long: name look-ups have no time limit of their own.
LEASE_S = 60.0
BACK_OFF = 3.0
LONGEST_PAUSE_S = 3600.0
FINISHED = "search.finished"
# What a receiver says of itself and not of the moment; every other refusal may pass.
FINAL_STATUSES = frozenset({410})
SHOWN = (
    *("id", "status", "error", "profile", "cluster", "num_npus", "seq_length", "global_batch_size", "num_plans"),
    *("best_plan_id", "best_step_time_s", "best_tokens_per_s_per_npu", "best_mfu", "gap", "batch_id"),
)

log = logging.getLogger(__name__)


def team_secret(secret: str, team: str) -> str:
    """Secret that signs the webhooks of a team: who knows it can't tell another team's, nor the secret behind both."""
    digest = hmac.new(secret.encode(), b"autodeploy webhooks of team " + team.encode(), hashlib.sha256).digest()
    return "whsec_" + urlsafe_b64encode(digest).decode().rstrip("=")


def signature(secret: str, moment_s: int, body: bytes) -> str:
    """The header X-AutoDeploy-Signature: the moment (s since 1970) and HMAC-SHA256 of it, a dot and the body."""
    digest = hmac.new(secret.encode(), f"{moment_s}.".encode() + body, hashlib.sha256).hexdigest()
    return f"t={moment_s},v1={digest}"


def document_of(due: Due, row: SearchRow, moment_s: int) -> dict[str, Any]:
    """Document of a finished search."""
    search = {name: getattr(row, name) for name in SHOWN} | {"model": row.model_name}
    search["created_at"] = iso(row.created_at)
    search["finished_at"] = iso(row.finished_at) if row.finished_at is not None else None
    return {"id": due.id, "type": FINISHED, "attempt": due.attempts + 1, "sent_at_s": moment_s, "search": search}


class WebhookSender:
    """Sends what is due, until it is stopped. Any number of processes may, over one database."""

    def __init__(self, database: Database, settings: Settings, targets: Targets, secret: str) -> None:
        self._database = database
        self._settings = settings
        self._targets = targets
        self._secret = secret
        self._stopping = threading.Event()
        self._changed = threading.Condition()
        self._under_way: dict[str, tuple[str, str]] = {}  # delivery -> origin and team
        self._thread = threading.Thread(target=self._loop, name="webhooks", daemon=True)

    def start(self) -> None:
        """Begins to look for due deliveries."""
        self._thread.start()

    def stop(self) -> None:
        """Begins no attempt more; returns soon, whatever receivers do."""
        self._stopping.set()
        with self._changed:
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self._under_way, timeout=LAST_WAIT_S)
        if self._thread.ident is not None:
            self._thread.join(LAST_WAIT_S)

    def is_alive(self) -> bool:
        """Whether it looks for due deliveries."""
        return self._thread.is_alive()

    # -- the thread that looks -------------------------------------------------------------------------------------

    def _loop(self) -> None:
        while not self._stopping.is_set():
            try:
                began = self._begin_next()
            except DATABASE_ERRORS as error:
                log.warning("the database does not answer: %s", error)
                began = False
            except Exception:  # without this thread nobody would be told of anything
                log.exception("webhooks were not looked for")
                began = False
            if not began:
                with self._changed:
                    if not self._stopping.is_set():
                        self._changed.wait(POLL_S)

    def _begin_next(self) -> bool:
        """Begins the attempt that is due for longest; False when there is none, or no place for it."""
        with self._changed:
            origins = Counter(origin for origin, _ in self._under_way.values())
            teams = Counter(team for _, team in self._under_way.values())
        if teams.total() >= AT_ONCE:
            return False
        now = self._database.now()
        with self._database.read() as session:
            due = Deliveries(session).next_due(
                now=now,
                but_origins=[origin for origin, count in origins.items() if count >= PER_ORIGIN],
                but_teams=[team for team, count in teams.items() if count >= PER_TEAM],
            )
        if due is None:
            return False
        until = now + timedelta(seconds=self._settings.webhook_timeout_s + LEASE_S)
        with self._database.write() as session:
            if not Deliveries(session).claim(due, now=now, until=until):
                return True  # another process was faster; there may be more
        try:
            target = self._targets.target(due.url)
        except SpecError as error:  # the list is another one than when it was asked for
            reason = Message("jobs.refused", reason=error.errors[0].message)
            self._write(lambda deliveries: deliveries.give_up(due, reason))
            return True
        with self._changed:
            self._under_way[due.id] = (target.origin, due.team)
        threading.Thread(target=self._attempt, args=(due, target), name=f"webhook-{due.id}", daemon=True).start()
        return True

    # -- the thread of one attempt ---------------------------------------------------------------------------------

    def _attempt(self, due: Due, target: Target) -> None:
        try:
            self._send(due, target)
        except DATABASE_ERRORS as error:
            log.warning("webhook %s: the database does not answer, it is due again later: %s", due.id, error)
        except Exception:
            log.exception("webhook %s failed", due.id)
        finally:
            with self._changed:
                self._under_way.pop(due.id, None)
                self._changed.notify_all()

    def _send(self, due: Due, target: Target) -> None:
        with self._database.read() as session:
            row = Searches(session).get(due.search_id)
            if row is None:
                return  # deleted, and the delivery with it
            moment_s = int(time.time())
            body = to_json(document_of(due, row, moment_s)).encode()
        headers = {
            "User-Agent": f"autodeploy/{version('autodeploy')}",
            "Content-Type": "application/json",
            "X-AutoDeploy-Delivery": due.id,
            "X-AutoDeploy-Signature": signature(team_secret(self._secret, due.team), moment_s, body),
        }
        timeout_s = self._settings.webhook_timeout_s
        try:
            status = post(target, body, headers, targets=self._targets, timeout_s=timeout_s)
        except (Refused, gaierror) as error:
            log.info("webhook %s: %r", due.id, error)
            self._failed(due, Message("jobs.receiver_is_not_allowed"), final=isinstance(error, Refused))
        except (OSError, ValueError) as error:
            # What went wrong inside tells of this network; the operator's log has it.
            log.info("webhook %s: %r", due.id, error)
            self._failed(due, Message("jobs.receiver_did_not_answer", kind=type(error).__name__), final=False)
        else:
            if 200 <= status < 300:
                self._write(lambda deliveries: deliveries.delivered(due))
            elif 300 <= status < 400:
                self._failed(due, f"answered with {status}: redirects are not followed", final=True)
            else:
                self._failed(due, f"answered with {status}", final=status in FINAL_STATUSES)

    def _failed(self, due: Due, error: str, *, final: bool) -> None:
        attempt = due.attempts + 1
        if final or attempt >= self._settings.webhook_attempts:
            log.warning(
                "webhook %s of search %s is given up after %s attempts: %s", due.id, due.search_id, attempt, error
            )
            self._write(lambda deliveries: deliveries.give_up(due, error))
            return
        pause_s = min(self._settings.webhook_retry_s * BACK_OFF**due.attempts, LONGEST_PAUSE_S)
        until = self._database.now() + timedelta(seconds=pause_s)
        self._write(lambda deliveries: deliveries.postpone(due, error, until=until))

    def _write(self, change: Any) -> None:
        with self._database.write() as session:
            change(Deliveries(session))
