"""Launches of MindSpeed-LLM's FSDP2 backend: its YAML, scripts that put options over it, our own files read back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from autodeploy.formats.fsdp2.reader import import_fsdp2
from autodeploy.formats.import_document import import_document, import_file
from autodeploy.formats.registry import export
from autodeploy.kit.errors import SpecError, UnsupportedError
from autodeploy.search.planner import estimate
from tests.support.sharded_plans import sharded_plan_set

if TYPE_CHECKING:
    from pathlib import Path

TARGET = "mindspeed-llm-fsdp2"
YAML = """\
model: {model_id: qwen3_moe, train_from_scratch: False, model_name_or_path: weights/Qwen3-30B-A3B}
data: {cutoff_len: 4096, template: qwen3, data_manager_type: mg}
parallel:
  fsdp_modules: ["model.layers.{*}", model.embed_tokens, lm_head]
  recompute: True
  recompute_modules: ["model.layers.{*}"]
  reduce_dtype: bf16
training: {stage: pt, optimizer: fused_adamw, max_steps: 2000, lr: 1.0e-5}
"""
SCRIPT = """\
source examples/fsdp2/env_config.sh
NPUS_PER_NODE=16
NNODES=2
DISTRIBUTED_ARGS="--nproc_per_node $NPUS_PER_NODE --nnodes $NNODES --node_rank 0"
torchrun $DISTRIBUTED_ARGS train_fsdp2.py examples/fsdp2/qwen3_moe/run_A3.yaml \\
    --data.dataset '{"file_name": "./data.parquet"}' \\
    --parallel.fsdp_size 32 \\
    --parallel.ep_size 4 \\
    --parallel.ep_fsdp_size 8 \\
    --parallel.reshard_after_forward False \\
    --training.per_device_train_batch_size 2 \\
    --training.gradient_accumulation_steps 4 \\
    --optimization.use_fused_rmsnorm True \\
    --optimization.moe_grouped_gemm \\
    | tee logs/run.log
"""


def script(folder: Path, text: str = SCRIPT, yaml: str = YAML) -> Path:
    (folder / "run_A3.yaml").write_text(yaml, encoding="utf-8")
    (folder / "run_A3.sh").write_text(text, encoding="utf-8")
    return folder / "run_A3.sh"


def test_a_script_puts_its_options_over_the_file_beside_it(tmp_path: Path) -> None:
    found = import_file(script(tmp_path))
    spec = found.spec("cloudmatrix-384")
    strategy, training = spec.strategy, spec.training
    assert strategy is not None
    assert (found.ranks, spec.cluster.num_npus) == (32, 16)
    assert (strategy.ep, strategy.etp, strategy.micro_batch_size, strategy.fsdp) == (4, 1, 2, True)
    assert (training.seq_length, training.global_batch_size.value) == (4096, 2 * 4 * 32)
    assert training.tokens == 2000 * 256 * 4096
    assert spec.model.name == "Qwen3-30B-A3B"
    assert spec.search.target == TARGET
    assert spec.search.deterministic_training
    assert {"keep_gathered", "bf16_gradients", "fused_rmsnorm", "grouped_gemm"} <= set(strategy.features)
    assert {"host_core_binding", "unfused_rotary", "torch_fsdp2"} <= set(strategy.features)
    assert "fused_operators" not in strategy.features  # ep_dispatcher is eager
    assert strategy.recompute.granularity == "full"
    assert found.kept == ()
    assert found.diagnostics.contradictions == ()


def test_an_estimate_of_it_has_what_it_says(tmp_path: Path) -> None:
    found = estimate(import_file(script(tmp_path)).spec("cloudmatrix-384"))
    assert found.strategy.fsdp
    assert found.micro_batches == 4
    assert found.breakdown.exposed_dp_s > 0.0


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        ("--parallel.ep_fsdp_size 8", "--parallel.ep_fsdp_size 4", "ep_fsdp_size = 4: predicted as 8"),
        ("--parallel.fsdp_size 32", "--parallel.fsdp_size 16", "nnodes x nproc_per_node says 32"),
    ],
)
def test_what_contradicts_the_ranks_is_told(tmp_path: Path, before: str, after: str, told: str) -> None:
    notes = import_file(script(tmp_path, SCRIPT.replace(before, after))).diagnostics
    assert any(told in text for text in notes.contradictions)


@pytest.mark.parametrize(
    ("option", "told"),
    [
        ("--training.optimizer adamw", "predicted as fused_adamw"),
        ("--parallel.num_to_forward_prefetch 2", "predicted as 1"),
        ("--parallel.ep_dispatcher mc2", "predicted as All-to-All"),
        ("--data.packing True", "predicted as False"),
        ("--parallel.cp_size 2 --parallel.cp_type kvallgather", "predicted as ring"),
    ],
)
def test_what_is_not_modelled_is_told(tmp_path: Path, option: str, told: str) -> None:
    text = SCRIPT.replace("--optimization.use_fused", f"{option} --optimization.use_fused")
    assert any(told in doubt for doubt in import_file(script(tmp_path, text)).diagnostics.doubts)


@pytest.mark.parametrize(
    ("model_id", "named"),
    [("mamba3", "recurrent"), ("deepseek_v4", "compressed"), ("longcat_flash_ngram", "n-gram")],
)
def test_models_of_the_backend_that_are_not_modelled_are_refused_by_name(model_id: str, named: str) -> None:
    with pytest.raises(UnsupportedError, match=named) as caught:
        import_document(YAML.replace("qwen3_moe", model_id), "a.yaml")
    assert caught.value.errors[0].path == "/model/model_id"


def test_a_recipe_of_eight_bits_is_read_and_doubted() -> None:
    imported = import_document(YAML.replace("qwen3_moe", "qwen3_moe, quant_recipe_name: mxfp8", 1), "a.yaml")
    assert imported.document["training"]["precision"] == "fp8"
    assert any("mxfp8" in doubt for doubt in imported.diagnostics.doubts)


def test_muon_is_refused_by_name() -> None:
    with pytest.raises(SpecError, match="muon") as caught:
        import_document(YAML.replace("fused_adamw", "muon"), "a.yaml")
    assert caught.value.errors[0].path == "/training/optimizer"


@pytest.mark.parametrize(
    ("stem", "model"),
    [
        ("pretrain_qwen3_235b_4k_fsdp2_A3", "Qwen3-235B-A22B"),
        ("pretrain_qwen3_1point7b_4k_fsdp2_A2", "Qwen3-1.7B"),
        ("pretrain_minimax_m2p7_229b_8K_fsdp2_A3", "MiniMax-M2 230B"),
        ("tune_gpt_oss_20b_128k_fsdp2_A3", "gpt-oss-20b"),
    ],
)
def test_a_file_without_weights_is_of_the_series_in_its_name(stem: str, model: str) -> None:
    bare = YAML.replace(", model_name_or_path: weights/Qwen3-30B-A3B", "")
    found = import_document(bare, f"{stem}.yaml")
    assert found.document["model"]["name"] == model
    assert any("only the series" in text for text in found.assumptions)
    with pytest.raises(SpecError, match="no preset for"):
        import_document(bare, "run.yaml")


def test_a_script_whose_file_is_not_there_says_so(tmp_path: Path) -> None:
    path = script(tmp_path)
    (tmp_path / "run_A3.yaml").rename(tmp_path / "other.yaml")
    with pytest.raises(SpecError, match="is not beside the script"):
        import_file(path)


@pytest.mark.parametrize(
    ("patterns", "layers"),
    [('["model.layers.{0-11}"]', 12), ('["model.layers.{0-3}", "model.layers.{8-11}"]', 8), ('["lm_head"]', None)],
)
def test_ranges_of_layers_are_counted(patterns: str, layers: int | None) -> None:
    text = YAML.replace('recompute_modules: ["model.layers.{*}"]', f"recompute_modules: {patterns}")
    recompute = import_document(text, "a.yaml").document["strategy"]["recompute"]
    assert recompute == ({"granularity": "none"} if layers is None else {"granularity": "full", "num_layers": layers})


@pytest.mark.parametrize(("model", "npus"), [("qwen3-0.6b", 8), ("qwen3-30b-a3b", 64)])
def test_our_own_file_is_read_back_as_the_plan(model: str, npus: int) -> None:
    plan_set = sharded_plan_set(TARGET, model, npus)
    best = plan_set.plans[0]
    found = import_document(export(plan_set, best, TARGET).text, "a.yaml")
    assert found.plan_id == best.plan_id
    assert found.kept == ()
    again: Any = estimate(found.spec())
    assert again.step_time_s == pytest.approx(best.step_time_s, rel=1e-6)
    assert again.peak_memory_gib == pytest.approx(best.peak_memory_gib, rel=1e-6)


@pytest.mark.parametrize(
    ("section", "key"), [("model", "model_id"), ("parallel", "cp_type"), ("parallel", "param_dtype")]
)
def test_a_list_in_place_of_a_word_is_a_fault_of_the_file(section: str, key: str) -> None:
    document: dict[str, Any] = {"model": {"model_id": "qwen3"}, "parallel": {"fsdp_size": 8, "cp_size": 2}}
    document[section][key] = ["a"]
    with pytest.raises(SpecError):
        import_fsdp2(document)
