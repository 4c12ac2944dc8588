"""Which requests change something: what an audit log notes, and what a key that may only read may not ask for."""

from __future__ import annotations

import re
from functools import cache

READING = frozenset({"GET", "HEAD", "OPTIONS"})
# What a change is called, by method and path of its route; of pages like that of the API.
ACTIONS = {
    "POST /v1/searches": "search.create",
    "PATCH /v1/searches/{search_id}": "search.annotate",
    "POST /v1/searches/{search_id}/cancel": "search.cancel",
    "DELETE /v1/searches/{search_id}": "search.delete",
    "POST /v1/plans/{plan_id}/runs": "run.create",
    "DELETE /v1/runs/{run_id}": "run.delete",
    "POST /v1/batches": "batch.create",
    "POST /v1/batches/{batch_id}/cancel": "batch.cancel",
    "POST /new": "search.create",
    "POST /plans/{plan_id}/save": "search.create",
    "POST /searches/{search_id}/cancel": "search.cancel",
    "POST /searches/{search_id}/notes": "search.annotate",
    "POST /login": "session.begin",
    "POST /logout": "session.end",
}
# These store nothing, whatever their method.
NOTHING_STORED = frozenset(
    {
        *(
            "POST /v1/estimates",
            "POST /v1/exports",
            "POST /v1/ablations",
            "POST /v1/checks",
            "POST /v1/compare",
            "POST /v1/why-not",
        ),
        *(
            "POST /v1/improve",
            "POST /v1/recommend",
            "POST /v1/compare-clusters",
            "POST /compare/clusters",
            "POST /searches/{search_id}/scaling",
            "POST /plans/{plan_id}/{box}",
            "POST /plans/{plan_id}/search",
            "POST /plans/{plan_id}/script",
        ),
        "POST /new/read",
    }
)


def may_change(method: str, path: str) -> bool:
    """Whether a request may store, change or delete anything; one that no route is known for may."""
    if method in READING:
        return False
    asked = f"{method} {path}"
    return _fits(frozenset(ACTIONS), asked) or not _fits(NOTHING_STORED, asked)


def _fits(routes: frozenset[str], asked: str) -> bool:
    return _pattern(routes).fullmatch(asked) is not None


@cache
def _pattern(routes: frozenset[str]) -> re.Pattern[str]:
    return re.compile("|".join(re.sub(r"\\\{\w+\\\}", "[^/]+", re.escape(route)) for route in sorted(routes)))
