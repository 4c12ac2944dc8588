"""Documents that are no spec: refused, by name where their keys tell the framework."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from autodeploy.cli import main
from autodeploy.formats.import_document import import_document
from autodeploy.kit.errors import SpecError, UnsupportedError
from autodeploy.specs.reading import read_spec_document

EXAMPLES = Path(__file__).parents[2] / "examples"
# Top-level keys of public configurations, with values of our own.
FRAMEWORKS = {
    "FlagScale": "system: {tensor_model_parallel_size: 1}\nmodel: {num_layers: 2, hidden_size: 64}\ndata: {split: 1}\n",
    "Megatron-MoE-ModelZoo": "ENV_VARS: {CUDA_DEVICE_MAX_CONNECTIONS: 1}\nMODEL_ARGS: {--num-layers: 4}\n",
    "Megatron-MoE-ModelZoo ": "--num-layers: 61\n--hidden-size: 7168\n--bf16: true\n",
    "LLaMA-Factory": "model_name_or_path: Qwen/Qwen3-8B\nstage: sft\nfinetuning_type: full\ntemplate: qwen3\n",
    "axolotl": "base_model: meta-llama/Meta-Llama-3-8B\nmodel_type: LlamaForCausalLM\ndatasets: [{path: x}]\n",
    "DeepSpeed": json.dumps({"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 3}, "bf16": {}}),
    "DeepSpeed ": json.dumps({"train_batch_size": 64, "optimizer": {"type": "AdamW"}}),
    "NeMo": "name: gpt\ntrainer: {devices: 8}\nexp_manager: {name: gpt}\nmodel: {micro_batch_size: 4}\n",
    "Megatron Bridge": "model: {num_layers: 4}\ntrain: {iters: 8}\nddp: {}\nscheduler: {warmup: 1}\n",
    "Accelerate": "compute_environment: LOCAL_MACHINE\ndistributed_type: FSDP\nnum_processes: 8\n",
}
UNTOLD = [
    "hello: world\n",
    "{}",
    "services: {web: {image: nginx}}\nversion: 3\n",
    "model: 7b\nprompt: hello\ntemperature: 0.5\n",
    "- model: x\n- cluster: y\n",
    "1: 2\n3: 4\n",
    "plan_id: pln_1\nstep_time_ms: 3.5\n",
]


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_configurations_of_frameworks_are_refused_by_name(name):
    text = FRAMEWORKS[name]
    with pytest.raises(UnsupportedError) as caught:
        import_document(text, "a.json" if text.startswith("{") else "a.yaml")
    message = caught.value.errors[0].message
    assert message.key == "importers.configuration_of"
    assert message.values["framework"] == name.strip()
    assert caught.value.errors[0].path.startswith("/")
    assert caught.value.hint


def test_an_experiment_of_flagscale_asks_for_its_task():
    text = "defaults: [_self_, train: 4b]\nexperiment: {exp_name: x}\naction: run\nhydra: {run: {dir: x}}\n"
    with pytest.raises(SpecError) as caught:
        import_document(text, "a.yaml")
    (error,) = caught.value.errors
    assert (error.message.key, error.path) == ("importers.absent_file", "/defaults")


@pytest.mark.parametrize("text", UNTOLD)
def test_documents_that_nobody_knows_are_no_spec(text):
    with pytest.raises(SpecError) as caught:
        import_document(text, "a.yaml")
    assert [error.message.key for error in caught.value.errors] == ["importers.not_importable"]


@pytest.mark.parametrize("name", ["FlagScale", "NeMo", "axolotl", "DeepSpeed", "Accelerate"])
def test_a_plan_of_them_says_the_framework_alone(name):
    document = import_yaml(FRAMEWORKS[name])
    with pytest.raises(UnsupportedError, match=name) as caught:
        read_spec_document(document)
    assert len(caught.value.errors) == 1


def import_yaml(text):
    from autodeploy.specs.text_files import load_yaml

    return load_yaml(text)


@pytest.mark.parametrize("command", ["import", "check"])
@pytest.mark.parametrize("text", ["hello: world\n", FRAMEWORKS["FlagScale"]])
def test_commands_refuse_them_with_one_error(command, text, tmp_path, monkeypatch, capsys):
    (tmp_path / "any.yaml").write_text(text)
    arguments = [command, str(tmp_path / "any.yaml"), "--cluster", "nvidia-h100", "--num-npus", "8"]
    monkeypatch.setattr("sys.argv", ["autodeploy", *arguments])
    with pytest.raises(SystemExit) as stopped:
        main.run()
    told = capsys.readouterr()
    assert stopped.value.code == 2
    assert told.out == ""
    assert told.err.count("not a file that can be imported") == 1
    assert len(told.err.splitlines()) == 2


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.yaml")), ids=lambda path: path.stem)
def test_every_example_is_read_as_a_spec(path):
    imported = import_document(path.read_text(), path.name)
    assert imported.kind == "spec"
    assert imported.document["model"]


@pytest.mark.parametrize(
    "slips", ["models: x", "searches: {}\ntrainings: {}", "notes: mine", "Strategy: {tp: 1}", "gbs: 8"]
)
def test_a_spec_with_slips_is_told_of_them(slips):
    text = f"cluster: {{profile: ascend-800t-a2, num_npus: 8}}\nmodel: qwen3-8b\ntraining: {{}}\n{slips}\n"
    with pytest.raises(SpecError) as caught:
        import_document(text, "a.yaml").spec()
    assert {f"/{line.split(':')[0]}" for line in slips.splitlines()} <= {error.path for error in caught.value.errors}
