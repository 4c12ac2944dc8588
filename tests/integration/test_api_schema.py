"""schemathesis over the whole OpenAPI document, on both databases: every answer is as documented."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.config import SchemathesisConfig
from schemathesis.openapi import from_dict

from api.app import create_app
from autodeploy.store.database import Database
from autodeploy.store.migrate import upgrade
from tests.integration.conftest import QUICK, quick_settings

if TYPE_CHECKING:
    from collections.abc import Iterator

    import schemathesis
    from fastapi import FastAPI
    from schemathesis.schemas import APIOperation

pytestmark = pytest.mark.integration

EXAMPLES_PER_OPERATION = 15
ANSWERS = ["2xx", "304", "400", "404", "409", "413", "415", "422"]
CONFIG = {
    "checks": {
        # A spec that fits the schema may still contradict itself: 422 with all the reasons is its answer.
        "positive_data_acceptance": {"expected-statuses": ANSWERS},
        # Validators accept what a JSON Schema cannot say, such as numbers written as text.
        "negative_data_rejection": {"expected-statuses": ANSWERS},
    }
}


@pytest.fixture(scope="module", params=["sqlite", "sqlite with keys", "postgresql"])
def app(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[FastAPI]:
    """A running app; the quick planner answers its searches at once."""
    with_keys = request.param.endswith("keys")
    if request.param != "postgresql":
        url = f"sqlite:///{tmp_path_factory.mktemp('schema') / 'autodeploy.db'}"
    else:
        url = request.getfixturevalue("postgres_dsn")
        database = Database(url, pool_size=1)
        upgrade(database)
        database.close()
    auth = "keys" if with_keys else None
    app = create_app(quick_settings(url, wait_limit_s=0.0, stream_limit_s=0.2, auth=auth, key_searches=10_000), planner=QUICK)
    with asyncio.Runner() as runner:
        lifespan = app.router.lifespan_context(app)
        runner.run(lifespan.__aenter__())
        key = app.state.services.access.create("schemathesis", "admin")[0] if with_keys else ""
        app.state.test_headers = {"Authorization": f"Bearer {key}"} if with_keys else {}
        yield app
        runner.run(lifespan.__aexit__(None, None, None))


def test_answers_are_as_documented(app, subtests):
    schema = from_dict(app.openapi(), config=SchemathesisConfig.from_dict(CONFIG))
    schema.app = app
    for result in schema.get_all_operations():
        operation = result.ok()
        with subtests.test(operation.label):
            check(operation, app.state.test_headers)


def check(operation: APIOperation, headers: dict[str, str]) -> None:
    """Sends generated requests of one operation, and runs every check on the answers."""

    @given(case=operation.as_strategy())
    @settings(
        max_examples=EXAMPLES_PER_OPERATION,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
        deadline=None,
    )
    def answers(case: schemathesis.Case) -> None:
        case.call_and_validate(headers=headers)

    answers()
