"""Batches: one spec over several numbers of cards, sequence lengths and batch sizes, each a search of its own."""

from __future__ import annotations

import hashlib
from itertools import product
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field
from sqlalchemy import and_, select
from sqlalchemy.exc import IntegrityError

from autodeploy.analysis.intake import read_spec
from autodeploy.kit.errors import FieldError, NotFoundError, SpecError
from autodeploy.messages import Message
from autodeploy.service.requests.callers import ANYONE, Principal
from autodeploy.service.searches.submissions import Admitted, search_of_key
from autodeploy.service.store.base import Repository, new_batch_id, now_in
from autodeploy.service.store.events import IdempotencyKeys
from autodeploy.service.store.queue import Queue
from autodeploy.service.store.tables import BatchRow, PlanRow, SearchRow
from autodeploy.specs.base import Document
from autodeploy.specs.cluster import MAX_NPUS
from autodeploy.specs.planset import FINISHED
from autodeploy.specs.questions import read_request
from autodeploy.specs.resources import BatchDocument, BatchEntryDocument, iso
from autodeploy.specs.spec import canonical_json

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy.orm import Session

    from autodeploy.service.searches.service import SearchService
    from autodeploy.service.store.database import Database


# Batches.
ENTRY_COLUMNS: tuple[Any, ...] = (
    SearchRow.id.label("search_id"),
    SearchRow.status,
    SearchRow.error,
    SearchRow.num_npus,
    SearchRow.seq_length,
    SearchRow.global_batch_size,
    SearchRow.best_plan_id,
    SearchRow.best_step_time_s,
    SearchRow.best_tokens_per_s_per_npu,
    SearchRow.best_mfu,
    SearchRow.gap,
    *(PlanRow.peak_memory_gib, PlanRow.tp, PlanRow.pp, PlanRow.vpp, PlanRow.dp, PlanRow.cp, PlanRow.ep),
    PlanRow.micro_batch_size,
    PlanRow.schedule,
)


class Batches(Repository):
    """Repository of batches inside one session."""

    def add(self, row: BatchRow) -> None:
        """Inserts a batch; its searches name it."""
        self.session.add(row)
        self.session.flush()

    def get(self, batch_id: str) -> BatchRow | None:
        """The batch with that id."""
        return self.session.get(BatchRow, batch_id)

    def batch_of(self, search_id: str) -> str | None:
        """The batch that a search belongs to."""
        return self.session.scalar(select(SearchRow.batch_id).where(SearchRow.id == search_id))

    def entries(self, batch_id: str) -> Sequence[Any]:
        """A row of ENTRY_COLUMNS for each search, in the order of the sweep; of a plan that is not there, None."""
        best = and_(PlanRow.search_id == SearchRow.id, PlanRow.plan_id == SearchRow.best_plan_id)
        query = (
            select(*ENTRY_COLUMNS)
            .outerjoin(PlanRow, best)
            .where(SearchRow.batch_id == batch_id)
            .order_by(SearchRow.num_npus, SearchRow.seq_length, SearchRow.global_batch_size, SearchRow.id)
        )
        return self.session.execute(query).all()

    def unfinished(self, batch_id: str) -> Sequence[str]:
        """Its searches that wait or run."""
        query = select(SearchRow.id).where(SearchRow.batch_id == batch_id, SearchRow.status.in_(("queued", "running")))
        return self.session.scalars(query.order_by(SearchRow.id)).all()


MOST_SEARCHES = 50
# What is swept over, and where it stands in a spec.
AXES = {
    "num_npus": ("cluster", "num_npus"),
    "seq_length": ("training", "seq_length"),
    "global_batch_size": ("training", "global_batch_size"),
}


class Sweep(Document):
    """The values of each axis; every combination is a search, at most 50 together. An absent axis is as in the spec."""

    num_npus: Annotated[
        tuple[Annotated[int, Field(ge=1, le=MAX_NPUS)], ...] | None,
        Field(min_length=1, max_length=MOST_SEARCHES, examples=[[128, 256, 512]]),
    ] = None
    seq_length: Annotated[
        tuple[Annotated[int, Field(ge=1, le=10_000_000)], ...] | None,
        Field(min_length=1, max_length=MOST_SEARCHES, examples=[[4096, 32768]]),
    ] = None
    global_batch_size: Annotated[
        tuple[Annotated[int, Field(ge=1, le=10_000_000)], ...] | None,
        Field(min_length=1, max_length=MOST_SEARCHES, examples=[[7680, 15360]]),
    ] = None


class BatchRequest(Document):
    """One spec, and what it is searched over."""

    spec: Annotated[dict[str, Any], Field(description="a spec; cards that are swept over may be left out")]
    sweep: Sweep


class BatchService:
    """All searches of a batch are queued together, or none. Batches of a team the caller does not see are not there."""

    def __init__(self, database: Database, searches: SearchService, principal: Principal = ANYONE) -> None:
        self._database = database
        self._searches = searches
        self._principal = principal

    def submit(
        self,
        document: Any,
        *,
        idempotency_key: str | None = None,
        reuse: bool = True,
        webhook: str | None = None,
    ) -> tuple[BatchDocument, bool]:
        """The batch of a request's body, and whether it is a new one; the rest as in `SearchService.submit`.

        Raises SpecError with every bad field; of a swept value with its place in the sweep; LimitError when the
        caller's key allows fewer searches than are new here.
        """
        principal = self._principal
        asked = read_request(BatchRequest, document)
        admitted = self._admitted(asked, reuse)
        said = {"spec": asked.spec, "sweep": asked.sweep.model_dump(mode="json", exclude_none=True)}
        body_hash = hashlib.sha256(canonical_json(["batch", said, webhook]).encode()).hexdigest()
        try:
            with self._database.write() as session:
                before = self._batch_of_key(session, principal.key_id, idempotency_key, body_hash)
                if before is None:
                    now = now_in(session)
                    row = BatchRow(
                        id=new_batch_id(now),
                        created_at=now,
                        principal=principal.key_id,
                        author=principal.name,
                        team=principal.team,
                        document=said,
                    )
                    Batches(session).add(row)
                    views = [
                        self._searches.insert(session, each, reuse=reuse, webhook=webhook, batch_id=row.id)
                        for each in admitted
                    ]
                    if idempotency_key is not None:
                        IdempotencyKeys(session).add(
                            principal.key_id, idempotency_key, body_hash=body_hash, search_id=views[0].id, now=now
                        )
        except IntegrityError:
            # As for a search: another process used the same key meanwhile.
            with self._database.read() as session:
                before = self._batch_of_key(session, principal.key_id, idempotency_key, body_hash)
            if before is None:
                raise
        if before is not None:
            return self.get(before), False
        self._searches.wake(sum(not view.is_finished for view in views))
        return self.get(row.id), True

    def get(self, batch_id: str) -> BatchDocument:
        """A batch with the best plan of each of its searches.

        Raises NotFoundError when there is none of that id that the caller sees.
        """
        with self._database.read() as session:
            row = self._seen(session, batch_id)
            items = tuple(BatchEntryDocument.model_validate(entry) for entry in Batches(session).entries(batch_id))
            status: Literal["running", "finished"] = (
                "finished" if all(item.status in FINISHED for item in items) else "running"
            )
            return BatchDocument(
                id=row.id, created_at=iso(row.created_at), status=status, author=row.author, items=items, **row.document
            )

    def cancel(self, batch_id: str) -> BatchDocument:
        """Stops every search of a batch that waits or runs; none is no error."""
        with self._database.write() as session:
            self._seen(session, batch_id)
            for search_id in Batches(session).unfinished(batch_id):
                Queue(session).request_cancel(search_id, now=now_in(session))
        return self.get(batch_id)

    def _seen(self, session: Session, batch_id: str) -> BatchRow:
        missing = NotFoundError(Message("services.there_is_no_batch", batch=batch_id), hint="POST /v1/batches")
        row = Batches(session).get(batch_id)
        if row is None:
            raise missing
        self._principal.require_team(row.team, missing)
        return row

    def _batch_of_key(self, session: Session, principal: str, key: str | None, body_hash: str) -> str | None:
        before = None if key is None else search_of_key(session, principal, key, body_hash)
        return None if before is None else Batches(session).batch_of(before)

    def _admitted(self, asked: BatchRequest, reuse: bool) -> list[Admitted]:
        """Spec of each combination; the mistakes of all of them at once."""
        admitted: list[Admitted] = []
        errors: dict[tuple[str, str], FieldError] = {}
        choices = _choices(asked.sweep)
        try:
            read_spec(_complete(asked))
        except SpecError as error:
            raise SpecError(
                errors=tuple(FieldError("/spec" + e.path, e.message, e.hint) for e in error.errors)
            ) from error
        for choice in choices:
            try:
                admitted.append(self._searches.admitted(read_spec(_with(asked.spec, choice)), reuse=reuse))
            except SpecError as error:
                for each in error.errors:
                    placed = FieldError(_place(each.path, choice), each.message, each.hint)
                    errors.setdefault((placed.path, placed.message), placed)
        if errors:
            raise SpecError(errors=tuple(errors.values()))
        return admitted


Choice = dict[str, tuple[int, int]]  # axis -> place in the sweep and value


def _choices(sweep: Sweep) -> list[Choice]:
    """Every combination, each once.

    Raises SpecError when there are too many, or nothing is swept.
    """
    axes = {name: tuple(dict.fromkeys(getattr(sweep, name))) for name in AXES if getattr(sweep, name) is not None}
    count = 1
    for values in axes.values():
        count *= len(values)
    if not axes:
        raise SpecError(
            Message("services.nothing_is_swept"),
            path="/sweep",
            hint=Message("common.at_least_one_of", names=", ".join(AXES)),
        )
    if count > MOST_SEARCHES:
        raise SpecError(
            Message("common.exceeds", one=count, other=MOST_SEARCHES),
            path="/sweep",
            hint=Message("field_fault.at_most", bound=MOST_SEARCHES),
        )
    given = {name: list(getattr(sweep, name)) for name in axes}
    return [
        {name: (given[name].index(value), value) for name, value in zip(axes, values, strict=True)}
        for values in product(*axes.values())
    ]


def _complete(asked: BatchRequest) -> dict[str, Any]:
    """The spec by itself; its cards may be left out where they are swept over."""
    cluster = asked.spec.get("cluster")
    if asked.sweep.num_npus is None or not isinstance(cluster, dict) or cluster.get("blocks") is not None:
        return asked.spec
    return {**asked.spec, "cluster": {**cluster, "num_npus": cluster.get("num_npus") or max(asked.sweep.num_npus)}}


def _with(spec: dict[str, Any], choice: Choice) -> dict[str, Any]:
    changed = dict(spec)
    for name, (_, value) in choice.items():
        section, key = AXES[name]
        before = changed.get(section)
        if before is None or isinstance(before, dict):
            changed[section] = {**(before or {}), key: value}
    return changed


def _place(path: str, choice: Choice) -> str:
    for name, (index, _) in choice.items():
        if path == "/" + "/".join(AXES[name]):
            return f"/sweep/{name}/{index}"
    return "/spec" + path
