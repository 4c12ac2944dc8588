"""schemathesis over the whole OpenAPI document, on both databases; `make soak` sends more."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.documented_answers import answering_app, checks_of_operations

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fastapi import FastAPI

pytestmark = pytest.mark.integration

EXAMPLES_PER_OPERATION = 15


@pytest.fixture(scope="module", params=["sqlite with keys", "postgresql"])
def app(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[FastAPI]:
    """A running app on an empty database: each kind of database, with keys and without."""
    if request.param != "postgresql":
        url = f"sqlite:///{tmp_path_factory.mktemp('schema') / 'autodeploy.db'}"
    else:
        url = request.getfixturevalue("postgres_dsn")
    with answering_app(url, with_keys=request.param.endswith("keys")) as opened:
        yield opened


def test_answers_are_as_documented(app, subtests):
    operations = list(checks_of_operations(app, EXAMPLES_PER_OPERATION))
    assert len(operations) > 20
    for name, check in operations:
        with subtests.test(name):
            assert check() >= 1
