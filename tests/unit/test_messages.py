"""The catalogues: the same texts in both languages, each of them said somewhere, none missing."""

from __future__ import annotations

import ast
import copy
import json
import pickle
import re
import string
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from autodeploy.analysis.launch_checks.flag_rules import flag_rules
from autodeploy.calibration.fit import COMMON, PARAMETERS, PRIOR_WIDTHS, meaning_of, source_of
from autodeploy.calibration.uncertain_numbers import ROUTER_BASIS
from autodeploy.costs.inputs.expert_balance import persistent_shares
from autodeploy.costs.training_run.priors import priors
from autodeploy.formats.common.flag_effects import flag_effects, key_effects
from autodeploy.formats.verl.reader import override_effects
from autodeploy.kit.yaml_text import yaml_text
from autodeploy.messages import (
    LANGUAGES,
    Message,
    Section,
    in_language,
    in_plain_text,
    joined,
    keyed,
    read_keyed,
    recovered,
    text_of,
)
from autodeploy.messages.catalogue import catalogue, is_text, renamed_keys
from autodeploy.space.rules import load_rules
from autodeploy.specs.diagnostics import Text, TranslatedDocument
from autodeploy.stack.features import FEATURES
from autodeploy.stack.frameworks import FRAMEWORKS
from autodeploy.stack.launch_rules import launch_rules
from autodeploy.stack.releases import releases
from autodeploy.stack.software import shipped_stacks
from hardware_profiles import list_profiles, load_profile
from tests.support.syntax import nodes

ROOT = Path(__file__).resolve().parents[2]
CHINESE = re.compile(r"[\u4e00-\u9fff]")
# Sections whose keys are names of rules, parts, fields and types of errors.
BY_NAME = frozenset(
    {
        *(
            "part",
            "reference",
            "field_fault",
            "list",
            "shape_reason",
            "problem",
            "profile_note",
            "stack_note",
            "stack_fact",
        ),
    }
)
# Sections of records' texts: their English stands with the records.
RECORDS = frozenset(
    {
        *("rule", "flag_rule", "launch_rule", "feature", "lacks", "uncertain_number", "worth"),
        *("uncertain_basis", "prior_note", "source", "release_title", "stack_title"),
        *("effect", "unmodelled", "verl_effect"),
    }
)
# Sections of others' texts: their English is what Python, the system or a table says.
OF_OTHERS = frozenset({"json", "os", "axis_of_evidence"})
# Functions that say a text of a section, by how modules call them.
SECTIONS = {
    "report_text": "report",
    "check_text": "check",
    "command_text": "command",
    "notify": "command",
    "part_name": "part",
    "memory_name": "figure.memory",
}
PLURAL = re.compile(r"_(one|other)$")


def blanks(text: str) -> set[str]:
    return {name for _, name, *_ in string.Formatter().parse(text) if name}


def keys(lang: str) -> set[str]:
    """Keys without the endings of plural forms and without texts of records."""
    return {PLURAL.sub("", key) for key in catalogue(lang) if section(key) not in RECORDS | OF_OTHERS}  # type: ignore[arg-type]


def section(key: str) -> str:
    return key.partition(".")[0]


@cache
def modules() -> list[tuple[Path, ast.Module]]:
    rooms = ("autodeploy", "api", "hardware_profiles")
    paths = [path for room in rooms for path in sorted((ROOT / room).rglob("*.py"))]
    return [(path, ast.parse(path.read_text(encoding="utf-8"))) for path in paths]


def test_both_languages_have_the_same_keys() -> None:
    assert keys("en") == keys("zh")
    assert len(keys("en")) > 500


@pytest.mark.parametrize("lang", LANGUAGES)
def test_no_text_is_empty(lang: str) -> None:
    assert [key for key, text in catalogue(lang).items() if not text.strip()] == []  # type: ignore[arg-type]


def test_every_text_fills_the_same_blanks_in_both_languages() -> None:
    english, chinese = catalogue("en"), catalogue("zh")
    wrong = [
        key
        for key, text in chinese.items()
        if section(key) not in RECORDS | OF_OTHERS
        and blanks(text) != blanks(english.get(key) or english[PLURAL.sub("_other", key)])
    ]
    assert wrong == []


def test_a_sentence_of_several_words_is_chinese_in_chinese() -> None:
    english, chinese = catalogue("en"), catalogue("zh")
    same = {key for key, text in english.items() if text == chinese.get(key) and len(re.findall("[a-z]{3,}", text)) > 2}
    assert {key for key in same if not key.startswith("page.")} <= {"report.priors_free"}


class Said(NamedTuple):
    """What all modules say."""

    keys: dict[str, str]
    """Literal keys of messages, with where."""
    words: set[str]
    """Every text, name of an argument and field of a document."""


@cache
def said() -> Said:
    keys: dict[str, str] = {}
    words: set[str] = set()
    for path, tree in modules():
        for node in nodes(tree):
            if isinstance(node, ast.Constant):
                if isinstance(node.value, str):
                    words |= {node.value, *node.value.split(":")}
            elif isinstance(node, ast.keyword):
                if node.arg:
                    words.add(node.arg)
            elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                words.add(node.target.id)  # a field of a document, whose name is its key
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                name = node.func.id
                scope = SECTIONS.get(name, "")
                literals = [a.value for a in node.args if isinstance(a, ast.Constant) and isinstance(a.value, str)]
                if literals and (name == "Message" or scope):
                    key = literals[0] if name == "Message" else f"{scope}.{literals[0]}"
                    keys[key] = f"{path.relative_to(ROOT)}:{node.lineno}"
    return Said(keys, words)


def is_label(key: str) -> bool:
    """Whether a section that lacks the text says a label instead."""
    return section(key) in SECTIONS.values() and f"label.{key.rpartition('.')[2]}" in keys("en")


def test_every_key_that_is_said_is_in_the_catalogue() -> None:
    found = said().keys
    assert len(found) > 500
    known = keys("en")
    missing = {key: place for key, place in found.items() if key not in known and not is_label(key)}
    assert missing == {}


# Which argument of a refusal is its text.
REFUSALS = {"FieldError": 1, "SpecError": 0, "ProfileError": 0, "UnsupportedError": 0}
REFUSALS |= {"ConflictError": 0, "NotFoundError": 0}


def test_every_refusal_is_a_message() -> None:
    plain = []
    for path, module in modules():
        for node in ast.walk(module):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in REFUSALS:
                said = node.args[REFUSALS[node.func.id] :][:1]
                if said and isinstance(said[0], ast.JoinedStr | ast.Constant) and not is_empty(said[0]):
                    plain.append(f"{path}:{node.lineno}")
    assert plain == []


def is_empty(said: ast.expr) -> bool:
    return isinstance(said, ast.Constant) and said.value == ""


def test_every_text_is_said_somewhere() -> None:
    """A text whose last name, or the begin of it, stands nowhere in code, tables or templates is dead."""
    words = set(said().words)
    for path in (ROOT / "autodeploy" / "specs").glob("*.yaml"):
        words |= set(re.findall(r"[a-z_]+\.[a-z_]+", path.read_text(encoding="utf-8")))
    for path in (ROOT / "autodeploy").rglob("*.yaml"):
        words |= set(re.findall(r"\{(\w+): \[", path.read_text(encoding="utf-8")))  # forms of records' texts
    for path in (ROOT / "api" / "ui").rglob("*"):
        if path.suffix in {".html", ".js"}:
            words |= set(re.findall(r"[\w.]+", path.read_text(encoding="utf-8")))
    begins = tuple(word.rsplit(".", 1)[-1] for word in words if word.endswith("_") and len(word) > 2)
    ends = tuple(word for word in words if word.startswith("_") and len(word) > 2)
    known = {word.rsplit(".", 1)[-1] for word in words}
    dead = [
        key
        for key in sorted(keys("en"))
        if section(key) not in BY_NAME
        and (last := key.rsplit(".", 1)[-1]) not in known
        and not last.startswith(begins)
        and not last.endswith(ends)
    ]
    assert dead == []


@pytest.mark.parametrize(("count", "english"), [(1, "1 card"), ("1", "1 card"), ("68", "68 cards")])
def test_a_plural_form_follows_the_count(count: int | str, english: str) -> None:
    assert text_of("en", "report.cards", count=count) == english
    assert text_of("zh", "report.cards", count=count).startswith(str(count))


def test_a_section_says_its_texts_alone() -> None:
    say = Section("report")
    assert "best" in say
    assert "no such text" not in say
    assert "days" in say
    assert say("en", "days") == say("en", "run.days") == "days"
    assert say("zh", "best") == "推荐"
    with pytest.raises(KeyError):
        say("en", "no such text")


def test_every_text_of_a_record_is_of_one_that_is_there() -> None:
    records = set(record_texts())
    assert {key for key in catalogue("zh") if section(key) in RECORDS} - records == set()
    # A source that is a title and an address, as of a repository, is cited as it is.
    assert {key for key in records if key not in catalogue("zh") and section(key) != "source"} == set()


def test_blanks_of_a_records_text_are_those_of_its_english() -> None:
    english, chinese = record_texts(), catalogue("zh")
    assert {key for key, text in english.items() if blanks(text) != blanks(chinese.get(key, text))} == set()


def record_texts() -> dict[str, str]:
    """The English of every record by its key."""
    said: list[str] = [rule.text for rule in (*flag_rules(), *load_rules())]
    said += [rule.text for name in FRAMEWORKS for rule in launch_rules(name)]
    for feature in FEATURES.values():
        said += [*feature.model.values(), feature.only_asked, feature.unreleased, *(v.reason for v in feature.launch)]
    said += [e.reason for effects in (flag_effects(), key_effects(), override_effects()) for e in effects.values()]
    said += [parameter.meaning for group in (COMMON, *PARAMETERS.values()) for parameter in group]
    said += [meaning_of(row) for row in PRIOR_WIDTHS]
    said += [source_of(row) for row in PRIOR_WIDTHS]
    routers = {
        f"uncertain_basis.{ROUTER_BASIS.get(name, name)}": each.source for name, each in persistent_shares().items()
    }
    notes = {f"prior_note.{name}": prior.note for name, prior in priors().items()}
    sources = {f"source.{key}": s.title for p in list_profiles() for key, s in load_profile(p).document.sources.items()}
    lacks = {f"lacks.{p}.{name}": text for p in list_profiles() for name, text in load_profile(p).lacks.items()}
    told = {text.key: str(text) for text in said if isinstance(text, Message) and section(text.key) in RECORDS}
    environment = [each for p in list_profiles() for each in load_profile(p).document.environment if each.worth]
    worth = {f"worth.{each.name}": each.worth for each in environment}
    of_releases = {
        release.title.key: str(release.title) for release in releases() if isinstance(release.title, Message)
    }
    stacks = {f"stack_title.{name}": stack.title for name, stack in shipped_stacks().items()}
    return lacks | told | routers | notes | sources | worth | of_releases | stacks


def test_a_message_is_said_in_both_languages_and_read_back() -> None:
    inner = Message("report.cards", count=2)
    message = Message("common.place", place="spec.yaml", message=joined([inner, Message("report.best")], "and"))
    assert message == "spec.yaml: 2 cards and RECOMMENDED"
    assert in_language(message, "zh") == "spec.yaml：2 卡、推荐"
    again = read_keyed(json.loads(json.dumps(keyed(message))), message)
    assert in_language(again, "zh") == in_language(message, "zh")
    assert pickle.loads(pickle.dumps(message)).values == message.values
    assert copy.deepcopy(message).key == message.key


def test_a_stored_doubt_is_known_by_its_english() -> None:
    told = Message("importers.unknown_key")
    placed = Message("common.place", place="moe_router", message=told)
    for text in (told, placed):
        again = recovered(str.__str__(text), ("importers", "specs"))
        assert again == text
        assert in_language(again, "zh") == in_language(text, "zh")
        assert CHINESE.search(in_language(again, "zh"))
    assert recovered("nobody said this: at all", ("importers",)) == "nobody said this: at all"


def test_a_sentence_that_was_worded_otherwise_keeps_its_english_and_has_its_chinese() -> None:
    class Stored(TranslatedDocument):
        said: Text

    old = {"said": "best of all", "messages": {"best of all": keyed(Message("report.best"))}}
    read = Stored.model_validate(old)
    assert read.said == in_language(read.said, "en") == "best of all"
    assert in_language(read.said, "zh") == text_of("zh", "report.best")
    assert read.model_dump() == old
    with pytest.raises(KeyError):
        read_keyed({"key": "report.cards", "values": {}}, "2 cards")


def test_a_stored_sentence_whose_key_or_value_is_gone_keeps_its_english() -> None:
    class Stored(TranslatedDocument):
        said: Text

    for key in ("report.no_such_key", "report.cards"):
        read = Stored.model_validate({"said": "as it was", "messages": {"as it was": {"key": key, "values": {}}}})
        assert read.model_dump() == {"said": "as it was"}
        assert in_language(read.said, "zh") == "as it was"


def test_a_sentence_stored_under_an_earlier_key_is_read_by_todays() -> None:
    assert renamed_keys()
    for old, new in renamed_keys().items():
        assert is_text("en", new)
        assert not is_text("en", old)
    read = read_keyed({"key": "specs.hf_config_cannot_be_read_here", "values": {}}, "worded otherwise")
    assert read == "worded otherwise"
    assert in_language(read, "zh") == text_of("zh", "specs.no_hf_config")


def test_a_records_text_keeps_its_english() -> None:
    message = Message.of_record("rule.world_divides", "the ranks are {n}", n=8)
    assert message == "the ranks are 8"
    assert keyed(message)["english"] == "the ranks are 8"
    assert in_language(Message.of_record("rule.of_mine", "my rule"), "zh") == "my rule"
    assert CHINESE.search(in_language(load_rules()[0].text, "zh"))


def test_a_document_for_writers_of_plain_text_says_messages_in_english() -> None:
    message = Message("importers.unknown_rank_count")
    found = in_plain_text({"doubts": [message], "nested": {"said": (message, 1)}})
    assert found == {"doubts": [str(message)], "nested": {"said": [str(message), 1]}}
    assert type(found["doubts"][0]) is str
    assert str(message) in yaml_text({"doubts": [message]})


def test_lists_of_three_have_one_conjunction() -> None:
    assert joined(("a", "b", "c"), "or") == "a, b or c"
    assert joined(("a", "b"), "and") == "a and b"
    assert joined(("a",), "or") == "a"
    assert joined((), "comma") == ""
    assert in_language(joined(("a", "b", "c"), "or"), "zh") == "a、b 或 c"
