"""Changes of a launch: each with memory choices of its own, credited with what it brings itself."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from autodeploy.analysis.launch_checks.launch import Launch
from autodeploy.analysis.what_if.improve import improve
from autodeploy.search import planner
from autodeploy.specs.reading import read_spec_document

if TYPE_CHECKING:
    from autodeploy.specs.answers import ImproveReport

QUICK = {"time_limit_s": 2, "risk": "neutral", "target": "megatron"}


def improved(model: str, cards: int, batch: int, **strategy: Any) -> ImproveReport:
    spec = read_spec_document(
        {
            "model": model,
            "cluster": {"profile": "nvidia-h100", "num_npus": cards},
            "training": {"seq_length": 4096, "global_batch_size": batch},
            "search": QUICK,
            "strategy": {"micro_batch_size": 1, "sequence_parallel": True, **strategy},
        }
    )
    return improve(Launch(spec), planner=planner)


@cache
def mixtral() -> ImproveReport:
    degrees = {"tp": 2, "ep": 8, "etp": 2, "moe_dispatcher": "allgather"}
    return improved("mixtral-8x7b", 16, 128, distributed_optimizer=True, **degrees)


def test_a_dispatcher_chooses_its_own_recomputation() -> None:
    report = mixtral()
    assert not report.plan.fits
    first = report.improvements[0]
    assert first.name == "moe_dispatcher:alltoall"
    assert first.plan.fits
    assert first.plan.strategy.recompute != report.plan.strategy.recompute
    assert first.gain_pct > 10.0


def test_a_change_is_not_credited_with_the_memory_chosen_anew() -> None:
    report = improved("llama3-8b", 16, 64, tp=2, pp=2, recompute={"granularity": "full"}, distributed_optimizer=True)
    rate = report.plan.tokens_per_s_per_npu
    beside = [each for each in report.improvements if each.memory_gain_pct]
    for each in report.improvements:
        whole = (1.0 + each.gain_pct / 100.0) * (1.0 + each.memory_gain_pct / 100.0)
        assert abs(each.plan.tokens_per_s_per_npu / rate / whole - 1.0) < 1e-9
    strategies = [each.plan.strategy.model_dump_json() for each in report.improvements]
    assert len(strategies) == len(set(strategies))
    assert all(each.gain_pct > 0.0 for each in beside)


def test_the_launchs_own_batch_and_cards_are_told() -> None:
    few = improved("llama3-8b", 16, 2, tp=4, pp=2, distributed_optimizer=True)
    assert few.batch is not None
    assert few.batch.value >= 2 * 4 * 2
    assert few.batch.gain_pct > 20.0
    many = improved("llama3-8b", 16, 256, tp=4, pp=2, distributed_optimizer=True)
    assert many.batch is None
