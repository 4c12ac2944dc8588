"""Fine-tuning scripts of MindSpeed-LLM: read as what they are."""

from __future__ import annotations

import re
from typing import Any

import pytest

from autodeploy.formats.import_document import import_document
from autodeploy.kit.errors import SpecError, UnsupportedError
from autodeploy.messages import in_language

FLAGS = (
    "--num-layers 4 --hidden-size 512 --num-attention-heads 8 --seq-length 1024 --vocab-size 1000 --swiglu --bf16 "
    "--global-batch-size 8 --micro-batch-size 1 --untie-embeddings-and-output-weights --finetune --stage sft"
)


LATENT = "--multi-latent-attention --qk-head-dim 32 --qk-pos-emb-head-dim 16 --v-head-dim 32"


def training(flags: str) -> dict[str, Any]:
    found = import_document(f"torchrun --nproc_per_node 8 posttrain_gpt.py {FLAGS} {flags}", "a.sh").document[
        "training"
    ]
    assert isinstance(found, dict)
    return found


def test_fine_tuning_of_all_parameters() -> None:
    found = training("--is-instruction-dataset")
    assert found["kind"] == "sft"
    assert "lora" not in found


def test_adapters_with_their_sizes() -> None:
    found = training("--lora-r 8 --lora-alpha 64 --lora-fusion --lora-target-modules linear_qkv linear_fc2")
    assert found["lora"] == {"rank": 8, "alpha": 64, "target_modules": ["linear_qkv", "linear_fc2"]}


def test_sizes_that_a_launch_leaves_out_are_the_frameworks() -> None:
    assert training("--lora-target-modules linear_proj")["lora"] == {
        "rank": 16,
        "alpha": 32,
        "target_modules": ["linear_proj"],
    }


def test_a_rank_without_targets_makes_no_adapters() -> None:
    assert "lora" not in training("--lora-r 8")


def test_adapters_beside_other_matrices_are_refused_with_their_place() -> None:
    with pytest.raises(SpecError, match=r"line 1, column .*: not modelled yet: word_embeddings") as caught:
        training("--lora-target-modules linear_qkv word_embeddings")
    assert "尚未建模" in in_language(caught.value.errors[0].message, "zh")


def test_packed_documents_with_their_lengths_are_modelled() -> None:
    command = f"torchrun --nproc_per_node 8 posttrain_gpt.py {FLAGS} --reset-attention-mask --neat-pack"
    found = import_document(f"# autodeploy: lengths=512/0.75+1024/0.25\n{command}", "a.sh").document
    assert found["training"]["sequence_length_histogram"] == {"512": 0.75, "1024": 0.25}
    assert not any("pack" in doubt for doubt in found.get("unmodelled", ()))
    broken = import_document(f"# autodeploy: lengths=512/0.75+0/1\n{command}", "a.sh").document
    assert "sequence_length_histogram" not in broken["training"]


def test_tokens_of_pairs_are_of_both_sequences() -> None:
    assert pairs("--is-pairwise-dataset --train-iters 10")["tokens"] == 10 * 8 * 2 * 1024


def pairs(flags: str) -> dict[str, Any]:
    script = f"torchrun --nproc_per_node 8 posttrain_gpt.py {FLAGS} {flags}".replace("--stage sft", "--stage dpo")
    found = import_document(script, "a.sh").document["training"]
    assert isinstance(found, dict)
    return found


def test_preference_tuning_with_its_loss_and_adapters() -> None:
    loss = "--is-pairwise-dataset --dpo-beta 0.3 --dpo-loss-type ipo --ref-model there"
    found = pairs(f"{loss} --lora-target-modules linear_qkv")
    assert (found["kind"], found["dpo"]) == ("dpo", {"beta": 0.3, "loss": "ipo"})
    assert found["lora"]["rank"] == 16
    assert "dpo" not in pairs("--is-pairwise-dataset")


def test_models_beside_which_no_reference_is_modelled() -> None:
    with pytest.raises(UnsupportedError, match="kind: dpo is not modelled with n_routed_experts"):
        pairs("--is-pairwise-dataset --num-experts 8 --moe-router-topk 2 --moe-ffn-hidden-size 128")


@pytest.mark.parametrize(
    ("flags", "what"),
    [
        (
            "--num-experts 8 --moe-router-topk 2 --moe-ffn-hidden-size 128",
            "lora + n_routed_experts needs target_modules",
        ),
        (f"{LATENT} --kv-lora-rank 64", "lora is not modelled with kv_lora_rank, q_lora_rank: null"),
        (
            f"{LATENT} --kv-lora-rank 64 --q-lora-rank 64 --enable-dsa-indexer",
            "lora is not modelled with sparse_attention",
        ),
    ],
)
def test_models_whose_adapters_are_not_modelled(flags: str, what: str) -> None:
    with pytest.raises(UnsupportedError, match=re.escape(what)):
        training(f"{flags} --lora-target-modules linear_qkv")


def test_adapters_of_experts_and_latents() -> None:
    experts = "--num-experts 8 --moe-router-topk 2 --moe-ffn-hidden-size 128 --moe-token-dispatcher-type alltoall_seq"
    names = "linear_qkv linear_proj linear_fc1 linear_fc2"
    found = training(f"{experts} {LATENT} --kv-lora-rank 64 --q-lora-rank 64 --lora-target-modules {names}")
    assert found["lora"]["target_modules"] == names.split()


def test_packed_documents_without_their_lengths_are_told() -> None:
    script = f"torchrun --nproc_per_node 8 posttrain_gpt.py {FLAGS} --reset-attention-mask --neat-pack"
    assert any("--neat-pack" in doubt for doubt in import_document(script, "a.sh").document["unmodelled"])
