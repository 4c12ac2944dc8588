"""The page's form asks before it searches what looks like a slip."""

from __future__ import annotations

import pytest

from api.ui.new_search_form import sections, spec_document
from api.ui.views import DoubtfulSpec, Views
from autodeploy.kit.errors import SpecError
from tests import quick_planner

SLIP = {
    "/model": "deepseek-v3",
    "/cluster/profile": "cloudmatrix-384",
    "/cluster/num_npus": "768",
    "/training/seq_length": "4096",
    "/training/global_batch_size": "15360",
}


class Services:
    """What a view needs to submit, and what it submitted."""

    planner = quick_planner

    def __init__(self) -> None:
        self.submitted: list[object] = []

    @property
    def searches(self) -> Services:
        return self

    def submit(self, spec: object) -> Services:
        self.submitted.append(spec)
        return self

    @property
    def search(self) -> Services:
        return self

    id = "srch_1"


def test_a_slip_is_asked_about_and_searched_when_the_user_is_sure() -> None:
    services = Services()
    views = Views(services)  # type: ignore[arg-type]
    document = spec_document(sections([], []), SLIP)
    with pytest.raises(DoubtfulSpec) as caught:
        views.submit(document, sure=False)
    assert isinstance(caught.value, SpecError)
    assert [error.path for error in caught.value.errors] == ["/cluster/num_npus"]
    assert not services.submitted
    assert views.submit(document, sure=True) == "srch_1"
    assert len(services.submitted) == 1
