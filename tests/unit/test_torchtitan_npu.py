"""torchtitan-npu as a target of the search: its plans, the TOML that it is launched with, and TOML that is read."""

from __future__ import annotations

import tomllib
from typing import Any

import pytest

from autodeploy.analysis.launch_requests import refuse_illegal
from autodeploy.formats.import_document import import_document
from autodeploy.formats.registry import export, formats_of
from autodeploy.formats.torchtitan.writer import toml_text
from autodeploy.kit.errors import SpecError, UnsupportedError
from autodeploy.search.planner import estimate, launch_rules, plan
from autodeploy.specs.launched import preset_of_flavor, torchtitan_model_of, torchtitan_models
from autodeploy.specs.presets import load_preset
from autodeploy.specs.reading import read_spec_document
from autodeploy.specs.strategy import Recompute
from tests.support.sharded_plans import sharded_plan_set

TARGET = "torchtitan-npu"
TOML = """\
[job]
custom_config_module = "torchtitan_npu.config.custom_config"
[model]
name = "qwen3"
flavor = "30B-A3B"
converters = ["npu_rms_norm", "npu_gmm", "npu_rope"]
hf_assets_path = "./assets/hf/Qwen3-30B-A3B"
[optimizer]
name = "AdamW"
lr = 3e-4
swap_optimizer = true
[training]
local_batch_size = 2
global_batch_size = 512
seq_len = 4096
steps = 1000
[parallelism]
data_parallel_replicate_degree = 2
data_parallel_shard_degree = 16
fsdp_reshard_after_forward = "never"
tensor_parallel_degree = 2
expert_parallel_degree = 8
expert_tensor_parallel_degree = 1
[activation_checkpoint]
mode = "full"
[debug]
moe_force_load_balance = true
deterministic = true
"""


def read(*changes: tuple[str, str]) -> Any:
    text = TOML
    for before, after in changes:
        assert before in text
        text = text.replace(before, after)
    return import_document(text, "run.toml")


def test_a_configuration_is_read_with_degrees_copies_and_switches() -> None:
    found = read()
    spec = found.spec("ascend-800t-a2")
    strategy, training = spec.strategy, spec.training
    assert strategy is not None
    assert found.ranks == 2 * 16 * 2
    assert spec.cluster.num_npus == 64
    assert (strategy.tp, strategy.ep, strategy.etp, strategy.dp_replicate, strategy.micro_batch_size) == (2, 8, 1, 2, 2)
    assert (strategy.swap_optimizer, strategy.sequence_parallel, strategy.fsdp) == (True, True, True)
    assert {"hsdp", "torch_fsdp2", "keep_gathered", "fused_rmsnorm", "grouped_gemm", "fused_swiglu"} <= {
        *strategy.features
    }
    assert "unfused_rotary" not in strategy.features
    assert strategy.recompute.granularity == "full"
    assert (training.seq_length, training.global_batch_size.value) == (4096, 512)
    assert training.tokens == 1000 * 512 * 4096
    assert training.routing_imbalance == 1.0
    assert spec.search.target == TARGET
    assert spec.search.deterministic_training


def test_an_estimate_of_it_has_what_it_says() -> None:
    found = estimate(read().spec("ascend-800t-a2"))
    assert (found.strategy.dp, found.micro_batches) == (32, 8)
    assert found.strategy.dp_replicate == 2


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        ('"npu_rope"]', '"npu_rope", "npu_mhc_pre"]', "left out of the prediction"),
        ("lr = 3e-4", "early_step_in_backward = true", "predicted as False"),
        ('mode = "full"', 'mode = "selective"\nselective_ac_option = "op"', "predicted as norm, activation"),
        ('mode = "full"', 'mode = "memory_budget"', "predicted as none"),
        ("tensor_parallel_degree = 2", "context_parallel_degree = 2", "predicted as ring"),
        ('"npu_gmm"', '"quantize.linear.mx"', "predicted as fp8"),
    ],
)
def test_what_is_not_modelled_is_told(before: str, after: str, told: str) -> None:
    assert any(told in note.reason for note in read((before, after)).diagnostics.unmodelled)


@pytest.mark.parametrize(
    ("before", "after", "path", "told"),
    [
        ('name = "qwen3"', 'name = "deepseek_v4"', "/model/name", "compressed attention"),
        ('flavor = "30B-A3B"', 'flavor = "debugmodel"', "/model/flavor", "no preset for qwen3 debugmodel"),
        (
            *("tensor_parallel_degree = 2", "pipeline_parallel_degree = 2"),
            *("/parallelism/pipeline_parallel_degree", "torchtitan qwen3 cannot launch pp"),
        ),
        ('name = "AdamW"', 'name = "Muon"', "/optimizer/name", "not modelled yet"),
        ("seq_len = 4096", 'seq_len = 4096\ndtype = "bfloat16"', "/training/dtype", "not modelled yet: bfloat16"),
        ("seq_len = 4096", "seq_len = 0", "/training/seq_len", "whole number"),
    ],
)
def test_what_can_not_be_read_is_refused_by_its_key(before: str, after: str, path: str, told: str) -> None:
    with pytest.raises(SpecError, match=told) as caught:
        read((before, after))
    assert caught.value.errors[0].path == path


def test_what_is_no_toml_or_no_configuration_says_so() -> None:
    with pytest.raises(SpecError, match="invalid TOML"):
        import_document("[model\n", "run.toml")
    with pytest.raises(SpecError, match="not a file that can be imported"):
        import_document("[project]\nname = 'x'\n", "pyproject.toml")


LLAMA = (
    *(('name = "qwen3"', 'name = "llama3"'), ('flavor = "30B-A3B"', 'flavor = "8B"')),
    *(('"npu_gmm", ', ""), ("expert_parallel_degree = 8\nexpert_tensor", "# expert_tensor")),
)


def piped(text: str) -> tuple[tuple[str, str], ...]:
    return (*LLAMA, ("tensor_parallel_degree = 2", f"tensor_parallel_degree = 2\n{text}"))


@pytest.mark.parametrize(
    ("text", "schedule", "layers"),
    [
        # 32 layers and one each for embedding and head: 34 = 9 + 9 + 8 + 8.
        ("pipeline_parallel_degree = 4", "1f1b", [[8], [9], [8], [7]]),
        (
            'pipeline_parallel_degree = 2\npipeline_parallel_schedule = "Interleaved1F1B"',
            *("interleaved", [[8, 8], [9, 7]]),
        ),
        (
            "pipeline_parallel_degree = 2\npipeline_parallel_first_stage_less_layers = 0\n"
            "pipeline_parallel_last_stage_less_layers = 2\npipeline_parallel_layers_per_stage = 17",
            *("1f1b", [[17], [15]]),
        ),
    ],
)
def test_stages_are_read_as_torchtitan_spreads_layers(text: str, schedule: str, layers: list[list[int]]) -> None:
    found = read(*piped(text), ("local_batch_size = 2", "local_batch_size = 16"))
    strategy = found.document["strategy"]
    assert (strategy["schedule"], strategy["layers_per_stage"], strategy["micro_batch_size"]) == (schedule, layers, 1)
    assert found.ranks == 2 * 16 * 2 * strategy["pp"]
    assert estimate(found.spec("ascend-800t-a2")).breakdown.pipeline_bubble_s > 0.0


@pytest.mark.parametrize(
    ("text", "path", "told"),
    [
        ('pipeline_parallel_schedule = "ZBVZeroBubble"', "/parallelism/pipeline_parallel_schedule", "ZBV"),
        (
            "pipeline_parallel_layers_per_stage = 12",
            "/parallelism/pipeline_parallel_layers_per_stage",
            "do not make 2 stages",
        ),
        ("pipeline_parallel_layers_per_stage = 9", "/parallelism/pipeline_parallel_schedule", "2 parts per stage"),
        ("pipeline_parallel_microbatch_size = 3", "/training/local_batch_size", "3 does not divide"),
        (
            'module_fqns_per_model_part = [["layers.0"], ["norm"]]',
            *("/parallelism/pipeline_parallel_layers_per_stage", "with 1 layers"),
        ),
    ],
)
def test_stages_that_are_none_are_refused(text: str, path: str, told: str) -> None:
    with pytest.raises(SpecError, match=told) as caught:
        read(*piped(f"pipeline_parallel_degree = 2\n{text}"))
    assert caught.value.errors[0].path == path


def test_recomputation_by_operator_is_read_and_written() -> None:
    dense = (
        *(('flavor = "30B-A3B"', 'flavor = "8B"'), ("expert_parallel_degree = 8\nexpert_tensor", "# expert_tensor")),
        *(('"npu_gmm", ', ""), ('mode = "full"', 'mode = "selective"\nselective_ac_option = "op"')),
    )
    found = read(*dense)
    assert found.document["strategy"]["recompute"] == {"granularity": "selective", "modules": ["by_operator"]}
    assert not any("product" in note.reason for note in found.diagnostics.unmodelled)
    spec, full = found.spec("ascend-800t-a2"), read(*dense[:3]).spec("ascend-800t-a2")
    assert 0.0 < estimate(spec).breakdown.recompute_s < estimate(full).breakdown.recompute_s
    planned = sharded_plan_set(TARGET, "qwen3-0.6b", 8)
    best = planned.plans[0]
    by_operator = Recompute(granularity="selective", modules=("by_operator",))
    strategy = best.strategy.model_copy(update={"recompute": by_operator})
    text = export(planned, best.model_copy(update={"strategy": strategy}), TARGET).text
    assert tomllib.loads(text)["activation_checkpoint"] == {"mode": "selective", "selective_ac_option": "op"}
    again = import_document(text, "again.toml").spec()
    assert again.strategy is not None
    assert again.strategy.recompute.modules == ("by_operator",)


def test_every_other_layer_is_counted_and_a_file_without_ranks_keeps_them_open() -> None:
    found = read(
        ('mode = "full"', 'mode = "selective"'),
        ("shard_degree = 16", "shard_degree = -1"),
        ("global_batch_size = 512", ""),
    )
    assert found.document["strategy"]["recompute"] == {"granularity": "full", "num_layers": 24}
    assert found.ranks is None
    assert "global_batch_size" not in found.document["training"]
    strategy, local = found.document["strategy"], found.replica_batch
    batch = found.spec("ascend-800t-a2", None, 64).training.global_batch_size.value
    assert batch == local * 64 // (strategy["tp"] * strategy["cp"])


@pytest.mark.parametrize(("model", "npus"), [("qwen3-0.6b", 8), ("qwen3-30b-a3b", 64)])
def test_our_own_file_is_read_back_as_the_plan(model: str, npus: int) -> None:
    plan_set = sharded_plan_set(TARGET, model, npus)
    best = plan_set.plans[0]
    artefact = export(plan_set, best, TARGET)
    written = tomllib.loads(artefact.text)
    p, strategy = written["parallelism"], best.strategy
    shared = p["data_parallel_replicate_degree"] * p["data_parallel_shard_degree"]
    assert shared * p["tensor_parallel_degree"] * p["context_parallel_degree"] == best.num_npus_used
    assert written["training"]["global_batch_size"] == plan_set.search.spec["training"]["global_batch_size"]["value"]
    again = import_document(artefact.text, artefact.filename)
    spec = again.spec()
    assert again.plan_id == best.plan_id
    assert spec.strategy is not None
    found = estimate(spec)
    assert found.step_time_s == pytest.approx(best.step_time_s, rel=1e-3)
    assert (found.strategy.ep, found.strategy.tp, found.strategy.dp_replicate) == (
        *(strategy.ep, strategy.tp, strategy.dp_replicate),
    )


def test_the_search_tries_tensor_parallelism_and_copies_of_all_shards() -> None:
    document = {
        "model": "qwen3-0.6b",
        "cluster": {"profile": "ascend-800t-a2", "num_npus": 32},
        "training": {"seq_length": 4096, "global_batch_size": 64},
        "search": {"target": TARGET, "effort": "fast", "risk": "neutral", "allow": {"tp": [2], "dp_replicate": [2, 4]}},
    }
    found = plan(read_spec_document(document), alone=True)
    assert found.plans
    assert {each.strategy.tp for each in found.plans} == {2}
    assert {each.strategy.dp_replicate for each in found.plans} <= {2, 4}
    written = tomllib.loads(export(found, found.plans[0], TARGET).text)["parallelism"]
    copies = found.plans[0].strategy.dp_replicate
    assert written["data_parallel_replicate_degree"] == copies
    assert written["data_parallel_shard_degree"] * copies * written["tensor_parallel_degree"] == 32


@pytest.mark.parametrize(
    ("strategy", "rule"),
    [
        ({"ep": 8, "moe_dispatcher": "allgather"}, "torchtitan_dispatches_to_all"),
        ({"tp": 2, "ep": 1, "etp": 2}, "torchtitan_grouped_experts"),
        ({"cp": 2, "cp_algo": "ring"}, "torchtitan_whole_sequences"),
    ],
)
def test_strategies_that_it_lacks_fail_a_check(strategy: dict[str, Any], rule: str) -> None:
    document = {
        "model": "qwen3-30b-a3b",
        "cluster": {"profile": "ascend-800t-a2", "num_npus": 64},
        "training": {"seq_length": 4096, "global_batch_size": 128},
        "search": {"target": TARGET},
        "strategy": {"ep": 8, "etp": 1, "fsdp": True, "recompute": {"granularity": "full"}} | strategy,
    }
    assert rule in {each.rule for each in launch_rules(read_spec_document(document)).broken}


def test_every_flavor_has_a_preset_of_its_shape() -> None:
    for each in torchtitan_models():
        found = torchtitan_model_of(load_preset(each.preset))
        assert found is not None
        assert (found.preset, found.name) == (each.preset, each.name)
        assert preset_of_flavor(each.name, each.flavor) == each
    assert torchtitan_model_of(load_preset("glm-4.5")) is None


def test_plans_with_stages_are_not_offered_and_what_it_lacks_is_refused() -> None:
    assert TARGET in formats_of("1f1b", parts=2)
    assert TARGET not in formats_of("1f1b", parts=2, stages=2)
    plan_set = sharded_plan_set(TARGET)
    best = plan_set.plans[0]
    cut = best.model_copy(update={"strategy": best.strategy.model_copy(update={"pp": 2, "layers_per_stage": None})})
    with pytest.raises(UnsupportedError, match="torchtitan_one_stage"):
        refuse_illegal(plan_set, cut, TARGET, launch_rules)


def test_text_of_toml_is_read_back_as_it_was() -> None:
    document: dict[str, dict[str, Any]] = {
        "a": {"text": 'x "y" \\ \x7f \n é', "many": ["a", "b"], "on": True, "none": [], "rate": 1e-5, "count": -1},
        "b": {"off": False},
    }
    assert tomllib.loads(toml_text(document, ["a comment\nof two lines"])) == document
