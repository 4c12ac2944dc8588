"""The app factory."""

from __future__ import annotations

import gc
import threading
from contextlib import asynccontextmanager
from importlib.metadata import version
from typing import TYPE_CHECKING

from fastapi import FastAPI
from fastapi.concurrency import run_in_threadpool

from api.http import openapi, problems
from api.http.access import AuditedRequests, RecognisedRequests
from api.http.dependencies import prepare_threads
from api.http.event_broadcast import EventBroadcast
from api.http.metrics import Metrics
from api.http.middleware import GuardedRequests, ObservedRequests
from api.http.prefix import PrefixedRequests, refuse_own_paths
from api.http.session import LoginThrottle
from api.routes import audit, batches, catalogue, events, health, keys, plans, questions, runs, searches, webhooks
from api.ui import documentation, keys_page, login, plan_routes
from api.ui import routes as ui
from api.ui.page_inputs import Refusal, as_page, give_up
from api.ui.rendering import make_ready
from autodeploy.kit.settings import Settings, load_settings
from autodeploy.service.runner.planning import PLANNER
from autodeploy.service.session import open_services

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from autodeploy.service.store.database import Database

DESCRIPTION = """
Finds the best parallel strategy for training large (MoE) models on Ascend clusters, with trusted time and memory.

Send a spec to `POST /v1/searches`; the answer is a PlanSet: ranked plans, what they cost and why, and how good the
best one is proven to be. Errors are `application/problem+json` (RFC 9457).
"""


def create_app(
    settings: Settings | None = None,
    *,
    planner: str = PLANNER,
    database: Database | None = None,
    ready_first: bool = False,
) -> FastAPI:
    """The service: API, pages, and the runner of searches.

    settings : by default from the environment.
    planner : the module with the planner's functions.
    database : as in `open_services`.
    ready_first : whether everything that a first request would wait for is made ready before the server listens.
    """
    settings = settings if settings is not None else load_settings()

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        app.state.places = prepare_threads()
        opened = open_services(settings, with_runner=True, planner=planner, database=database)
        services = await run_in_threadpool(opened.__enter__)
        app.state.services = services
        if ready_first:
            await run_in_threadpool(make_ready, services)
        app.state.broadcast = EventBroadcast(services.searches, app.state.stopping)
        app.state.metrics = Metrics(services)
        # What is there now stays; collecting it again and again would hold everybody up for a tenth of a second.
        gc.collect()
        gc.freeze()
        try:
            yield
        finally:
            app.state.stopping.set()
            await run_in_threadpool(opened.__exit__, None, None, None)

    app = FastAPI(
        title="AutoDeploy",
        version=version("autodeploy"),
        description=DESCRIPTION,
        license_info={"name": "Apache-2.0"},
        lifespan=lifespan,
        docs_url=None,  # its page would load scripts from elsewhere
        redoc_url=None,
        openapi_url="/openapi.json",
    )
    app.state.settings = settings
    app.state.stopping = threading.Event()
    app.state.login_throttle = LoginThrottle(settings.login_attempts)
    app.add_middleware(GuardedRequests, body_limit_bytes=settings.body_limit_bytes)
    app.add_middleware(RecognisedRequests, settings=settings, login_page=login.login_page)
    app.add_middleware(AuditedRequests)
    app.add_middleware(ObservedRequests)
    for module in (searches, events, webhooks, batches, plans, runs, questions, catalogue, audit, keys, health):
        app.include_router(module.router)
    for pages in (ui, plan_routes, documentation, keys_page, login):
        app.include_router(pages.router, include_in_schema=False)
    problems.install(app, as_page)
    app.add_exception_handler(Refusal, give_up)
    openapi.install(app, with_keys=settings.auth == "keys")
    if settings.path_prefix:
        refuse_own_paths(app, settings.path_prefix)
        app.add_middleware(PrefixedRequests, prefix=settings.path_prefix)
    return app
