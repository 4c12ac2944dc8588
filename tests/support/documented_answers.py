"""schemathesis over a whole OpenAPI document: every answer is as documented."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.config import SchemathesisConfig
from schemathesis.openapi import from_dict
from schemathesis.python.asgi import shutdown_lifespans

from api.app import create_app
from autodeploy.services.access import AccessService
from autodeploy.store.database import Database
from autodeploy.store.migrate import upgrade
from tests.integration.conftest import QUICK, quick_settings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import schemathesis
    from fastapi import FastAPI

ANSWERS = ["2xx", "304", "400", "404", "409", "413", "415", "422"]
CONFIG = {
    "checks": {
        # A spec that fits the schema may still contradict itself: 422 with all the reasons is its answer.
        "positive_data_acceptance": {"expected-statuses": ANSWERS},
        # Validators accept what a JSON Schema cannot say, such as numbers written as text.
        "negative_data_rejection": {"expected-statuses": ANSWERS},
    }
}


@contextmanager
def answering_app(database_url: str, *, with_keys: bool = False) -> Iterator[FastAPI]:
    """An app whose quick planner answers searches at once; its event streams end soon.

    schemathesis starts it with the first request. `app.state.test_headers` has a key where it asks for one.
    """
    database = Database(database_url, pool_size=1)
    upgrade(database)
    key = AccessService(database).create("schemathesis", "admin")[0] if with_keys else ""
    database.close()
    auth = "keys" if with_keys else None
    chosen = quick_settings(database_url, wait_limit_s=0.0, stream_limit_s=0.2, auth=auth, key_searches=10_000)
    app = create_app(chosen, planner=QUICK)
    app.state.test_headers = {"Authorization": f"Bearer {key}"} if with_keys else {}
    try:
        yield app
    finally:
        shutdown_lifespans()


def checks_of_operations(app: FastAPI, examples: int) -> Iterator[tuple[str, Callable[[], int]]]:
    """For each operation its name, and what sends so many generated requests and runs every check on the answers.

    That raises where an answer is not as documented, and says how many were sent.
    """
    schema = from_dict(app.openapi(), config=SchemathesisConfig.from_dict(CONFIG))
    schema.app = app
    for result in schema.get_all_operations():
        operation = result.ok()
        yield operation.label, _check(operation.as_strategy(), app.state.test_headers, examples)


def _check(cases: object, headers: dict[str, str], examples: int) -> Callable[[], int]:
    sent = 0

    @given(case=cases)  # type: ignore[arg-type]
    @settings(
        max_examples=examples,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
        deadline=None,
    )
    def answers(case: schemathesis.Case) -> None:
        nonlocal sent
        sent += 1
        case.call_and_validate(headers=headers)

    def check() -> int:
        answers()
        return sent

    return check
