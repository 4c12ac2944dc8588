"""Clients of the service, synchronous and asynchronous."""

from __future__ import annotations

import asyncio
import time
from contextlib import aclosing, closing, suppress
from functools import wraps
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, Self, TypeVar, overload

import httpx
from pydantic import BaseModel

from autodeploy.client import calls
from autodeploy.client.calls import ServiceError, WaitTimeout
from autodeploy.specs.base import Document
from autodeploy.specs.questions import Asking

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping
    from types import TracebackType

    from autodeploy.client.calls import Call, Event, SpecLike
    from autodeploy.specs.planset import PlanSet
    from autodeploy.specs.questions import Question
    from autodeploy.specs.resources import SearchDocument as Search


Parameters = ParamSpec("Parameters")
Answer = TypeVar("Answer")
Request = TypeVar("Request", bound=Document)
Shown = TypeVar("Shown", bound=BaseModel)
RECONNECTS = 5
RECONNECT_PAUSE_S = 0.5


class Asked(Generic[Parameters, Answer]):
    """A method of both clients that makes a call, sends it and reads its answer; of `AsyncClient` it is awaited."""

    def __init__(self, call: Callable[Parameters, Call[Answer]]) -> None:
        self._call, self.__doc__ = call, call.__doc__

    @overload
    def __get__(self, client: Client, kind: type[Any]) -> Callable[Parameters, Answer]: ...
    @overload
    def __get__(self, client: AsyncClient, kind: type[Any]) -> Callable[Parameters, Coroutine[Any, Any, Answer]]: ...
    @overload
    def __get__(self, client: None, kind: type[Any]) -> Callable[Parameters, Call[Answer]]: ...
    def __get__(self, client: Client | AsyncClient | None, kind: type[Any]) -> Callable[Parameters, Any]:
        if client is None:
            return self._call

        @wraps(self._call)
        def ask(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Any:
            return client._send(self._call(*args, **kwargs))

        return ask


class Calls(Asking):
    """Methods of both clients that are one call each."""

    submit = Asked(calls.submit)
    get = Asked(calls.get)
    list = Asked(calls.list_searches)
    annotate = Asked(calls.annotate)
    cancel = Asked(calls.cancel)
    delete = Asked(calls.delete)
    get_plan = Asked(calls.get_plan)
    export = Asked(calls.export)
    commissioning = Asked(calls.commissioning)
    operators = Asked(calls.operators)
    add_run = Asked(calls.add_run)
    runs = Asked(calls.runs)
    delete_run = Asked(calls.delete_run)
    estimate = Asked(calls.estimate)
    compare = Asked(calls.compare)


class Client(Calls):
    """Client of a running service. Use it in a `with` block, or call `close`.

    Parameters
    ----------
    base_url : such as http://127.0.0.1:8000.
    timeout_s : of one answer, besides the time that the service is asked to wait.

    Every method raises SpecError, NotFoundError, ConflictError or AccessError as the service refuses the request,
    and ServiceError when it fails or does not answer.
    """

    def __init__(
        self,
        base_url: str,
        api_key: str | None = None,
        *,
        timeout_s: float = 30.0,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        self._http = httpx.Client(**calls.client_options(base_url, api_key, timeout_s), transport=transport)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connections."""
        self._http.close()

    def _send(self, call: Call[Answer]) -> Answer:
        return calls.send(self._http, call)

    def _ask(self, question: Question[Request, Shown], request: Mapping[str, Any] | Request) -> Shown:
        return self._send(calls.asked(question, request))

    def plan(
        self, spec: SpecLike, *, wait_s: float = 600.0, idempotency_key: str | None = None, reuse: bool = True
    ) -> PlanSet:
        """Submits a spec and waits for its PlanSet.

        Raises WaitTimeout when the search is not finished in time; it goes on.
        """
        end_s = time.monotonic() + wait_s
        search = self.submit(spec, wait_s=wait_s, idempotency_key=idempotency_key, reuse=reuse)
        return self.wait(search, wait_s=end_s - time.monotonic()).plan_set

    def wait(self, search: Search, *, wait_s: float) -> Search:
        """The search when it is finished; WaitTimeout when that takes longer.

        Listens to its events; where these do not come through, or nothing happens for long, it asks again and again.
        """
        end_s = time.monotonic() + wait_s
        if not search.is_finished and wait_s > 0:
            self._listen(search.id, end_s)
            search = self.get(search.id)
        while not search.is_finished:
            left_s = end_s - time.monotonic()
            if left_s <= 0:
                raise WaitTimeout(f"search {search.id} is {search.status} after the wait", search_id=search.id)
            search = self.get(search.id, wait_s=left_s)
        return search

    def _listen(self, search_id: str, end_s: float) -> None:
        """Returns after the last event, at the time limit, or when the event stream fails."""
        silence_s = min(calls.WAIT_SILENCE_S, end_s - time.monotonic())
        stream = calls.stream(self._http, search_id, 0, silence_s=silence_s)
        with suppress(ServiceError), closing(stream) as events:
            for event in events:
                if event.is_last or time.monotonic() >= end_s:
                    return

    def events(self, search_id: str, *, after: int = 0) -> Iterator[Event]:
        """Events of a search until it is finished; resumes after a lost connection."""
        failures = 0
        while True:
            try:
                for event in calls.stream(self._http, search_id, after):
                    after, failures = event.seq, 0
                    yield event
                    if event.is_last:
                        return
            except ServiceError:
                failures += 1
                if failures > RECONNECTS:
                    raise
                time.sleep(RECONNECT_PAUSE_S)
            else:
                if self.get(search_id).is_finished:  # resumed after the last event: nothing more will come
                    return


class AsyncClient(Calls):
    """As `Client`, on asyncio."""

    def __init__(
        self,
        base_url: str,
        api_key: str | None = None,
        *,
        timeout_s: float = 30.0,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self._http = httpx.AsyncClient(**calls.client_options(base_url, api_key, timeout_s), transport=transport)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Closes the connections."""
        await self._http.aclose()

    async def _send(self, call: Call[Answer]) -> Answer:
        return await calls.send_async(self._http, call)

    async def _ask(self, question: Question[Request, Shown], request: Mapping[str, Any] | Request) -> Shown:
        return await self._send(calls.asked(question, request))

    async def plan(
        self, spec: SpecLike, *, wait_s: float = 600.0, idempotency_key: str | None = None, reuse: bool = True
    ) -> PlanSet:
        """Submits a spec and waits for its PlanSet; WaitTimeout when that takes longer."""
        end_s = time.monotonic() + wait_s
        search = await self.submit(spec, wait_s=wait_s, idempotency_key=idempotency_key, reuse=reuse)
        return (await self.wait(search, wait_s=end_s - time.monotonic())).plan_set

    async def wait(self, search: Search, *, wait_s: float) -> Search:
        """The search when it is finished; WaitTimeout when that takes longer."""
        end_s = time.monotonic() + wait_s
        if not search.is_finished and wait_s > 0:
            await self._listen(search.id, end_s)
            search = await self.get(search.id)
        while not search.is_finished:
            left_s = end_s - time.monotonic()
            if left_s <= 0:
                raise WaitTimeout(f"search {search.id} is {search.status} after the wait", search_id=search.id)
            search = await self.get(search.id, wait_s=left_s)
        return search

    async def _listen(self, search_id: str, end_s: float) -> None:
        silence_s = min(calls.WAIT_SILENCE_S, end_s - time.monotonic())
        with suppress(ServiceError):
            async with aclosing(calls.stream_async(self._http, search_id, 0, silence_s=silence_s)) as events:
                async for event in events:
                    if event.is_last or time.monotonic() >= end_s:
                        return

    async def events(self, search_id: str, *, after: int = 0) -> AsyncIterator[Event]:
        """Events of a search until it is finished; resumes after a lost connection."""
        failures = 0
        while True:
            try:
                async for event in calls.stream_async(self._http, search_id, after):
                    after, failures = event.seq, 0
                    yield event
                    if event.is_last:
                        return
            except ServiceError:
                failures += 1
                if failures > RECONNECTS:
                    raise
                await asyncio.sleep(RECONNECT_PAUSE_S)
            else:
                if (await self.get(search_id)).is_finished:
                    return
