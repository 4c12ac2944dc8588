"""Routes of the audit log."""

from dataclasses import asdict
from typing import Annotated

from fastapi import APIRouter, Query, Request

from api.http.dependencies import PrincipalDep, ServicesDep, refuse_nul
from api.http.prefix import with_next
from api.http.problems import responses
from autodeploy.service.requests.callers import AuditFilter
from autodeploy.service.store.base import AUDIT_ID_PATTERN
from autodeploy.specs.resources import AuditList

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
    return with_next(request, page)
