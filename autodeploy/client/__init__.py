"""The HTTP client of the service: the same names synchronous (`Client`) and asynchronous (`AsyncClient`)."""

from autodeploy.client.asynchronous import AsyncClient
from autodeploy.client.calls import Event, Search, SearchItem, SearchPage
from autodeploy.client.synchronous import Client
from autodeploy.client.transport import ServiceError, WaitTimeout

__all__ = ["AsyncClient", "Client", "Event", "Search", "SearchItem", "SearchPage", "ServiceError", "WaitTimeout"]
