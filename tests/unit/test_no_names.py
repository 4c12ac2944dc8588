"""Product code asks what a schedule, a framework or a chip can do, never what it is called.

Names stand where they are data: in records, in what is read from files and in what is written to them. Anywhere else a
comparison with a name, or a collection of names to compare with, would have to be found and changed with every new one.
"""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path

import pytest

from autodeploy.stack.frameworks import launchers
from cost_models.schedule import SCHEDULES
from hardware_profiles.loader import list_profiles

ROOT = Path(__file__).resolve().parents[2]
PRODUCT = ("autodeploy", "api", "cost_models", "hardware_profiles")
VOCABULARIES = {
    "schedule": frozenset(SCHEDULES),
    "framework": frozenset(launchers()),
    # With what their names begin with, as far as "-".
    "profile": frozenset({*list_profiles(), *(name.partition("-")[0] for name in list_profiles())}),
}
# Files and folders that may say a name, by vocabulary.
ALLOWED: dict[str, tuple[str, ...]] = {
    "schedule": (
        "autodeploy/formats",
        "autodeploy/formats",
        "autodeploy/stack",
        "autodeploy/specs/record_words.py",  # words of measured runs
        "cost_models/schedule/kinds.py",
    ),
    "framework": (
        "autodeploy/formats",
        "autodeploy/formats",
        "autodeploy/stack",
        "api/routes/plans.py",  # an example in its schema
    ),
    "profile": (
        "autodeploy/specs/cluster.py",  # an example in its schema
        "autodeploy/specs/record_words.py",  # words of measured runs
    ),
}
HELD = tuple(ALLOWED)
ASKING = {"index", "count", "startswith", "endswith", "removeprefix", "removesuffix", "find"}


def said(tree: ast.AST, names: frozenset[str]) -> list[tuple[int, str]]:
    """Lines that compare with a name of the vocabulary, and the name."""
    found: list[tuple[int, str]] = []

    def take(node: ast.AST) -> None:
        for each in ast.walk(node):
            if isinstance(each, ast.Constant) and each.value in names and isinstance(each.value, str):
                found.append((each.lineno, each.value))

    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            take(node)
        elif isinstance(node, ast.match_case):
            take(node.pattern)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in ASKING:
            for argument in node.args:
                take(argument)
        elif isinstance(node, ast.Set | ast.List | ast.Tuple) and node.elts:
            # A collection of nothing but names is there to be compared with.
            words = [each.value for each in node.elts if isinstance(each, ast.Constant)]
            if len(words) == len(node.elts) and all(isinstance(word, str) and word in names for word in words):
                take(node)
    return sorted(set(found))


def product_files() -> list[Path]:
    return sorted(path for room in PRODUCT for path in (ROOT / room).rglob("*.py"))


@pytest.mark.parametrize("vocabulary", HELD)
def test_nothing_asks_for_a_name(vocabulary: str) -> None:
    names = VOCABULARIES[vocabulary]
    quoted = re.compile(rf"[\"'](?:{'|'.join(map(re.escape, names))})[\"']")
    offending = []
    for path in product_files():
        name, text = path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8")
        if name.startswith(ALLOWED[vocabulary]) or not quoted.search(text):
            continue
        offending += [f"{name}:{line}: {word}" for line, word in said(ast.parse(text), names)]
    assert offending == []


@pytest.mark.parametrize("vocabulary", HELD)
def test_every_exception_is_there(vocabulary: str) -> None:
    for name in ALLOWED[vocabulary]:
        assert (ROOT / name).exists(), name


@pytest.mark.parametrize(
    "text",
    [
        'x = schedule == "dualpipev"',
        'if strategy.schedule not in {"1f1b", "interleaved"}: pass',
        'twice = candidates.schedule == SCHEDULES.index("dualpipe")',
        'PAIRED = frozenset({"adaptive_pipe", "dualpipev"})',
        'copies = 2 if problem.schedule == "dualpipe" else 1',
        'match kind:\n    case "1f1b" | "interleaved":\n        pass',
        'both = kind in ("dualpipev", "dualpipe")',
        'for name in ("adaptive_pipe", "dualpipev"): pass',
    ],
)
def test_comparisons_are_found(text: str) -> None:
    assert said(ast.parse(text), VOCABULARIES["schedule"])


@pytest.mark.parametrize(
    ("vocabulary", "text"),
    [
        ("framework", 'lacks = context.target == "mindspeed-llm"'),
        ("framework", 'FLAGGED = frozenset({"mindspeed-llm", "megatron"})'),
        ("profile", 'ascend = not profile.name.startswith("nvidia")'),
        ("profile", 'if name == "mc2" and profile_name == "cloudmatrix-384": pass'),
    ],
)
def test_names_of_frameworks_and_chips_are_found(vocabulary: str, text: str) -> None:
    assert said(ast.parse(text), VOCABULARIES[vocabulary])


@pytest.mark.parametrize(
    "text",
    [
        '"""Under dualpipe each part is given twice."""',
        'schedule: str = "1f1b"',
        'hint = "1f1b or interleaved takes them"',
        "folded = kinds.schedule(name).folded",
        'paired_share(4, 2, 8, kind="adaptive_pipe")',
    ],
)
def test_what_only_says_a_name_is_left_alone(text: str) -> None:
    assert said(ast.parse(text), VOCABULARIES["schedule"]) == []


def record_ids() -> frozenset[str]:
    """Ids of all shipped records: those of code that treats one run apart would be found by them."""
    folder = ROOT / "autodeploy" / "calibration" / "records"
    lines = [line for path in folder.glob("*.jsonl") for line in path.read_text(encoding="utf-8").splitlines()]
    return frozenset(json.loads(line)["id"] for line in lines)


def words_of(text: str) -> set[str]:
    return set(re.findall(r"[\w.-]*\w", text))


def test_no_record_is_named_in_product_code() -> None:
    ids = record_ids()
    assert len(ids) > 500
    named = {
        f"{path.relative_to(ROOT)}: {word}"
        for path in product_files()
        for word in words_of(path.read_text(encoding="utf-8")) & ids
    }
    assert named == set()


def test_a_record_in_code_would_be_found() -> None:
    assert words_of('if record.id == "MSF01": # not vtrain_multi_027.') & record_ids() == {"MSF01", "vtrain_multi_027"}
