"""/v1/searches/{id}/webhooks and /v1/webhook-secret: what became of webhooks, and how they are signed."""

from fastapi import APIRouter

from api.http.dependencies import PrincipalDep, SearchId, ServicesDep
from api.http.documents import WebhookSecret
from api.http.problems import responses
from autodeploy.specs.resources import DeliveryList

router = APIRouter(prefix="/v1", tags=["webhooks"])


@router.get(
    "/searches/{search_id}/webhooks",
    operation_id="list_webhooks",
    summary="What became of a search's webhooks",
    responses=responses(404, 422, 503),
)
def list_webhooks(services: ServicesDep, search_id: SearchId) -> DeliveryList:
    """Each with its attempts and why the last one failed."""
    services.searches.status(search_id)
    return DeliveryList(items=services.webhooks.of_search(search_id))


@router.get(
    "/webhook-secret",
    operation_id="get_webhook_secret",
    summary="What your team's webhooks are signed with",
    responses=responses(404, 503),
)
def get_webhook_secret(services: ServicesDep, principal: PrincipalDep) -> WebhookSecret:
    """Takes scope write. The same for every key of a team; 404 where webhooks are off."""
    secret = services.webhooks.secret_of(principal.team)
    principal.require("write")
    return WebhookSecret(team=principal.team, secret=secret)
