"""schemathesis over the whole OpenAPI document, on PostgreSQL over what it stores; `make soak` sends more."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from autodeploy.messages import Message, keyed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fastapi import FastAPI

pytestmark = pytest.mark.integration

# Beside the examples of the document: databases differ in how they store, and hardly in what they refuse.
EXAMPLES_PER_OPERATION = {"sqlite": 2, "postgresql": 1}


@pytest.fixture(scope="module")
def answers() -> Any:
    """What schemathesis is asked by: importing it takes a second, which whoever only collects this module saves."""
    from tests.support import documented_answers

    return documented_answers


@pytest.fixture(scope="module", params=["sqlite with keys", "postgresql"])
def app(answers: Any, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[FastAPI]:
    """A running app on an empty database: each kind of database, with keys and without."""
    if request.param != "postgresql":
        url = f"sqlite:///{tmp_path_factory.mktemp('schema') / 'autodeploy.db'}"
    else:
        url = request.getfixturevalue("postgres_dsn")
    with answers.answering_app(url, with_keys=request.param.endswith("keys")) as opened:
        yield opened


def test_answers_are_as_documented(app, answers):
    """Every check of schemathesis, on requests that fit the schema and on such that do not."""
    database = app.state.settings.database_url.partition("+")[0].partition(":")[0]
    left_out = answers.WITHOUT_A_TABLE if database == "postgresql" else ()
    found = answers.run_phases(app, ("examples", "fuzzing"), EXAMPLES_PER_OPERATION[database], left_out)
    operations = sum(len(methods) for methods in app.openapi()["paths"].values())
    assert len(found.sent) + len(left_out) == operations > 30
    assert found.failures == []


def test_a_rule_is_said_by_a_key_of_the_document_or_not_at_all(app, answers):
    keys_of = answers.keys_of
    known = answers.documented_keys(app.openapi(), ("body", "spec", "service"))
    told = keyed(Message("common.place", place="/run", message=Message("common.there_is_no", what="key", name="x")))
    assert keys_of(told) == {"common.place", "common.there_is_no"} <= known
    # What the schema says is no excuse, nor is what nobody wrote down.
    for key in (
        "field_fault.is_no_whole_number",
        "field_fault.is_missing",
        "common.unknown_key",
        "pydantic.greater_than",
    ):
        assert key not in known
    assert not keys_of({"key": None, "values": {}}) <= known
    # What a rule requires beside the schema, plural forms by the one key that answers name, numbers beyond all storage.
    assert known >= {"common.is_required", "common.entries_expected", "field_fault.is_too_big"}
