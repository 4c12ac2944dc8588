"""Services: the transaction boundary below the command line, the API and the pages."""

from autodeploy.services.access import ANYONE, AccessService, KeyView, Principal, Scope
from autodeploy.services.run_views import ClusterView, ReestimatedPlan, RunOutcome, RunPage, RunView
from autodeploy.services.runs import RunService
from autodeploy.services.searches import SearchService
from autodeploy.services.session import Services, open_services
from autodeploy.services.submissions import Submission
from autodeploy.services.views import PlanView, SearchPage, SearchSummary, SearchView, StoredPlan

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
