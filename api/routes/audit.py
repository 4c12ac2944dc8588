"""Routes of the audit log."""

from dataclasses import asdict
from typing import Annotated, Any, Self

from fastapi import APIRouter, Query, Request
from pydantic import BaseModel, Field

from api.http.dependencies import PrincipalDep, ServicesDep, refuse_nul
from api.http.prefix import next_page
from api.http.problems import responses
from autodeploy.service.requests.callers import AuditFilter, AuditPage
from autodeploy.service.store.base import AUDIT_ID_PATTERN, iso


class AuditItem(BaseModel):
    """One change that somebody asked for."""

    id: str
    created_at: str
    key_id: Annotated[str, Field(description="empty without a key")]
    author: Annotated[str, Field(description="name of the key; on the command line of the account")]
    team: str
    client: Annotated[str, Field(description="address that the request came from, or `command line`")]
    action: Annotated[str, Field(examples=["search.cancel"])]
    object_id: Annotated[str, Field(examples=["srch_01m3xk7pq2w9a4fh"])]
    status: Annotated[int, Field(description="how the request was answered; 0 on the command line")]
    detail: dict[str, Any] | None


class AuditList(BaseModel):
    """A piece of the log, newest first; `next` is the address of what follows."""

    items: list[AuditItem]
    has_more: bool
    next: str | None

    @classmethod
    def of(cls, page: AuditPage, next_url: str | None) -> Self:
        items = [
            AuditItem(**{name: getattr(e, name) for name in AuditItem.model_fields} | {"created_at": iso(e.created_at)})
            for e in page.items
        ]
        return cls(items=items, has_more=page.has_more, next=next_url)


router = APIRouter(prefix="/v1", tags=["service"])


@router.get("/audit", operation_id="list_audit", summary="Who did what", responses=responses(403, 422, 503))
def list_audit(
    request: Request,
    services: ServicesDep,
    principal: PrincipalDep,
    key_id: Annotated[str | None, Query(max_length=64)] = None,
    author: Annotated[str | None, Query(max_length=100, description="name of the key")] = None,
    team: Annotated[str | None, Query(max_length=64)] = None,
    action: Annotated[str | None, Query(max_length=64, examples=["search.cancel"])] = None,
    object_id: Annotated[str | None, Query(max_length=200, examples=["srch_01m3xk7pq2w9a4fh"])] = None,
    limit: Annotated[int, Query(ge=1, le=100)] = 50,
    after: Annotated[str | None, Query(pattern=AUDIT_ID_PATTERN, description="the last id of the page before")] = None,
) -> AuditList:
    """Takes scope admin. Every change that a caller made, and every one that was refused with 403, 404 or 409, newest
    first."""
    principal.require("admin")
    where = AuditFilter(key_id, author, team, action, object_id)
    refuse_nul(**asdict(where))
    page = services.audit.list(where, limit=limit, after=after)
    return AuditList.of(page, next_page(request, page.next_after))
