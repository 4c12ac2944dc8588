"""What an import leaves in doubt travels: into the document, the spec, the PlanSet and the exported script."""

from __future__ import annotations

import json
from typing import Any

import pytest

from autodeploy.formats.import_document import import_document
from autodeploy.formats.registry import export
from autodeploy.kit.errors import SpecError
from autodeploy.specs.reading import read_spec_document
from autodeploy.specs.spec import parse_spec, spec_hash
from tests import factories

CONFIG: dict[str, Any] = {
    "architectures": ["NewForCausalLM"],
    "hidden_size": 1024,
    "num_hidden_layers": 4,
    "vocab_size": 32_000,
    "num_attention_heads": 8,
    "intermediate_size": 4096,
    "some_new_key": 3,
}
REST: dict[str, Any] = {
    "cluster": {"profile": "ascend-800t-a2", "num_npus": 8},
    "training": {"seq_length": 4096, "global_batch_size": 8},
}
UNKNOWN = "some_new_key: unknown, check that it does not change the prediction"


def test_doubts_of_a_config_are_in_the_document_and_in_the_spec():
    assert UNKNOWN in import_document(json.dumps(CONFIG), "config.json").document["doubts"]
    told: list[str] = []
    spec = read_spec_document({"model": {"hf_config": CONFIG}, **REST}, doubt=told.append)
    assert UNKNOWN in spec.doubts
    assert tuple(told) == spec.doubts
    again = read_spec_document(spec.model_dump(mode="json"))
    assert again == spec


def test_doubts_are_in_an_exported_script_as_one_line_each():
    plan_set = factories.plan_set()
    spec = {**plan_set.search.spec, "doubts": ["line 3: --x = 1\n rm -rf /\x00"]}
    search = plan_set.search.model_copy(update={"spec": spec})
    told = plan_set.model_copy(update={"search": search})
    for to in ("mindspeed-llm", "megatron"):
        artefact = export(told, told.plans[0], to)
        assert "please check: line 3: --x = 1 rm -rf /" in artefact.notes[0].rstrip()
        assert "# Note: please check: line 3: --x = 1 rm -rf /" in artefact.text


def test_only_doubts_change_the_hash_of_a_spec():
    document = {"model": "llama2-7b", **REST}
    plain = parse_spec(document)
    assert spec_hash(plain) == spec_hash(parse_spec({**document, "doubts": []}))
    assert spec_hash(plain) != spec_hash(parse_spec({**document, "doubts": ["a doubt"]}))


@pytest.mark.parametrize("doubts", [["x" * 2001], ["x"] * 201, [""], "text"])
def test_doubts_have_bounds(doubts: Any):
    with pytest.raises(SpecError, match="doubts"):
        parse_spec({"model": "llama2-7b", **REST, "doubts": doubts})
