"""Ablation: switches, rows, and the published cases as documents."""

from __future__ import annotations

from functools import cache

import pytest

from autodeploy.analysis.ablation.cases import laid_over, read_cases
from autodeploy.analysis.ablation.comparison_sides import Runs
from autodeploy.analysis.ablation.feature_ablation import ablate, active_features, without
from autodeploy.analysis.ablation.published import METRICS, ablate_published
from autodeploy.kit.errors import SpecError
from autodeploy.search.planner import estimate
from autodeploy.specs.plan_details import Tolerance
from autodeploy.specs.spec import parse_spec
from autodeploy.specs.strategy import Strategy

SPEC = parse_spec(
    {
        "model": "deepseek-v2-lite",
        "cluster": {"profile": "ascend-800t-a2", "num_npus": 32},
        "training": {"seq_length": 4096, "global_batch_size": 256},
        "search": {"target": "any"},
        "strategy": {
            "tp": 2,
            "pp": 2,
            "vpp": 2,
            "ep": 8,
            "etp": 1,
            "schedule": "adaptive_pipe",
            "features": ["flash_attention", "grouped_gemm", "fused_rmsnorm"],
        },
    }
)


RUNS = Runs()  # of published cases
published = cache(read_cases)


@pytest.fixture(scope="module")
def report():
    return ablate(SPEC)


def test_every_feature_of_the_strategy_is_switched_each_way(report):
    modes = {mode: [row.feature for row in report.rows if row.mode == mode] for mode in ("alone", "cumulative")}
    left_out = [row.feature for row in report.rows if row.mode == "leave_one_out"]
    assert set(modes["alone"]) == {
        *("adaptive_pipe", "flash_attention", "grouped_gemm", "fused_rmsnorm", "tp_extend_ep")
    }
    assert modes["alone"] == modes["cumulative"] == left_out
    assert report.rows[0].mode == "baseline"


def test_what_cuts_the_sequence_is_priced_against_the_ring():
    long = {"seq_length": 65536, "global_batch_size": 32}
    for algorithm, feature, more in (("ulysses", "ulysses", {}), ("hybrid", "hybrid_cp", {"ulysses_degree": 4})):
        plain = {"schedule": "1f1b", "vpp": 1, "features": ("flash_attention",)}
        cut = SPEC.strategy.model_copy(update={**plain, "ep": 2, "cp": 8, "cp_algo": algorithm, **more})
        training = SPEC.training.model_validate({**SPEC.training.model_dump(), **long})
        spec = SPEC.model_copy(update={"strategy": cut, "training": training})
        rows = {row.mode: row for row in ablate(spec).rows if row.feature == feature}
        assert set(rows) == {"alone", "cumulative", "leave_one_out"}
        ring = cut.model_copy(update={"cp_algo": "ring", "ulysses_degree": None})
        on = frozenset(active_features(cut, frozenset())) - {feature}
        assert rows["leave_one_out"].step_time_s == (
            estimate(spec.model_copy(update={"strategy": ring}), features=on).step_time_s
        )
        assert "ring" not in active_features(ring, frozenset({"ring", "ulysses"}))


def test_the_last_cumulative_row_is_the_strategy_with_all_its_features(report):
    whole = estimate(SPEC, features=frozenset(SPEC.strategy.features) | {"adaptive_pipe", "tp_extend_ep"})
    last = [row for row in report.rows if row.mode == "cumulative"][-1]
    assert last.step_time_s == whole.step_time_s
    assert last.peak_memory_gib == whole.peak_memory_gib


def test_the_cumulative_gains_multiply_to_the_whole_gain(report):
    gain = 1.0
    for row in report.rows:
        if row.mode == "cumulative":
            gain *= 1.0 + row.predicted / 100.0
    last = [row for row in report.rows if row.mode == "cumulative"][-1]
    assert gain == pytest.approx(report.rows[0].step_time_s / last.step_time_s)


def test_what_moved_explains_the_difference(report):
    for row in report.rows:
        if row.mode == "alone":
            difference = row.step_time_s - report.rows[0].step_time_s
            assert sum(row.moved.values()) == pytest.approx(difference, abs=0.02 * row.step_time_s)


def test_an_order_is_kept_and_an_unused_feature_refused():
    rows = ablate(SPEC, order=["grouped_gemm", "adaptive_pipe"]).rows
    assert [r.feature for r in rows if r.mode == "cumulative"][:2] == ["grouped_gemm", "adaptive_pipe"]
    with pytest.raises(SpecError, match="does not use coc"):
        ablate(SPEC, order=["coc"])


def test_switching_off_says_what_stands_instead():
    strategy = Strategy(
        tp=4, pp=2, vpp=2, ep=16, etp=1, schedule="adaptive_pipe", swap=("attention",), swap_optimizer=True
    )
    active = active_features(strategy, frozenset({"selective_swap", "swap_attention"}))
    assert active == ("adaptive_pipe", "swap_attention", "swap_optimizer", "tp_extend_ep")
    plain = without(strategy, frozenset(active))
    assert (plain.schedule, plain.etp, plain.ep, plain.swap, plain.swap_optimizer) == ("interleaved", 4, 4, (), False)


@pytest.mark.parametrize(
    ("tolerance", "inside", "outside"),
    [
        (Tolerance(points=8), 33.0, 33.6),
        (Tolerance(relative_pct=10), 27.5, 27.6),
        (Tolerance(at_least=24), 24.0, 23.9),
        (Tolerance(at_most=26), 26.0, 26.1),
    ],
)
def test_a_tolerance_has_an_edge(tolerance, inside, outside):
    assert tolerance.holds(inside, 25.0)
    assert not tolerance.holds(outside, 25.0)


def test_published_cases_name_metrics_and_sources():
    for case in published():
        assert case.source
        for effect in case.effects:
            assert {effect.metric, *effect.beside} <= set(METRICS), case.case


def test_a_case_that_is_none_is_refused_with_its_file(tmp_path):
    (tmp_path / "bad.yaml").write_text("case: x\ntitle: y\nsource: z\neffects: [{feature: f}]\n", encoding="utf-8")
    with pytest.raises(SpecError, match=r"bad\.yaml"):
        ablate_published(tmp_path)
    with pytest.raises(SpecError, match="no published cases"):
        read_cases(tmp_path / "empty")


def test_mappings_are_laid_over_key_by_key():
    assert laid_over({"a": {"b": 1, "c": 2}}, {"a": {"c": 3}, "d": [4]}) == {"a": {"b": 1, "c": 3}, "d": [4]}


def test_the_ladder_of_post_training_is_predicted_from_one_assumption_file():
    """Nothing is fitted to it; a figure that is missed says why."""
    case = next(case for case in published() if case.case == "pangu_ultra_moe_rl_ladder")
    assert case.assumes == "pangu_ultra_moe_rl"
    found = {}
    for effect in case.effects:
        baseline, variant = RUNS.both(case, effect)
        found[effect.feature] = METRICS[effect.metric](baseline, variant)
        assert variant.plan.fits
        assert effect.tolerance.holds(found[effect.feature], effect.published) or effect.reason
    assert found["separate, searched split"] > found["separate, even split"]
    assert found["RL Fusion"] > found["separate, searched split"]
    assert found["StaleSync"] > found["RL Fusion"]
    assert found["RL Fusion"] == pytest.approx(25.0, rel=0.3)
    assert found["StaleSync"] == pytest.approx(35.0, rel=0.3)
    assert found["four supernodes"] == pytest.approx(127.0, rel=0.3)


def test_a_figure_of_pre_training_is_not_read_off_a_step_of_reinforcement_learning():
    case = next(case for case in published() if case.case == "pangu_ultra_moe_rl_ladder")
    with pytest.raises(SpecError, match="defined for pre-training steps only"):
        METRICS["host_event_ms"](*[RUNS.of(case, case.effects[2].variant)] * 2)
