"""The transaction boundary: what the command line, the API and the pages ask for."""

from autodeploy.services.run_views import ClusterView, ReestimatedPlan, RunOutcome, RunPage, RunView
from autodeploy.services.runs import RunService
from autodeploy.services.searches import SearchService, Submission
from autodeploy.services.session import Services, open_services
from autodeploy.services.views import PlanView, SearchPage, SearchSummary, SearchView

__all__ = [
    "ClusterView",
    "PlanView",
    "ReestimatedPlan",
    "RunOutcome",
    "RunPage",
    "RunService",
    "RunView",
    "SearchPage",
    "SearchService",
    "SearchSummary",
    "SearchView",
    "Services",
    "Submission",
    "open_services",
]
