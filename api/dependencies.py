"""What routes ask for."""

import re
from typing import Annotated

from fastapi import Depends, Header, Path, Query, Request

from api.access import principal_of
from autodeploy.service.callers.access import Principal
from autodeploy.service.searches.service import SearchService
from autodeploy.service.session import Services
from autodeploy.service.store.base import BATCH_ID_PATTERN, PLAN_ID_PATTERN, RUN_ID_PATTERN, SEARCH_ID_PATTERN

_WAIT = re.compile(r"(?:^|[,;\s])wait\s*=\s*\"?(\d{1,6})")


def get_services(request: Request) -> Services:
    """The services of this process as whoever sent the request may use them."""
    services: Services = request.app.state.services
    return services.for_caller(principal_of(request))


def get_searches(request: Request) -> SearchService:
    """The service of searches."""
    return get_services(request).searches


def wanted_wait_s(
    services: Annotated[Services, Depends(get_services)],
    prefer: Annotated[
        str | None, Header(description="`wait=30`: answer when the search is finished", max_length=200)
    ] = None,
    wait: Annotated[float | None, Query(ge=0, le=3600, description="the same as `Prefer: wait`, in seconds")] = None,
) -> float:
    """How long the caller will wait, in seconds; bounded by `wait_limit_s`. An unknown preference is ignored."""
    match = _WAIT.search(prefer or "")
    asked = wait if wait is not None else float(match[1]) if match else 0.0
    return min(asked, services.settings.wait_limit_s)


def wanted_webhook(
    services: Annotated[Services, Depends(get_services)],
    webhook: Annotated[
        str | None,
        Query(max_length=2000, description="an http(s) address to tell of the end; only where the operator allows it"),
    ] = None,
    x_autodeploy_webhook: Annotated[
        str | None, Header(max_length=2000, description="the same, where addresses of requests are logged")
    ] = None,
) -> str | None:
    """The receiver that the caller asks for; refused here where it may not be called."""
    asked = x_autodeploy_webhook if webhook is None else webhook
    return None if asked is None else services.webhooks.checked(asked)


SearchesDep = Annotated[SearchService, Depends(get_searches)]
ServicesDep = Annotated[Services, Depends(get_services)]
PrincipalDep = Annotated[Principal, Depends(principal_of)]
WaitDep = Annotated[float, Depends(wanted_wait_s)]
WebhookDep = Annotated[str | None, Depends(wanted_webhook)]
SearchId = Annotated[str, Path(pattern=SEARCH_ID_PATTERN, examples=["srch_01m3xk7pq2w9a4fh"])]
PlanId = Annotated[str, Path(pattern=PLAN_ID_PATTERN, examples=["p_7kq2mzt4"])]
RunId = Annotated[str, Path(pattern=RUN_ID_PATTERN, examples=["run_01m3xk7pq2w9a4fh"])]
BatchId = Annotated[str, Path(pattern=BATCH_ID_PATTERN, examples=["bat_01m3xk7pq2w9a4fh"])]
