"""A PlanSet as rows and back. What comes back equals what went in, floats bit for bit.

The plans are rows of their own and the spec is a column of the search; `result` holds the rest. JSON keeps Python's
shortest representation of a float, which reads back as the same float.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sqlalchemy import Text, bindparam, cast, insert, literal, select

from autodeploy.kit.version import ENGINE_VERSION
from autodeploy.service.store.base import Repository, to_json
from autodeploy.service.store.tables import OVERLAYS_AT, PlanRow, SearchRow
from autodeploy.specs.planset import Optimality, Plan, PlanSet, SearchInfo
from autodeploy.specs.resources import iso
from autodeploy.specs.spec import written_by

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from datetime import datetime


# The plans of searches.
DOCUMENT_TEXT: Any = cast(PlanRow.document, Text)
TEXTS = select(DOCUMENT_TEXT).where(PlanRow.search_id == bindparam("search_id")).order_by(PlanRow.position)
NEWEST = (
    select(
        SearchRow.id,
        SearchRow.engine_version,
        SearchRow.spec_hash,
        SearchRow.profile_hash,
        SearchRow.team,
        DOCUMENT_TEXT.label("document"),
        *OVERLAYS_AT,
    )
    .join(PlanRow, PlanRow.search_id == SearchRow.id)
    .where(PlanRow.plan_id == bindparam("plan_id"))
    .order_by(PlanRow.search_id.desc())
    .limit(1)
)
DEGREES = ("tp", "pp", "vpp", "cp", "ep", "dp")
BEST_DEGREES = select(PlanRow.search_id, *(getattr(PlanRow, name) for name in DEGREES)).where(
    PlanRow.search_id.in_(bindparam("search_ids", expanding=True)), PlanRow.position == 0
)
NEWEST_OF_TEAM = NEWEST.where(SearchRow.team == bindparam("team"))


class Plans(Repository):
    """Repository of plans inside one session."""

    def documents(self, search_id: str) -> Sequence[dict[str, Any]]:
        """The plans of a search in their order."""
        query = select(PlanRow.document).where(PlanRow.search_id == search_id).order_by(PlanRow.position)
        return self.session.scalars(query).all()

    def texts(self, search_id: str) -> tuple[str, ...]:
        """The plans of a search in their order, as JSON text."""
        return tuple(self.session.scalars(TEXTS, {"search_id": search_id}))

    def best_degrees(self, search_ids: Sequence[str]) -> dict[str, dict[str, int]]:
        """The parallel degrees of the best plan of each of these searches that has one; no document is read."""
        rows = self.session.execute(BEST_DEGREES, {"search_ids": search_ids})
        return {search_id: dict(zip(DEGREES, degrees, strict=True)) for search_id, *degrees in rows}

    def newest(self, plan_id: str, *, team: str | None = None) -> Any | None:
        """The plan with that id, of the newest search that found it: `document` as text, and columns of the search.

        `team`: of that team's searches.
        """
        if team is None:
            return self.session.execute(NEWEST, {"plan_id": plan_id}).one_or_none()
        return self.session.execute(NEWEST_OF_TEAM, {"plan_id": plan_id, "team": team}).one_or_none()

    def copy(self, search_id: str, *, to: str) -> None:
        """The plans of one search become those of another, too, without being read."""
        columns = [column for column in PlanRow.__table__.columns if column.name != "search_id"]
        old = select(literal(to), *columns).where(PlanRow.search_id == search_id)
        self.session.execute(insert(PlanRow).from_select(["search_id", *(column.name for column in columns)], old))


def result_columns(plan_set: PlanSet) -> dict[str, Any]:
    """The columns of a search that its result sets."""
    document = plan_set.model_dump(mode="json", exclude={"plans": True, "search": {"spec"}})
    best = plan_set.plans[0] if plan_set.plans else None
    columns: dict[str, Any] = {
        "status": plan_set.status,
        "spec": plan_set.search.spec,
        "result": document,
        "error": plan_set.error,
        "num_plans": len(plan_set.plans),
        "best_plan_id": best.plan_id if best else None,
        "best_step_time_s": best.step_time_s if best else None,
        "best_tokens_per_s_per_npu": best.tokens_per_s_per_npu if best else None,
        "best_mfu": best.mfu if best else None,
        "gap": best.gap if best else None,
        "reproducible": plan_set.reproducible,
    }
    if best is not None:
        columns["num_npus"] = best.num_npus_used
    return columns


def plan_rows(search_id: str, plans: Iterable[Plan]) -> list[PlanRow]:
    """One row for each plan, in their order."""
    return [
        PlanRow(
            search_id=search_id,
            plan_id=plan.plan_id,
            position=position,
            rank=plan.rank,
            step_time_s=plan.step_time_s,
            tokens_per_s_per_npu=plan.tokens_per_s_per_npu,
            mfu=plan.mfu,
            peak_memory_gib=plan.peak_memory_gib,
            tp=plan.strategy.tp,
            pp=plan.strategy.pp,
            vpp=plan.strategy.vpp,
            dp=plan.strategy.dp,
            cp=plan.strategy.cp,
            ep=plan.strategy.ep,
            micro_batch_size=plan.strategy.micro_batch_size,
            schedule=plan.strategy.schedule,
            document=plan.model_dump(mode="json"),
        )
        for position, plan in enumerate(plans)
    ]


def read_plan(document: dict[str, Any]) -> Plan:
    """The plan of a row's document."""
    return Plan.model_validate(document)


@dataclass(frozen=True, slots=True)
class StoredSearch:
    """A search as it is stored. Its documents are JSON text, which can be sent as it is."""

    id: str
    created_at: datetime
    updated_at: datetime
    status: str
    error: str | None
    spec_hash: str
    profile_hash: str
    engine_version: str
    spec: str
    result: str | None
    plans: tuple[str, ...]

    def json(self) -> str:
        """The PlanSet; of a search without a result, one that says its status.

        What this version of the engine wrote is put together as text, unread: it was valid when it was stored. What
        another version wrote may lack fields and is read.
        """
        if self.result is None:
            return self._without_result().model_dump_json()
        if self.engine_version != ENGINE_VERSION:
            return self.plan_set().model_dump_json()
        return self._joined(self.result)

    def plan_set(self) -> PlanSet:
        """The PlanSet as an object."""
        if self.result is None:
            return self._without_result()
        with written_by(self.engine_version):
            return PlanSet.model_validate_json(self._joined(self.result))

    def _joined(self, result: str) -> str:
        document = json.loads(result)
        search = to_json(document.pop("search"))
        parts = {name: to_json(value) for name, value in document.items()}
        parts["search"] = f'{search[:-1]},"spec":{self.spec}}}'
        parts["plans"] = f"[{','.join(self.plans)}]"
        return "{" + ",".join(f'"{name}":{parts[name]}' for name in PlanSet.model_fields if name in parts) + "}"

    def _without_result(self) -> PlanSet:
        spec = json.loads(self.spec)
        return PlanSet.model_validate(
            {
                "search": SearchInfo(
                    id=self.id,
                    spec=spec,
                    spec_hash=self.spec_hash,
                    profile_hash=self.profile_hash,
                    engine_version=self.engine_version,
                    created_at=iso(self.created_at),
                ),
                "status": self.status,
                "optimality": Optimality(objective=spec["search"]["objective"]),
                "error": self.error,
            }
        )


def stored_search(row: SearchRow, plans: Iterable[str] = ()) -> StoredSearch:
    """A search that was just written, without asking for it."""
    return StoredSearch(
        id=row.id,
        created_at=row.created_at,
        updated_at=row.updated_at,
        status=row.status,
        error=row.error,
        spec_hash=row.spec_hash,
        profile_hash=row.profile_hash,
        engine_version=row.engine_version,
        spec=to_json(row.spec),
        result=None if row.result is None else to_json(row.result),
        plans=tuple(plans),
    )


def plan_json(document: str, engine_version: str) -> str:
    """A stored plan, unread where this version of the engine wrote it."""
    if engine_version == ENGINE_VERSION:
        return document
    with written_by(engine_version):
        return Plan.model_validate_json(document).model_dump_json()
