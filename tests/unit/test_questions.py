"""A row of a question, and what follows from it: the method that answers it, and the requests that carry a spec."""

from __future__ import annotations

import inspect
from typing import get_type_hints

import pytest

from autodeploy.analysis.questions import Questions
from autodeploy.kit.errors import NotFoundError, SpecError
from autodeploy.search.planner import Planner
from autodeploy.specs import answers, plan_details, questions
from autodeploy.specs.questions import QUESTIONS, CompareRequest, RecommendRequest
from autodeploy.specs.reading import read_spec_document
from tests import factories


@pytest.mark.parametrize("name", QUESTIONS)
def test_a_row_is_answered_by_the_method_of_its_name(name: str) -> None:
    method, question = getattr(Questions, name), QUESTIONS[name]
    known = {**vars(answers), **vars(plan_details), **vars(questions)}
    hints = get_type_hints(method, localns=known)
    asked = hints[list(inspect.signature(method).parameters)[1]]
    assert question.request is asked
    assert hints["return"] is question.answer
    assert method.__doc__.strip()


def test_a_request_of_a_read_spec_is_the_document_and_keeps_the_spec() -> None:
    spec = read_spec_document(factories.spec_document())
    request = RecommendRequest.about(spec, days=3.0)
    assert request.read_spec is spec
    sent = RecommendRequest.model_validate_json(request.model_dump_json())
    assert sent.read_spec is None
    assert (sent.spec, sent.days) == (request.spec, 3.0)


def test_faults_of_a_request_made_here_are_told_like_those_of_one_that_was_sent() -> None:
    spec = read_spec_document(factories.spec_document())
    with pytest.raises(SpecError) as caught:
        RecommendRequest.about(spec, days=-1.0)
    assert [each.path for each in caught.value.errors] == ["/days"]


def test_no_plan_is_stored_without_a_database() -> None:
    class Alone(Questions):
        planner = Planner()

    with pytest.raises(NotFoundError):
        Alone().compare(CompareRequest(plans=("p_aaaaaaaa", "p_bbbbbbbb")))
