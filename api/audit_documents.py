"""Bodies of the audit log."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BaseModel, Field

from autodeploy.service.store.base import iso

if TYPE_CHECKING:
    from autodeploy.service.callers.audit import AuditPage


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
    def of(cls, page: AuditPage, next_url: str | None) -> AuditList:
        items = [
            AuditItem(**{name: getattr(e, name) for name in AuditItem.model_fields} | {"created_at": iso(e.created_at)})
            for e in page.items
        ]
        return cls(items=items, has_more=page.has_more, next=next_url)
