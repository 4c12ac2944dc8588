"""Laws of predicted runs on random layouts far beyond the shipped ones: limits, monotony, and no refusal."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autodeploy.calibration.record_prediction import Prediction, factors_of, predict_record, record_spread
from autodeploy.calibration.validation import validate
from autodeploy.costs.workload.flops import mfu
from autodeploy.specs.presets import load_preset
from autodeploy.specs.record import Record
from tests.support.examples import examples

PROFILES = ("ascend-800t-a2", "cloudmatrix-384", "nvidia-a100-80g", "nvidia-h100", "nvidia-h800", "nvidia-b200")
DENSE = ("llama2-7b", "llama3.1-405b", "qwen3-32b")
EXPERTS = ("deepseek-v3", "qwen3-30b-a3b", "mixtral-8x7b")


@cache
def model(name: str) -> dict[str, Any]:
    return load_preset(name).model_dump(mode="json", exclude_unset=True)


@dataclass(frozen=True)
class Run:
    """A run by its axes; cards and batch follow from them, so that every one divides."""

    model: str
    profile: str
    tp: int = 1
    pp: int = 1
    vpp: int = 1
    cp: int = 1
    ep: int = 1
    replicas: int = 8
    micro: int = 1
    micro_batches: int = 8
    seq_length: int = 4096
    precision: str = "bf16"
    framework: str = "mindspeed-llm"
    sequence_parallel: bool = True
    etp: int = 1
    more: tuple[tuple[str, Any], ...] = ()
    features: tuple[str, ...] = ("flash_attention", "fused_swiglu", "fused_rmsnorm", "grouped_gemm")

    def record(self) -> Record:
        dies = 2 if self.profile == "cloudmatrix-384" else 1
        strategy = {
            **{name: getattr(self, name) for name in ("tp", "pp", "vpp", "cp", "ep", "etp")},
            "micro_batch_size": self.micro,
            "sequence_parallel": self.sequence_parallel and self.tp > 1,
            "schedule": "interleaved" if self.vpp > 1 else "1f1b",
            "moe_dispatcher": "alltoall",
            "features": list(self.features),
            **dict(self.more),
        }
        cards = self.tp * self.pp * self.cp * self.replicas // dies
        batch = self.replicas * self.micro * self.micro_batches
        return Record.model_validate(
            {
                "id": "drawn",
                "framework": self.framework,
                "date": "2025-03-30",
                "model": model(self.model),
                "cluster": {"profile": self.profile, "num_npus": cards},
                "training": {
                    "seq_length": self.seq_length,
                    "global_batch_size": batch,
                    "precision": self.precision,
                },
                "strategy": strategy,
                "measured": {"step_time_s": 1.0},
            }
        )

    def predict(self) -> Prediction:
        return predict_record(self.record(), factors_of=factors_of)


@st.composite
def runs(draw: st.DrawFn, models: tuple[str, ...] = DENSE + EXPERTS) -> Run:
    name = draw(st.sampled_from(models))
    moe = name in EXPERTS
    vpp = draw(st.sampled_from([1, 2, 4]))
    pp = draw(st.sampled_from([2, 4, 16])) if vpp > 1 else draw(st.sampled_from([1, 2, 8, 16]))
    return Run(
        model=name,
        profile=draw(st.sampled_from(PROFILES)),
        tp=draw(st.sampled_from([1, 2, 4, 8, 16])),
        pp=min(pp, 8) if name in ("llama2-7b", "mixtral-8x7b") else pp,
        vpp=vpp,
        cp=draw(st.sampled_from([1, 1, 2, 8])),
        ep=draw(st.sampled_from([1, 2, 8])) if moe else 1,
        replicas=draw(st.sampled_from([8, 16, 64, 256])),
        micro=draw(st.sampled_from([1, 2, 16])),
        micro_batches=draw(st.sampled_from([1, 3, 16, 64])),
        seq_length=draw(st.sampled_from([512, 4096, 131_072])),
        framework=draw(st.sampled_from(["mindspeed-llm", "mindformers", "torchtitan-npu", "somebody-s-own"])),
    )


# -- nothing is refused, nothing is absurd ------------------------------------------------------------------------


@settings(max_examples=examples(18), deadline=None)
@given(runs())
def test_every_run_has_a_time_between_the_limits_of_its_chip(run: Run) -> None:
    predicted = run.predict()
    assert math.isfinite(predicted.step_time_s)
    assert predicted.step_time_s > 0.0
    parts = predicted.estimate.breakdown
    assert sum(parts.values()) == pytest.approx(predicted.step_time_s, rel=1e-9)
    assert min(parts.values()) >= 0.0
    machine = predicted.context.machine
    rank = predicted.tokens_per_s_per_npu / machine.devices_per_npu
    assert 0.0 < mfu(predicted.record.model, run.seq_length, rank, machine.peak_flops) < 0.8


ODD: tuple[tuple[str, Any], ...] = (
    ("dp", 3),
    ("schedule", "zero_bubble_v"),
    ("schedule", "dualpipe"),
    ("schedule", "dualpipev"),
    ("cp_algo", "adaptive_cp_algo"),
    ("moe_dispatcher", "flex"),
    ("moe_dispatcher", "telepathy"),
    ("layers_per_stage", [1]),
    ("recompute", "selective"),
    ("recompute", {"granularity": "uniform", "method": "block", "num_layers": 500}),
    ("swap", ["attention", "dreams"]),
    ("features", ["use-flash-attn", "cuda-graphs", "moe-tp-extend-ep", "moe_fb_overlap", "hierarchical_a2a"]),
    ("quantum", True),
)


@settings(max_examples=examples(18), deadline=None)
@given(runs(), st.lists(st.sampled_from(ODD), max_size=4), st.sampled_from([None, 1, 7, 12, 10_007]))
def test_no_rule_and_no_word_refuses_a_run(run: Run, odd: list[tuple[str, Any]], cards: int | None) -> None:
    document = replace(run, more=tuple(odd)).record().model_dump(mode="json", exclude={"diagnoses"}, exclude_unset=True)
    document["strategy"] |= dict(odd)
    if cards is not None:
        document["cluster"]["num_npus"] = cards
    (row,) = validate([Record.model_validate(document)]).rows
    assert row.skipped is None
    assert row.predicted is not None
    low, high = row.predicted.step_time_interval_s
    assert 0.0 < low < row.predicted.step_time_s < high < math.inf


# -- shapes of scaling --------------------------------------------------------------------------------------------


@settings(max_examples=examples(10), deadline=None)
@given(runs())
def test_more_replicas_with_as_much_work_each_are_no_faster_and_lose_little(run: Run) -> None:
    """Weak scaling to tens of thousands of cards: gradients of a ring cost (g - 1) / g, so a doubling costs less than
    the exchange itself. Buckets grow with the ranks, so fewer of them start."""
    times = [replace(run, ep=1, replicas=n).predict() for n in (8, 16, 64)]
    steps = [p.step_time_s for p in times]
    updates = [p.estimate.breakdown["optimizer_s"] for p in times]
    rest = [step - update for step, update in zip(steps, updates, strict=True)]
    assert rest[0] * (1.0 - 5e-3) <= rest[1] <= rest[2] * (1.0 + 5e-3)
    exchange = times[-1].estimate.breakdown["exposed_dp_s"]
    assert steps[2] - steps[0] <= exchange + 0.02 * steps[2]


@settings(max_examples=examples(10), deadline=None)
@given(runs(), st.integers(1, 40))
def test_a_sequence_more_takes_at_most_a_micro_batch_more(run: Run, extra: int) -> None:
    document = run.record()
    batch = document.training.global_batch_size.value

    def seconds(sequences: int) -> float:
        training = document.training.model_copy(
            update={"global_batch_size": document.training.global_batch_size.model_copy(update={"value": sequences})}
        )
        return predict_record(document.model_copy(update={"training": training})).step_time_s

    more = -(-(batch + extra) // (run.replicas * run.micro)) - run.micro_batches
    base, longer = seconds(batch), seconds(batch + extra)
    assert longer >= base * (1.0 - 1e-9)
    whole = seconds(batch + more * run.replicas * run.micro)
    assert longer == pytest.approx(whole, rel=1e-9)


@settings(max_examples=examples(8), deadline=None)
@given(runs(DENSE), st.sampled_from(["nvidia-h100", "nvidia-b200"]))
def test_8_bits_are_faster_by_less_than_the_ratio_of_peaks(run: Run, profile: str) -> None:
    """Deep products alone double their rate; casts, attention, head and exchanges do not. Small ones may lose."""
    wide = replace(run, profile=profile, seq_length=4096, micro=2, model="llama3.1-405b", cp=1)
    narrow = replace(wide, precision="fp8")
    before, after = wide.predict(), narrow.predict()
    assert 0.5 < after.step_time_s / before.step_time_s < 1.0
    heads = [p.context.machine.rates.wide().peak_flops for p in (before, after)]
    assert heads[0] == heads[1]


@settings(max_examples=examples(8), deadline=None)
@given(runs(EXPERTS), st.sampled_from([2, 4, 8]))
def test_ranks_that_hold_the_same_tokens_work_on_them_once(run: Run, tp: int) -> None:
    """Without sequence parallelism the ranks of an expert's tensor-parallel group share their tokens: as many rows as
    with it, though each rank routes all of them."""
    cut = replace(run, tp=tp, etp=tp, ep=1, cp=1, seq_length=4096)
    whole = replace(cut, sequence_parallel=False)
    ratio = whole.predict().step_time_s / cut.predict().step_time_s
    assert ratio < 2.5


def test_an_interval_grows_with_each_doubling_beyond_the_records() -> None:
    run = Run("llama3.1-405b", "ascend-800t-a2", tp=8, pp=8)
    spreads = [record_spread(replace(run, replicas=n).predict()).log_sigma for n in (16, 64, 256)]
    assert spreads == sorted(spreads)
    assert spreads[0] < spreads[-1]
