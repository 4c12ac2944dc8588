"""The HTTP client of the service: the same names synchronous (`Client`) and asynchronous (`AsyncClient`)."""

from autodeploy.client.calls import Event, Search, SearchItem, SearchPage, ServiceError, WaitTimeout
from autodeploy.client.clients import AsyncClient, Client

__all__ = ["AsyncClient", "Client", "Event", "Search", "SearchItem", "SearchPage", "ServiceError", "WaitTimeout"]
