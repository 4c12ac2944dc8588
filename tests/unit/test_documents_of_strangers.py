"""Documents of strangers: bounded before they are parsed, and never dear; measured in a process of their own."""

from __future__ import annotations

import json
import random
import sys
from itertools import islice
from typing import TYPE_CHECKING, Any

import pytest

from autodeploy.analysis.intake import read_spec
from autodeploy.analysis.launch_requests import read_strategy
from autodeploy.cli import main
from autodeploy.kit.errors import MOST_LISTED, SpecError
from autodeploy.messages.field_faults import MOST_HINTS
from autodeploy.specs.text_files import (
    MAX_DEPTH,
    MAX_KEY_LENGTH,
    MAX_VALUES,
    load_json,
    load_yaml,
    scan_json,
    scan_toml,
)
from tests import factories
from tests.support import document_fuzz
from tests.support.document_fuzz import MOST_MB, MOST_S, pumped_all
from tests.support.document_grammars import FORMATS
from tests.support.hostile_documents import DOCUMENTS, RECIPE
from tests.support.pace import at_most, limit_here_s

if TYPE_CHECKING:
    from pathlib import Path

SUFFIXES = {"toml": ".toml", "yaml": ".yaml", "json": ".json", "shell": ".sh", "hydra": ".sh"}
STRIDE = 67
GENERATED = 40


def held(found: document_fuzz.Findings) -> None:
    assert found.documents
    assert not found.tracebacks, found.faults
    assert found.most_s < limit_here_s(MOST_S), found.faults
    assert found.most_mb < MOST_MB, found.faults


@pytest.mark.parametrize("name", FORMATS)
def test_no_document_of_200_kb_costs_more_than_2_s_or_300_mb(name: str) -> None:
    held(document_fuzz.judge(name, DOCUMENTS[name].values()))


@pytest.mark.parametrize("name", FORMATS)
def test_whatever_is_repeated_to_200_kb_costs_no_more(name: str) -> None:
    held(pumped_all(name, STRIDE))


@pytest.mark.parametrize("name", FORMATS)
def test_generated_documents_are_read_or_refused(name: str) -> None:
    found = document_fuzz.judge(name, islice(document_fuzz.documents(FORMATS[name], seed=7), GENERATED))
    held(found)
    assert found.accepted + found.refused == found.documents


@pytest.mark.parametrize("name", FORMATS)
def test_generated_documents_are_of_every_kind(name: str) -> None:
    made = document_fuzz.documents(FORMATS[name], seed=3)
    texts = [next(made) for _ in range(200)]
    assert len(set(texts)) > 150
    assert max(map(len, texts)) > 100_000
    assert document_fuzz.sentence(FORMATS[name], "document", random.Random(1))


@pytest.mark.parametrize(
    "text", ["[1, 2", "{}", "[[[]]]", '["a", {"b": [1, {"c": null}]}, "]["]', '"[[[["', "-1.5e3", "[ ]"]
)
@pytest.mark.parametrize("most", [1, 2, 3, 7, 8, 100])
def test_values_of_json_are_counted_as_they_are_built(text: str, most: int) -> None:
    def count(value: Any) -> int:
        inside = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
        return 1 + sum(map(count, inside))

    try:
        values = count(json.loads(text))
    except ValueError:
        return
    if values <= most:
        scan_json(text, most)
    else:
        with pytest.raises(SpecError, match="entries"):
            scan_json(text, most)


@pytest.mark.parametrize(
    ("opening", "closing", "scan"),
    [
        ("[", "]", scan_json),
        ('{"a":', "}", scan_json),
        ("[", "]", lambda text: scan_toml("a = " + text)),
        ("{a=", "}", scan_toml),
    ],
)
def test_the_deepest_nesting_is_taken_and_one_more_refused(opening: str, closing: str, scan: Any) -> None:
    scan(opening * MAX_DEPTH + "1" + closing * MAX_DEPTH)
    with pytest.raises(SpecError, match=f"{MAX_DEPTH} levels"):
        scan(opening * (MAX_DEPTH + 1) + "1" + closing * (MAX_DEPTH + 1))


@pytest.mark.parametrize(
    "text",
    [
        'a = "' + "[" * 500 + '"',
        "a = '''\n" + "[{.=" * 500 + "\n'''",
        'a = """' + '\\"[' * 500 + '"""',
        "# " + "[." * 500 + "\na = 1",
        "a = [" + "1.5, " * 500 + "]",
        "".join(f"[t{n}]\na.b.c = {n}.5\n" for n in range(500)),
        'a = "' + "x" * 5_000 + '"',
    ],
)
def test_what_stands_in_texts_and_comments_of_toml_is_no_nesting(text: str) -> None:
    scan_toml(text)


@pytest.mark.parametrize(
    ("load", "text"),
    [
        (load_json, '{"' + "k" * (MAX_KEY_LENGTH + 1) + '" : 1}'),
        (scan_toml, "k" * (MAX_KEY_LENGTH + 1) + " = 1"),
        (scan_toml, RECIPE + '"' + "k" * MAX_KEY_LENGTH + '" = 1'),
        (lambda key: read_strategy({key: 1}), "k" * (MAX_KEY_LENGTH + 1)),
        (lambda text: scan_toml("[a]\n" + text), "k" * (MAX_KEY_LENGTH + 1) + ".a = 1"),
    ],
)
def test_a_long_key_is_refused(load: Any, text: str) -> None:
    with pytest.raises(SpecError, match="a key has at most 1,000 characters"):
        load(text)


@pytest.mark.parametrize("parts", [MAX_DEPTH + 2, 1_000, 100_000])
def test_a_dotted_axis_of_many_parts_is_refused(parts: int) -> None:
    for document in ({".".join("a" * parts): 1}, {".".join("a" * parts): 1, ".".join("a" * (parts - 1)): 2}):
        with pytest.raises(SpecError):
            read_strategy(document)


def test_an_alias_counts_with_all_its_characters() -> None:
    assert len(load_yaml("a: &a '" + "x" * 1_000 + "'\nb: [" + "*a, " * 100 + "]")["b"]) == 100
    with pytest.raises(SpecError, match="characters"):
        load_yaml("a: &a '" + "x" * 100_000 + "'\nb: [" + "*a, " * 100 + "]")


MANY = 20_000
MISTAKES: dict[str, dict[str, Any]] = {
    "model": {"model": {"name": "a", **{f"hiden_size{n}": 1 for n in range(MANY)}}},
    "training": {"training": {"seq_length": 1, "global_batch_size": 1, **{f"seq_lenght{n}": 1 for n in range(MANY)}}},
    "features": {"search": {"features": {f"swap_optimiser{n}": True for n in range(MANY)}}},
    "overrides": {
        "cluster": {
            "profile": "ascend-800t-a2",
            "num_npus": 16,
            "overrides": {f"hbm.gb_pers{n}": 1.0 for n in range(MANY)},
        }
    },
    "axes": {"search": {"fix": {f"tpp{n}": 1 for n in range(MANY)}}},
    "spec": {f"modelname{n}": 1 for n in range(MANY)},
    "configuration": {"model": {"hf_config": {"model_type": "llama"}, **{f"hiden_size{n}": 1 for n in range(MANY)}}},
}


@pytest.mark.parametrize("name", MISTAKES)
def test_hints_are_looked_for_only_for_the_first_mistakes_and_all_are_counted(name: str) -> None:
    document = factories.spec_document() | MISTAKES[name]
    with at_most(MOST_S), pytest.raises(SpecError) as caught:
        read_spec(document)
    errors = caught.value.errors
    assert len(errors) == MOST_LISTED + 1
    assert sum("did you mean" in each.hint for each in errors) <= MOST_HINTS
    (rest,) = (each for each in errors if not each.path)
    assert int(str(rest.message).split()[0].replace(",", "")) >= MANY - MOST_LISTED


@pytest.mark.parametrize("count", [1, MOST_HINTS])
def test_few_mistakes_all_have_their_hints(count: int) -> None:
    training = factories.spec_document()["training"] | {f"seq_lenght{n}": 1 for n in range(count)}
    with pytest.raises(SpecError) as caught:
        read_spec(factories.spec_document() | {"training": training})
    assert sum("did you mean" in each.hint for each in caught.value.errors) == count


@pytest.mark.parametrize("name", SUFFIXES)
@pytest.mark.parametrize("command", ["import", "check"])
def test_the_command_line_refuses_what_is_hostile_in_its_own_words(
    name: str, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("AUTODEPLOY_DATABASE_URL", f"sqlite:///{tmp_path / 'none.db'}")
    for what in list(DOCUMENTS[name])[:7]:
        path = tmp_path / f"x{SUFFIXES[name]}"
        path.write_text(DOCUMENTS[name][what], encoding="utf-8")
        monkeypatch.setattr(sys, "argv", ["autodeploy", command, str(path)])
        with pytest.raises(SystemExit) as left:
            main.run()
        said = capsys.readouterr()
        assert left.value.code in {0, 2}, (what, said.err[:500])
        assert left.value.code == 2 or (command == "import" and what == "escapes")
        assert "Error:" not in said.err.replace("error:", "")
        assert "Traceback" not in said.err
        assert len(said.err) < 5_000, what


def test_values_are_bounded_in_every_notation() -> None:
    for load, text in ((load_json, "[" + "1," * MAX_VALUES + "1]"), (scan_toml, "a=[" + "1," * (MAX_VALUES + 1) + "]")):
        with pytest.raises(SpecError, match="entries"):
            load(text)
