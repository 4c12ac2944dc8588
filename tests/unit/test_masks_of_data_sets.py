"""Masks that Megatron-LM's data set makes: launches switch them off, and a file that doesn't is told what they take."""

from __future__ import annotations

from typing import Any

import pytest

from autodeploy.formats.import_document import import_document
from autodeploy.formats.megatron.launch import NO_MASK
from autodeploy.formats.registry import export
from autodeploy.specs.spec import Spec
from tests import factories

pytestmark = pytest.mark.unit

GPUS = {"profile": "nvidia-h100", "num_npus": 768}
DENSE = {
    "name": "dense",
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "vocab_size": 32000,
}
HEAD = "torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 4 --hidden-size 512 --num-attention-heads 8 --bf16 "
HEAD += "--vocab-size 1000 "


def script(to: str, **changes: Any) -> str:
    spec = Spec.model_validate(factories.spec_document(target=to.removesuffix("-flags")) | changes)
    shape = {"features": ("flash_attention",), "swap": (), "recompute": {}, "layers_per_stage": None}
    plan = factories.plan(1, spec=spec, strategy=factories.strategy(4, **shape), stages=(), run=None)
    return export(factories.plan_set(1, spec=spec), plan, to).text


@pytest.mark.parametrize(
    ("to", "changes", "written"),
    [
        ("megatron", {"cluster": GPUS}, True),
        ("megatron", {"cluster": GPUS, "model": DENSE}, True),
        ("megatron", {}, True),
        ("megatron", {"search": {"target": "megatron", "target_release": "megatron-mindspeed-2.0.0"}}, True),
        ("megatron-flags", {"cluster": GPUS}, True),
        ("mindspeed-llm", {}, False),
        ("mindspeed-llm", {"model": DENSE}, False),
    ],
)
def test_a_launch_of_megatron_makes_no_mask(to: str, changes: dict[str, Any], *, written: bool) -> None:
    if changes.get("model") is DENSE or "2.0.0" in str(changes):
        changes = {"model": DENSE} | changes
    text = script(to, **changes)
    assert text.count(NO_MASK) == written
    found = import_document(text, "launch.sh").diagnostics
    assert not [note for note in found.unmodelled if note.source == "data"]


def masks(flags: str) -> list[str]:
    found = import_document(HEAD + flags, "launch.sh").diagnostics
    return [note.reason for note in found.unmodelled if note.source == "data"]


@pytest.mark.parametrize(
    ("sequence", "samples", "gib", "host"),
    [
        (4096, 1, "0.0156", "0.0625"),
        (8192, 2, "0.125", "0.25"),
        (32_768, 1, "1", "4"),
        (65_536, 4, "16", "16"),
        (131_072, 1, "16", "64"),
        (262_144, 1, "64", "256"),
    ],
)
def test_a_script_without_the_flag_is_told_what_a_mask_takes(sequence: int, samples: int, gib: str, host: str) -> None:
    (said,) = masks(f"--seq-length {sequence} --micro-batch-size {samples}")
    assert f" {gib} GiB per micro batch" in said
    assert f" {host} GiB per sample" in said


@pytest.mark.parametrize(
    "flags",
    [
        f"--seq-length 32768 {NO_MASK}",
        "--seq-length 32768 --dataloader-inter-document-masking",
        "--seq-length 32768 --recompute-activation-function",  # MindSpeed's
        "--seq-length 32768 --prompt-type default",  # MindSpeed-LLM's
        "--seq-length 2048",
        "--global-batch-size 8",
    ],
)
def test_a_launch_that_makes_no_mask_is_told_nothing(flags: str) -> None:
    assert masks(f"{flags} --micro-batch-size 1") == []
