"""Planning on a server: the same report, the same progress, the same Ctrl-C."""

from __future__ import annotations

import os
import threading
from contextlib import contextmanager, suppress
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, TypeVar, cast

from autodeploy.cli.output import notify
from autodeploy.kit.errors import AutoDeployError
from autodeploy.messages import Message

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from autodeploy.analysis.questions import Questions
    from autodeploy.cli.output import SearchTalk
    from autodeploy.client import Client, Event, Search
    from autodeploy.search.planner import Progress
    from autodeploy.service.session import Services
    from autodeploy.specs.planset import PlanSet
    from autodeploy.specs.spec import Spec

Answer = TypeVar("Answer")
# How often it is asked whether a waiting search has anybody who would take it.
LOOK_S = 10.0


@contextmanager
def connect(server: str) -> Iterator[Client]:
    """A client of the server; its key is in AUTODEPLOY_API_KEY; an empty one is none."""
    from autodeploy.client import Client
    from autodeploy.kit.errors import SpecError

    if not server.startswith(("http://", "https://")):
        raise SpecError(
            Message("common.is_not_of_form", value=repr(server[:100]), form="http(s)://HOST[:PORT]"),
            path="--server",
            hint=Message("common.such_as", example="http://127.0.0.1:8000"),
        )
    with Client(server, os.environ.get("AUTODEPLOY_API_KEY") or None) as client:
        yield client


def answer_of(server: str | None, ask: Callable[[Questions | Client], Answer]) -> Answer:
    """The answer of the server where one is named, else of this process."""
    if server is None:
        from autodeploy.cli.here import Here

        return ask(Here())
    with connect(server) as client:
        return ask(client)


def done_by(server: str | None, here: Callable[[Services], Answer], there: Callable[[Client], Answer]) -> Answer:
    """The same of what is stored: here in the database of the settings."""
    if server is None:
        from autodeploy.kit.settings import load_settings
        from autodeploy.service.session import open_services

        with open_services(load_settings()) as services:
            return here(services)
    with connect(server) as client:
        return there(client)


def plan_there(client: Client, spec: Spec, talk: SearchTalk, *, fresh: bool = False) -> PlanSet:
    """Submits the spec, tells of its progress and returns the finished PlanSet."""
    search = client.submit(spec, reuse=not fresh)
    if not search.is_finished:
        cancelled = False
        with _told_of_workers(client, search):
            for event in client.events(search.id):
                _tell(talk, event)
                if talk.should_cancel() and not cancelled:
                    cancelled = True
                    client.cancel(search.id)
        search = client.get(search.id)
    return search.plan_set


@contextmanager
def _told_of_workers(client: Client, search: Search) -> Iterator[None]:
    """Says once that nobody is there who would take the search, as long as it waits."""
    over = threading.Event()

    def watch() -> None:
        with suppress(AutoDeployError):  # the request that waits says what is wrong
            now = search
            while now.status == "queued":
                if now.no_live_worker:
                    notify("no_live_worker")
                    return
                if over.wait(LOOK_S):
                    return
                now = client.get(search.id)

    watcher = threading.Thread(target=watch, name="workers", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        over.set()


def _tell(talk: SearchTalk, event: Event) -> None:
    data: dict[str, Any] = event.data
    if event.kind == "progress" and "enumerated" in data:
        talk(cast("Progress", SimpleNamespace(**_EMPTY | data)))


_EMPTY: dict[str, Any] = {
    "kind": "solved",
    "message": "",
    "rejected": 0,
    "too_big": 0,
    "pruned": 0,
    "solved": 0,
    "incumbent_s": None,
    "bound_s": None,
    "gap": None,
    "elapsed_s": 0.0,
    "rejected_by_rule": {},
}
