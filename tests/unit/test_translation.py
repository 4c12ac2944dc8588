"""Everything the planner says has its Chinese: by templates, and by what real searches say."""

from __future__ import annotations

import re
import string
from typing import Any

import pytest

from autodeploy import planner
from autodeploy.checks.flag_rules import flag_rules
from autodeploy.cli.exits import asked_language, report_error
from autodeploy.cli.why_not import answer_text
from autodeploy.errors import SpecError
from autodeploy.evaluation.inputs.build_context import spec_context
from autodeploy.ranking.error_box import error_box
from autodeploy.ranking.explain import PART_NAMES
from autodeploy.reports.translation import blanks, sentences, translated
from autodeploy.specs.spec import parse_spec
from autodeploy.specs.strategy import Strategy
from autodeploy.strategies.rule_sentences import sentences as rule_sentences
from autodeploy.strategies.rules import load_rules
from hardware_profiles import list_profiles, load_profile

CHINESE = re.compile(r"[\u4e00-\u9fff]")
SAMPLES = {"n": "12.5", "t": "compute", "l": "compute, optimizer", "s": "compute", "": "某物"}
LLAMA: dict[str, Any] = {
    "model": "llama2-7b",
    "cluster": {"profile": "ascend-800t-a2", "num_npus": 8},
    "training": {"seq_length": 4096, "global_batch_size": 64, "tokens": 1e12},
    "search": {"effort": "fast", "top_k": 2},
}
QWEN: dict[str, Any] = LLAMA | {"model": "qwen3-30b-a3b", "cluster": {"profile": "ascend-800t-a2", "num_npus": 32}}


def test_every_sentence_fills_the_same_blanks_in_both_languages() -> None:
    found = sentences()
    assert len(found) > 120
    for sentence in found:
        assert blanks(sentence.english).keys() == blanks(sentence.chinese).keys(), sentence.english
        words = any(
            c.isalpha() for text, *_ in string.Formatter().parse(sentence.english) for c in text.replace(" s of ", "")
        )
        assert CHINESE.search(sentence.chinese) or not words, sentence.english


def test_every_sentence_is_read_back_from_its_own_english() -> None:
    for sentence in sentences():
        said = "".join(
            literal + (SAMPLES[kind or ""] if name else "")
            for literal, name, kind, _ in string.Formatter().parse(sentence.english)
        )
        chinese = translated(said, "zh")
        assert CHINESE.search(chinese), sentence.english
        assert translated(said, "en") == said


def test_the_head_of_a_sentence_is_no_part_of_its_first_blank() -> None:
    verdict = "legal and fits, but slower than the best: TP4 PP8 DP24 takes 6.4 % longer: it adds 7.73 s of compute"
    chinese = translated(f"at best, with tp=4, recompute=…: {verdict}", "zh")
    assert chinese.startswith("tp=4, recompute=… 之下最好的方案：合法且放得下")
    assert not re.search("best|slower|longer", chinese)


def test_every_legality_rule_and_part_of_a_step_has_its_chinese() -> None:
    said = {rule.text for rule in load_rules()} | set(PART_NAMES.values())
    assert [text for text in sorted(said) if not CHINESE.search(translated(text, "zh"))] == []


def test_what_no_template_knows_stays_as_it_is() -> None:
    assert translated("an unheard sentence", "zh") == "an unheard sentence"
    assert translated("", "zh") == ""


def spoken(document: dict[str, Any]) -> list[str]:
    """Every sentence that a search for this spec says."""
    found = planner.plan(parse_spec(document))
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
        | {"training": {"seq_length": 4096, "global_batch_size": 64}},
        LLAMA | {"model": "llama2-70b"},
        LLAMA | {"training": {"seq_length": 4096, "global_batch_size": 7}},
        LLAMA | {"search": {"effort": "fast", "fix": {"tp": 8, "pp": 8}}},
    ],
    ids=["dense", "experts and phases", "too big", "odd batch", "pinned"],
)
def test_what_real_searches_say_is_said_in_chinese(document: dict[str, Any]) -> None:
    said = spoken(document)
    assert said
    assert [text for text in said if not CHINESE.search(translated(text, "zh"))] == []


@pytest.mark.parametrize("profile", list_profiles())
@pytest.mark.parametrize("model", ["deepseek-v3", "llama2-70b"])
def test_every_uncertain_number_has_its_chinese(profile: str, model: str) -> None:
    spec = parse_spec(LLAMA | {"model": model, "cluster": {"profile": profile, "num_npus": 256}})
    known = load_profile(profile)
    box = error_box(known, spec_context(spec, known, frozenset({"flash_attention"}), num_npus=256))
    assert [number.name for number in box.numbers if number.meaning == number.name] == []
    said = [text for number in (*box.numbers, *box.of_memory) for text in (number.meaning, number.basis)]
    said += [f"{number.meaning}, at its low end" for number in box.numbers]
    assert [text for text in said if not CHINESE.search(translated(text, "zh"))] == []


@pytest.mark.parametrize("changes", [{"tp": 3}, {"tp": 1}, {"tp": 8, "pp": 1, "vpp": 2}, {"tp": 4}])
def test_why_not_answers_in_chinese(changes: dict[str, Any]) -> None:
    spec = parse_spec(LLAMA)
    plain = {"pp": 1, "ep": 1, "micro_batch_size": 1, "schedule": "1f1b", "recompute": {"granularity": "none"}}
    strategy = Strategy.model_validate(plain | changes)
    answer = planner.why_not(spec, strategy)
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
        "/cluster/num_npus: 0 太小",
        "未知特性 'coco'",
        "是否想写 coc",
        "未知字段 'trainings'",
    ):
        assert part in told
    assert asked_language(["plan", "x", "--lang", "zh"]) == asked_language(["--lang=zh"]) == "zh"
    assert asked_language(["plan", "x"]) == "en"


def test_every_sentence_of_a_broken_rule_has_its_chinese() -> None:
    said = {rule.text for rule in flag_rules()} | set(rule_sentences().values())
    filled = {re.sub(r"\{\w+\}", "12", text) for text in said}
    assert [text for text in sorted(filled) if not CHINESE.search(translated(text, "zh"))] == []
    told = translated("attention heads divide by tp (heads 30, tp 4)", "zh")
    assert told.endswith("（heads 30, tp 4）")
