"""What people read: every figure of the plan, in 100 columns, in two languages."""

from __future__ import annotations

import pytest

from autodeploy.messages import LANGUAGES
from autodeploy.reports import wording as texts
from autodeploy.reports.plan_report import percentages, render_markdown, render_plan, render_plan_set
from autodeploy.reports.run_facts import plans_table
from autodeploy.reports.wording import choices, degrees, quantity, seconds, width, wrap
from autodeploy.specs.planset import Breakdown, Uncertainty
from autodeploy.specs.strategy import Recompute
from tests import factories

BOTH = pytest.mark.parametrize("lang", LANGUAGES)


def lines_of(plan_set, lang="en"):
    return render_plan_set(plan_set, lang).splitlines()


@BOTH
@pytest.mark.parametrize("status", ["optimal", "feasible", "infeasible", "cancelled", "failed", "running"])
def test_every_status_fits_100_columns(status, lang):
    if status == "infeasible":
        plan_set = factories.infeasible_plan_set()
    elif status in {"optimal", "feasible"}:
        plan_set = factories.plan_set(5, status)
    else:
        plan_set = factories.plan_set(0, status, error="the solver said no " * 20)
    lines = lines_of(plan_set, lang)
    assert max(map(width, lines)) <= 100
    assert all(line == line.rstrip() for line in lines)


def test_the_report_says_what_the_plan_says():
    plan_set = factories.plan_set(3)
    best = plan_set.plans[0]
    text = " ".join(render_plan_set(plan_set).split())
    for part in [
        "DeepSeek-V3 on CloudMatrix 384: 384 cards (768 dies)",
        "seq 4096, batch 15,360 (62.9M tokens), BF16, for MindSpeed-LLM",
        "RECOMMENDED TP2 PP16 VPP2 EP32 DP24, Adaptive Pipe, micro batch 1, "
        "recompute mla_up_proj+activation, swap unpermute",
        f"step {best.step_time_s:.1f} s",
        f"{best.tokens_per_s_per_npu:,.0f} tokens/s/card",
        f"MFU {100 * best.mfu:.1f} % (causal attention, no recompute, 353.9 TFLOP/s a die)",
        "outside the calibration data: ranks, EP",
        "memory 55.5 of 61.0 GiB (stage 0); OOM if expert imbalance exceeds 2.4",
        f"14.8T tokens: {best.run.days:,.0f} days",
        "step time: compute 62 | TP 3 | EP 6 (86 % hidden) |",
        "| imbalance 6 |",
        "184,320 strategies in 5.0 s: 150,720 invalid, 30,111 exceed memory, 3,401 pruned by bound, 88 optimised",
        "recommended plan within 1.3 % of the proven bound (within the cost model)",
        "launch rules of MindSpeed-LLM cost 2.0 %",
        "warning: global batch 15,360",
        f"autodeploy export {best.plan_id} --to mindspeed-llm",
        f"why-not {best.plan_id} --strategy tp=4",
    ]:
        assert part in text


def test_the_table_ranks_marks_ties_and_ends_with_what_they_are_compared_with():
    plan_set = factories.plan_set(3)
    rows = plans_table(plan_set).rows
    assert [row[0] for row in rows] == ["1", "2", "3", "-"]
    assert [row[-2] for row in rows] == ["-", "+3.7 %", "+7.5 %", "+11.5 %"]
    assert [row[-1] for row in rows] == ["", "≈ #1", "", "1F1B"]


def test_a_reference_that_does_not_fit_says_so():
    reference = factories.plan(4, label="the usual starting point", fits=False, peak_memory_gib=70.5)
    plan_set = factories.plan_set(1, reference=reference)
    assert "DOES NOT FIT by 9.5 GiB" in plans_table(plan_set).rows[-1][-1]
    assert max(map(width, lines_of(plan_set))) <= 100


def test_no_plan_names_rules_and_nearest_changes():
    text = render_plan_set(factories.infeasible_plan_set())
    assert "NO PLAN" in text
    assert "because: memory_fits; experts_divide_by_ep" in text
    assert "/cluster/num_npus: 64: peak memory 58.2 of 61.0 GiB" in text
    assert "RECOMMENDED" not in text
    assert "gap" not in text


def test_what_went_wrong_is_told():
    assert "NO PLAN: search failed\n  out of luck\n" in render_plan_set(
        factories.plan_set(0, "failed", error="out of luck")
    )
    assert "NO PLAN: search cancelled" in render_plan_set(factories.plan_set(0, "cancelled"))


def test_an_estimate_has_no_ranking():
    text = render_plan(factories.spec(), factories.plan(1))
    assert text.splitlines()[2].startswith("PLAN  TP2 PP16")
    assert "vs #1" not in text


def test_without_tokens_there_are_no_days():
    document = factories.spec_document()
    del document["training"]["tokens"]
    from autodeploy.specs.spec import Spec

    text = render_plan_set(factories.plan_set(1, spec=Spec.model_validate(document)))
    assert "days" not in text


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        ({"compute_s": 1.0, "exposed_ep_s": 1.0, "pipeline_bubble_s": 1.0}, {"compute_s": 34, "exposed_ep_s": 33}),
        ({"compute_s": 99.4, "exposed_dp_s": 0.3, "optimizer_s": 0.3}, {"compute_s": 99, "other": 1}),
        ({"compute_s": 50.0, "exposed_cp_s": 50.0}, {"compute_s": 50, "exposed_cp_s": 50, "other": 0}),
    ],
)
def test_percents_add_up_to_100(parts, expected):
    whole = percentages(Breakdown(**parts))
    assert sum(whole.values()) == 100
    assert {part: whole[part] for part in expected} == expected


def test_percents_of_nothing():
    assert percentages(Breakdown()) == {}


@pytest.mark.parametrize(
    ("value", "text"),
    [(812, "812"), (1230, "1.2k"), (469_000, "469k"), (3_370_000, "3.4M"), (14.8e12, "14.8T"), (2e12, "2T")],
)
def test_quantities(value, text):
    assert quantity(value) == text


@pytest.mark.parametrize(
    ("value", "text"), [(1234.56, "1,234.6"), (61.23, "61.2"), (3.456, "3.46"), (0.12345, "0.123")]
)
def test_seconds(value, text):
    assert seconds(value) == text


def test_strategies_in_words():
    per_stage = ({"norm": 2, "activation": 0}, *({"norm": 0},) * 15)
    recompute = Recompute(granularity="selective", per_stage=per_stage)
    strategy = factories.strategy(1, cp=2, etp=2, recompute=recompute, swap_optimizer=True, swap=())
    assert degrees(strategy) == "TP2 PP16 VPP2 CP2 EP32 ETP2 DP24"
    assert choices(strategy, "en") == "Adaptive Pipe, micro batch 1, recompute norm, swap optimizer"
    plain = factories.strategy(4, recompute=Recompute(), swap=())
    assert choices(plain, "zh") == "1F1B，微批大小 1，无重计算"


@pytest.mark.parametrize("columns", range(24, 100, 5))
def test_no_chinese_line_begins_with_a_closing_sign_or_ends_with_an_opening_one(columns):
    text = "布局 TP4 PP3，Adaptive Pipe，微批 1，换出 unpermute，reuse_fp32_param（假设 1.3，峰值 2.0）。"
    lines = wrap(text, columns)
    assert "".join(lines).replace(" ", "") == text.replace(" ", "")
    assert not any(line.strip()[0] in "，：；、。）" or line[-1] == "（" for line in lines)
    assert all(width(line) <= columns for line in lines)


def test_wrapping_keeps_words_and_breaks_chinese():
    assert wrap("aaa bbb  ccc", 8) == ["aaa bbb", "ccc"]
    assert wrap("gap is 1.3 % here", 10, hanging=" ") == ["gap is", " 1.3 %", " here"]
    lines = wrap("内存不足" * 10, 20)
    assert max(map(width, lines)) <= 20
    assert "".join(lines) == "内存不足" * 10


@BOTH
def test_markdown_is_one_table_and_hides_nothing(lang):
    plan_set = factories.plan_set(3)
    text = render_markdown(plan_set, lang)
    table = [line for line in text.splitlines() if line.startswith("|")]
    assert len(table) == 2 + 3 + 1
    assert len({line.count("|") - line.count("\\|") for line in table}) == 1
    assert plan_set.plans[0].plan_id in text
    assert factories.ENGINE_VERSION in text
    assert texts.report_text(lang, "generated") in text


def test_markdown_of_another_plan_and_of_none():
    plan_set = factories.plan_set(3)
    text = render_markdown(plan_set, plan=plan_set.plans[1])
    assert "**PLAN  TP1 PP16" in text
    assert "memory_fits" in render_markdown(factories.infeasible_plan_set())


def test_markdown_escapes_what_a_user_wrote():
    spec = factories.spec(model=factories.DEEPSEEK_V3 | {"name": "<img src=x> *m*"})
    assert "<img" not in render_markdown(factories.plan_set(1, spec=spec)).replace("\\<img", "")


def test_a_single_axis_is_not_listed_with_and():
    given = Uncertainty(low_s=1, high_s=2, basis="b", nearest_record=None, extrapolated=("ep",))
    text = render_plan(factories.spec(), factories.plan(1, uncertainty=given))
    assert "80 % prediction interval 1.00-2.00 s; outside the calibration data: EP\n" in text


@pytest.mark.parametrize(
    ("changes", "remark"),
    [
        ({"micro_batch_size": 2}, "micro batch 2"),
        ({"moe_dispatcher": "allgather"}, "allgather"),
        ({"swap": ()}, "swap none"),
        ({"features": ("flash_attention", "grouped_gemm")}, "-overlap_grad_reduce"),
        ({"layers_per_stage": (4,) * 15 + (1,)}, "different placement of layers or memory"),
    ],
)
def test_rows_that_look_alike_say_what_differs(changes, remark):
    twin = factories.plan(1, strategy=factories.strategy(1, **changes), tie_with=1)
    plan_set = factories.plan_set(1, plans=(factories.plan(1), twin))
    assert plans_table(plan_set).rows[1][-1] == f"≈ #1, {remark}"
