"""Whether the service lives, is ready, what it is and how it is doing."""

from importlib.metadata import version

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse, PlainTextResponse

from api.http.dependencies import ServicesDep
from api.http.documents import Health, Version
from api.http.problems import responses

router = APIRouter(tags=["service"])

# Without these a server answers nothing; the other checks say that it answers less.
NEEDED = ("database", "migrations", "jobs")
ALIVE = Health(status="ok").model_dump_json().encode()


@router.get("/livez", operation_id="livez", summary="The process answers", response_model=Health)
async def livez() -> Response:
    """Asks nothing of anybody, no thread and no database: a restart would help when this fails."""
    return Response(ALIVE, media_type="application/json")


@router.get(
    "/readyz",
    operation_id="readyz",
    summary="Requests are answered",
    response_model=Health,
    responses={503: {"model": Health, "description": "Something is missing"}},
)
def readyz(services: ServicesDep) -> Response:
    """The database answers at the right revision, and searches are accepted.

    Without a live worker, or while the disk of the database is full, what is stored is still answered: 200, `degraded`.
    """
    checks = services.is_ready()
    ready = all(checks[name] for name in NEEDED)
    status = "ok" if all(checks.values()) else "degraded" if ready else "not ready"
    return JSONResponse(Health(status=status, checks=checks).model_dump(), 200 if ready else 503)


@router.get("/version", operation_id="version", summary="What answers")
async def get_version() -> Version:
    """The program and its version."""
    return Version(name="autodeploy", version=version("autodeploy"))


@router.get(
    "/metrics",
    operation_id="metrics",
    summary="Prometheus metrics",
    response_class=PlainTextResponse,
    responses=responses(503),
)
def metrics(request: Request) -> Response:
    """Requests by route and status, their durations, searches by status."""
    text, media_type = request.app.state.metrics.render()
    return Response(text, media_type=media_type)
