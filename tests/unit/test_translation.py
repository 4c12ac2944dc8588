"""Everything the planner says has its Chinese: by templates, and by what real searches say."""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING, Any

import pytest

from api.ui.documentation import read_page, titles
from api.ui.views import NOTES, profile_page
from autodeploy.cli.exits import asked_language, report_error
from autodeploy.cli.what_if import answer_text
from autodeploy.costs.inputs.build_context import spec_context
from autodeploy.kit.errors import SpecError
from autodeploy.messages import Message, in_language
from autodeploy.messages.message import recovered
from autodeploy.search import planner
from autodeploy.search.ranking.uncertainty_set import uncertainty_set
from autodeploy.space.rules import load_rules
from autodeploy.specs.spec import parse_spec
from autodeploy.specs.strategy import Strategy
from autodeploy.stack.software import shipped_stacks
from hardware_profiles import list_profiles, load_profile

if TYPE_CHECKING:
    from autodeploy.specs.planset import PlanSet

CHINESE = re.compile(r"[\u4e00-\u9fff]")
LLAMA: dict[str, Any] = {
    "model": "llama2-7b",
    "cluster": {"profile": "ascend-800t-a2", "num_npus": 8},
    "training": {"seq_length": 4096, "global_batch_size": 64, "tokens": 1e12},
    "search": {"effort": 0.02, "top_k": 2, "allow": {"vpp": [1], "cp": [1]}},
}
QWEN: dict[str, Any] = LLAMA | {"model": "qwen3-30b-a3b", "cluster": {"profile": "ascend-800t-a2", "num_npus": 32}}


def test_every_legality_rule_has_its_chinese() -> None:
    said = {rule.text for rule in load_rules()}
    assert [text for text in sorted(said) if not CHINESE.search(in_language(text, "zh"))] == []


def test_plain_text_stays_as_it_is() -> None:
    assert in_language("an unheard sentence", "zh") == "an unheard sentence"
    assert in_language("", "zh") == ""


def spoken(document: dict[str, Any]) -> list[str]:
    """Every sentence that a search for this spec says."""
    found = found_for_llama() if document is LLAMA else planner.plan(parse_spec(document))
    said = [*found.warnings]
    for plan in (*found.plans, *([found.reference] if found.reference else ())):
        said += [plan.explanation, plan.uncertainty.basis, *plan.assumptions]
        said += [phase.problem or "" for phase in (plan.run.phases if plan.run else ())]
    if found.infeasible is not None:
        said += found.infeasible.binding_rules
        said += [text for near in found.infeasible.nearest for text in (near.effect,)]
    return [text for text in said if text]


@pytest.mark.parametrize(
    "document",
    [
        LLAMA,
        QWEN
        | {"run": {"phases": [{"tokens": 1e12}, {"tokens": 1e11, "seq_length": 131_072, "global_batch_size": 32}]}}
        | {"training": {"seq_length": 4096, "global_batch_size": 64}}
        | {"search": LLAMA["search"] | {"allow": {"tp": [1, 2], "pp": [1, 2], "vpp": [1], "cp": [1, 8]}}},
        LLAMA | {"model": "llama2-70b", "search": LLAMA["search"] | {"allow": {"tp": [8], "vpp": [1], "cp": [1]}}},
        LLAMA
        | {"training": {"seq_length": 4096, "global_batch_size": 7}}
        | {"search": LLAMA["search"] | {"risk": "neutral"}},
        LLAMA | {"search": {"effort": 0.02, "fix": {"tp": 8, "pp": 8}}},
    ],
    ids=["dense", "experts and phases", "too big", "odd batch", "pinned"],
)
def test_what_real_searches_say_is_said_in_chinese(document: dict[str, Any]) -> None:
    said = spoken(document)
    assert said
    assert [text for text in said if not CHINESE.search(in_language(text, "zh"))] == []


@pytest.mark.parametrize("profile", list_profiles())
@pytest.mark.parametrize("model", ["deepseek-v3", "llama2-70b"])
def test_every_uncertain_number_has_its_chinese(profile: str, model: str) -> None:
    spec = parse_spec(LLAMA | {"model": model, "cluster": {"profile": profile, "num_npus": 256}})
    known = load_profile(profile)
    box = uncertainty_set(known, spec_context(spec, known, frozenset({"flash_attention"}), num_npus=256))
    assert [number.name for number in box.numbers if number.meaning == number.name] == []
    said = [text for number in (*box.numbers, *box.of_memory) for text in (number.meaning, number.basis)]
    said += [Message("ranking.low_end", number=number.meaning) for number in box.numbers]
    assert [text for text in said if not CHINESE.search(in_language(text, "zh"))] == []


@cache
def found_for_llama() -> PlanSet:
    return planner.plan(parse_spec(LLAMA))


@pytest.mark.parametrize("changes", [{"tp": 3}, {"tp": 1}, {"tp": 8, "pp": 1, "vpp": 2}, {"tp": 4}])
def test_why_not_answers_in_chinese(changes: dict[str, Any]) -> None:
    spec = parse_spec(LLAMA)
    plain = {"pp": 1, "ep": 1, "micro_batch_size": 1, "schedule": "1f1b", "recompute": {"granularity": "none"}}
    strategy = Strategy.model_validate(plain | changes)
    answer = planner.why_not(spec, strategy, best=found_for_llama())
    for line in answer_text(answer, "zh").splitlines():
        assert CHINESE.search(line), line


def test_complaints_and_hints_come_in_the_language_of_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    bad = LLAMA | {"cluster": {"profile": "ascend-800t-a2", "num_npus": 0}, "search": {"features": {"coco": True}}}
    with pytest.raises(SpecError) as caught:
        parse_spec(bad | {"trainings": {}})
    report_error(caught.value, "zh")
    told = capsys.readouterr().err
    for part in (
        "错误：3 个字段无效",
        "/cluster/num_npus：0 太小",
        "特性不存在：'coco'",
        "是否想写 coc",
        "未知字段 'trainings'",
    ):
        assert part in told
    assert asked_language(["plan", "x", "--lang", "zh"]) == asked_language(["--lang=zh"]) == "zh"
    assert asked_language(["plan", "x"]) == "en"


def test_fits_of_profiles_and_their_factors_are_known_by_their_english() -> None:
    profile = load_profile("ascend-800t-a2")
    fitted = [each for each in profile.quantities.values() if (each.note or "").startswith("factor ")]
    assert len(fitted) > 5
    for quantity in fitted:
        sources = [source for source in quantity.source if source.startswith("MAP fit")]
        for text in (quantity.note or "", *sources):
            known = recovered(text, NOTES)
            assert isinstance(known, Message), text
            assert in_language(known, "zh") != text


def english_left(text: str) -> bool:
    """Whether a Chinese text has a word of prose and no Chinese; names, paths, flags and numbers have none."""
    words = (word.strip(".,;:()'") for word in text.split())
    return not CHINESE.search(text) and any(re.fullmatch(r"[a-z]{2,}('s)?", word) for word in words)


@pytest.mark.parametrize("name", list_profiles())
def test_every_source_and_note_of_a_shipped_profile_has_its_chinese(name: str) -> None:
    shown = [number for _, numbers in profile_page(load_profile(name)).groups for number in numbers]
    assert len(shown) > 50
    for number in shown:
        for part in in_language(number.source, "zh").split("；"):
            assert not english_left(part), (number.name, part)


def test_every_source_of_a_shipped_stack_has_its_chinese_and_so_have_conditions() -> None:
    stacks = shipped_stacks().values()
    assert any(english_left(source) for stack in stacks for *_, source in stack.rows())  # in English
    for stack in stacks:
        sources = [*(source for *_, source in stack.rows()), *stack.meanings.values()]
        assert [source for source in sources if english_left(in_language(source, "zh"))] == [], stack.name
        for section, name, value, *_ in stack.rows():
            conditions = in_language(value, "zh").partition("；")[2]
            assert not conditions or CHINESE.search(conditions), (stack.name, section, name)


def test_the_chinese_index_has_a_title_for_every_page_of_the_english_one() -> None:
    english, chinese = titles("en"), titles("zh")
    assert len(english) > 50
    assert set(english) - {"index"} == set(chinese)
    for name in chinese:
        page = read_page(name, "zh")
        assert page is not None
        assert page.lang == "zh" or CHINESE.search(chinese[name]) or chinese[name] in {"PlanSet", "Spec", "Rollout"}
