"""Routes of API keys: which there are, until when they are valid, and their end."""

from datetime import timedelta
from typing import Annotated

from fastapi import APIRouter, Body

from api.http.dependencies import KeyId, PrincipalDep, ServicesDep
from api.http.documents import KeyChange
from api.http.problems import responses
from autodeploy.specs.resources import KeyList

router = APIRouter(prefix="/v1/keys", tags=["service"])


@router.get("", operation_id="list_keys", summary="The API keys", responses=responses(503))
def list_keys(services: ServicesDep, principal: PrincipalDep) -> KeyList:
    """With scope admin those of all teams, revoked and expired ones too; else the one that the request came with."""
    return KeyList(items=services.access.list(principal))


@router.patch(
    "/{key_id}",
    operation_id="expire_key",
    summary="Set when a key expires",
    status_code=204,
    responses=responses(400, 403, 404, 422, 503, 507),
)
def expire_key(
    services: ServicesDep, principal: PrincipalDep, key_id: KeyId, change: Annotated[KeyChange, Body()]
) -> None:
    """Takes scope admin. Browsers that logged in with the key are logged out then; 0 days ends it now."""
    days = change.expires_in_days
    services.access.expire(key_id, None if days is None else timedelta(days=days), principal)


@router.delete(
    "/{key_id}",
    operation_id="revoke_key",
    summary="Revoke a key",
    status_code=204,
    responses=responses(403, 404, 422, 503, 507),
)
def revoke_key(services: ServicesDep, principal: PrincipalDep, key_id: KeyId) -> None:
    """Takes scope admin. At once and for good; its searches are kept, revoking twice is no error."""
    services.access.revoke(key_id, principal)
