"""Which shapes and sizes no measured efficiency covers."""

from __future__ import annotations

from functools import cache

from autodeploy.calibration.record_prediction import predict_record
from autodeploy.calibration.shipped.tables import shipped_records
from autodeploy.calibration.unmeasured import UnmeasuredReport, Use, measured_range, unmeasured, uses_of
from autodeploy.calibration.validation import validate
from autodeploy.cli.validate import unmeasured_table
from autodeploy.search.planner import estimate, lowered
from autodeploy.specs.spec import parse_spec
from hardware_profiles import Profile, apply_overlay, load_profile

NAME = "ascend-800t-a2"
Run = tuple[Profile, Profile, frozenset[Use]]
PROFILE, PRIOR = load_profile(NAME), load_profile(NAME, calibrated=False)


@cache
def report() -> UnmeasuredReport:
    return validate([r for r in shipped_records() if r.cluster.profile == NAME][:20]).unmeasured


def uses(profile_overlay: dict[str, object] | None = None) -> Run:
    record = next(r for r in shipped_records() if r.cluster.profile == NAME and r.strategy.tp > 1)
    predicted = predict_record(record)
    profile = PROFILE if profile_overlay is None else apply_overlay(PROFILE, profile_overlay)
    return profile, PRIOR, uses_of(predicted.context, predicted.candidate)


def test_a_fitted_value_keeps_the_range_of_the_points_its_curve_was_drawn_through() -> None:
    assert PROFILE.quantity("efficiency.gemm_peak_fraction").kind == "fitted"
    assert measured_range("efficiency.gemm_peak_fraction", PROFILE, PRIOR) == {
        "m": (2304, 14336),
        "n": (4096, 17920),
        "k": (1536, 4096),
    }
    assert measured_range("efficiency.hbm", PROFILE, PRIOR) == {}
    assert measured_range("efficiency.attention_forward", PROFILE, PRIOR) is None


def test_every_listed_shape_lies_outside_what_was_measured() -> None:
    found = report()
    assert found.shapes
    for shape in found.shapes:
        covered = measured_range(shape.number, PROFILE, PRIOR)
        if shape.reason == "not measured":
            assert covered is None
        else:
            assert covered is not None
            assert any(
                not low <= shape.shape[axis] <= high for axis, (low, high) in covered.items() if axis in shape.shape
            )
    kinds = {shape.kind for shape in found.shapes}
    assert {"gemm", "attention forward", "attention backward"} <= kinds
    assert not any(shape.kind == "vector" for shape in found.shapes), "the stream rate was measured"


def test_classes_count_and_reach() -> None:
    for each in report().classes:
        listed = [s for s in report().shapes if (s.profile, s.kind) == (each.profile, each.kind)]
        assert each.unmeasured == len(listed) <= each.shapes
        for axis, (low, high) in each.extent.items():
            values = [s.shape[axis] for s in listed]
            assert (low, high) == (min(values), max(values))
    assert len(unmeasured_table(report(), "en").rows) == sum(c.unmeasured > 0 for c in report().classes)


def test_a_benchmark_of_a_shape_takes_it_off_the_list() -> None:
    before = unmeasured([uses()])
    gemms = [s.shape for s in before.shapes if s.kind == "gemm"]
    assert gemms
    over = {axis: [min(s[axis] for s in gemms), max(s[axis] for s in gemms)] for axis in "mnk"}
    names = ("gemm_peak_fraction", "gemm_k_half", "gemm_mn_half")
    values = {n: {"value": PROFILE.efficiency[n], "kind": "measured", "measured_over": over} for n in names}
    after = unmeasured([uses({"profile": NAME, "efficiency": values})])
    assert not any(s.kind == "gemm" for s in after.shapes)
    assert len(after.shapes) == len(before.shapes) - len(gemms)


def test_a_plan_says_what_of_it_is_unmeasured() -> None:
    spec = parse_spec(
        {
            "model": "mixtral-8x7b",
            "cluster": {"profile": NAME, "num_npus": 16},
            "training": {"seq_length": 4096, "global_batch_size": 64},
            "strategy": {"tp": 2, "pp": 2, "ep": 4, "etp": 1, "micro_batch_size": 1},
        }
    )
    context, candidate = lowered(spec, estimate(spec))
    found = unmeasured([(PROFILE, PRIOR, uses_of(context, candidate))])
    kinds = {s.kind for s in found.shapes}
    assert {"grouped_gemm", "movement", "send_receive on scale_out"} <= kinds
    grouped = next(s for s in found.shapes if s.kind == "grouped_gemm")
    assert grouped.shape["groups"] == 2
    assert (grouped.number, grouped.reason) == ("efficiency.grouped_gemm", "not measured")


def test_nothing_used_is_nothing_unmeasured() -> None:
    assert unmeasured([]) == UnmeasuredReport()
