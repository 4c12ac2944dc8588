"""A plan from one line of options, amounts in tokens, recomputation by a word, and the spec that `init` writes."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from ruamel.yaml import YAML
from typer.testing import CliRunner

from autodeploy.analysis.intake import json_schema
from autodeploy.analysis.launch_requests import read_strategy
from autodeploy.cli.main import PANELS, app
from autodeploy.cli.one_line import HEADER, SCHEMA_FILE, one_line_spec
from autodeploy.formats import registry
from autodeploy.kit.errors import SpecError
from autodeploy.specs.reading import read_spec_document, sequences_of

if TYPE_CHECKING:
    from pathlib import Path

CONFIG = {
    "model_type": "mixtral",
    **{"hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8},
    **{"intermediate_size": 14336, "num_local_experts": 8, "num_experts_per_tok": 2, "vocab_size": 32000},
}
NONE = dict.fromkeys(("model", "cluster", "device", "cards", "seq", "batch", "tokens", "target"))
BASE: dict[str, Any] = {
    "model": "llama2-7b",
    "cluster": {"profile": "ascend-800t-a2", "num_npus": 32},
    "training": {"seq_length": 4096, "global_batch_size": 256},
}


@pytest.mark.parametrize(
    ("text", "length", "sequences"),
    [
        ("4M tokens", 8192, 512),
        ("4M-tokens", "8k", 512),
        ("60M tokens", 4096, 15_360),
        ("4m token", 8192, 512),
        ("6M tokens", 6000, 1000),
        ("1.5M tokens", 4096, 384),
        ("4M 个 token", 8192, 512),
        ("1 token", 4096, 1),
        ("4M", 8192, None),
        ("many tokens", 8192, None),
        ("4M tokens", None, None),
    ],
)
def test_a_batch_in_tokens_is_whole_sequences(text: str, length: Any, sequences: int | None) -> None:
    assert sequences_of(text, length) == sequences


@pytest.mark.parametrize("batch", ["1M tokens", {"value": "1M-tokens", "tolerance_pct": 5}])
def test_specs_take_tokens(batch: Any) -> None:
    spec = read_spec_document({**BASE, "training": {"seq_length": "4k", "global_batch_size": batch}})
    assert spec.training.global_batch_size.value == 256


@pytest.mark.parametrize(("word", "modules"), [("none", ()), ("selective", ("core_attn",)), ("full", ())])
def test_recomputation_by_a_word(word: str, modules: tuple[str, ...]) -> None:
    spec = read_spec_document({**BASE, "strategy": {"tp": 2, "recompute": word}})
    assert spec.strategy is not None
    asked = read_strategy({"recompute": word})
    for recompute in (spec.strategy.recompute, asked.recompute):
        assert (recompute.granularity, recompute.modules) == (word, modules)


def test_an_unknown_word_of_recomputation_is_refused() -> None:
    with pytest.raises(SpecError) as refused:
        read_spec_document({**BASE, "strategy": {"recompute": "some"}})
    assert refused.value.errors[0].path == "/strategy/recompute"


@pytest.mark.parametrize(
    ("strategy", "schedule"),
    [
        ({"pp": 2, "vpp": 4}, "interleaved"),
        ({"pp": 2}, "1f1b"),
        ({"pp": 2, "vpp": 2, "schedule": "dualpipev"}, "dualpipev"),
    ],
)
def test_chunks_without_a_schedule_are_interleaved(strategy: dict[str, Any], schedule: str) -> None:
    spec = read_spec_document({**BASE, "strategy": strategy})
    assert spec.strategy is not None
    assert spec.strategy.schedule == schedule


def test_one_line_is_the_spec_that_it_says(tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps(CONFIG))
    given = {"cluster": "ascend-800t-a2", "cards": "64 nodes", "seq": "8k", "batch": "4M-tokens", "tokens": "15T"}
    spec = one_line_spec(None, {**NONE, **given, "model": str(config), "target": "megatron"})
    assert spec.cluster.num_npus == 512
    assert (spec.training.seq_length, spec.training.global_batch_size.value) == (8192, 512)
    assert (spec.training.tokens, spec.search.target) == (15e12, "megatron")
    preset = one_line_spec(None, {**NONE, **given, "model": "llama2-7b", "cards": "1,024"})
    assert (preset.model.name, preset.cluster.num_npus) == (read_spec_document(BASE).model.name, 1024)


@pytest.mark.parametrize(("spec_file", "given"), [("x.yaml", {"cards": "8"}), (None, {"cards": "8"}), (None, {})])
def test_a_file_or_options_but_one_of_them(spec_file: str | None, given: dict[str, str]) -> None:
    with pytest.raises(SpecError):
        one_line_spec(spec_file, {**NONE, **given})


def test_what_is_missing_is_named() -> None:
    with pytest.raises(SpecError) as refused:
        one_line_spec(None, {**NONE, "model": "llama2-7b", "cluster": "ascend-800t-a2", "cards": "8"})
    assert {error.path for error in refused.value.errors} == {"/training"}


def test_init_writes_a_spec_and_its_schema_and_overwrites_nothing(tmp_path: Path) -> None:
    file = tmp_path / "my.yaml"
    words = ["init", "--model", "llama2-7b", "--batch", "1M-tokens", "-o", str(file)]
    assert CliRunner().invoke(app, words).exit_code == 0
    text = file.read_text()
    assert text.startswith(HEADER)
    assert read_spec_document(YAML(typ="safe").load(text)).training.global_batch_size.value == 256
    assert json.loads((tmp_path / SCHEMA_FILE).read_text()) == json_schema("spec")
    assert CliRunner().invoke(app, words).exit_code != 0
    assert file.read_text() == text


def test_every_command_has_a_group_in_the_help() -> None:
    shown = CliRunner().invoke(app, ["--help"]).stdout
    assert all(panel in shown for panel in PANELS)
    assert "─ Commands ─" not in shown


def test_the_help_of_export_names_every_format() -> None:
    shown = CliRunner().invoke(app, ["export", "--help"], env={"COLUMNS": "400"}).stdout
    assert ", ".join(registry.FORMATS) in shown
