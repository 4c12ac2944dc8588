"""Sums of gradients: which products add into them, by the flags of a launch, and what the others cost."""

from __future__ import annotations

import pytest

from autodeploy.analysis.launch_checks.launch import launch_of
from autodeploy.calibration.shipped.tables import shipped_records
from autodeploy.formats.import_document import import_document
from autodeploy.formats.registry import export
from autodeploy.search import planner
from autodeploy.specs.record import Record
from autodeploy.specs.software import features_of
from autodeploy.stack.gradient_sums import (
    EXPERT_FUSION,
    EXPERTS_APART,
    EXPERTS_FUSED,
    NO_FUSION,
    PLAIN_APART,
    WORDS,
    expert_sums_apart,
    in_mindspeed,
)
from tests import factories

SHAPE = (
    "--num-layers 8 --hidden-size 2048 --num-attention-heads 16 --ffn-hidden-size 1024 --vocab-size 32000 "
    "--seq-length 4096 --micro-batch-size 1 --global-batch-size 64 --bf16 --use-distributed-optimizer --swiglu "
    "--num-experts 32 --moe-router-topk 4 --expert-model-parallel-size 8 --moe-token-dispatcher-type alltoall "
    "--disable-bias-linear --normalization RMSNorm --position-embedding-type rope --use-flash-attn"
)
ADAPTED = "--use-fused-rmsnorm"  # only MindSpeed registers it
GROUPED = "--moe-grouped-gemm"


def script(*flags: str) -> str:
    return f"torchrun --nproc_per_node 8 --nnodes 1 pretrain_gpt.py {SHAPE} {' '.join(flags)}"


def words_of(*flags: str) -> set[str]:
    return WORDS & {*import_document(script(*flags)).document["strategy"]["features"]}


def step_s(*flags: str, profile: str = "ascend-800t-a2") -> float:
    launch = launch_of(import_document(script(*flags)), profile)
    return planner.estimate(launch.spec).step_time_s


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ((GROUPED, EXPERT_FUSION), set()),
        ((GROUPED,), {EXPERTS_APART}),
        ((GROUPED, NO_FUSION), {PLAIN_APART, EXPERTS_APART}),
        ((GROUPED, NO_FUSION, EXPERT_FUSION), {PLAIN_APART, EXPERTS_FUSED}),
        ((), set()),
        ((NO_FUSION,), {PLAIN_APART}),
    ],
)
def test_a_script_says_which_sums_are_operators(flags: tuple[str, ...], words: set[str]) -> None:
    assert words_of(ADAPTED, *flags) == words
    apart = in_mindspeed(GROUPED in flags, plain_apart=NO_FUSION in flags, experts_fused=EXPERT_FUSION in flags)
    assert apart == words
    assert (PLAIN_APART in words) is (NO_FUSION in flags)
    # One grouped product asks its own flag; single ones are plain products.
    asked = EXPERT_FUSION not in flags if GROUPED in flags else NO_FUSION in flags
    assert expert_sums_apart(words) is asked


def test_megatron_alone_has_one_flag_for_all_products() -> None:
    assert words_of(GROUPED) == set()
    assert words_of(GROUPED, NO_FUSION) == {PLAIN_APART}
    assert expert_sums_apart({PLAIN_APART})


def test_a_feature_that_asks_for_unfused_sums_is_priced_as_it_is() -> None:
    assert words_of(ADAPTED, GROUPED, "--use-custom-fsdp", NO_FUSION) == set()


def test_sums_apart_cost_time() -> None:
    fused, experts, both, plain = (
        step_s(ADAPTED, GROUPED, *flags) for flags in ((EXPERT_FUSION,), (), (NO_FUSION,), (NO_FUSION, EXPERT_FUSION))
    )
    assert fused < min(plain, experts)
    assert max(plain, experts) < both
    # Plain and experts' sums are added to one after the other.
    assert both - experts == pytest.approx(plain - fused, rel=0.05)


def test_records_and_scripts_are_read_alike() -> None:
    record = next(r for r in shipped_records() if r.id == "MSF03")
    document = record.model_dump(mode="json", exclude={"diagnoses"})

    def read(*features: str) -> frozenset[str]:
        document["strategy"]["features"] = ["moe_grouped_gemm", *features]
        return features_of(Record.model_validate(document)) & WORDS

    assert read() == words_of(ADAPTED, GROUPED)
    for name, flag in (
        ("gemm_gradient_accumulation_fusion", EXPERT_FUSION),
        ("no_gradient_accumulation_fusion", NO_FUSION),
    ):
        assert read(name) == words_of(ADAPTED, GROUPED, flag)
    both = ("gemm_gradient_accumulation_fusion", "no_gradient_accumulation_fusion")
    assert read(*both) == words_of(ADAPTED, GROUPED, EXPERT_FUSION, NO_FUSION)


@pytest.mark.parametrize("words", [set(), {EXPERTS_APART}, {PLAIN_APART, EXPERTS_APART}, {PLAIN_APART, EXPERTS_FUSED}])
def test_an_exported_script_says_it_again(words: set[str]) -> None:
    features = sorted({"grouped_gemm", "fused_rmsnorm", "flash_attention", *words})
    plan = factories.plan(1, strategy=factories.strategy(1, features=tuple(features)), stages=(), run=None)
    text = export(factories.plan_set(1), plan, "mindspeed-llm").text
    assert WORDS & {*import_document(text).document["strategy"]["features"]} == words
