"""Clients of the service, synchronous and asynchronous."""

from __future__ import annotations

import asyncio
import time
from contextlib import aclosing, closing, suppress
from typing import TYPE_CHECKING, Any, Self

import httpx

from autodeploy.client import calls
from autodeploy.client import calls as _transport
from autodeploy.client.calls import ServiceError, WaitTimeout

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
    from types import TracebackType

    from autodeploy.client.calls import Event, SpecLike
    from autodeploy.specs.answers import CheckReport, ClusterComparison, ImproveReport, Recommendation, WhyNot
    from autodeploy.specs.commissioning import Commissioning
    from autodeploy.specs.plan_details import Comparison, OperatorReport
    from autodeploy.specs.planset import Plan, PlanSet
    from autodeploy.specs.resources import RunList, RunOutcomeDocument, SearchList
    from autodeploy.specs.resources import SearchDocument as Search


RECONNECTS = 5
RECONNECT_PAUSE_S = 0.5


class Client:
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
        self._http = httpx.Client(**_transport.client_options(base_url, api_key, timeout_s), transport=transport)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connections."""
        self._http.close()

    def plan(
        self, spec: SpecLike, *, wait_s: float = 600.0, idempotency_key: str | None = None, reuse: bool = True
    ) -> PlanSet:
        """Submits a spec and waits for its PlanSet.

        Raises
        ------
        WaitTimeout
            when the search is not finished in time; it goes on.
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
            search = _transport.send(self._http, calls.get(search.id, wait_s=left_s))
        return search

    def _listen(self, search_id: str, end_s: float) -> None:
        """Returns after the last event, at the time limit, or when the event stream fails."""
        silence_s = min(_transport.WAIT_SILENCE_S, end_s - time.monotonic())
        stream = _transport.stream(self._http, search_id, 0, silence_s=silence_s)
        with suppress(ServiceError), closing(stream) as events:
            for event in events:
                if event.is_last or time.monotonic() >= end_s:
                    return

    def submit(
        self, spec: SpecLike, *, wait_s: float = 0.0, idempotency_key: str | None = None, reuse: bool = True
    ) -> Search:
        """Submits a spec; `reuse` permits the stored result of an equal search."""
        call = calls.submit(spec, wait_s=wait_s, idempotency_key=idempotency_key, reuse=reuse)
        return _transport.send(self._http, call)

    def get(self, search_id: str) -> Search:
        """The current state of a search."""
        return _transport.send(self._http, calls.get(search_id))

    def list(self, *, limit: int = 20, after: str | None = None, **filters: str | None) -> SearchList:
        """Searches newest first, or by `sort`. Filters: model, profile, status, tag, created_after, created_before."""
        return _transport.send(self._http, calls.list_page(filters, limit=limit, after=after))

    def annotate(self, search_id: str, *, tags: tuple[str, ...] | None = None, note: str | None = None) -> Search:
        """Replaces tags, note or both."""
        wanted = None if tags is None else [*tags]
        return _transport.send(self._http, calls.annotate(search_id, tags=wanted, note=note))

    def cancel(self, search_id: str) -> Search:
        """Cancels a search."""
        return _transport.send(self._http, calls.cancel(search_id))

    def delete(self, search_id: str) -> None:
        """Deletes a search with its plans."""
        _transport.send(self._http, calls.delete(search_id))

    def get_plan(self, plan_id: str) -> Plan:
        """One plan."""
        return _transport.send(self._http, calls.plan(plan_id))

    def export(self, plan_id: str | SpecLike, to: str, *, lang: str | None = None, rehearse: str | None = None) -> str:
        """A plan, or a spec's strategy, in another format; or a plan's rehearsal on `1node`, `8nodes` and so on."""
        return _transport.send(self._http, calls.export(plan_id, to, lang, rehearse))

    def commissioning(self, plan_id: str) -> Commissioning:
        """The launches before a plan's own, and what each decides."""
        return _transport.send(self._http, calls.commissioning(plan_id))

    def add_run(self, plan_id: str, document: Mapping[str, Any], *, rehearse: str | None = None) -> RunOutcomeDocument:
        """Reports a measured run of a plan or of its rehearsal: numbers, or `file` with a log."""
        return _transport.send(self._http, calls.add_run(plan_id, document, rehearse))

    def runs(self, *, limit: int = 20, after: str | None = None, **filters: str | None) -> RunList:
        """Measured runs, newest first. Filters: plan_id, cluster."""
        return _transport.send(self._http, calls.runs(filters, limit=limit, after=after))

    def delete_run(self, run_id: str) -> None:
        """Deletes a run."""
        _transport.send(self._http, calls.delete_run(run_id))

    def operators(self, plan_id: str) -> OperatorReport:
        """Time breakdown of a stored plan, down to the operators of each kind of layer."""
        return _transport.send(self._http, calls.operators(plan_id))

    def estimate(self, spec: SpecLike) -> Plan:
        """Predicts the strategy in the spec."""
        return _transport.send(self._http, calls.estimate(spec))

    def check(self, request: Mapping[str, Any]) -> CheckReport:
        """Checks a launch against limits: the fields of `POST /v1/checks`."""
        return _transport.send(self._http, calls.check(request))

    def compare(self, plans: Sequence[str | Mapping[str, Any]]) -> Comparison:
        """Differences between plans: ids of stored plans, or PlanSets, represented by their best plan."""
        return _transport.send(self._http, calls.compare(plans))

    def why_not(self, request: Mapping[str, Any]) -> WhyNot:
        """Reasons against a strategy, or the best plan with given axes: the fields of `POST /v1/why-not`."""
        return _transport.send(self._http, calls.why_not(request))

    def improve(self, request: Mapping[str, Any]) -> ImproveReport:
        """The best single changes of a launch: the fields of `POST /v1/improve`."""
        return _transport.send(self._http, calls.improve(request))

    def recommend(self, request: Mapping[str, Any]) -> Recommendation:
        """The smallest number of cards for a deadline: the fields of `POST /v1/recommend`."""
        return _transport.send(self._http, calls.recommend(request))

    def compare_clusters(self, request: Mapping[str, Any]) -> ClusterComparison:
        """The cost of a deadline on several clusters: the fields of `POST /v1/compare-clusters`."""
        return _transport.send(self._http, calls.compare_clusters(request))

    def events(self, search_id: str, *, after: int = 0) -> Iterator[Event]:
        """Events of a search until it is finished; resumes after a lost connection."""
        failures = 0
        while True:
            try:
                for event in _transport.stream(self._http, search_id, after):
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


class AsyncClient:
    """As `Client`, on asyncio."""

    def __init__(
        self,
        base_url: str,
        api_key: str | None = None,
        *,
        timeout_s: float = 30.0,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self._http = httpx.AsyncClient(**_transport.client_options(base_url, api_key, timeout_s), transport=transport)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Closes the connections."""
        await self._http.aclose()

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
            search = await _transport.send_async(self._http, calls.get(search.id, wait_s=left_s))
        return search

    async def _listen(self, search_id: str, end_s: float) -> None:
        silence_s = min(_transport.WAIT_SILENCE_S, end_s - time.monotonic())
        with suppress(ServiceError):
            async with aclosing(_transport.stream_async(self._http, search_id, 0, silence_s=silence_s)) as events:
                async for event in events:
                    if event.is_last or time.monotonic() >= end_s:
                        return

    async def submit(
        self, spec: SpecLike, *, wait_s: float = 0.0, idempotency_key: str | None = None, reuse: bool = True
    ) -> Search:
        """Submits a spec; `reuse` permits the stored result of an equal search."""
        call = calls.submit(spec, wait_s=wait_s, idempotency_key=idempotency_key, reuse=reuse)
        return await _transport.send_async(self._http, call)

    async def get(self, search_id: str) -> Search:
        """The current state of a search."""
        return await _transport.send_async(self._http, calls.get(search_id))

    async def list(self, *, limit: int = 20, after: str | None = None, **filters: str | None) -> SearchList:
        """Searches newest first, or by `sort`. Filters: model, profile, status, tag, created_after, created_before."""
        return await _transport.send_async(self._http, calls.list_page(filters, limit=limit, after=after))

    async def annotate(self, search_id: str, *, tags: tuple[str, ...] | None = None, note: str | None = None) -> Search:
        """Replaces tags, note or both."""
        wanted = None if tags is None else [*tags]
        return await _transport.send_async(self._http, calls.annotate(search_id, tags=wanted, note=note))

    async def cancel(self, search_id: str) -> Search:
        """Cancels a search."""
        return await _transport.send_async(self._http, calls.cancel(search_id))

    async def delete(self, search_id: str) -> None:
        """Deletes a search with its plans."""
        await _transport.send_async(self._http, calls.delete(search_id))

    async def get_plan(self, plan_id: str) -> Plan:
        """One plan."""
        return await _transport.send_async(self._http, calls.plan(plan_id))

    async def export(
        self, plan_id: str | SpecLike, to: str, *, lang: str | None = None, rehearse: str | None = None
    ) -> str:
        """A plan, or a spec's strategy, in another format; or a plan's rehearsal on `1node`, `8nodes` and so on."""
        return await _transport.send_async(self._http, calls.export(plan_id, to, lang, rehearse))

    async def commissioning(self, plan_id: str) -> Commissioning:
        """The launches before a plan's own, and what each decides."""
        return await _transport.send_async(self._http, calls.commissioning(plan_id))

    async def add_run(
        self, plan_id: str, document: Mapping[str, Any], *, rehearse: str | None = None
    ) -> RunOutcomeDocument:
        """Reports a measured run of a plan or of its rehearsal: numbers, or `file` with a log."""
        return await _transport.send_async(self._http, calls.add_run(plan_id, document, rehearse))

    async def runs(self, *, limit: int = 20, after: str | None = None, **filters: str | None) -> RunList:
        """Measured runs, newest first. Filters: plan_id, cluster."""
        return await _transport.send_async(self._http, calls.runs(filters, limit=limit, after=after))

    async def delete_run(self, run_id: str) -> None:
        """Deletes a run."""
        await _transport.send_async(self._http, calls.delete_run(run_id))

    async def operators(self, plan_id: str) -> OperatorReport:
        """Time breakdown of a stored plan, down to the operators of each kind of layer."""
        return await _transport.send_async(self._http, calls.operators(plan_id))

    async def estimate(self, spec: SpecLike) -> Plan:
        """Predicts the strategy in the spec."""
        return await _transport.send_async(self._http, calls.estimate(spec))

    async def check(self, request: Mapping[str, Any]) -> CheckReport:
        """Checks a launch against limits: the fields of `POST /v1/checks`."""
        return await _transport.send_async(self._http, calls.check(request))

    async def compare(self, plans: Sequence[str | Mapping[str, Any]]) -> Comparison:
        """Differences between plans: ids of stored plans, or PlanSets, represented by their best plan."""
        return await _transport.send_async(self._http, calls.compare(plans))

    async def why_not(self, request: Mapping[str, Any]) -> WhyNot:
        """Reasons against a strategy, or the best plan with given axes: the fields of `POST /v1/why-not`."""
        return await _transport.send_async(self._http, calls.why_not(request))

    async def improve(self, request: Mapping[str, Any]) -> ImproveReport:
        """The best single changes of a launch: the fields of `POST /v1/improve`."""
        return await _transport.send_async(self._http, calls.improve(request))

    async def recommend(self, request: Mapping[str, Any]) -> Recommendation:
        """The smallest number of cards for a deadline: the fields of `POST /v1/recommend`."""
        return await _transport.send_async(self._http, calls.recommend(request))

    async def compare_clusters(self, request: Mapping[str, Any]) -> ClusterComparison:
        """The cost of a deadline on several clusters: the fields of `POST /v1/compare-clusters`."""
        return await _transport.send_async(self._http, calls.compare_clusters(request))

    async def events(self, search_id: str, *, after: int = 0) -> AsyncIterator[Event]:
        """Events of a search until it is finished; resumes after a lost connection."""
        failures = 0
        while True:
            try:
                async for event in _transport.stream_async(self._http, search_id, after):
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
