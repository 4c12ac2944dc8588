"""Published runs in other words, units and shapes: what means the same predicts the same, what is unknown is said."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from pydantic import ValidationError

from autodeploy.calibration.record_prediction import (
    Prediction,
    factors_of,
    measured_step_s,
    predict_record,
    record_spread,
)
from autodeploy.calibration.shipped.tables import shipped_records
from autodeploy.calibration.validation import validate
from autodeploy.costs.layers.unit_costs import layer_inputs
from autodeploy.costs.prediction_spread import PER_UNSEEN, coverage
from autodeploy.kit.errors import SpecError
from autodeploy.specs.record import Record, Unread, read_lines, read_records

if TYPE_CHECKING:
    from pathlib import Path

    from autodeploy.costs.workload.operators import Operator


@cache
def documents() -> dict[str, dict[str, Any]]:
    """Shipped records as they are written, by id."""
    found = {}
    for record in shipped_records():
        document = record.model_dump(mode="json", exclude={"diagnoses"}, exclude_unset=True)
        found[record.id] = document
    return found


DENSE, EXPERTS, COMPILED, H100 = "ML020", "ML049", "MF018F", "mcore_recipe_qwen3-30b-a3b_H100_bf16_32_234.1"
A100 = "vtrain_multi_035"


def changed(name: str, **sections: Any) -> Record:
    """A shipped record with fields of its sections changed, or a section replaced by what is no mapping."""
    document = copy.deepcopy(documents()[name])
    for section, fields in sections.items():
        if isinstance(fields, dict) and isinstance(document.get(section), dict):
            document[section] |= fields
        else:
            document[section] = fields
    return Record.model_validate(document)


def prediction(name: str, **sections: Any) -> Prediction:
    return predict_record(changed(name, **sections), factors_of=factors_of)


# -- what means the same ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "sections"),
    [
        (DENSE, {"training": {"precision": "BF16"}}),
        (DENSE, {"training": {"precision": "bfloat16", "seq_length": "8K", "global_batch_size": "64"}}),
        (DENSE, {"cluster": {"num_npus": "32"}, "strategy": {"tp": "8", "pp": "4"}}),
        (DENSE, {"cluster": {"device": "Ascend910B2"}}),
        (DENSE, {"cluster": {"device": "910b2"}}),
        (DENSE, {"cluster": {"profile": "Ascend_800T_A2"}}),
        (DENSE, {"cluster": {"profile": "Atlas 900 A2 PoDc"}}),
        (DENSE, {"cluster": {"profile": None}}),
        (DENSE, {"strategy": {"schedule": "1F1B"}}),
        (DENSE, {"strategy": {"features": "use-ascend-mc2,use-flash-attn,use-fused-swiglu,use-fused-rmsnorm"}}),
        (DENSE, {"strategy": {"recompute": "none", "swap": None, "cp_algo": None, "sequence_parallel": None}}),
        (DENSE, {"model": {"hidden_act": "SwiGLU", "num_experts": None, "params_b": 32.5}}),
        (DENSE, {"framework": "ModelLink", "notes": None, "confidence": None, "url": "x"}),
        (EXPERTS, {"strategy": {"moe_dispatcher": "all-gather"}}),
        (EXPERTS, {"strategy": {"recompute": True}}),
        (EXPERTS, {"strategy": {"recompute": {"granularity": "full", "method": "block"}}}),
        (H100, {"cluster": {"profile": "DGX H100"}}),
        (H100, {"cluster": {"device": "NVIDIA H100 80GB SXM"}}),
        (A100, {"cluster": {"profile": "A100-SXM4-80GB"}}),
    ],
)
def test_another_spelling_predicts_the_same(name: str, sections: dict[str, Any]) -> None:
    written, read = prediction(name), prediction(name, **sections)
    assert read.step_time_s == written.step_time_s
    assert read.allocator_peak_gib == written.allocator_peak_gib
    assert record_spread(read).log_sigma == record_spread(written).log_sigma


def test_names_of_other_configurations_are_the_models_fields() -> None:
    document = copy.deepcopy(documents()[EXPERTS])
    model = document["model"]
    for other, own in (("num_layers", "num_hidden_layers"), ("num_local_experts", "n_routed_experts")):
        model[other] = model.pop(own)
    assert Record.model_validate(document).model == changed(EXPERTS).model


@pytest.mark.parametrize(
    ("module", "own"), [("moe_act", "activation"), ("layernorm", "norm"), ("mla_up_proj", "mla_up_proj")]
)
def test_modules_that_megatron_recomputes(module: str, own: str) -> None:
    record = changed(EXPERTS, strategy={"recompute": {"granularity": "selective", "modules": [module]}})
    assert record.strategy.recompute.modules == (own,)
    assert record.diagnoses == ()


def test_selective_recomputation_without_modules_is_of_the_core_of_attention() -> None:
    record = changed(EXPERTS, strategy={"recompute": "selective"})
    assert record.strategy.recompute.modules == ("core_attn",)


# -- features that fill the strategy's fields ---------------------------------------------------------------------


def test_a_feature_named_alone_sets_what_it_means() -> None:
    paired = changed(EXPERTS, strategy={"features": ["moe-fb-overlap"], "schedule": "interleaved"})
    assert paired.strategy.schedule == "adaptive_pipe"
    assert changed(EXPERTS, strategy={"features": ["moe_hierarchical_alltoallv"]}).strategy.moe_dispatcher == (
        "hierarchical"
    )
    assert changed(DENSE, strategy={"features": ["swap_attention"]}).strategy.swap == ("attention",)
    long = changed(DENSE, strategy={"features": ["ulysses"], "cp": 2, "tp": 4})
    assert long.strategy.cp_algo == "ulysses"
    assert changed(DENSE, strategy={"features": ["custom_fsdp"]}).strategy.fsdp


def test_joined_tensor_parallel_ranks_count_as_expert_parallel() -> None:
    shape = {"tp": 4, "ep": 2, "etp": 4, "features": ["moe_tp_extend_ep"]}
    strategy = changed(EXPERTS, strategy=shape).strategy
    assert (strategy.ep, strategy.etp) == (8, 1)
    kept = changed(EXPERTS, strategy=shape | {"ep": 8, "etp": 1}).strategy
    assert (kept.ep, kept.etp) == (8, 1)


def test_pairing_passes_of_a_record_hides_expert_communication() -> None:
    shape = {"ep": 8, "etp": 1, "moe_dispatcher": "alltoall", "vpp": 2, "schedule": "interleaved"}
    alone = prediction(EXPERTS, strategy=shape | {"features": ["grouped_gemm", "flash_attention"]})
    paired = prediction(EXPERTS, strategy=shape | {"features": ["grouped_gemm", "flash_attention", "moe_fb_overlap"]})
    assert paired.estimate.breakdown["exposed_ep_s"] < 0.8 * alone.estimate.breakdown["exposed_ep_s"]


# -- what has no word ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "sections", "path"),
    [
        (DENSE, {"training": {"precision": "fp8"}}, "/training/precision"),
        (H100, {"training": {"precision": "nvfp4"}}, "/training/precision"),
        (DENSE, {"cluster": {"device": "910D"}}, "/cluster/device"),
        (DENSE, {"cluster": {"device": "910A"}}, "/cluster/device"),
        (DENSE, {"cluster": {"profile": "atlas-800-9000", "device": None}}, "/cluster/profile"),
        (H100, {"cluster": {"profile": "nvidia-h200"}}, "/cluster/profile"),
        (A100, {"cluster": {"profile": "nvidia-v100"}}, "/cluster/profile"),
        (DENSE, {"strategy": {"schedule": "zero_bubble_v"}}, "/strategy/schedule"),
        (EXPERTS, {"strategy": {"moe_dispatcher": "teleport"}}, "/strategy/moe_dispatcher"),
        (DENSE, {"strategy": {"cp_algo": "kvallgather_cp_algo"}}, "/strategy/cp_algo"),
        (DENSE, {"strategy": {"recompute": {"granularity": "selective", "modules": ["everything"]}}}, "/recompute"),
        (DENSE, {"strategy": {"swap": ["weights"]}}, "/strategy/swap"),
        (DENSE, {"strategy": {"features": ["flash_attention", "time_travel"]}}, "/strategy/features"),
        (DENSE, {"strategy": {"dp": 7}}, "/strategy/dp"),
        (DENSE, {"strategy": {"layers_per_stage": [1, 2, 3, 4]}}, "/strategy/layers_per_stage"),
        (DENSE, {"strategy": {"layers_per_stage": [64]}}, "/strategy/layers_per_stage"),
        (DENSE, {"strategy": {"quantum": 3}}, "/strategy/quantum"),
        (DENSE, {"cluster": {"num_npus": 3}}, "/cluster/num_npus"),
        (DENSE, {"training": {"global_batch_size": None}}, "/training/global_batch_size"),
        (EXPERTS, {"training": {"global_batch_size": 63}}, "/training/global_batch_size"),
        (EXPERTS, {"strategy": {"schedule": "dualpipe", "vpp": 1, "pp": 1}}, "/strategy/schedule"),
        (DENSE, {"strategy": None}, "/strategy"),
        (DENSE, {"model": {"layer_types": "every third full"}}, "/model/layer_types"),
    ],
)
def test_the_nearest_known_thing_stands_in_and_is_said(name: str, sections: dict[str, Any], path: str) -> None:
    read = prediction(name, **sections)
    assert read.step_time_s > 0.0
    assert any(path in d.path for d in read.record.diagnoses)
    bare = replace(read, record=read.record.model_copy(update={"diagnoses": ()}))
    widens = any(d.widens for d in read.record.diagnoses)
    told, untold = record_spread(read), record_spread(bare)
    assert (len(told.extrapolated) > len(untold.extrapolated)) == widens
    # Runs with experts were as far from each other: what they are off by holds that.
    held = coverage()["classes"][f"{read.context.family}/{'moe' if read.context.model.is_moe else 'dense'}"]
    assert told.log_sigma >= untold.log_sigma
    assert told.log_sigma > untold.log_sigma or not widens or held["distance_variance"] > PER_UNSEEN**2
    assert widens or "features" in path


def test_an_unknown_feature_changes_no_time_and_widens_the_interval() -> None:
    plain = prediction(DENSE)
    features = [*documents()[DENSE]["strategy"]["features"], "time_travel"]
    odd = prediction(DENSE, strategy={"features": features})
    assert odd.step_time_s == plain.step_time_s
    assert record_spread(odd).log_sigma > record_spread(plain).log_sigma
    assert "time_travel" in record_spread(odd).extrapolated


@pytest.mark.parametrize(
    "sections",
    [
        {"model": {"hidden_size": None}},
        {"training": {"seq_length": None}},
        {"training": {"seq_length": -5}},
        {"training": {"seq_length": "long"}},
        {"training": {"seq_length": [1]}},
        {"cluster": {"num_npus": "many"}},
        {"cluster": {"num_npus": {"a": 1}}},
        {"strategy": {"tp": [8], "features": ["tp_extend_ep"]}},
        {"cluster": {"num_npus": None}},
        {"model": {"num_key_value_heads": 7}},
        {"measured": {"step_time_s": -1.0}},
        {"model": "a big one"},
    ],
)
def test_a_run_without_its_sizes_is_refused(sections: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        changed(DENSE, **sections)


@pytest.mark.parametrize("degree", ["pp", "vpp"])
def test_stages_without_layers_are_refused_before_they_are_simulated(degree: str) -> None:
    (row,) = validate([changed(DENSE, strategy={degree: "32K"})]).rows
    assert "32768 needs more than 64 layers" in str(row.skipped)
    (row,) = validate([changed(DENSE, strategy={degree: 64})]).rows
    assert row.skipped is None


# -- units --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("measured", "relative"),
    [
        ({"step_time_ms": 4000.0}, 1e-12),
        ({"iteration_time_s": 4.0}, 1e-12),
        ({"samples_per_s": 16.0}, 1e-12),
        ({"samples_per_s_per_npu": 0.5}, 1e-12),
        ({"tokens_per_s": 16 * 8192}, 1e-12),
        ({"tokens_per_s_per_gpu": 4096}, 1e-12),
        ({"tokens_per_day": 16 * 8192 * 86400}, 1e-12),
    ],
)
def test_every_unit_of_speed_is_the_same_step_time(measured: dict[str, float], relative: float) -> None:
    record = changed(DENSE, measured={"tokens_per_s_per_npu": None, "step_time_s": None} | measured)
    assert measured_step_s(record) == pytest.approx(4.0, rel=relative)  # 64 sequences of 8,192 on 32 cards


def test_utilisation_and_flops_are_the_step_time_of_full_attention() -> None:
    none = {"tokens_per_s_per_npu": None}
    by_flops = measured_step_s(changed(DENSE, measured=none | {"tflops_per_gpu": 353.9 / 2}))
    by_share = measured_step_s(changed(DENSE, measured=none | {"mfu_pct": 50.0}))
    assert by_flops == pytest.approx(by_share, rel=1e-9)
    model = changed(DENSE).model
    weights = 6 * (model.total_params() - model.embedding_params)
    scores = 12 * model.num_hidden_layers * 8192 * model.num_attention_heads * model.head_dim
    assert by_flops == pytest.approx(64 * 8192 * (weights + scores) / (32 * 0.5 * 353.9e12), rel=1e-3)


def test_the_fullest_rank_is_the_peak() -> None:
    assert changed(DENSE, measured={"peak_memory_gib": [40.0, 42.0]}).measured.peak_memory_gib == 42.0
    assert changed(DENSE, measured={"peak_memory_mib": 2048}).measured.peak_memory_gib == 2.0


# -- files --------------------------------------------------------------------------------------------------------


def test_a_line_that_is_no_record_is_skipped_and_the_others_are_compared(tmp_path: Path) -> None:
    good = json.dumps(documents()[DENSE])
    sizeless = json.dumps({**documents()[DENSE], "id": "sizeless", "model": {"name": "x"}})
    path = tmp_path / "runs.jsonl"
    path.write_text(f"{good}\n\nnot json\n{sizeless}\n[1]\n", encoding="utf-8")
    first, *rest = read_lines(path)
    assert isinstance(first, Record)
    unread = [line for line in rest if isinstance(line, Unread)]
    assert [line.name for line in unread] == ["line 3", "sizeless", "line 5"]
    report = validate([first, *unread])
    assert [row.skipped is None for row in report.rows] == [True, False, False, False]
    assert report.summary.skipped == 3
    assert report.summary.time is not None
    assert report.summary.time.n == 1
    assert "/4/model/hidden_size" in str(report.rows[2].skipped)
    with pytest.raises(SpecError, match="line 3: invalid JSON"):
        list(read_records(path))


# -- what a release means by a name -------------------------------------------------------------------------------
def test_all_to_all_of_an_early_release_exchanges_parts_of_the_width() -> None:
    early = prediction("MF097").record
    assert early.strategy.moe_dispatcher == "alltoall_seq"
    assert any("alltoall_seq" in str(each.text) for each in early.diagnoses)
    late = prediction("MF097", date="2025-09-01").record
    assert late.strategy.moe_dispatcher == "alltoall"


def test_latent_attention_is_padded_where_neither_a_kernel_nor_a_layout_says_otherwise() -> None:
    shapes = {
        name: float(np.ravel(core_attention(prediction("ML049", strategy={"features": [*BARE, *features]})).flops)[0])
        for name, features in {"plain": (), "values": ("padded_values",), "rectangular": ("rect_fa",)}.items()
    }
    assert shapes["plain"] / shapes["values"] == pytest.approx(256 / 192)
    assert shapes["values"] / shapes["rectangular"] == pytest.approx(2 * 192 / (192 + 128))


BARE = ("grouped_gemm", "flash_attention", "fused_swiglu", "fused_rmsnorm")


def core_attention(predicted: Prediction) -> Operator:
    """Attention of a layer of the run as it was priced."""
    layer, _ = next(iter(layer_inputs(predicted.context, predicted.candidate)))
    return next(op for op in layer.table.operators if op.name == "core_attention")
