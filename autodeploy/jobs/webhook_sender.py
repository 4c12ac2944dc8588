"""Tells receivers of finished searches: a thread that looks for due deliveries, and one for each attempt.

A slow receiver keeps its own attempts waiting and nobody else's: at most PER_ORIGIN attempts go to one receiver and
PER_TEAM to those of one team at a time. Nothing of the service waits for any of them, its end neither: an attempt that
is cut off there is made again by whoever runs later.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import threading
import time
from base64 import urlsafe_b64encode
from collections import Counter
from datetime import timedelta
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from autodeploy.errors import SpecError
from autodeploy.jobs.webhook_post import Refused, post
from autodeploy.messages import Message
from autodeploy.store.base import to_json
from autodeploy.store.clock import iso, utc_now
from autodeploy.store.database import DATABASE_ERRORS
from autodeploy.store.deliveries import Deliveries
from autodeploy.store.searches import Searches

if TYPE_CHECKING:
    from autodeploy.jobs.webhook_targets import Target, Targets
    from autodeploy.settings import Settings
    from autodeploy.store.database import Database
    from autodeploy.store.deliveries import Due
    from autodeploy.store.tables import SearchRow

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
    """What signs the webhooks of a team: who knows it can't tell another team's, nor the secret behind both."""
    digest = hmac.new(secret.encode(), b"autodeploy webhooks of team " + team.encode(), hashlib.sha256).digest()
    return "whsec_" + urlsafe_b64encode(digest).decode().rstrip("=")


def signature(secret: str, moment_s: int, body: bytes) -> str:
    """The header X-AutoDeploy-Signature: the moment (s since 1970) and HMAC-SHA256 of it, a dot and the body."""
    digest = hmac.new(secret.encode(), f"{moment_s}.".encode() + body, hashlib.sha256).hexdigest()
    return f"t={moment_s},v1={digest}"


def document_of(due: Due, row: SearchRow, moment_s: int) -> dict[str, Any]:
    """What is sent of a finished search."""
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
        now = utc_now()
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
        except Refused as error:
            self._failed(due, Message("jobs.refused", reason=str(error)), final=True)
        except (OSError, ValueError) as error:
            self._failed(due, f"{type(error).__name__}: {error}" if str(error) else type(error).__name__, final=False)
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
        until = utc_now() + timedelta(seconds=pause_s)
        self._write(lambda deliveries: deliveries.postpone(due, error, until=until))

    def _write(self, change: Any) -> None:
        with self._database.write() as session:
            change(Deliveries(session))
