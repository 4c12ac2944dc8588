"""Ablation: switches, rows, and the published cases as documents."""

from __future__ import annotations

from functools import cache
from typing import get_args

import pytest

from autodeploy.analysis.ablation.cases import laid_over, read_cases
from autodeploy.analysis.ablation.comparison_sides import Change, Runs
from autodeploy.analysis.ablation.feature_ablation import ablate, active_features, without
from autodeploy.analysis.ablation.published import METRICS, ablate_published
from autodeploy.kit.errors import SpecError
from autodeploy.search.planner import estimate
from autodeploy.specs.published_effects import Band, System
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
    ("band", "inside", "outside"),
    [
        (Band(points=8), (17.0, 33.0), (16.9, 33.1)),
        (Band(relative_pct=10), (22.5, 27.5), (22.4, 27.6)),
        (Band(between=(24, 26)), (24.0, 26.0), (23.9, 26.1)),
    ],
)
def test_a_band_has_two_edges(band, inside, outside):
    assert all(band.holds(value, 25.0) for value in inside)
    assert not any(band.holds(value, 25.0) for value in outside)


def test_published_cases_name_metrics_and_every_system():
    for case in published():
        assert case.source
        for effect in case.effects:
            assert {effect.metric, *effect.beside} <= set(METRICS), case.case
            assert effect.says
    assert {effect.system for case in published() for effect in case.effects} == set(get_args(System))


def test_a_cause_names_an_input_of_its_case():
    for case in published():
        for effect in case.effects:
            assert effect.cause is None or effect.cause.input in case.inputs, (case.case, effect.feature)


SMALL_CASE = """
case: small
title: Small
source: page 1
spec:
  model: llama2-7b
  cluster: {profile: ascend-800t-a2, num_npus: 8}
  training: {seq_length: 4096, global_batch_size: 32}
features: [flash_attention]
strategy: {tp: 8, distributed_optimizer: false}
inputs:
  spec: {source: page 2}
  spec/training/global_batch_size: {low: 0.5, high: 2.0, factor: true, why: open}
  features: {low: [], high: [flash_attention, fused_swiglu], why: open}
  strategy: {source: page 3}
effects:
  - system: parameter_copies
    feature: shared
    says: 1.7 GB
    metric: state_saved_gb
    variant: {features: [reuse_fp32_param], strategy: {reuse_fp32_param: true}}
    published: 1.7
    unit: GB
    band: {relative_pct: 5}
  - system: parameter_copies
    feature: a tenth of it
    says: 0.17 GB
    metric: state_saved_gb
    variant: {features: [reuse_fp32_param], strategy: {reuse_fp32_param: true}}
    published: 0.17
    unit: GB
    band: {points: 0.1}
    cause: {input: spec/training/global_batch_size, value: 2.0, factor: true, why: no such thing}
  - system: host
    feature: time
    says: no figure
    metric: step_time_added_pct
    variant: {features: [reuse_fp32_param], strategy: {reuse_fp32_param: true}}
    published: null
    unit: "%"
"""


def small_case(tmp_path, text=SMALL_CASE):
    (tmp_path / "small.yaml").write_text(text, encoding="utf-8")
    return tmp_path


def test_only_met_counts_and_a_cause_is_confirmed_by_its_flip_alone(tmp_path):
    report = ablate_published(small_case(tmp_path))
    shared, tenth, time = report.rows
    assert [row.verdict for row in report.rows] == ["met", "missed", "not_countable"]
    assert [(each.system, each.verdict, each.met, each.counted) for each in report.systems] == [
        ("host", "not_countable", 0, 0),
        ("parameter_copies", "missed", 1, 2),
    ]
    assert tenth.flip is not None
    assert not tenth.has_confirmed_cause
    assert report.systems[1].confirmed == 0
    assert {each.input for each in shared.ends} == {"spec/training/global_batch_size", "features"}
    assert [str(each.value) for each in shared.ends[:2]] == ["x 0.5", "x 2"]
    explained = SMALL_CASE.replace("published: 0.17", "published: 3.4").replace("points: 0.1", "relative_pct: 5")
    explained = explained.replace(
        "spec/training/global_batch_size, value: 2.0, factor: true", "strategy, value: {tp: 4}"
    )
    assert ablate_published(small_case(tmp_path, explained)).rows[1].has_confirmed_cause
    assert time.published is None


def test_an_input_without_an_origin_is_refused(tmp_path):
    with pytest.raises(SpecError, match="strategy/tp"):
        read_cases(small_case(tmp_path, SMALL_CASE.replace("  strategy: {source: page 3}\n", "")))
    with pytest.raises(SpecError, match="is not a published case"):
        read_cases(small_case(tmp_path, SMALL_CASE.replace("{source: page 2}", "{low: 1}")))


def test_a_factor_multiplies_what_either_side_states():
    case = published()[0]
    change = Change("spec/training/global_batch_size", 0.5, factor=True)
    stated = {"training": {"global_batch_size": 12, "seq_length": 8}}
    assert change.times("spec", stated) == {"training": {"global_batch_size": 6, "seq_length": 8}}
    assert change.times("strategy", {"tp": 2}) == {"tp": 2}
    assert change.of(case) is case


def test_a_case_that_is_none_is_refused_with_its_file(tmp_path):
    (tmp_path / "bad.yaml").write_text("case: x\ntitle: y\nsource: z\neffects: [{feature: f}]\n", encoding="utf-8")
    with pytest.raises(SpecError, match=r"bad\.yaml"):
        ablate_published(tmp_path)
    with pytest.raises(SpecError, match="no published cases"):
        read_cases(tmp_path / "empty")


def test_mappings_are_laid_over_key_by_key():
    assert laid_over({"a": {"b": 1, "c": 2}}, {"a": {"c": 3}, "d": [4]}) == {"a": {"b": 1, "c": 3}, "d": [4]}


def test_the_ladder_of_post_training_is_predicted_from_one_assumption_file():
    """Each point over the one before, whatever the texts say of it."""
    case = next(case for case in published() if case.case == "pangu_ultra_moe_rl_ladder")
    assert case.assumes == "pangu_ultra_moe_rl"
    speeds = {}
    for effect in case.effects:
        if effect.metric == "thousand_tokens_per_s":
            baseline, variant = RUNS.both(case, effect)
            speeds[effect.feature] = METRICS[effect.metric](baseline, variant)
            assert variant.plan.fits
    assert speeds["separate"] < speeds["RL Fusion"] < speeds["StaleSync"] < speeds["four supernodes"]


def test_a_figure_of_pre_training_is_not_read_off_a_step_of_reinforcement_learning():
    case = next(case for case in published() if case.case == "pangu_ultra_moe_rl_ladder")
    with pytest.raises(SpecError, match="defined for pre-training steps only"):
        METRICS["host_event_ms"](*[RUNS.of(case, case.effects[0].variant)] * 2)
