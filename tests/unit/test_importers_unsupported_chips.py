"""The profile decides what a chip multiplies: a script says its number format, a file's name says nothing."""

from __future__ import annotations

import pytest

from autodeploy.formats.import_document import import_document
from autodeploy.kit.errors import SpecError
from autodeploy.search import planner
from hardware_profiles import nearest_profiles

FLAGS = (
    "--num-layers 4 --hidden-size 512 --num-attention-heads 8 --seq-length 1024 --vocab-size 1000 "
    "--global-batch-size 8 --micro-batch-size 1 --bf16"
)
LAUNCH = f"torchrun --nproc_per_node 8 pretrain_gpt.py {FLAGS}"


@pytest.mark.parametrize(
    ("formats", "doubted"),
    [
        ("--fp8-format e4m3 --fp8-recipe mxfp8", "--fp8-recipe mxfp8"),
        ("--fp8-format hif8 --fp8-recipe tensorwise", "--fp8-format hif8"),
        ("--fp8-format hybrid --fp8-recipe tensorwise", ""),
    ],
)
def test_a_chip_without_a_format_refuses_it_and_one_with_it_takes_it(formats: str, doubted: str) -> None:
    imported = import_document(f"{LAUNCH} {formats}", "pretrain_small_bf16_A5_ptd.sh")
    assert [doubt for doubt in imported.diagnostics.doubts if doubted and doubted in doubt] or not doubted
    assert imported.spec("nvidia-b200").training.precision == "fp8"
    with pytest.raises(SpecError, match="fp8") as caught:
        planner.estimate(imported.spec("ascend-800t-a2"))
    assert caught.value.errors[0].path == "/training/precision"


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("a800", ["nvidia-a800-80g"]),
        ("A100-80GB", ["nvidia-a100-80g"]),
        ("800t-a2", ["ascend-800t-a2"]),
        *((other, []) for other in ("h200", "gh200", "ascend-950", "950", "rtx4090")),
    ],
)
def test_a_hint_never_leads_to_another_chip(name: str, nearest: list[str]) -> None:
    assert nearest_profiles(name) == nearest
    assert nearest_profiles("cloudmatrx")[0] == "cloudmatrix-384"
