"""Launches for the chip after today's are recognised by file, log or number format, and refused by name."""

from __future__ import annotations

import re

import pytest

from autodeploy.formats.import_document import import_document
from autodeploy.kit.errors import UnsupportedError
from autodeploy.messages import in_language

FLAGS = (
    "--num-layers 4 --hidden-size 512 --num-attention-heads 8 --seq-length 1024 --vocab-size 1000 "
    "--global-batch-size 8 --micro-batch-size 1 --bf16"
)
LAUNCH = f"torchrun --nproc_per_node 8 pretrain_gpt.py {FLAGS}"


@pytest.mark.parametrize(
    ("text", "filename", "word"),
    [
        (LAUNCH, "pretrain_small_4k_bf16_A5_ptd.sh", "pretrain_small_4k_bf16_A5_ptd"),
        (LAUNCH, "pretrain_ascend950.sh", "pretrain_ascend950"),
        (f"{LAUNCH} | tee logs/small_A5_perf.log", None, "logs/small_A5_perf.log"),
        (f"{LAUNCH} > small_A5.log", "a.sh", "small_A5.log"),
        (f"{LAUNCH} --fp8-format e4m3 --fp8-recipe mxfp8", "a.sh", "--fp8-recipe mxfp8"),
        (f"{LAUNCH} --fp8-format hif8 --fp8-recipe tensorwise", "a.sh", "--fp8-format hif8"),
    ],
)
def test_a_launch_for_the_next_chip_is_refused_by_name(text: str, filename: str | None, word: str) -> None:
    with pytest.raises(UnsupportedError, match=re.escape(f"Ascend 950 ({word})")) as caught:
        import_document(text, filename)
    (error,) = caught.value.errors
    assert error.path == "/cluster"
    assert "尚未建模：Ascend 950" in in_language(error.message, "zh")


@pytest.mark.parametrize("filename", ["pretrain_small_A3_ptd.sh", "pretrain_phi35_A50.sh", "llama5.sh", "a5x.sh"])
def test_launches_for_todays_chips_are_read(filename: str) -> None:
    text = f"{LAUNCH} --fp8-format hybrid --fp8-recipe tensorwise | tee logs/small_A2.log"
    assert import_document(text, filename).document["model"]["hidden_size"] == 512
