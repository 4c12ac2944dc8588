"""What plans rest on and are ranked by, in the text, Markdown and HTML reports of both languages and in CSV."""

from __future__ import annotations

import csv
import io
from typing import Any

import pytest

from api.ui.report_page import search_report as render_html
from autodeploy.messages import LANGUAGES, in_language
from autodeploy.reports.comparison import compare_plans, render_comparison_markdown
from autodeploy.reports.documents import plans_csv
from autodeploy.reports.plan_report import (
    evidence_line,
    evidence_table,
    in_words,
    render_markdown,
    render_plan_set,
    step_in_words,
)
from autodeploy.reports.recommendation import (
    MOST_BETS,
    box_table,
    fastest_line,
    ignorance_lines,
    recommendation_lines,
    rescaled_line,
    risk_line,
    valley_line,
)
from autodeploy.reports.run_facts import plans_table
from autodeploy.reports.wording import chance, reference_name, report_text, width
from autodeploy.specs.planset import Bet, BoxNumber, Evidence, PlanSet, Rescaled, RiskRanking, Valley
from tests import factories

BOTH = pytest.mark.parametrize("lang", LANGUAGES)
RESCALED = Rescaled(
    ratio=1.0307, measured_step_time_s=67.1, predicted_step_time_s=65.1, run="an A3 script", source="its README"
)


def plan_set(**changes: Any) -> PlanSet:
    found = factories.plan_set(5, reference=factories.plan(4, label="1F1B"))
    return factories.cautious(found).model_copy(update=changes)


def test_every_fact_of_the_ranking_is_said_in_english() -> None:
    text = " ".join(render_plan_set(plan_set(rescaled=RESCALED)).split())
    for part in (
        "RECOMMENDED TP2 PP16",
        "80 % interval 52.2-58.3 GiB; P(fits) 97 %",
        "not covered by any run: EP 32; nearest record: pangu-ultra-moe-718b-6144, step time overpredicted by 8.2 %",
        "all times are scaled by 1.03: the measured run an A3 script took 67.1 s, the prediction "
        "was 65.1 s (its README)",
        "TP4 PP8 EP64 DP24 is 3.1 % faster by prediction (130.2 s, P(fits) 71 %) but depends on: "
        "EP 64 (+6.2 % otherwise); ",
        "EP64 instead of EP32: +98.0 %, adds 41.00 s of EP",
        "41 layouts within 3 % of the fastest, all with TP2, PP16; #1 needs the fewest unproven features",
        "ranked by regret: time beyond the best of 38 plans, 80th percentile of 200 draws of 2 uncertain parameters; "
        "plans with P(fits) of at least 90 % first; unmeasured gains weighted by 62 ± 24 %",
        "2 TP1 PP16 VPP2 EP48 Adaptive Pipe 139.2 55.9 94 % +3.7 % 2.9 % ≈ #1",
    ):
        assert part in text


@BOTH
def test_reports_hold_all_of_it_in_100_columns(lang: Any) -> None:
    found = plan_set(rescaled=RESCALED)
    text = render_plan_set(found, lang)
    assert all(width(line) <= 100 for line in text.splitlines())
    flat, markdown, html = (
        "".join(text.split()),
        render_markdown(found, lang).replace("\\", ""),
        render_html(found, lang),
    )
    told = recommendation_lines(found, lang)
    assert len(told) == 5
    for line in (*told, evidence_line(found.plans[0], lang)):
        assert line is not None
        assert "".join(line.split()) in flat
        assert line in markdown
    for of in (rescaled_line, valley_line, risk_line):
        line = of(found, lang)
        assert line is not None
        assert line[1:] in html, "a sentence of the page begins with a capital"
    assert found.fastest is not None
    assert all(in_language(bet.text, lang) in html for bet in found.fastest.bets)
    for *_, basis in box_table(found.risk, lang).rows:
        assert basis in markdown
        assert "".join(basis.split()) in flat
    assert "telechat2-512" in text
    assert "telechat2-512" in markdown


@BOTH
def test_a_plan_set_of_an_earlier_version_shows_without(lang: Any) -> None:
    old = factories.plan_set(3)
    assert recommendation_lines(old, lang) == []
    assert evidence_line(old.plans[0], lang) is None
    assert plans_table(old, lang).titles[5:] == [report_text(lang, "versus_best"), ""]
    text = render_plan_set(old, lang)
    for word in ("P(fits)", "放得下", "regret", "遗憾"):
        assert word not in text


def test_the_fastest_is_told_only_where_it_is_another_plan() -> None:
    found = plan_set()
    assert found.fastest is not None
    best = found.plans[0]
    same = found.fastest.model_copy(update={"plan_id": best.plan_id})
    assert fastest_line(found.model_copy(update={"fastest": same}), "en") is None
    third = found.fastest.model_copy(update={"plan_id": found.plans[2].plan_id, "rank": 3, "bets": ()})
    line = fastest_line(found.model_copy(update={"fastest": third}), "en")
    assert line == "TP4 PP8 EP64 DP24 (#3) is 3.1 % faster by prediction (130.2 s, P(fits) 71 %)"
    twin = found.fastest.model_copy(update={"strategy": factories.strategy(1, swap=()), "bets": ()})
    line = fastest_line(found.model_copy(update={"fastest": twin}), "en")
    assert line is not None
    assert line.startswith("TP2 PP16 VPP2 EP32 DP24 (swap none) is 3.1 % faster by prediction")
    slower = found.fastest.model_copy(update={"step_time_s": 2 * best.step_time_s})
    line = fastest_line(found.model_copy(update={"fastest": slower}), "en")
    assert line is not None
    assert "has the shortest predicted step" in line
    assert "faster" not in line


def test_many_bets_are_counted() -> None:
    found = plan_set()
    assert found.fastest is not None
    bets = tuple(Bet(kind="unproven", name=f"f{n}", text=f"f{n}") for n in range(MOST_BETS + 2))
    line = fastest_line(found.model_copy(update={"fastest": found.fastest.model_copy(update={"bets": bets})}), "en")
    assert line is not None
    assert line.endswith("f0; f1; f2; 2 more")


def test_the_valley_by_its_width() -> None:
    alone = plan_set(valley=Valley(layouts=1, within=0.03, shared={"tp": 2}, fewest_unproven="p_x"))
    assert valley_line(alone, "en") == "no other layout within 3 % of the fastest"
    words = {"schedule": "dualpipev", "moe_dispatcher": "alltoall", "micro_batch_size": 1}
    wide = plan_set(valley=Valley(layouts=1200, within=0.005, shared=words, fewest_unproven="p_elsewhere"))
    assert valley_line(wide, "en") == (
        "1,200 layouts within 0.5 % of the fastest, all with DualPipeV, alltoall, micro batch 1; "
        "p_elsewhere needs the fewest unproven features"
    )


def test_a_neutral_ranking_says_so() -> None:
    neutral = plan_set(risk=RiskRanking(risk="neutral", compared=5, draws=0, least_p_fits=0.0))
    assert risk_line(neutral, "en") == "ranked by the prediction alone (risk: neutral)"
    assert rescaled_line(neutral, "en") is None


def test_the_most_influential_number_comes_first() -> None:
    rows = box_table(plan_set().risk, "en").rows
    assert [row[3] for row in rows] == ["8.4 %", "2.1 %"]
    assert rows[0][1:3] == ["0.7", "1.45"]
    assert box_table(None, "en").rows == []


def test_shifts_have_signs() -> None:
    said = {"meaning": "a shift", "basis": "prior: none", "influence": 0.014, "regret_pct": 1.2}
    priced = {"instead": {"tp": 4, "schedule": "1f1b"}, "settled_by": "probe"}
    shift = BoxNumber.model_validate({"name": "shift", "low": -0.2, "high": 0.2, **said, **priced})
    quiet = BoxNumber(name="quiet", meaning="a quiet one", low=0.9, high=1.1, basis="prior: none", influence=0.0004)
    found = plan_set(risk=RiskRanking(risk="averse", compared=3, draws=9, least_p_fits=0.9, box=(quiet, shift)))
    assert box_table(found.risk, "en").rows == [
        ["shift", "-0.2", "+0.2", "1.4 %", "1.2 %", "tp 4 schedule 1f1b", "probe on a node", "a shift; prior: none"],
        ["quiet", "0.9", "1.1", "< 0.1 %", "", "stays", "", "a quiet one; prior: none"],
    ]
    (line,) = ignorance_lines(found.risk, "en")
    assert line == "Not knowing a shift may cost 1.2 %: probe on a node tells it"


def test_evidence_puts_what_no_run_has_first() -> None:
    plan = plan_set().plans[1]
    assert [(axis, runs) for axis, _, runs, *_ in evidence_table(plan, "en").rows] == [
        ("EP", "0"),
        ("schedule", "0"),
        ("feature", "9"),
        ("TP", "14"),
    ]
    line = evidence_line(plan, "en")
    assert line is not None
    assert line.startswith("not covered by any run: EP 48, Adaptive Pipe; nearest record: pangu")


def test_evidence_of_a_proven_plan_names_the_weakest() -> None:
    given = (
        Evidence(axis="tp", value=2, runs=3, nearest_record="near", error=-0.04),
        Evidence(axis="moe_dispatcher", value="alltoall_seq", runs=1),
    )
    plan = factories.plan(1, evidence=given)
    assert evidence_line(plan, "en") == "every axis and feature is covered by runs; fewest: alltoall_seq (1)"
    plan = factories.plan(1, evidence=given[:1])
    assert evidence_line(plan, "en") == (
        "every axis and feature is covered by runs; fewest: TP 2 (3); nearest record: near, "
        "step time underpredicted by 4.0 %"
    )
    assert in_words(Evidence(axis="micro_batch_size", value=2, runs=0), "zh") == "微批大小 2"


def test_expectation_is_said_where_it_differs() -> None:
    assert step_in_words(factories.plan(1, step_time_s=61.23, expected_step_time_s=61.24), "en") == "step 61.2 s"
    assert step_in_words(factories.plan(1, step_time_s=61.2, expected_step_time_s=63.4), "en") == (
        "step 61.2 s, expected 63.4 s"
    )


@pytest.mark.parametrize(
    ("probability", "text"), [(1.0, "100 %"), (0.999, "> 99 %"), (0.97, "97 %"), (0.004, "< 1 %"), (0.0, "0 %")]
)
def test_chances(probability: float, text: str) -> None:
    assert chance(probability) == text


def test_references_by_their_labels() -> None:
    assert reference_name("public recipe", "en") == "public recipe"
    assert reference_name("1F1B", "zh") == "1F1B"
    assert reference_name("your script", "zh") == "您的脚本"
    plain = "baseline (1F1B, full recompute)"
    assert reference_name(None, "en") == reference_name("the usual starting point", "en") == plain
    assert reference_name("of a cousin", "zh") == "of a cousin"


def test_csv_has_a_column_for_each() -> None:
    rows = list(csv.DictReader(io.StringIO(plans_csv(plan_set()))))
    assert [row["p_fits"] for row in rows[:4]] == ["0.97", "0.94", "0.92", "0.71"]
    assert float(rows[1]["regret_p80_pct"]) == pytest.approx(2.9)
    assert rows[1]["unproven"] == "ep=48+schedule=adaptive_pipe"
    assert float(rows[1]["expected_step_time_s"]) > float(rows[1]["step_time_s"])
    assert rows[-1]["p_fits"] == ""


def test_plans_are_compared_in_what_they_rest_on() -> None:
    found = plan_set()
    comparison = compare_plans([(found, plan) for plan in found.plans[:2]])
    rows = {row.field: row for row in comparison.differences}
    assert rows["unproven"].values == ("ep 32", "ep 48, schedule adaptive_pipe")
    assert rows["p_fits"].best == rows["regret_p80_pct"].best == 0
    markdown = render_comparison_markdown(comparison, "zh")
    assert "97 %" in markdown
    assert "没有实测依据" in markdown
