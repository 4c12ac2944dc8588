"""The HTTP client of the service: the same names synchronous (`Client`) and asynchronous (`AsyncClient`)."""

from autodeploy.client.calls import Event, ServiceError, WaitTimeout
from autodeploy.client.clients import AsyncClient, Client
from autodeploy.specs.resources import SearchDocument as Search
from autodeploy.specs.resources import SearchItem
from autodeploy.specs.resources import SearchList as SearchPage

__all__ = ["AsyncClient", "Client", "Event", "Search", "SearchItem", "SearchPage", "ServiceError", "WaitTimeout"]
