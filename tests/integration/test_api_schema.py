"""schemathesis over the whole OpenAPI document, on both databases; `make soak` sends more."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.documented_answers import answering_app, documented_rules, is_said, run_phases

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fastapi import FastAPI

pytestmark = pytest.mark.integration

EXAMPLES_PER_OPERATION = 5


@pytest.fixture(scope="module", params=["sqlite with keys", "postgresql"])
def app(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[FastAPI]:
    """A running app on an empty database: each kind of database, with keys and without."""
    if request.param != "postgresql":
        url = f"sqlite:///{tmp_path_factory.mktemp('schema') / 'autodeploy.db'}"
    else:
        url = request.getfixturevalue("postgres_dsn")
    with answering_app(url, with_keys=request.param.endswith("keys")) as opened:
        yield opened


def test_answers_are_as_documented(app):
    """Every check of schemathesis, on requests that fit the schema and on such that do not."""
    found = run_phases(app, ("examples", "fuzzing"), EXAMPLES_PER_OPERATION)
    operations = sum(len(methods) for methods in app.openapi()["paths"].values())
    assert len(found.sent) == operations > 30
    assert found.failures == []


def test_a_rule_is_said_by_a_sentence_of_the_document_or_not_at_all(app):
    rules = documented_rules(app.openapi(), ("body", "spec", "service"))
    said = "the phases train 1e+12 tokens, training.tokens says 1.48e+13"
    for detail in (said, "'x' is not a tag", "text with a NUL character or half a surrogate pair"):
        assert is_said(detail, rules)
    # What the schema says is no excuse, nor is what nobody wrote down.
    for detail in (
        "'a' is no whole number",
        "'tp' is required",
        "unknown key 'x'",
        "Input should be greater than 1",
        "no",
    ):
        assert not is_said(detail, rules)
