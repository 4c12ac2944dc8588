"""Every flag that a release registers is classified, and the lists say what the importers do."""

from __future__ import annotations

import ast
import re
from collections import Counter
from importlib.resources import files
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from autodeploy.formats.common import launch_script
from autodeploy.formats.common.flag_effects import FlagEffect, flag_effects, key_effect, unmodelled_reason
from autodeploy.formats.import_document import import_document
from autodeploy.formats.megatron import model as megatron_model
from autodeploy.formats.mindformers.configuration import REASONS
from autodeploy.messages import in_language
from autodeploy.specs.attention import (
    ATTENTION_KINDS,
    CompressedAttention,
    HyperConnections,
    LinearAttention,
    SparseAttention,
)
from autodeploy.specs.tuning import LoraSpec
from autodeploy.stack.flag_tables import flag_table
from autodeploy.stack.releases import releases
from tests.unit.test_messages import CHINESE

ROOT = Path(__file__).resolve().parents[2]
FLAG = re.compile(r"--?[A-Za-z][\w-]*")
# They take documents of keys, no flags.
KEYED = {"mindformers", "mindspeed-llm-fsdp2", "torchtitan-npu", "verl", "mindspeed-rl"}
NAMES = [release.name for release in releases() if release.framework not in KEYED]
# Read by what follows them: flags of counts are put together, and entry points name a model.
PUT_TOGETHER = {"--recompute-activation-function-num-layers", "--recompute-norm-num-layers"}


def literal_flags() -> set[str]:
    """Flags that stand in the importers or in the records of features and of kinds of attention."""
    found = set(PUT_TOGETHER)
    for kind in ATTENTION_KINDS:
        found |= {*kind.switches, *(flag for _, flags, _ in kind.sizes for flag in flags)}
    for part in (LinearAttention, SparseAttention, CompressedAttention, HyperConnections, LoraSpec):
        found |= {flag for flag, _ in part.flags.values()}
    for path in (ROOT / "autodeploy" / "formats").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and FLAG.fullmatch(node.value):
                found.add(node.value)
    records = ROOT / "autodeploy" / "stack" / "memory_choices.yaml"
    found |= set(re.findall(r"--[a-z0-9][\w-]*", records.read_text(encoding="utf-8")))
    for folder in ("stack/features", "formats"):
        for path in (ROOT / "autodeploy" / folder).rglob("*.py" if folder == "formats" else "*.*"):
            found |= set(re.findall(r"--[a-z0-9][\w-]*", path.read_text(encoding="utf-8")))
    return found


@pytest.mark.parametrize("name", NAMES)
def test_every_registered_flag_is_classified(name: str) -> None:
    assert sorted(flag_table(name).keys() - flag_effects().keys()) == []


def test_no_flag_is_invented_and_none_is_in_two_classes() -> None:
    registered = {flag for name in NAMES for flag in flag_table(name)}
    forks = {flag for flag, effect in flag_effects().items() if effect.kind == "unmodelled"}
    assert sorted(flag_effects().keys() - registered - forks) == []
    text = files("autodeploy.formats").joinpath("flag_effects.yaml").read_text(encoding="utf-8")
    lists = YAML(typ="safe").load(text)
    counted = Counter(flag for group in lists.values() for flag in group["flags"].split())
    assert [flag for flag, count in counted.items() if count > 1] == []


def test_what_no_list_has_stands_in_the_importers() -> None:
    refused = {*launch_script.FLAGS, *megatron_model.NOT_MODELLED}
    named = {flag for flag, effect in flag_effects().items() if effect.kind == "read"}
    assert len(named) > 250
    assert sorted(named - literal_flags() - refused) == []
    assert sorted(flag for flag in refused if flag in flag_effects() and flag_effects()[flag].kind != "read") == []


SCRIPT = (
    "torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 2 --hidden-size 512 --num-attention-heads 8 "
    "--vocab-size 100 --micro-batch-size 1 --seq-length 512 --global-batch-size 8 "
)


def test_a_harmless_value_changes_nothing_and_another_one_is_told() -> None:
    effect = FlagEffect("unmodelled", "x", ("1", "a.b.*"))
    assert [effect.of_value(text) for text in ("1", "a.b.c d", "2", "")] == [None, None, "x", "x"]
    assert unmodelled_reason("--cp-window-size", "1") is None
    assert unmodelled_reason("--cp-window-size", "4")
    assert unmodelled_reason("--seed", "4") is None
    quiet = import_document(f"{SCRIPT} --optimization-level 2 --lr 1e-4 --log-interval 1", "a.sh")
    assert "unmodelled" not in quiet.document
    document = import_document(f"{SCRIPT} --megatron-fsdp-grad-comm-dtype bf16 --spec my.spec layers", "a.sh").document
    assert "doubts" not in document
    assert len(document["unmodelled"]) == 2
    assert "gradients are predicted and reduced in FP32" in document["unmodelled"][0]
    assert all(CHINESE.search(in_language(text, "zh")) for text in document["unmodelled"])


def test_a_flag_that_nobody_knows_is_told() -> None:
    (doubt,) = import_document(f"{SCRIPT} --our-own 3", "a.sh").document["doubts"]
    assert doubt == "--our-own: unknown, check that it does not change the prediction"


def test_older_names_are_read() -> None:
    latent = (
        "--multi-head-latent-attention --kv-lora-rank 64 --qk-nope-head-dim 32 --qk-rope-head-dim 16 --v-head-dim 32 "
    )
    experts = (
        "--num-experts 16 --moe-intermediate-size 64 --moe-router-topk 2 --n-group 4 --topk-group 2 --use-deter-comp"
    )
    document = import_document(SCRIPT + latent + experts, "a.sh").document
    model = document["model"]
    assert (model["kv_lora_rank"], model["n_group"], model["topk_group"]) == (64, 4, 2)
    assert document["search"]["deterministic_training"] is True


def test_every_registered_key_of_mindformers_is_classified() -> None:
    """And those of the older models that its configurations hold."""
    keys = [key for key in flag_table("mindformers-master") if key.partition(".")[0] not in REASONS]
    assert [key for key in keys if key_effect(key) is None] == []
    assert key_effect("model.model_config.a_key_of_ours") is None
    assert key_effect("their_section.type") is None


MINDFORMERS = """
run_mode: train
parallel_config: {data_parallel: 1, vocab_emb_dp: False}
optimizer: {type: AdamW}
model:
  model_config: {hidden_size: 64, num_layers: 4, num_heads: 4, vocab_size: 100, seq_length: 64, compute_dtype: bfloat16}
"""


def test_keys_that_change_the_result_are_told_and_others_are_not() -> None:
    assert "unmodelled" not in import_document(MINDFORMERS, "a.yaml").document
    other = MINDFORMERS.replace("AdamW", "Muon").replace("False", "True")
    muon = import_document(other, "a.yaml").document["unmodelled"]
    assert len(muon) == 2
    assert all(CHINESE.search(in_language(text, "zh")) for text in muon)
    patterns = MINDFORMERS + "recompute_config: {select_recompute: {'feed_forward.mul': True}}\n"
    (doubt,) = import_document(patterns, "a.yaml").document["unmodelled"]
    assert "left out of the prediction" in doubt


@pytest.mark.parametrize(("given", "dense"), [("2", [1, 3]), ("[0, 1, 1, 0]", [0, 3]), ("1", None)])
def test_layers_with_experts_of_mindformers(given: str, dense: list[int] | None) -> None:
    more = f", num_experts: 8, num_experts_per_tok: 2, moe_intermediate_size: 32, moe_layer_freq: {given}}}"
    balanced = "bfloat16, moe_router_force_expert_balance: True" + more
    document = import_document(MINDFORMERS.replace("bfloat16}", balanced), "a.yaml").document
    assert document["model"].get("mlp_only_layers") == dense
    assert document["training"]["routing_imbalance"] == 1.0
