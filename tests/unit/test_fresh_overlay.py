"""Plans that rest on a fresh overlay say who changed it and when; nothing else does."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from autodeploy.messages import in_language
from autodeploy.service.store.runs import changed, fresh_overlay_warning
from tests import factories

THEN = datetime(2026, 11, 20, 12, 0, tzinfo=UTC)


def warning(overlay: Any, age: timedelta = timedelta(hours=1)) -> str | None:
    spec = factories.spec()
    cluster = spec.cluster.model_copy(update={"overlay": overlay})
    return fresh_overlay_warning(spec.model_copy(update={"cluster": cluster}), THEN + age)


@pytest.mark.parametrize(("by", "said"), [("fitter", "(API key fitter)"), ("", "(API key -)")])
def test_who_and_when_is_said_in_both_languages(by: str, said: str) -> None:
    found = warning(changed({"profile": "cloudmatrix-384"}, by, THEN))
    assert found is not None
    assert f"last on 2026-11-20 12:00 UTC {said}:" in found
    assert "2026-11-20 12:00 UTC" in in_language(found, "zh")
    assert "measured" not in in_language(found, "zh")


@pytest.mark.parametrize(("age", "is_fresh"), [(timedelta(days=7), True), (timedelta(days=7, seconds=1), False)])
def test_fresh_is_seven_days(age: timedelta, is_fresh: bool) -> None:
    assert (warning(changed({}, "fitter", THEN), age) is not None) is is_fresh


@pytest.mark.parametrize(
    "overlay",
    [
        "auto",
        "none",
        {},
        {"report": "mine"},
        {"report": {"changed_at": "yesterday"}},
        {"report": {"changed_at": 3}},
        {"report": {"changed_at": "2026-11-20T12:00:00"}},
    ],
)
def test_no_overlay_of_the_ledger_no_warning(overlay: Any) -> None:
    assert warning(overlay) is None


def test_what_else_an_overlay_reports_stays() -> None:
    overlay = changed({"report": {"cluster": "hall-1", "runs": ["run_1"]}, "hbm": 1}, "fitter", THEN)
    assert overlay["hbm"] == 1
    assert overlay["report"] == {
        "cluster": "hall-1",
        "runs": ["run_1"],
        "changed_by": "fitter",
        "changed_at": "2026-11-20T12:00:00+00:00",
    }
