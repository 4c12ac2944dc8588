"""Calibration to records: a hidden truth is found, and its overlay carries it into the profile."""

from __future__ import annotations

import math
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
import pytest
from ruamel.yaml import YAML

from autodeploy.calibration.fit import ELSEWHERE, NUISANCES, PARAMETERS, UNFITTED, values_of
from autodeploy.calibration.overlays import OF_LINKS, covariance_of
from autodeploy.calibration.profile_fit import Calibration, calibrate, configuration_of, noise_of, overlay_of, shares_of
from autodeploy.calibration.record_prediction import fits_time, predict_record
from autodeploy.calibration.shipped.tables import carried_overlay, coverage_table, shipped_records
from autodeploy.kit.errors import SpecError
from autodeploy.kit.yaml_text import profile_text
from autodeploy.messages import Message
from hardware_profiles import load_profile

if TYPE_CHECKING:
    from pathlib import Path

    from autodeploy.specs.record import Record

NAME = "nvidia-h100"
PRIOR = load_profile(NAME, calibrated=False)
TRUTH = {
    "gemm": 0.8,
    "attention": 1.0,
    "hbm": 1.0,
    "grouped": 0.85,
    "experts": 0.9,
    "host_issue": 1.0,
    "host_sync": 1.0,
}


@cache
def synthetic() -> tuple[Record, ...]:
    """Runs of the shipped records as a device with known efficiencies would have run them: of every second
    configuration with experts and every third without, as a fit takes as long as there are records.
    """
    parameters = (*PARAMETERS[PRIOR.family], *NUISANCES)
    assert set(TRUTH) == {p.name for p in parameters}
    values = values_of(parameters, np.log([TRUTH[p.name] for p in parameters]), PRIOR.efficiency)
    fitted = [r for r in shipped_records() if r.cluster.profile == NAME and fits_time(r)]
    of_configurations = {configuration_of(record): record for record in reversed(fitted)}
    made = []
    every = list(reversed(of_configurations.values()))
    for record in [r for r in every if r.model.is_moe][::2] + [r for r in every if not r.model.is_moe][::3]:
        rate = predict_record(record, efficiency=values, calibrated=False).tokens_per_s_per_npu
        measured = record.measured.model_copy(update={"tokens_per_s_per_npu": rate, "step_time_s": None})
        made.append(record.model_copy(update={"measured": measured}))
    assert len(made) >= 16
    return tuple(made)


@cache
def calibrated() -> Calibration:
    return calibrate(synthetic(), NAME)


def test_a_hidden_truth_is_found() -> None:
    # The runs pin the sum of their parts, less each part: predictions come back closely, factors within their spread.
    found = calibrated()
    assert found.profile.family == "nvidia-h100"
    assert len(found.records) == len(synthetic())
    assert np.abs(found.fit.residuals).max() < 0.02
    sigma = np.sqrt(np.diag(found.fit.covariance))
    for parameter, value, spread in zip(found.fit.parameters, found.fit.log_factors, sigma, strict=True):
        assert abs(value - math.log(TRUTH[parameter.name])) < 2.0 * spread, parameter.name
    assert found.fit.factors()["gemm"] < 0.95
    prior = [math.log(predict_record(r, calibrated=False).tokens_per_s_per_npu) for r in synthetic()]
    truth = [math.log(r.measured.tokens_per_s_per_npu or math.nan) for r in synthetic()]
    assert np.mean(np.subtract(prior, truth)) > 0.05, "the priors alone are far off"


def test_the_overlay_makes_the_profile_predict_what_the_fit_predicts(tmp_path: Path) -> None:
    found = calibrated()
    path = tmp_path / "overlay.yaml"
    path.write_text(profile_text(overlay_of(found), "Fitted."), encoding="utf-8")
    assert path.read_text(encoding="utf-8").startswith("# Fitted.\nprofile: nvidia-h100\n")
    profile = load_profile(NAME, overlay=path, calibrated=False)
    expected = values_of(found.fit.parameters, found.fit.log_factors, PRIOR.efficiency)
    assert dict(profile.efficiency) == pytest.approx(
        expected | dict.fromkeys(ELSEWHERE.keys() & expected, 1.0), rel=1e-5
    )
    waits = found.fit.factors()["host_sync"] * PRIOR.quantity("host.sync_us").value
    assert profile.quantity("host.sync_us").value == pytest.approx(waits, rel=1e-5)
    assert profile.quantity("efficiency.grouped_gemm_exposed").kind == "fitted"
    for record, residual in zip(found.records, found.fit.residuals, strict=True):
        rate = predict_record(record, overlay=path, calibrated=False).tokens_per_s_per_npu
        assert math.log((record.measured.tokens_per_s_per_npu or math.nan) / rate) == pytest.approx(residual, abs=1e-4)


def test_carried_over_factors_are_assumed_and_without_links() -> None:
    target = load_profile("nvidia-h800", calibrated=False)
    document = carried_overlay(calibrated(), target)
    assert document["profile"] == "nvidia-h800"
    assert set(document) <= {"profile", "efficiency", "host", "covariance"}
    names = [factor["name"] for factor in document["covariance"]["factors"]]
    assert names == [*TRUTH, *(f"link_{tier.name}" for tier in target.tiers)]
    known = covariance_of(load_profile("nvidia-h800", overlay=document, calibrated=False)).matrix()
    assert known[: len(TRUTH), : len(TRUTH)] == pytest.approx(calibrated().fit.covariance, rel=1e-5)
    assert np.diag(known)[len(TRUTH) : len(names)] == pytest.approx(0.09)
    assert not known[len(TRUTH) :, : len(TRUTH)].any()
    assert {entry["kind"] for entry in document["efficiency"].values()} == {"assumed"}
    assert all(entry["source"].startswith("carried over from nvidia-h100") for entry in document["efficiency"].values())


def test_without_records_the_priors_stand() -> None:
    empty = calibrate([], "ascend-800t-a2")
    prior = load_profile("ascend-800t-a2", calibrated=False)
    assert set(empty.fit.factors().values()) == {1.0}
    document = overlay_of(empty)
    assert "report" not in document
    for name, entry in document["efficiency"].items():
        assert entry["value"] == pytest.approx(prior.efficiency[name], rel=1e-5)
    for tier in prior.tiers:
        assert document[tier.name]["efficiency"]["value"] == pytest.approx(tier.efficiency, rel=1e-5)
    assert {entry["value"] for entry in document["release_factors"].values()} == {1.0}


def test_an_overlay_is_plain_yaml_and_always_the_same() -> None:
    document = overlay_of(calibrated())
    text = profile_text(document, "Fitted.")
    assert text == profile_text(overlay_of(calibrated()), "Fitted.")
    assert YAML(typ="safe").load(text) == document


def test_what_ships_is_the_covariance_of_the_fit() -> None:
    found = calibrated()
    profile = load_profile(NAME, overlay=overlay_of(found), calibrated=False)
    covariance = covariance_of(profile)
    told = {name for name in OF_LINKS if profile.quantity(f"efficiency.{name}").kind in {"measured", "fitted"}}
    unfitted = [p for p in UNFITTED if p not in NUISANCES and not told.intersection(p.multiplies)]
    assert [factor.name for factor in covariance.factors] == [*TRUTH, *(parameter.name for parameter in unfitted)]
    known = len(TRUTH)
    assert covariance.matrix()[:known, :known] == pytest.approx(found.fit.covariance, rel=1e-5)
    # The numbers of large networks are in no fit.
    assert covariance.matrix()[known:, known:] == pytest.approx(np.diag([p.prior_sigma**2 for p in unfitted]))
    assert covariance.in_residuals == 0.0
    priors = covariance_of(load_profile(NAME, calibrated=False))
    spread = {f.name: float(s) for f, s in zip(priors.factors, np.diag(priors.matrix()), strict=True)}
    own = {p.name: p.prior_sigma**2 for p in found.fit.parameters}
    assert {name: spread[name] for name in own} == pytest.approx(own)
    links = {f"link_{tier.name}" for tier in profile.tiers}
    assert {name for name in spread if name not in own} == links | {parameter.name for parameter in unfitted}


def test_the_records_do_not_tell_the_host_and_what_they_tell_is_as_uncertain_as_that_makes_it() -> None:
    found = calibrated().fit
    at = [p.name for p in found.parameters].index("host_sync")
    spread = np.sqrt(np.diag(found.covariance))
    assert spread[at] > 0.9 * found.parameters[at].prior_sigma
    # Held at its value it would leave the others better known.
    others = np.arange(len(spread)) != at
    held = np.linalg.inv(np.linalg.inv(found.covariance)[np.ix_(others, others)])
    assert (np.diag(held) <= spread[others] ** 2).all()
    assert (np.diag(held) < 0.9999 * spread[others] ** 2).any()
    # A host whose synchronisation was measured since is known.
    measured = overlay_of(calibrated())
    measured["host"]["sync_us"] |= {"value": 20.0, "kind": "measured"}
    names = [f.name for f in covariance_of(load_profile(NAME, overlay=measured, calibrated=False)).factors]
    assert "host_sync" not in names
    assert "host_issue" in names


@pytest.mark.parametrize("name", ["ascend-800t-a2", "nvidia-a100-80g", "nvidia-h100"])
def test_what_a_fit_has_beside_its_free_parameters_stays_as_wide_as_its_prior(name: str) -> None:
    covariance = covariance_of(load_profile(name))
    spread = dict(zip([f.name for f in covariance.factors], np.sqrt(np.diag(covariance.matrix())), strict=True))
    for parameter in NUISANCES:  # else it is a free parameter and counts among the twelve
        assert 0.9 * parameter.prior_sigma < spread[parameter.name] <= 1.0001 * parameter.prior_sigma


def test_a_family_without_parameters_is_refused() -> None:
    with pytest.raises(SpecError, match="ascend-910c has no parameters to fit") as caught:
        calibrate([], "cloudmatrix-384")
    assert caught.value.errors[0].path == "/profile"
    assert "ascend-910b" in caught.value.errors[0].hint


def test_rows_that_differ_in_devices_alone_share_one_weight() -> None:
    record = next(r for r in shipped_records() if r.cluster.profile == NAME and r.strategy.pp > 1)
    wider = record.model_copy(
        update={
            "id": "wider",
            "cluster": record.cluster.model_copy(update={"num_npus": 2 * int(record.cluster.num_npus or 1)}),
            "training": record.training.model_copy(
                update={"global_batch_size": record.training.global_batch_size.model_copy(update={"value": 4096})}
            ),
        }
    )
    other = record.model_copy(update={"strategy": record.strategy.model_copy(update={"micro_batch_size": 7})})
    assert configuration_of(record) == configuration_of(wider) != configuration_of(other)
    assert shares_of([record, wider, other]).tolist() == [0.5, 0.5, 1.0]


def test_a_repeated_configuration_does_not_move_the_fit() -> None:
    some = synthetic()[:2]
    noisy = some[0].model_copy(
        update={"measured": some[0].measured.model_copy(update={"tokens_per_s_per_npu": 0.9 * rate_of(some[0])})}
    )
    once, often = (calibrate([noisy] * n + list(some[1:]), NAME).fit.log_factors for n in (1, 3))
    assert once == pytest.approx(often, abs=2e-3)


def rate_of(record: Record) -> float:
    return record.measured.tokens_per_s_per_npu or math.nan


def test_records_of_an_unnamed_chip_grade_count_less() -> None:
    record = next(
        each
        for each in shipped_records()
        if each.framework == "mindspeed-llm" and each.measured.step_time_s is not None
    )
    assert noise_of(record.model_copy(update={"framework": "mindformers"})) > noise_of(record)


@pytest.mark.parametrize("family", sorted(PARAMETERS))
def test_free_parameters_are_few_and_mean_something(family: str) -> None:
    parameters = PARAMETERS[family]
    assert len(parameters) <= 12
    assert len({p.name for p in parameters}) == len(parameters)
    assert all(p.meaning and p.multiplies and 0.0 < p.prior_sigma < 1.0 for p in parameters)
    multiplied = [name for p in parameters for name in p.multiplies]
    assert len(set(multiplied)) == len(multiplied), "no two factors on one efficiency"


def test_the_coverage_table_has_a_spread_for_every_class_with_three_records() -> None:
    table = coverage_table([calibrated()], synthetic())
    assert {"nvidia-h100/moe", "uncalibrated/dense", "uncalibrated/moe"} <= set(table["classes"])
    assert table["classes"]["nvidia-h100/moe"]["n"] == sum(record.model.is_moe for record in synthetic())
    assert table["classes"]["uncalibrated/moe"]["log_sigma"] > 0.0
    assert table["pair_log_sigma"] > 0.0
    assert [row["id"] for row in table["records"]] == [record.id for record in synthetic()]


def test_an_overlay_says_its_messages_as_plain_text() -> None:
    source = Message("calibration.prior", source="own judgement")
    assert "source: 'prior: own judgement'" in profile_text({"source": source}, "Fitted.")
