"""Every mistake that people are told of, and every note of importers and exporters, is a message of the catalogue."""

from __future__ import annotations

import ast
import contextlib
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from autodeploy.formats.common.flag_effects import flag_effects, key_effects
from autodeploy.formats.registry import FORMATS, export, formats_of
from autodeploy.formats.verl.reader import override_effects
from autodeploy.kit.errors import SpecError, UnsupportedError
from autodeploy.messages import Message, in_language
from autodeploy.space.feature_choice import choose_features
from autodeploy.specs.text_files import load_yaml
from autodeploy.stack.features import FEATURES
from autodeploy.stack.frameworks import FRAMEWORKS
from autodeploy.stack.launch_rules import launch_rules
from autodeploy.stack.releases import frameworks_for
from hardware_profiles import list_profiles, load_profile
from hardware_profiles.yaml_faults import _FAULTS
from tests import factories
from tests.support.rl_plans import CASES, changed, rl_plan_set
from tests.support.sharded_plans import sharded_plan_set
from tests.support.syntax import nodes

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[2]
CHINESE = re.compile(r"[\u4e00-\u9fff]")
ERRORS = frozenset(
    {
        *("SpecError", "UnsupportedError", "ProfileError", "NotFoundError", "ConflictError", "AccessError"),
        *("UnknownCallerError", "LimitError", "OverloadError", "StorageFullError", "AutoDeployError"),
        *("ExpressionError", "InfeasibleRlError", "FieldError", "FieldFault", "Finding"),
    }
)
# How importers and exporters say what they noted: the last argument is the reason.
NOTES = frozenset({"take", "default", "ignore", "contradict", "unmodelled", "doubt", "note", "fail", "error"})
SAID = frozenset({"message", "hint", "reason"})
# Shown as they are: what to type.
EXAMPLE = re.compile(
    r"autodeploy [a-z ]+(SPEC|FILE|examples/).*|autodeploy (doctor|keys ls|keys create|models ls|db upgrade)|"
    r"--\S+( [A-Z]\S*)?|[\w./-]*[:,=][^ ]\S*|"
    r"(tokens|strategy|run_mode|hf_config|step_time_s|start|file|pp_interleave_num|seq_length)\b[:, +].*|[{\[\"].*|"
    r"12h, .*|DeepSeek-V3: .*|[0-9 .{}*,:]+|Authorization: Bearer .*|(precision|optimizer|factor): .*|"
    r"num_nextn_predict_layers: 0|(rl|search|training)(\.\w+)?: .*|(DeepSeek-V4-Flash|Step-3.5-Flash|Kimi-Linear): .*|"
    r"2 to 12|12 to 12|1 to 12|1\.0 or 1\.2|2 to 5|2 to 200,000|sqlite:/.*|(GET|POST) /v1/.*|\w+_\w+(, \w+_\w+)+"
)
# Said to engineers of the program, not to its users: records that ship with it, and broken promises inside.
INSIDE = frozenset(
    {
        "records.py",
        "script_template.py",
        "sweep.py",
        "base.py",
        "server.py",
        "unmeasured.py",
        "step.py",
    }
)


def literal(node: ast.expr) -> str | None:
    """A text, or an f-string with `12` in its blanks."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if not isinstance(node, ast.JoinedStr):
        return None
    return "".join(str(part.value) if isinstance(part, ast.Constant) else "12" for part in node.values)


def said_in(tree: ast.AST) -> Iterator[str]:
    """Literal messages, hints and reasons of a module."""
    for node in nodes(tree):
        found: list[ast.expr] = []
        if isinstance(node, ast.Call):
            name = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
            if name in ERRORS:
                found = list(node.args)
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
        "kit",
        "stack",
        "specs",
        "space",
        "costs",
        "calibration",
        "search",
        "formats",
        "analysis",
        "service",
        "cli",
    )
    folders = [ROOT / "autodeploy" / room for room in rooms] + [ROOT / "hardware_profiles", ROOT / "api"]
    return sorted(path for folder in folders for path in folder.rglob("*.py"))


def is_words(text: str) -> bool:
    """Whether it is a sentence: two words at least, no path, no example of what to type."""
    return " " in text.strip() and not text.startswith("/") and not EXAMPLE.fullmatch(text)


def test_modules_say_nothing_but_messages() -> None:
    """In one test: there are hundreds of modules."""
    paths = [path for path in modules() if path.name not in INSIDE]
    assert len(paths) > 400
    said = {
        path.relative_to(ROOT).as_posix(): texts
        for path in paths
        if (texts := {each for each in said_in(ast.parse(path.read_text(encoding="utf-8"))) if is_words(each)})
    }
    assert said == {}


def test_a_sentence_in_the_code_is_found() -> None:
    module = 'raise SpecError(f"no line with {number}", path="/x", hint="give the file of a run")'
    assert {text for text in said_in(ast.parse(module)) if is_words(text)} == {
        "no line with 12",
        "give the file of a run",
    }


@pytest.mark.parametrize("key", sorted({key for _, key in _FAULTS}))
def test_every_fault_of_a_yaml_text_has_its_chinese(key: str) -> None:
    said = Message(key, sign="']'", name="tp", depth="20")
    assert CHINESE.search(in_language(Message("common.line_column", line=3, column=2, message=said), "zh"))


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("a: b: c", "line 1, column 5: unexpected ':': align with the keys above, or quote the text"),
        ("a:\n\tb: 1", "line 2, column 1: tabs are not allowed; indent with spaces"),
        ("a: 1\nb: [1, 2\n", "line 2, column 4: missing closing ]"),
        ("a: [1\nb: 2", "line 2, column 2: missing ',' or ]"),
        ("a: 'x\nb: 1", "line 1, column 4: missing closing quote"),
        ("a:\n  b: 1\n c: 2", "line 3, column 2: unexpected indentation"),
        ("tp: 1\ntp: 2", "line 2, column 1: tp is given twice"),
        ("a: @x", "line 1, column 4: unexpected '@': quote the text"),
        ("a: x\nb: \x01", "line 2, column 4: unexpected control character"),
        ("a: !python/x 1", "line 1, column 4: tags (!) are not supported"),
        ("a: *b", "line 1, column 4: the alias *b is undefined or refers to itself"),
        ("a: 1\n---\nb: 2", "line 2, column 1: several YAML documents in one file: keep one, without '---'"),
    ],
)
def test_a_broken_yaml_text_is_refused_in_plain_words_with_its_place(text: str, told: str) -> None:
    with pytest.raises(SpecError) as caught:
        load_yaml(text)
    assert str(caught.value) == told
    assert CHINESE.search(in_language(str(caught.value), "zh"))


def test_every_note_of_an_exported_plan_has_its_chinese() -> None:
    """Those that are put together from tables too: every feature at once, for every framework."""
    features = tuple(sorted(FEATURES))
    plan = factories.plan(1)
    strategy = plan.strategy.model_copy(update={"features": features, "swap": ("attention",)})
    plan_set = factories.plan_set()
    said: set[str] = set()
    for to, known in FORMATS.items():
        if known.takes == "timeline" or (known.launches and FRAMEWORKS[known.launches].post_trains):
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
    assert [text for text in sorted(said) if not CHINESE.search(in_language(text, "zh"))] == []


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
    assert len(said) > 3
    assert [text for text in sorted(said) if not CHINESE.search(in_language(text, "zh"))] == []


@pytest.mark.parametrize("framework", ["verl", "mindspeed-rl"])
def test_every_rule_of_a_launch_has_its_chinese(framework: str) -> None:
    texts = [rule.text for rule in launch_rules(framework)]
    assert len(texts) > 5
    assert [text for text in texts if not CHINESE.search(in_language(text, "zh"))] == []


def test_what_records_of_features_say_has_its_chinese() -> None:
    said = {reason for feature in FEATURES.values() for reason in (*feature.model.values(), feature.only_asked)}
    said |= {feature.unreleased for feature in FEATURES.values()}
    said |= {variant.reason for feature in FEATURES.values() for variant in feature.launch}
    said |= {feature.asked_for.text for feature in FEATURES.values() if feature.asked_for is not None}
    assert len(said) > 20
    assert [text for text in sorted(said - {""}) if not CHINESE.search(in_language(text, "zh"))] == []


@pytest.mark.parametrize("profile", list_profiles())
def test_why_a_chip_has_no_feature_has_its_chinese(profile: str) -> None:
    spec, chips = factories.spec(), load_profile(profile)
    search = spec.search.model_copy(update={"target": frameworks_for(spec.search.target, chips.vendor)[0]})
    reasons = choose_features(search, spec.model, chips, adapters=False).off_reasons
    assert [text for text in sorted(set(reasons.values())) if not CHINESE.search(in_language(text, "zh"))] == []


def test_what_flags_do_has_its_chinese() -> None:
    effects = (*flag_effects().values(), *key_effects().values(), *override_effects().values())
    assert [e.reason for e in effects if not CHINESE.search(in_language(e.reason, "zh"))] == []
