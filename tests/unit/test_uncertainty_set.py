"""The error box: what is in it, how wide, by what right, and its draws."""

from __future__ import annotations

import math
from functools import cache
from statistics import NormalDist
from typing import Any

import numpy as np
import pytest

from autodeploy.calibration.fit import PRIOR_WIDTHS
from autodeploy.calibration.overlays import covariance_of
from autodeploy.costs.inputs.build_context import profile_of, spec_context
from autodeploy.search.ranking.uncertainty_set import UncertaintySet, low_discrepancy, uncertainty_set
from autodeploy.specs.reading import read_spec_document
from hardware_profiles.efficiencies import EFFICIENCY_TERMS
from hardware_profiles.loader import list_profiles

Z80 = NormalDist().inv_cdf(0.9)
# What decides between plans of experts on several nodes, and the number or numbers that stand for it.
DECIDES = {
    "expert software": {"experts"},
    "grouped rate": {"grouped", "grouped_rate"},
    "imbalance": {"imbalance"},
    "its growth with EP": {"imbalance_growth"},
    "synchronisation": {"host_sync"},
    "hidden share under contention": {"exchange_beside", "contention"},
    "All-to-All on each tier": {"exchange_hccs", "exchange_scale_out", "exchange_loss"},
    "small messages": {"small_messages"},
    "host link": {"host_link"},
    "growth with nodes": {"nodes"},
}


@cache
def box_of(
    profile: str = "ascend-800t-a2", model: str = "qwen3-30b-a3b", npus: int = 32, **training: Any
) -> UncertaintySet:
    document = {
        "model": model,
        "cluster": {"profile": profile, "num_npus": npus},
        "training": {"seq_length": 4096, "global_batch_size": 64, **training},
    }
    spec = read_spec_document(document)
    hardware = profile_of(spec.cluster)
    return uncertainty_set(hardware, spec_context(spec, hardware, frozenset()))


@pytest.mark.parametrize("profile", list_profiles())
def test_every_number_has_a_name_a_width_and_a_basis(profile: str) -> None:
    box = box_of(profile)
    every = (*box.numbers, *box.of_memory)
    assert len({number.name for number in every}) == len(every)
    moved = [name for number in every for name in number.multiplies]
    assert len(set(moved)) == len(moved), "two numbers multiply one"
    for number in every:
        assert 0.0 < number.log_sigma < 2.0, number
        assert number.basis.startswith(("residuals of ", "prior: ")), number
        assert number.meaning
        assert not number.name.startswith(("software_20", "nodes_20", "experts_20")), "of an old release"
    assert np.allclose(np.sqrt(np.diag(box.covariance)), [number.log_sigma for number in box.numbers])
    assert np.linalg.eigvalsh(box.covariance).min() > 0.0


def test_all_that_decides_is_in_it() -> None:
    names = {number.name for number in box_of().numbers}
    for what, numbers in DECIDES.items():
        assert numbers <= names, what
    assert {number.name for number in box_of().of_memory} == {"fragmentation"}
    assert {"link_die_pair", "link_ub", "exchange_ub"} <= {n.name for n in box_of("cloudmatrix-384").numbers}


def test_what_nothing_reads_is_left_out() -> None:
    dense = {number.name for number in box_of(model="llama2-7b").numbers}
    assert not dense & {"experts", "imbalance", "imbalance_growth", "host_sync", "grouped", "exchange_beside"}
    node = {number.name for number in box_of(npus=8).numbers}
    assert not node & {"nodes", "roce", "exchange_scale_out"}
    assert {"mesh", "exchange_hccs"} <= node
    even = {number.name for number in box_of(routing_imbalance=1.0).numbers}
    assert not even & {"imbalance", "imbalance_growth"}
    forced = {number.name for number in box_of(router="forced").numbers}
    assert not forced & {"imbalance", "imbalance_growth"}


def test_left_out_residuals_only_widen_what_a_fit_says_itself() -> None:
    box = box_of()
    profile = profile_of(read_spec_document({**MINIMAL}).cluster)
    covariance = covariance_of(profile)
    fitted = dict(zip([f.name for f in covariance.factors], np.sqrt(np.diag(covariance.matrix())), strict=True))
    for number in box.numbers:
        if number.basis.startswith("left-out"):
            assert number.log_sigma >= fitted[number.name] * (1.0 - 1e-9)
    experts = next(number for number in box.numbers if number.name == "experts")
    assert experts.log_sigma > 1.2 * fitted["experts"], (
        "runs with experts leave more over than the fit's covariance says"
    )


MINIMAL: dict[str, Any] = {
    "model": "qwen3-30b-a3b",
    "cluster": {"profile": "ascend-800t-a2", "num_npus": 32},
    "training": {"seq_length": 4096, "global_batch_size": 64},
}


def test_every_prior_has_a_kind_and_a_source_and_one_width() -> None:
    for row in PRIOR_WIDTHS:
        assert row["kind"] in {"assumed", "measured"}
        assert len(row["source"]) > 10
        assert row["of"] in {"time", "memory"}
        if row["multiplies"][0] in EFFICIENCY_TERMS:
            assert "log_sigma" not in row, "the efficiency has it already"


def test_ends_are_the_tenth_and_the_ninetieth_percentile() -> None:
    box = box_of()
    ends = box.ends()
    assert len(ends) == 2 * len(box.numbers)
    for place, number in enumerate(box.numbers):
        low, high = ends[2 * place : 2 * place + 2]
        assert low == pytest.approx({number.name: -Z80 * number.log_sigma})
        assert high == pytest.approx({number.name: Z80 * number.log_sigma})
        assert box.at(number, 0.5) == {number.name: 0.0}
        factors = (low[number.name], high[number.name])
        if number.name != "imbalance_growth":
            factors = (math.exp(factors[0]), math.exp(factors[1]))
        assert box.factors(number) == pytest.approx(factors)


def test_draws_are_the_same_everywhere_and_have_the_covariance() -> None:
    box = box_of()
    draws = box.draws(200)
    assert draws.shape == (200, len(box.numbers))
    assert np.array_equal(draws, box.draws(200))
    assert np.array_equal(draws, np.round(draws, 6))
    widths = np.array([number.log_sigma for number in box.numbers])
    apart = np.abs(np.cov(draws.T) - box.covariance) / np.outer(widths, widths)
    assert apart.max() < 0.02
    assert np.abs(draws.mean(axis=0) / widths).max() < 0.02
    inside = (np.abs(draws) < Z80 * widths).mean(axis=0)
    assert inside.min() > 0.72
    assert inside.max() < 0.88
    assert box.world(draws[3]) == {n.name: pytest.approx(v) for n, v in zip(box.numbers, draws[3], strict=True)}
    assert box.draws(5).shape == (5, len(box.numbers))


def test_points_of_the_sequence() -> None:
    points = low_discrepancy(3, 2)
    assert points[:, 0] == pytest.approx([0.414214, 0.828427, 0.242641], abs=1e-6)
    assert points[:, 1] == pytest.approx([0.732051, 0.464102, 0.196152], abs=1e-6)
    many = low_discrepancy(200, 24)
    assert many.min() > 0.0
    assert many.max() < 1.0
    assert np.abs(np.corrcoef(many.T) - np.eye(24)).max() < 0.25
