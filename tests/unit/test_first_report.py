"""The report at first sight: 24 lines in any terminal, the gravest caution first, ids whole."""

from __future__ import annotations

import re
from typing import Any

import pytest

from autodeploy.cli.output import table_text
from autodeploy.messages import LANGUAGES
from autodeploy.reports.first_report import MOST_LINES, render_first
from autodeploy.reports.plan_report import next_steps
from autodeploy.reports.wording import report_text, width
from autodeploy.specs.planset import CountOn, PlanSet
from autodeploy.specs.spec import spec_of
from tests import factories

WHY = "the highest measured MFU of the class is the limit (DeepSeek-V3-671B on 256 910C (MSF01))"


def plan_set(plans: int = 8, **changes: Any) -> PlanSet:
    found = factories.plan_set(plans, reference=factories.plan(4, label="1F1B"))
    return factories.cautious(found).model_copy(update=changes)


def bars(text: str) -> list[int]:
    """Percents of the bars, from above."""
    return [int(share) for share in re.findall(r"#+ +(\d+) %", text)]


@pytest.mark.parametrize("columns", [80, 100, 137, 200])
@pytest.mark.parametrize("lang", LANGUAGES)
@pytest.mark.parametrize("plans", [1, 3, 8])
def test_it_is_24_lines_of_the_terminal(columns: int, lang: Any, plans: int) -> None:
    text = render_first(plan_set(plans), lang, columns)
    shown = [line for line in text.splitlines() if line]
    assert len(shown) <= MOST_LINES
    assert max(map(width, shown)) <= columns
    assert sum(bars(text)) == 100
    assert len(bars(text)) >= 2


def test_a_wide_terminal_has_five_rows_and_five_bars() -> None:
    text = render_first(plan_set(), "en", 160)
    assert [line.split()[0] for line in re.findall(r"(?m)^ [\d-] .*", text)] == ["1", "2", "3", "4", "-"]
    assert len(bars(text)) == 5


def test_a_narrow_terminal_drops_columns_and_folds_no_row() -> None:
    wide, narrow = (render_first(plan_set(), "en", columns) for columns in (160, 80))
    assert report_text("en", "regret") in wide
    assert report_text("en", "schedule") in wide
    assert report_text("en", "schedule") not in narrow
    assert all("%" in line for line in re.findall(r"(?m)^ \d .*", narrow))


def test_the_gravest_caution_stands_and_the_others_are_counted() -> None:
    calm = plan_set(warnings=())
    plan = calm.plans[0].model_copy(update={"evidence": (), "count_on": CountOn(step_time_s=99.0, why=WHY)})
    plan = plan.model_copy(update={"uncertainty": plan.uncertainty.model_copy(update={"extrapolated": ()})})
    text = render_first(calm.model_copy(update={"plans": (plan,)}), "en", 200)
    assert f"caution: count on 99.0 s {WHY}\n" in text
    more = render_first(calm.model_copy(update={"plans": (plan,), "warnings": ("one", "two")}), "en", 200)
    assert "count on 99.0 s" in more
    assert report_text("en", "more_cautions", count=2) in more
    quiet = plan.model_copy(update={"count_on": None})
    assert report_text("en", "caution") not in render_first(calm.model_copy(update={"plans": (quiet,)}), "en", 200)


def test_next_lines_ask_where_the_search_is_stored() -> None:
    found = plan_set()
    spec, page = spec_of(found.search), f"http://box:1/searches/{found.search.id}"
    served = next_steps(found, spec, "http://box:1", served=True)
    assert served[-1] == page
    assert all(line.endswith("--server http://box:1") for line in served[:-1])
    assert next_steps(found, spec, "http://box:1")[-1].endswith(page)


@pytest.mark.parametrize("status", ["infeasible", "cancelled", "failed"])
def test_without_a_plan_it_says_why_in_a_few_lines(status: str) -> None:
    found = factories.infeasible_plan_set() if status == "infeasible" else factories.plan_set(0, status, error="no")
    shown = [line for line in render_first(found, "zh", 80).splitlines() if line]
    assert len(shown) <= MOST_LINES
    assert max(map(width, shown)) <= 80


def test_ids_stay_whole_in_a_narrow_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("autodeploy.cli.output.columns", lambda: 80)
    ids = [f"key_01m8hdestv78hp{n}k" for n in range(2)]
    text = table_text(["id", "name", "of", "when"], [[each, "n" * 60, "of " * 20, "2026-11-29 00:52"] for each in ids])
    assert all(each in text for each in ids)
    assert max(map(width, text.splitlines())) <= 80


def test_a_column_is_left_out_sooner_than_a_cell_is_folded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("autodeploy.cli.output.columns", lambda: 80)
    titles = ["id", "name", "made", "expires", "revoked"]
    rows = [["key_01m8kntfwvnj3hh1", "n" * 34, "2026-11-29 00:52", "-", "-"]]
    text = table_text(titles, rows, spare=(2, 3))
    assert text.splitlines()[0].split() == ["id", "name", "revoked"]
    assert "n" * 34 in text
    short = [[rows[0][0], "n", *rows[0][2:]]]
    assert table_text(titles, short, spare=(2, 3)).splitlines()[0].split() == titles
