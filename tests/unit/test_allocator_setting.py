"""The allocator's setting: read from scripts and records, written by exporters, and what it costs."""

from __future__ import annotations

import pytest

from autodeploy.analysis.launch_checks.launch import launch_of
from autodeploy.calibration.record_prediction import predict_record
from autodeploy.calibration.shipped.tables import shipped_records
from autodeploy.formats.import_document import import_document
from autodeploy.formats.registry import export
from autodeploy.search import planner
from autodeploy.specs.record import Record
from autodeploy.specs.spec import Spec
from hardware_profiles.loader import load_profile, shipped_profiles
from tests import factories

RUN = (
    "torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 8 --hidden-size 4096 --num-attention-heads 32 "
    "--ffn-hidden-size 11008 --swiglu --vocab-size 32000 --micro-batch-size 1 --seq-length 4096 --global-batch-size 64 "
    "--bf16 --use-distributed-optimizer --use-flash-attn"
)


def imported(setting: str = ""):
    return import_document(f"{setting}\n{RUN}", "a.sh")


@pytest.mark.parametrize(
    ("setting", "fixed"),
    [
        ("", False),
        ("export PYTORCH_NPU_ALLOC_CONF=expandable_segments:True", False),
        ("export PYTORCH_NPU_ALLOC_CONF='expandable_segments: true,base_addr_aligned_kb:0'", False),
        ("export PYTORCH_NPU_ALLOC_CONF=expandable_segments:False", True),
        ("export PYTORCH_CUDA_ALLOC_CONF=max_split_size_mb:512", True),  # refused beside segments that grow
        ("export PYTORCH_ALLOC_CONF=expandable_segments:True", False),
    ],
)
def test_a_script_says_whether_segments_grow(setting: str, fixed: bool) -> None:
    found = imported(setting)
    assert ("fixed_segments" in found.document["strategy"]["features"]) is fixed
    assumed = [note for note in found.diagnostics.defaulted if "expandable_segments" in str(note.value)]
    assert bool(assumed) is not bool(setting), "what nobody said is told"


def test_fixed_segments_fill_the_card_and_leave_the_allocators_peak() -> None:
    settings = ("", "export PYTORCH_NPU_ALLOC_CONF=expandable_segments:False")
    launches = [launch_of(imported(setting), "ascend-800t-a2") for setting in settings]
    grows, fixed = (planner.estimate(launch.spec) for launch in launches)
    memory = load_profile("ascend-800t-a2").memory
    assert (fixed.allocator_peak_gib, fixed.step_time_s) == (grows.allocator_peak_gib, grows.step_time_s)
    more = memory.fragmentation_fixed_segments - memory.fragmentation
    assert fixed.peak_memory_gib - grows.peak_memory_gib == pytest.approx(more * grows.allocator_peak_gib)


@pytest.mark.parametrize(("word", "fixed"), [("expandable_segments", False), ("no_expandable_segments", True)])
@pytest.mark.parametrize(("counts", "moves"), [("allocated", False), ("reserved", True), ("card", True)])
def test_a_record_is_compared_with_what_it_counts(word: str, fixed: bool, counts: str, moves: bool) -> None:
    record = next(r for r in shipped_records() if r.measured.peak_memory_gib and "ascend" in r.cluster.profile)
    document = record.model_dump(mode="json", exclude={"diagnoses"})
    document["measured"]["memory_counts"] = counts
    plain = predict_record(Record.model_validate(document))
    document["strategy"]["features"] = [*document["strategy"]["features"], word]
    named = Record.model_validate(document)
    assert not [each for each in named.diagnoses if word in each.text]
    found = predict_record(named)
    assert found.allocator_peak_gib == plain.allocator_peak_gib
    if fixed and moves:
        assert found.memory_gib == pytest.approx(plain.memory_gib + 0.08 * plain.allocator_peak_gib)
    else:
        assert found.memory_gib == plain.memory_gib


@pytest.mark.parametrize(("profile", "target"), [("ascend-800t-a2", "mindspeed-llm"), ("nvidia-h100", "megatron")])
@pytest.mark.parametrize("fixed", [False, True])
def test_an_exported_script_sets_what_its_plan_counts_on(profile: str, target: str, fixed: bool) -> None:
    features = ("flash_attention", *(("fixed_segments",) if fixed else ()))
    document = factories.spec_document(target=target)
    spec = Spec.model_validate(document | {"cluster": {"profile": profile, "num_npus": 384}})
    plan = factories.plan(1, spec=spec, strategy=factories.strategy(1, features=features), stages=(), run=None)
    text = export(factories.plan_set(1, spec=spec), plan, target).text
    assert f"expandable_segments:{not fixed}" in text
    assert f"expandable_segments:{fixed}" not in text
    assert ("fixed_segments" in import_document(text).document["strategy"]["features"]) is fixed


def test_every_shipped_profile_knows_both() -> None:
    for name in shipped_profiles():
        memory = load_profile(name).memory
        assert memory.fragmentation < 0.08 <= memory.fragmentation_fixed_segments <= 0.15
