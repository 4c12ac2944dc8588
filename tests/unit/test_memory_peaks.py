"""Peaks of memory against what CI baselines of MindSpeed-LLM log, each decided by one mechanism, and by hand."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest

from autodeploy.calibration.record_prediction import Prediction, memory_counts, predict_record, record_memory_spread
from autodeploy.calibration.shipped.tables import shipped_records
from autodeploy.calibration.validation import validate
from autodeploy.costs.prediction_spread import memory_spread
from autodeploy.formats.import_document import import_document
from autodeploy.specs.record import Record
from cost_models.hbm import GIB, MIB


@cache
def documents() -> dict[str, dict[str, Any]]:
    """Shipped records as documents, by id."""
    return {r.id: r.model_dump(mode="json", exclude={"diagnoses"}, exclude_unset=True) for r in shipped_records()}


def predicted(name: str, **changes: Any) -> Prediction:
    """The prediction of a shipped record, with changed sections."""
    document = documents()[name]
    return predict_record(Record.model_validate(document | changes))


@pytest.mark.parametrize(
    ("name", "gib", "because"),
    [
        ("ST060", 24.128, "16,384 tokens by 151,936 logits of 10 bytes"),
        ("ST094", 4.841, "4096 tokens by 151,936 logits of 6 bytes, embedding and head tied"),
        ("ST054", 2.548, "1024 tokens by 151,936 logits of 10 bytes, tied"),
        ("ST_pretrain_minimax27_4K_A3_ptd_l1tp1pp1ep4", 12.786, "4096 tokens by 200,064 logits of 6 bytes"),
        ("ST_pretrain_huyuan3_4k_tp1pp1ep4_ptd", 12.513, "pairs at one stage hold one micro batch"),
        ("ST050", 16.323, "Adam copies the embedding of 500 MiB in FP32"),
        ("ST064", 27.192, "Adam copies the 16 experts of a layer, 3200 MiB"),
        ("ST081", 8.980, "Adam copies a rank's share of the embedding, 1312 MiB"),
        ("ST084", 37.195, "tied, and two experts of 18,304 by 12,800 copied"),
    ],
)
def test_peak_of_a_ci_baseline(name: str, gib: float, because: str) -> None:
    assert predicted(name).allocator_peak_gib == pytest.approx(gib, rel=0.016), because


def test_a_newer_stack_copies_neither_logits_nor_weights() -> None:
    older, newer = (predicted("ST050", date=date).allocator_peak_gib for date in ("2.1.0", "26.0.0"))
    assert (older - newer) * GIB == pytest.approx(500 * MIB)
    older, newer = (predicted("ST060", date=date).estimate.allocator_bytes[1] for date in ("2.1.0", "2.2.0"))
    assert older - newer == pytest.approx(4.0 * 16_384 * 151_936, rel=1e-6)


def test_tensors_that_two_choices_free_are_freed_once() -> None:
    # Activations of routed experts are freed by both; those of shared experts by recomputing activations alone.
    def activations(modules: list[str]) -> float:
        strategy = documents()["ST046"]["strategy"] | {"recompute": {"granularity": "selective", "modules": modules}}
        return float(predicted("ST046", strategy=strategy).estimate.memory["activations"][0])

    both, zero = activations(["activation", "moe_zero_memory_level0"]), activations(["moe_zero_memory_level0"])
    dense, shared = 2.0 * 8192 * 12_288, 2.0 * 8192 * 3072
    assert zero - both == pytest.approx(dense + shared)


def test_ulysses_keeps_attention_before_and_after_its_exchange() -> None:
    # MindSpeed-LLM's document on context parallel fine-tuning: 53,681 against 52,777 MB with 32 layers.
    ring, ulysses = (predicted(f"MSL_llama2_7b_32k_cp4_{name}") for name in ("ring", "ulysses"))
    more = (ulysses.allocator_peak_gib - ring.allocator_peak_gib) * 1024
    assert more == pytest.approx(32 * 2.0 * 8192 * 2048 / MIB)
    assert more == pytest.approx(53_681 - 52_777, rel=0.15)


def test_what_is_counted_follows_from_where_it_was_published() -> None:
    known = {r.id: r for r in shipped_records()}
    assert memory_counts(known["ST050"]) == "allocated"
    assert memory_counts(known["MSL_llama2_7b_32k_cp4_ring"]) == "card"
    assert memory_counts(known["torchtitan_8b_8_eager"]) == "reserved"
    said = documents()["ST050"]["measured"] | {"memory_counts": "card"}
    as_card = predicted("ST050", measured=said)
    assert as_card.memory_gib > as_card.allocator_peak_gib * 1.03
    assert as_card.memory_gib == pytest.approx(
        float(np.max(as_card.estimate.card_bytes - as_card.estimate.allocator_bytes * 1.03)) / GIB
        + as_card.allocator_peak_gib * 1.03
    )


def test_published_shapes_tie_where_a_record_does_not_say() -> None:
    silent = {k: v for k, v in documents()["ST084"]["model"].items() if k != "tie_word_embeddings"}
    record = Record.model_validate(documents()["ST084"] | {"model": silent})
    assert record.model.tie_word_embeddings
    assert any("ties them" in each.text for each in record.diagnoses)
    said = silent | {"tie_word_embeddings": False}
    assert not Record.model_validate(documents()["ST084"] | {"model": said}).model.tie_word_embeddings


def test_every_predicted_memory_has_an_interval() -> None:
    rows = validate([Record.model_validate(documents()[name]) for name in ("ST050", "MSL_llama2_7b_32k_cp4_ring")]).rows
    for row in rows:
        assert row.predicted is not None
        known, peak = row.predicted.memory_interval, row.predicted.peak_memory_gib
        assert known.low_gib < peak < known.high_gib
        assert known.low_gib * known.high_gib == pytest.approx(peak**2)
    # What is beside the allocator is assumed, and counts where it was measured too.
    run = {"seq_length": 4096, "pp": 2, "ep": 2, "cp": 1, "features": []}
    assert memory_spread("ascend", run).log_sigma > memory_spread("ascend", run, on_card=False).log_sigma


def test_memory_is_less_certain_far_from_the_records() -> None:
    near = {"seq_length": 4096, "pp": 2, "ep": 2, "cp": 1, "features": []}
    far = near | {"seq_length": 2**20, "ep": 256, "features": ["unheard_of"]}
    here, there = memory_spread("ascend", near), memory_spread("ascend", far)
    assert here.extrapolated == ()
    assert set(there.extrapolated) == {"seq_length", "ep", "unheard_of"}
    assert there.log_sigma > here.log_sigma


def test_four_fifths_of_the_open_peaks_lie_in_their_intervals() -> None:
    found = []
    for record in shipped_records():
        if record.measured.peak_memory_gib is not None:
            there = predict_record(record)
            interval = record_memory_spread(there).interval(there.memory_gib)
            found.append((record.measured.peak_memory_gib, interval))
    assert len(found) >= 54
    inside = [each.low_gib <= measured <= each.high_gib for measured, each in found]
    assert 0.72 <= sum(inside) / len(inside) <= 0.9


@pytest.mark.parametrize(
    ("flags", "features"),
    [
        ("--grad-reduce-in-bf16", {"bf16_gradients"}),
        ("--o2-gradient --o2-optimizer", {"bf16_gradients", "o2_optimizer"}),
        ("--use-precision-aware-optimizer --exp-avg-dtype bf16 --exp-avg-sq-dtype bf16", {"precision_aware_optimizer"}),
        ("--use-precision-aware-optimizer", set()),
        ("--fp8-param-gather", {"fp8_weights"}),
    ],
)
def test_words_of_states_are_read_from_flags(flags: str, features: set[str]) -> None:
    script = (
        "torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 2 --hidden-size 512 --num-attention-heads 8 "
        "--vocab-size 100 --micro-batch-size 1 --seq-length 512 --global-batch-size 8 --use-distributed-optimizer "
    )
    found = import_document(script + flags, "a.sh").document["strategy"]["features"]
    words = {"bf16_gradients", "o2_optimizer", "precision_aware_optimizer", "fp8_weights"}
    assert set(found) & words == features


def test_shards_of_gradients_are_what_zero_2_saves() -> None:
    """ZeRO-2 on 8 replicas: 7/8 of 2 bytes a parameter less than with whole gradients (arXiv:1910.02054)."""
    record = next(each for each in shipped_records() if each.id == "OLD_aquila7b_z2")
    whole = record.model_copy(update={"framework": "mindspeed-llm", "source": "", "date": "2023-12"})
    parameters = 7.30e9  # 32 layers of 4096, 2 x 100,008 rows of the vocabulary
    saved = (predict_record(whole).memory_gib - predict_record(record).memory_gib) * 2**30
    assert saved == pytest.approx(parameters * 2.0 * 7 / 8, rel=0.03)
