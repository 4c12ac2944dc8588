"""Bodies of batches and webhooks."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, Field

from autodeploy.store.clock import iso

if TYPE_CHECKING:
    from autodeploy.services.batches import BatchView
    from autodeploy.services.webhooks import DeliveryView


class BatchEntryDocument(BaseModel):
    """One search of a batch and its best plan. Times in seconds, memory in GiB, throughput in tokens/s/card."""

    search_id: str
    status: str
    error: str | None
    num_npus: int | None
    seq_length: int
    global_batch_size: int
    best_plan_id: Annotated[str | None, Field(description="null until the search is finished, and where nothing fits")]
    best_step_time_s: float | None
    best_tokens_per_s_per_npu: float | None
    best_mfu: float | None
    gap: Annotated[float | None, Field(description="of the best plan to the proven bound; null: none was proven")]
    peak_memory_gib: float | None
    tp: int | None
    pp: int | None
    vpp: int | None
    dp: int | None
    cp: int | None
    ep: int | None
    micro_batch_size: int | None
    schedule: str | None


class BatchDocument(BaseModel):
    """A batch: its searches by cards, sequence length and batch size, with the best plan of each."""

    id: str
    created_at: str
    status: Annotated[Literal["running", "finished"], Field(description="finished: every search is")]
    author: Annotated[str, Field(description="the name of the key that asked; empty without keys")]
    sweep: dict[str, list[int]]
    spec: dict[str, Any]
    items: list[BatchEntryDocument]

    @classmethod
    def of(cls, view: BatchView) -> BatchDocument:
        return cls(
            id=view.id,
            created_at=iso(view.created_at),
            status="finished" if view.is_finished else "running",
            author=view.author,
            sweep=view.document["sweep"],
            spec=view.document["spec"],
            items=[BatchEntryDocument(**asdict(entry)) for entry in view.entries],
        )


class DeliveryDocument(BaseModel):
    """A webhook of a search and what became of it."""

    id: Annotated[str, Field(description="what the receiver sees in X-AutoDeploy-Delivery")]
    url: str
    status: Annotated[
        str,
        Field(description="waiting: for the search's end; due: it is being sent; delivered; failed: given up"),
    ]
    created_at: str
    next_at: Annotated[str | None, Field(description="when it is tried next")]
    attempts: int
    last_error: str | None

    @classmethod
    def of(cls, view: DeliveryView) -> DeliveryDocument:
        return cls(
            id=view.id,
            url=view.url,
            status=view.status,
            created_at=iso(view.created_at),
            next_at=None if view.next_at is None else iso(view.next_at),
            attempts=view.attempts,
            last_error=view.last_error,
        )


class DeliveryList(BaseModel):
    """The webhooks of a search."""

    items: list[DeliveryDocument]


class WebhookSecret(BaseModel):
    """What the webhooks of one team are signed with."""

    team: str
    secret: str
