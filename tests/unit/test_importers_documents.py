"""MindFormers configurations, PlanSets and the one entry for every file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from ruamel.yaml import YAML

from autodeploy.analysis.launch_checks.launch import launch_of
from autodeploy.formats.import_document import import_document, import_file
from autodeploy.formats.registry import export
from autodeploy.kit.errors import SpecError
from tests import factories
from tests.support.pace import at_most

FILES = Path(__file__).parent.parent / "launch_files"


def changed(**changes):
    """The made-up configuration with other values, by dotted path with two underscores for a dot."""
    document = YAML(typ="safe").load((FILES / "mindformers_moe.yaml").read_text())
    for path, value in changes.items():
        *parents, last = path.split("__")
        place = document
        for parent in parents:
            place = place.setdefault(parent, {})
        place[last] = value
    return json.dumps(document)


def test_a_mindformers_configuration_is_a_spec():
    imported = import_file(FILES / "mindformers_moe.yaml")
    assert (imported.kind, imported.target, imported.ranks) == ("mindformers-yaml", "mindformers", 64)
    spec = imported.spec("ascend-800t-a2")
    strategy = spec.strategy
    assert (spec.cluster.num_npus, spec.training.seq_length, spec.training.global_batch_size.value) == (64, 4096, 256)
    assert (strategy.tp, strategy.pp, strategy.vpp, strategy.ep, strategy.etp) == (2, 4, 2, 16, 1)
    assert strategy.schedule == "interleaved"
    assert strategy.layers_per_stage == ((2, 2), (3, 2), (3, 2), (2, 2))
    assert [row.get("full", 0) for row in strategy.recompute.per_stage] == [2, 1, 1, 0]
    assert strategy.swap == ("attention",)
    graph = ("fused_rmsnorm", "overlap_grad_reduce", "overlap_param_gather")  # without a key of their own
    assert strategy.features == tuple(sorted(("flash_attention", "grouped_gemm", *graph)))
    assert (spec.model.n_routed_experts, spec.model.first_k_dense_replace, spec.model.qk_norm) == (32, 1, True)
    kept = {flag.name for flag in imported.kept}
    assert "model.model_config.a_key_of_ours" in kept
    assert "parallel_config.model_parallel" not in kept


def test_a_framework_reads_words_as_booleans():
    """PyYAML, with which MindFormers reads, keeps to YAML 1.1."""
    text = (FILES / "mindformers_moe.yaml").read_text()
    in_words = text.replace(": true", ": yes").replace(": True", ": On").replace(": false", ": off")
    assert in_words != text
    assert yaml.safe_load(in_words) == yaml.safe_load(text)
    assert import_document(in_words, "a.yaml").document == import_document(text, "a.yaml").document


def test_a_spec_keeps_words():
    document = import_document("model: llama2-70b\nname: 'on'\ncluster: {profile: no}\n", "a.yaml").document
    assert (document["name"], document["cluster"]["profile"]) == ("on", "no")


def test_zero_bubble_v_is_the_v_that_is_modelled():
    text = changed(
        parallel__pipeline_config__pipeline_scheduler="zero_bubble_v", recompute_config__recompute=[[1] * 4, [0] * 4]
    )
    imported = import_document(text, "a.yaml")
    assert imported.document["strategy"]["schedule"] == "dualpipev"
    assert imported.document["strategy"]["vpp"] == 1
    assert "/strategy/schedule" in {note.field for note in imported.diagnostics.defaulted}


def test_older_models_keep_experts_tensor_parallel():
    moe = {"expert_num": 32, "num_experts_chosen": 4}
    old = import_document(changed(use_legacy=True, moe_config=moe), "a.yaml")
    assert old.document["strategy"]["etp"] == 2
    whole = import_document(changed(use_legacy=True, moe_config=moe | {"expert_model_parallel": 1}), "a.yaml")
    assert whole.document["strategy"]["etp"] == 1
    extended = import_document(changed(use_legacy=True, moe_config=moe | {"ep_extend_tp": True}), "a.yaml")
    was, strategy = old.document["strategy"], extended.document["strategy"]
    assert (strategy["ep"], strategy["etp"]) == (was["ep"] * was["tp"], 1)


def test_two_names_that_disagree_are_a_contradiction():
    imported = import_document(changed(model__model_config__num_hidden_layers=18, model__model_config__n_layer=20), "a")
    assert [note.source for note in imported.diagnostics.contradicted] == ["/model/model_config/n_layer"]


@pytest.mark.parametrize(
    ("changes", "path", "message"),
    [
        ({"model__model_config__offset": [[0] * 4, [0] * 4]}, "/model/model_config/offset", "places 16 layers"),
        ({"model__model_config__offset": [1, 1]}, "/model/model_config/offset", "2 x 4"),
        ({"model__model_config__offset": 0}, "/model/model_config/offset", "cannot be split"),
        ({"model__model_config__hidden_size": None}, "/model/model_config/hidden_size", "hidden_size is required"),
        ({"model__model_config__hidden_act": "relu2"}, "/model/model_config/hidden_act", "not modelled"),
        ({"parallel_config__model_parallel": "two"}, "/parallel_config/model_parallel", "whole number"),
        ({"parallel_config__pipeline_stage": 10**8}, "/model/model_config/pp_interleave_num", "exceeds 1024"),
        ({"recompute_config__recompute": [1, 2]}, "/recompute_config/recompute", "2 x 4"),
        ({"run_mode": "predict"}, "/run_mode", "trains nothing"),
        ({"model__model_config__moe_token_dispatcher_type": "x"}, "/model/model_config/moe_token_dispatcher_type", "x"),
    ],
)
def test_mistakes_name_their_key(changes, path, message):
    with pytest.raises(SpecError, match=message) as caught:
        import_document(changed(**changes), "a.yaml")
    assert caught.value.errors[0].path == path


BOMB = "a0: &a0 [1, 1]\n" + "".join(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}, *a{n - 1}, *a{n - 1}]\n" for n in range(1, 40))
HOSTILE = {
    "aliases": BOMB + "parallel_config: {data_parallel: *a39}\n",
    "depth": "parallel_config: " + "[" * 100_000,
    "json depth": '{"parallel_config": ' + "[" * 100_000,
    "numbers": changed(parallel_config__data_parallel=10**30),
    "stages": changed(parallel_config__pipeline_stage=10**9, model__model_config__pp_interleave_num=10**9),
    "several": "a: 1\n---\nb: 2\n",
    "self": "parallel_config: &x {data_parallel: *x}\n",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_configurations_are_refused_fast(name):
    with at_most(1.0), pytest.raises(SpecError):
        import_document(HOSTILE[name], "a.json" if name.startswith("json") else "a.yaml")


def test_a_plan_set_is_the_spec_of_its_plan():
    plan_set = factories.plan_set(2)
    imported = import_document(export(plan_set, plan_set.plans[1], "json").text, "plan.json")
    assert (imported.kind, imported.plan_id) == ("plan-set", plan_set.plans[1].plan_id)
    assert imported.spec().strategy == plan_set.plans[1].strategy


def test_an_own_spec_stays_as_it_is():
    imported = import_document(json.dumps(factories.spec_document()), "spec.json")
    assert imported.kind == "spec"
    assert imported.spec() == factories.spec()
    assert imported.spec("ascend-800t-a2", "910B3", 128).cluster.model_dump(exclude_defaults=True) == {
        "profile": "ascend-800t-a2",
        "device": "910B3",
        "num_npus": 128,
    }


def test_content_tells_what_a_paste_is():
    config = {"architectures": ["LlamaForCausalLM"], "hidden_size": 512, "num_hidden_layers": 2, "vocab_size": 1000}
    config |= {"num_attention_heads": 8, "intermediate_size": 1024}
    assert import_document(json.dumps(config)).kind == "hf-config"
    assert import_document((FILES / "megatron_dense.sh").read_text()).kind == "launch-script"
    assert import_document((FILES / "mindformers_moe.yaml").read_text()).kind == "mindformers-yaml"
    with pytest.raises(SpecError, match="not a file that can be imported"):
        import_document("just words")


def test_keys_that_are_kept_have_no_line_in_a_check():
    """YAML keys are read without their places; flags of a script have a line each."""
    launch = launch_of(import_file(FILES / "mindformers_moe.yaml"), "ascend-800t-a2")
    assert "model.model_config.a_key_of_ours" in launch.unknown_flags
    assert launch_of(import_file(FILES / "mindspeed_moe.sh"), "ascend-800t-a2").unknown_flags == (
        "--some-flag-of-ours (line 87)",
    )


def test_a_file_with_a_mistake_is_named(tmp_path):
    path = tmp_path / "broken.sh"
    path.write_text('A="x\n')
    with pytest.raises(SpecError, match=r"^broken.sh: line 1, column 3"):
        import_file(path)
