"""Every mistake that people are told of, and every note of importers and exporters, has its Chinese."""

from __future__ import annotations

import ast
import contextlib
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from autodeploy.errors import SpecError, UnsupportedError
from autodeploy.exporters.registry import FORMATS, export, formats_of
from autodeploy.importers.documents import load_yaml
from autodeploy.reports.translation import translated
from autodeploy.stack.features import FEATURES
from autodeploy.stack.frameworks import FRAMEWORKS
from autodeploy.stack.launch_rules import launch_rules
from hardware_profiles import list_profiles, load_profile
from hardware_profiles.yaml_faults import _FAULTS
from tests import factories
from tests.support.rl_plans import CASES, changed, rl_plan_set
from tests.support.sharded_plans import sharded_plan_set

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[2]
CHINESE = re.compile(r"[\u4e00-\u9fff]")
ERRORS = frozenset(
    {
        *("SpecError", "UnsupportedError", "ProfileError", "NotFoundError", "ConflictError", "AccessError"),
        *(
            "UnknownCallerError",
            "LimitError",
            "OverloadError",
            "StorageFullError",
            "AutoDeployError",
            "ExpressionError",
            "InfeasibleRlError",
        ),
        *("FieldError", "FieldProblem", "Finding"),
    }
)
# How importers and exporters say what they noted: the last argument is the reason.
NOTES = frozenset({"take", "default", "ignore", "contradict", "unmodelled", "doubt", "note", "fail", "error"})
SAID = frozenset({"message", "hint", "reason"})
# Shown as they are: what to type.
EXAMPLE = re.compile(
    r"autodeploy [a-z ]+(SPEC|FILE|examples/).*|autodeploy (doctor|keys ls|db upgrade)|"
    r"--\S+( [A-Z]\S*)?|[\w./-]*[:,=][^ ]\S*|"
    r"(tokens|strategy|run_mode|hf_config|step_time_s|start|file|pp_interleave_num|seq_length)\b[:, +].*|[{\[\"].*|"
    r"12h, .*|DeepSeek-V3: .*|[0-9 .{}*,:]+"
)


def literal(node: ast.expr) -> str | None:
    """A text, or an f-string with `12` in its blanks and a sentence in one after a colon at its end."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if not isinstance(node, ast.JoinedStr):
        return None
    text = "".join(str(part.value) if isinstance(part, ast.Constant) else "12" for part in node.values)
    text = re.sub(r": 12$", ": the number is too large", text)
    return re.sub(r"^12(?=[a-z])", "", text)  # a place before the sentence


def said_in(tree: ast.AST) -> Iterator[str]:
    """Literal messages, hints and reasons of a module."""
    for node in ast.walk(tree):
        found: list[ast.expr] = []
        if isinstance(node, ast.Call):
            name = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
            if name in ERRORS:
                found = [*node.args[1:], *node.args[:1]] if name in {"FieldError", "FieldProblem"} else list(node.args)
            elif name == "bad_line":
                found = node.args[1:]
            elif name in NOTES:
                found = node.args[-1:]
            found += [keyword.value for keyword in node.keywords if keyword.arg in SAID]
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id in SAID:
            found = [node.value]
        yield from (text for each in found if (text := literal(each)) is not None)


def modules() -> list[Path]:
    rooms = (
        "importers",
        "specs",
        "services",
        "store",
        "exporters",
        "checks",
        "what_if",
        "cli",
        "strategies",
        "post_training",
    )
    folders = [ROOT / "autodeploy" / room for room in rooms] + [ROOT / "hardware_profiles"]
    return sorted(path for folder in folders for path in folder.rglob("*.py"))


def is_words(text: str) -> bool:
    """Whether it is a sentence: two words at least, no path, no example of what to type."""
    return " " in text.strip() and not text.startswith("/") and not EXAMPLE.fullmatch(text)


@pytest.mark.parametrize("path", modules(), ids=lambda path: path.relative_to(ROOT).as_posix())
def test_every_message_of_a_module_has_its_chinese(path: Path) -> None:
    said = {text for text in said_in(ast.parse(path.read_text(encoding="utf-8"))) if is_words(text)}
    assert [text for text in sorted(said) if not CHINESE.search(translated(text, "zh"))] == []


def test_the_messages_are_found() -> None:
    said = {text for path in modules() for text in said_in(ast.parse(path.read_text(encoding="utf-8")))}
    assert {"no measured shape", "no line with 12", "the file does not name the chips it is for"} <= said
    assert sum(map(is_words, said)) > 300


@pytest.mark.parametrize("words", sorted({words for _, words in _FAULTS}))
def test_every_fault_of_a_yaml_text_has_its_chinese(words: str) -> None:
    said = words.replace("{sign}", "']'").replace("{key}", "tp").replace("{depth}", "20")
    assert "{" not in said
    assert CHINESE.search(translated(f"spec.yaml: line 3, column 2: {said}", "zh")), said


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("a: b: c", "line 1, column 5: no ':' can stand here: indent as the keys above, or put the text in quotes"),
        ("a:\n\tb: 1", "line 2, column 1: a tab: indent with blanks"),
        ("a: 1\nb: [1, 2\n", "line 2, column 4: it is never closed by ]"),
        ("a: [1\nb: 2", "line 2, column 2: ',' or ] is missing"),
        ("a: 'x\nb: 1", "line 1, column 4: a quote is never closed"),
        ("a:\n  b: 1\n c: 2", "line 3, column 2: it is not indented as what stands above"),
        ("tp: 1\ntp: 2", "line 2, column 1: the key tp is given twice"),
        ("a: @x", "line 1, column 4: '@' begins nothing: put the text in quotes"),
        ("a: x\nb: \x01", "line 2, column 4: a control character"),
        ("a: !python/x 1", "line 1, column 4: tags (!) have no meaning here"),
        ("a: *b", "line 1, column 4: the alias *b stands inside what it names, or names nothing"),
        ("a: 1\n---\nb: 2", "line 2, column 1: several YAML documents in one file"),
    ],
)
def test_a_broken_yaml_text_is_refused_in_plain_words_with_its_place(text: str, told: str) -> None:
    with pytest.raises(SpecError) as caught:
        load_yaml(text)
    assert str(caught.value) == told
    assert CHINESE.search(translated(told, "zh"))


def test_every_note_of_an_exported_plan_has_its_chinese() -> None:
    """Those that are put together from tables too: every feature at once, for every framework."""
    features = tuple(sorted(FEATURES))
    plan = factories.plan(1)
    strategy = plan.strategy.model_copy(update={"features": features, "swap": ("attention",)})
    plan_set = factories.plan_set()
    said: set[str] = set()
    for to, known in FORMATS.items():
        if known.of_timeline or (known.launches and FRAMEWORKS[known.launches].post_trains):
            continue
        if known.launches and (FRAMEWORKS[known.launches].shards_alone or FRAMEWORKS[known.launches].one_stage):
            sharded = sharded_plan_set(known.launches)
            said |= set(export(sharded, sharded.plans[0], to).notes)
            continue
        schedule = strategy.schedule if to in formats_of(strategy.schedule) else "1f1b"
        changed = plan.model_copy(update={"strategy": strategy.model_copy(update={"schedule": schedule})})
        said |= set(export(plan_set, changed, to).notes)
    assert len(said) > 15
    assert any("has no flag: it" in text for text in said)
    assert [text for text in sorted(said) if not CHINESE.search(translated(text, "zh"))] == []
    reasons = {feature.unreleased for feature in FEATURES.values()}
    reasons |= {variant.reason for feature in FEATURES.values() for variant in feature.launch}
    assert [text for text in sorted(reasons - {""}) if not CHINESE.search(translated(text, "zh"))] == []


@pytest.mark.parametrize("target", ["verl", "mindspeed-rl"])
def test_every_note_of_an_exported_post_training_has_its_chinese(target: str) -> None:
    said: set[str] = set()
    for case in CASES.values():
        for algorithm in ("grpo", "dapo"):
            for reference in (True, False):
                rl = {"algorithm": algorithm, "reference_model": reference}
                plan_set, plan = rl_plan_set(changed(case, rl=rl), target)
                with contextlib.suppress(UnsupportedError):
                    said |= set(export(plan_set, plan, target).notes)
    assert len(said) > 4
    assert [text for text in sorted(said) if not CHINESE.search(translated(text, "zh"))] == []


@pytest.mark.parametrize("framework", ["verl", "mindspeed-rl"])
def test_every_rule_of_a_launch_has_its_chinese(framework: str) -> None:
    texts = [f"{framework} can't launch this plan: {rule.text}" for rule in launch_rules(framework)]
    assert len(texts) > 5
    assert [text for text in texts if not CHINESE.search(translated(text, "zh").partition("：")[2])] == []


def test_what_records_of_features_say_has_its_chinese() -> None:
    said = {reason for feature in FEATURES.values() for reason in (*feature.model.values(), feature.only_asked)}
    said |= {feature.asked_for.text for feature in FEATURES.values() if feature.asked_for is not None}
    said |= {reason for name in list_profiles() for reason in load_profile(name).lacks.values()}
    assert len(said) > 20
    assert [text for text in sorted(said - {""}) if not CHINESE.search(translated(text, "zh"))] == []
