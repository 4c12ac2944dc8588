"""/v1/batches: one spec over several numbers of cards, sequence lengths and batch sizes."""

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Header, Request, Response
from fastapi.concurrency import run_in_threadpool

from api.http.dependencies import BatchId, ServicesDep, WebhookDep, read_document, run_submission
from api.http.openapi import document_request_body
from api.http.problems import responses
from autodeploy.service.batches import BatchRequest
from autodeploy.specs.resources import BatchDocument

router = APIRouter(prefix="/v1/batches", tags=["batches"])


@router.post(
    "",
    operation_id="create_batch",
    summary="Search a spec over cards, sequence lengths or batch sizes",
    status_code=202,
    response_model=BatchDocument,
    response_description="Accepted: its searches are queued, or answered from equal ones that were planned before",
    responses=responses(400, 415, 422, 429, 503, 507),
    openapi_extra=document_request_body(BatchRequest),
)
async def create_batch(
    services: ServicesDep,
    request: Request,
    document: Annotated[Any, Depends(read_document)],
    webhook: WebhookDep,
    idempotency_key: Annotated[
        str | None, Header(min_length=1, max_length=255, description="the same key and body give the same batch")
    ] = None,
    cache_control: Annotated[str | None, Header(max_length=200, description="`no-cache`: plan anew")] = None,
) -> Response:
    """Every combination is a search of its own, all are queued or none; each tells the webhook of its own end."""
    reuse = "no-cache" not in (cache_control or "").lower()

    def submit() -> Response:
        view, _ = services.batches.submit(document, idempotency_key=idempotency_key, reuse=reuse, webhook=webhook)
        body = view.model_dump_json().encode()
        return Response(body, 202, {"Location": f"/v1/batches/{view.id}"}, media_type="application/json")

    return await run_submission(request, submit)


@router.get(
    "/{batch_id}", operation_id="get_batch", summary="A table of best plans", responses=responses(404, 422, 503)
)
async def get_batch(services: ServicesDep, batch_id: BatchId) -> BatchDocument:
    """One line a search, with its best plan where it is finished."""
    return await run_in_threadpool(services.batches.get, batch_id)


@router.post(
    "/{batch_id}/cancel",
    operation_id="cancel_batch",
    summary="Stop every search of a batch",
    status_code=202,
    responses=responses(404, 422, 503, 507),
)
def cancel_batch(services: ServicesDep, batch_id: BatchId) -> BatchDocument:
    """Cancels what is not finished: what waits stops at once, what runs soon. Cancelling twice is no error."""
    return services.batches.cancel(batch_id)
