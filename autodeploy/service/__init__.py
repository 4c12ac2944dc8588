"""Services: the transaction boundary below the command line, the API and the pages."""

from autodeploy.service.requests.callers import ANYONE, AccessService, KeyView, Principal, Scope
from autodeploy.service.runs.service import RunService
from autodeploy.service.searches.service import SearchService
from autodeploy.service.searches.submissions import Submission
from autodeploy.service.searches.views import PlanView, SearchView, StoredPlan
from autodeploy.service.session import Services, open_services

__all__ = [
    "ANYONE",
    "AccessService",
    "KeyView",
    "PlanView",
    "Principal",
    "RunService",
    "Scope",
    "SearchService",
    "SearchView",
    "Services",
    "StoredPlan",
    "Submission",
    "open_services",
]
