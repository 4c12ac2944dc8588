"""The HTTP client of the service: the same names synchronous (`Client`) and asynchronous (`AsyncClient`)."""

from autodeploy.client.answers import Event, Search, SearchItem, SearchPage
from autodeploy.client.asynchronous import AsyncClient
from autodeploy.client.errors import ServiceError, WaitTimeout
from autodeploy.client.synchronous import Client

__all__ = ["AsyncClient", "Client", "Event", "Search", "SearchItem", "SearchPage", "ServiceError", "WaitTimeout"]
