"""A model's name and vocabulary: lent by a preset only where it is that model, asked for otherwise."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from autodeploy.formats.import_document import import_document
from autodeploy.kit.errors import SpecError
from autodeploy.messages import in_language

if TYPE_CHECKING:
    from autodeploy.formats.common.import_result import ImportResult

LLAMA = (
    "--num-layers 32 --hidden-size 4096 --num-attention-heads 32 --ffn-hidden-size 11008 --swiglu "
    "--untie-embeddings-and-output-weights --position-embedding-type rope"
)
V3 = (
    "--num-layers 61 --hidden-size 7168 --ffn-hidden-size 18432 --num-attention-heads 128 --swiglu --vocab-size 129280 "
    "--untie-embeddings-and-output-weights --position-embedding-type rope --multi-latent-attention --q-lora-rank 1536 "
    "--kv-lora-rank 512 --num-experts 256 --moe-router-topk 8 --n-shared-experts 1 --moe-layer-freq ([0]*3+[1]*58)"
)
REST = "--seq-length 4096 --global-batch-size 64 --bf16"


def read(flags: str, filename: str) -> ImportResult:
    return import_document(f"torchrun --nproc_per_node 8 pretrain_gpt.py {flags} {REST}", filename)


def test_a_preset_lends_its_name_where_the_parameters_agree() -> None:
    whole = read(f"{V3} --moe-ffn-hidden-size 2048".replace("([0]*3+[1]*58)", "'([0]*3+[1]*58)'"), "deepseek3.sh")
    assert whole.document["model"]["name"] == "DeepSeek-V3 671B"
    assert "doubts" not in whole.document


def test_a_broken_script_is_not_called_by_the_name_of_a_preset() -> None:
    """Without the experts' width they are as wide as the dense layers: nine times the parameters."""
    broken = read(V3.replace("([0]*3+[1]*58)", "'([0]*3+[1]*58)'"), "pretrain_deepseek3_671b.sh")
    name = broken.document["model"]["name"]
    assert name.startswith("pretrain_deepseek3_671b (5,9")
    assert name.endswith(" B)")
    (doubt,) = broken.document["doubts"]
    assert "shaped like DeepSeek-V3 671B, but with 5,9" in doubt


def test_a_vocabulary_is_lent_by_a_preset_that_the_file_names_and_told() -> None:
    found = read(LLAMA, "pretrain_llama2_7b.sh")
    assert found.document["model"]["vocab_size"] == 32_000
    assert found.document["model"]["name"] == "Llama-2 7B"
    assert found.document["doubts"] == ["/model/vocab_size = 32000: from Llama-2 7B"]


@pytest.mark.parametrize(
    ("flags", "filename"),
    [
        (LLAMA, "pretrain_baichuan2_7b.sh"),  # the same shape, 125,696 tokens
        (f"{LLAMA} --tokenizer-type Llama2Tokenizer", "pretrain_baichuan2_7b.sh"),
        (LLAMA.replace("11008", "9000"), "pretrain_llama2_7b.sh"),
    ],
)
def test_a_vocabulary_is_never_assumed(flags: str, filename: str) -> None:
    with pytest.raises(SpecError, match="--vocab-size is required") as caught:
        read(flags, filename)
    assert "--set VOCAB_SIZE=N" in caught.value.errors[0].hint


def test_a_tokenizer_lends_its_vocabulary_to_its_family_and_it_is_told() -> None:
    shape = LLAMA.replace("--num-layers 32", "--num-layers 5")
    found = read(f"{shape} --tokenizer-type Llama2Tokenizer", "llama2_small.sh")
    assert found.document["model"]["vocab_size"] == 32_000
    assert "from Llama2Tokenizer" in found.document["doubts"][0]


GROUPED = (
    "--num-layers 80 --hidden-size 8192 --num-attention-heads 64 --ffn-hidden-size 28672 --swiglu "
    "--group-query-attention --num-query-groups 8 --untie-embeddings-and-output-weights --position-embedding-type rope"
)


@pytest.mark.parametrize(
    ("filename", "name", "vocabulary"),
    [
        ("pretrain_llama2_70b_8k.sh", "Llama-2 70B", 32_000),
        ("pretrain_llama-2-70b.sh", "Llama-2 70B", 32_000),
        ("pretrain_llama3_70b_8k.sh", "Llama-3 70B", 128_256),
        ("pretrain_llama31_70b_8k.sh", "Llama-3.1 70B", 128_256),
    ],
)
def test_of_models_of_one_shape_the_series_that_the_file_names_lends(filename: str, name: str, vocabulary: int) -> None:
    found = read(GROUPED, filename)
    assert (found.document["model"]["name"], found.document["model"]["vocab_size"]) == (name, vocabulary)
    assert any("/model/vocab_size" in doubt for doubt in found.document["doubts"])


@pytest.mark.parametrize("filename", ["pretrain_llama_70b.sh", "pretrain_llama70b.sh", "codellama2_70b.sh"])
def test_models_of_one_shape_that_the_file_does_not_tell_apart_lend_nothing(filename: str) -> None:
    with pytest.raises(SpecError, match="--vocab-size is required"):
        read(GROUPED, filename)


def test_layers_of_the_named_series_lend_at_another_depth_and_it_is_told() -> None:
    deeper = GROUPED.replace("--num-layers 80", "--num-layers 88")
    found = read(deeper, "pretrain_llama2_80b.sh").document
    assert (found["model"]["vocab_size"], found["model"]["name"]) == (32_000, "pretrain_llama2_80b")
    (doubt,) = found["doubts"]
    assert doubt == "/model/vocab_size = 32000: from Llama-2 70B"
    assert "由 Llama-2 70B 得出" in in_language(doubt, "zh")
    with pytest.raises(SpecError, match="--vocab-size is required"):
        read(f"{deeper} --num-experts 8 --moe-router-topk 2", "pretrain_llama2_moe.sh")


HUGE = (
    "--num-layers 64 --hidden-size 4096 --num-attention-heads 32 --ffn-hidden-size 4096 --swiglu --num-experts 160 "
    "--moe-router-topk 5 --group-query-attention --num-query-groups 4 --untie-embeddings-and-output-weights"
)


@pytest.mark.parametrize(("filename", "size"), [("pretrain_deepseek_500b.sh", 129_280), ("llama2_moe_500b.sh", 32_000)])
def test_a_family_lends_where_its_vocabularies_hardly_count_and_it_is_told(filename: str, size: int) -> None:
    found = read(HUGE, filename).document
    assert found["model"]["vocab_size"] == size
    assert any("/model/vocab_size" in doubt for doubt in found["doubts"])
    with pytest.raises(SpecError, match="--vocab-size is required"):
        read(HUGE.replace("--num-layers 64", "--num-layers 2"), filename)


def test_grids_of_tensor_parallel_ranks_cut_activations() -> None:
    flags = f"{LLAMA} --vocab-size 32000 --tensor-model-parallel-size 4"
    assert not read(flags, "a.sh").document["strategy"]["sequence_parallel"]
    assert read(f"{flags} --tp-2d --tp-x 2 --tp-y 2", "a.sh").document["strategy"]["sequence_parallel"]


@pytest.mark.parametrize("flag", ["--geglu", "--gelu-tanh"])
def test_gated_activations_have_three_matrices_of_the_width_that_stands_there(flag: str) -> None:
    model = read(LLAMA.replace("--swiglu", flag) + " --vocab-size 256000", "a.sh").document["model"]
    assert (model["hidden_act"], model["intermediate_size"]) == ("geglu", 11_008)
    plain = LLAMA.replace("--swiglu", flag).replace("--ffn-hidden-size 11008", "")
    assert read(f"{plain} --vocab-size 256000", "a.sh").document["model"]["intermediate_size"] == 4 * 4096


def test_what_is_lent_is_told_in_chinese() -> None:
    (doubt,) = read(LLAMA, "pretrain_llama2_7b.sh").document["doubts"]
    assert in_language(doubt, "zh") == "/model/vocab_size = 32000：由 Llama-2 7B 得出"
