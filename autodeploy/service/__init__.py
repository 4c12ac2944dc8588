"""Services: the transaction boundary below the command line, the API and the pages."""

from autodeploy.service.requests.callers import ANYONE, AccessService, KeyView, Principal, Scope
from autodeploy.service.runs.service import ClusterView, ReestimatedPlan, RunOutcome, RunPage, RunService, RunView
from autodeploy.service.searches.service import SearchService
from autodeploy.service.searches.submissions import Submission
from autodeploy.service.searches.views import PlanView, SearchPage, SearchSummary, SearchView, StoredPlan
from autodeploy.service.session import Services, open_services

__all__ = [
    "ANYONE",
    "AccessService",
    "ClusterView",
    "KeyView",
    "PlanView",
    "Principal",
    "ReestimatedPlan",
    "RunOutcome",
    "RunPage",
    "RunService",
    "RunView",
    "Scope",
    "SearchPage",
    "SearchService",
    "SearchSummary",
    "SearchView",
    "Services",
    "StoredPlan",
    "Submission",
    "open_services",
]
