"""/v1/audit: who did what."""

from typing import Annotated
from urllib.parse import urlencode

from fastapi import APIRouter, Query, Request

from api.audit_documents import AuditList
from api.dependencies import PrincipalDep, ServicesDep
from api.prefix import own_address
from api.problems import responses
from autodeploy.kit.errors import SpecError
from autodeploy.messages import Message
from autodeploy.service.callers.audit import AuditFilter
from autodeploy.service.store.base import AUDIT_ID_PATTERN

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
    for name in AuditFilter.__dataclass_fields__:
        if "\0" in (getattr(where, name) or ""):
            raise SpecError(Message("api.text_with_nul_character_or_half_surrogate_pair"), path=name)
    page = services.audit.list(where, limit=limit, after=after)
    next_url = None
    if page.next_after is not None:
        kept = [(key, value) for key, value in request.query_params.multi_items() if key != "after"]
        next_url = f"{own_address(request, request.url.path)}?{urlencode([*kept, ('after', page.next_after)])}"
    return AuditList.of(page, next_url)
