"""Spec files: what is read, what is refused, and that hostile files cost nothing."""

from __future__ import annotations

import json

import pytest

from autodeploy.kit.errors import SpecError
from autodeploy.specs.reading import read_spec_document, read_spec_file
from autodeploy.specs.text_files import MAX_BYTES, load_json, load_yaml, read_document
from tests import factories
from tests.support.cpu_time import least_cpu_s

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "vocab_size": 128256,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
}
SPEC = """\
model: {hf_config: ./checkpoint/config.json, name: my llama}
cluster: {profile: ascend-800t-a2, num_npus: 8}
training: {seq_length: 4096, global_batch_size: 64, tokens: 14.8e12}
"""


@pytest.fixture
def spec_path(tmp_path):
    (tmp_path / "checkpoint").mkdir()
    (tmp_path / "checkpoint" / "config.json").write_text(json.dumps(LLAMA))
    path = tmp_path / "spec.yaml"
    path.write_text(SPEC)
    return path


def errors_of(document, base_dir=None):
    with pytest.raises(SpecError) as caught:
        read_spec_document(document, base_dir)
    return {error.path: error for error in caught.value.errors}


def test_yaml_spec_with_a_config_next_to_it(spec_path):
    spec = read_spec_file(spec_path)
    assert spec.model.name == "my llama"
    assert spec.model.num_key_value_heads == 8
    assert spec.training.tokens == 14.8e12


def test_a_config_directory_will_do(spec_path):
    spec_path.write_text(SPEC.replace("./checkpoint/config.json", "checkpoint"))
    assert read_spec_file(spec_path).model.hidden_size == 4096


def test_json_and_yaml_give_the_same_spec(tmp_path):
    document = factories.spec_document()
    (tmp_path / "spec.json").write_text(json.dumps(document))
    (tmp_path / "spec.yaml").write_text(json.dumps(document))  # YAML holds JSON
    assert read_spec_file(tmp_path / "spec.json") == read_spec_file(tmp_path / "spec.yaml")


def test_a_document_from_the_network_names_no_files():
    document = factories.spec_document(model={"hf_config": "/etc/passwd"})
    assert "cannot be used here" in errors_of(document)["/model/hf_config"].message
    document = factories.spec_document()
    document["cluster"]["profile"] = "/etc/profile.yaml"
    assert "cannot be used here" in errors_of(document)["/cluster/profile"].message


def test_a_config_inside_the_document_is_a_model():
    spec = read_spec_document(factories.spec_document(model={"hf_config": LLAMA}))
    assert spec.model.intermediate_size == 14336


def test_mistakes_in_the_config_have_their_place():
    found = errors_of(factories.spec_document(model={"hf_config": LLAMA | {"hidden_size": -1}, "nmae": "x"}))
    assert "did you mean name" in found["/model/nmae"].hint
    found = errors_of(factories.spec_document(model={"hf_config": LLAMA | {"hidden_size": -1}}))
    assert any(path.startswith("/model/hf_config") for path in found)


def test_a_missing_config_is_told(spec_path):
    (spec_path.parent / "checkpoint" / "config.json").unlink()
    with pytest.raises(SpecError, match="cannot read") as caught:
        read_spec_file(spec_path)
    assert caught.value.errors[0].path == "/model/hf_config"


def test_all_mistakes_at_once():
    document = factories.spec_document(targt="any")
    document["cluster"] |= {"profile": "cloudmatrix-348"}
    document["training"]["seq_lenght"] = 4096
    found = errors_of(document)
    assert found.keys() >= {"/cluster/profile", "/training/seq_lenght", "/search/targt"}
    assert "cloudmatrix-384" in found["/cluster/profile"].hint


def test_the_grade_and_the_overrides_belong_to_the_profile():
    document = factories.spec_document()
    document["cluster"] |= {"device": "910Z", "overrides": {"no.such_number": 1.0}}
    found = errors_of(document)
    assert found.keys() == {"/cluster/device", "/cluster/overrides/no.such_number"}


def test_an_own_profile_is_looked_for_next_to_the_spec(tmp_path):
    (tmp_path / "mine.yaml").write_text("name: mine\n")
    document = factories.spec_document()
    document["cluster"]["profile"] = "mine.yaml"
    assert "/cluster/profile" in errors_of(document, tmp_path)  # found, and refused for what it lacks
    document["cluster"]["profile"] = "other.yaml"
    assert "other.yaml" in errors_of(document, tmp_path)["/cluster/profile"].message


@pytest.mark.parametrize(
    ("document", "word"),
    [(LLAMA, "config.json"), ({"plans": [], "search": {}}, "PlanSet"), ([1], "mapping"), (None, "mapping")],
)
def test_other_documents_are_recognised(document, word):
    with pytest.raises(SpecError, match=word):
        read_spec_document(document)


def nested(depth):
    return "[" * depth + "]" * depth


BOMB = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{name}: &{name} [{','.join([f'*{before}'] * 9)}]\n" for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.mark.parametrize(
    ("load", "text", "word"),
    [
        (load_yaml, BOMB, "at most 5,000 entries"),
        (load_yaml, "a: &a [*a]", "refers to itself"),
        (load_yaml, "a: *b", "is undefined"),
        (load_yaml, "a: &x 1\nb: &x 2", "given twice"),
        (load_yaml, "[" * 100_000, "32 levels deep"),
        (load_yaml, "- " * 100_000, "32 levels deep"),
        (load_yaml, "a:\n" + "- 1\n" * 100_000, "at most 5,000 entries"),
        (load_yaml, "a: 1\na: 2", "line 2, column 1"),
        (load_yaml, "a:\n\t- b", "line 2, column 1"),
        (load_yaml, "a: !!python/object:os.system x", "line 1, column 4"),
        (load_yaml, "a: 1\n---\nb: 2", "several YAML documents"),
        (load_yaml, "a: 2026-13-45", "month"),
        (load_yaml, "a: \x01", "unexpected control character"),
        (load_yaml, "a: " + "9" * 10_000, "is too big"),
        (load_json, nested(100_000), "32 levels deep"),
        (load_json, nested(40), "32 levels deep"),
        (load_json, "[" + "1," * 40_000 + "1]", "at most 30,000 entries"),
        (load_json, '{"a": NaN}', "NaN"),
        (load_json, '{"a": 1, "a": 2}', "given twice"),
        (load_json, '{"a": 1,}', "line 1, column"),
        (load_json, '{"a": ' + "9" * 10_000 + "}", "4300 digits"),
    ],
)
def test_hostile_and_broken_text_is_refused_at_once(load, text, word):
    def refuse():
        with pytest.raises(SpecError) as caught:
            load(text)
        assert word in str(caught.value)

    assert least_cpu_s(refuse, limit_s=1.0) < 1.0


def test_yaml_is_version_1_2():
    assert load_yaml("{a: 1e-6, b: on, c: 010, d: 14.8e12}") == {"a": 1e-6, "b": "on", "c": 10, "d": 14.8e12}


def test_anchors_are_welcome_in_moderation():
    assert load_yaml("a: &a {x: 1}\nb: *a\nc: {<<: *a, y: 2}")["c"] == {"x": 1, "y": 2}


def test_files_that_are_none(tmp_path):
    large = tmp_path / "large.yaml"
    large.write_bytes(b"#" * (MAX_BYTES + 1))
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    for path, word in [
        (large, "larger than"),
        (tmp_path / "binary.yaml", "not UTF-8"),
        (tmp_path / "missing.yaml", "cannot read"),
        (tmp_path, "directory"),
    ]:
        with pytest.raises(SpecError, match=word):
            read_document(path)


def test_the_file_is_named_when_it_is_broken(tmp_path):
    path = tmp_path / "spec.yaml"
    path.write_text("model: [\n")
    with pytest.raises(SpecError, match=r"spec\.yaml: line 2, column 1"):
        read_spec_file(path)


def test_a_raw_hugging_face_configuration_is_a_model() -> None:
    document = {
        "model": LLAMA,
        "cluster": {"profile": "ascend-800t-a2", "num_npus": 8},
        "training": {"seq_length": 8192, "global_batch_size": 64},
    }
    spec = read_spec_document(document)
    assert spec.model.num_key_value_heads == 8
    assert spec == read_spec_document(document | {"model": {"hf_config": LLAMA}})


@pytest.mark.parametrize("field", ["fix", "allow", "forbid"])
@pytest.mark.parametrize(
    ("axis", "value", "hint"),
    [
        ("etp", "dualpipev", "at least 1"),
        ("dp", -1, "at least 1"),
        ("tp", 10**12, "at least 1"),
        ("schedule", 3, "one of 1f1b, "),
        ("moe_dispatcher", "flat", "one of alltoall, "),
    ],
)
def test_an_axis_is_held_only_to_values_that_exist(field, axis, value, hint):
    constraint = {axis: value if field == "fix" else [value]}
    with pytest.raises(SpecError) as caught:
        read_spec_document(factories.spec_document() | {"search": {field: constraint}})
    (error,) = caught.value.errors
    assert (error.path, error.message) == (f"/search/{field}", f"{axis} cannot be {str(value)!r}")
    assert error.hint.startswith(hint)


def test_numbers_of_an_axis_may_be_written_as_text():
    search = {"fix": {"tp": "8"}, "allow": {"pp": ["2", 4]}, "forbid": {"schedule": ["1f1b"]}}
    spec = read_spec_document(factories.spec_document() | {"search": search})
    assert (spec.search.fix, spec.search.allow) == ({"tp": 8}, {"pp": (2, 4)})
    assert spec.search.forbid == {"schedule": ("1f1b",)}
