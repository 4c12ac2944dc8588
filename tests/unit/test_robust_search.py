"""Plans ranked by how they stand at the corners of what calibration leaves possible."""

from __future__ import annotations

import math
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from autodeploy.calibration.covariances import covariance_of
from autodeploy.calibration.parameters import PARAMETERS, UNFITTED
from autodeploy.calibration.spreads import Z80
from autodeploy.errors import SpecError, UnsupportedError
from autodeploy.importers.spec_file import read_spec_document
from autodeploy.planner import plan, reestimate
from autodeploy.ranking import robust
from autodeploy.ranking.corners import corner_box
from autodeploy.specs.spec import Spec
from hardware_profiles.loader import load_profile

if TYPE_CHECKING:
    from autodeploy.ranking.corners import CornerBox
    from autodeploy.specs.planset import PlanSet
    from hardware_profiles.profile import Profile


def document(ranking: Any, **search: Any) -> dict[str, Any]:
    """Llama2-7B on two nodes of eight, few strategies."""
    chosen = {"effort": "fast", "fix": {"vpp": 1, "micro_batch_size": 1}, "allow": {"tp": [1, 2, 4, 8], "pp": [1, 2]}}
    return {
        "model": "llama2-7b",
        "cluster": {"profile": "ascend-800t-a2", "num_npus": 16},
        "training": {"seq_length": 4096, "global_batch_size": 128},
        "search": {**chosen, "robust": ranking, **search},
    }


@cache
def planned(ranking: Any) -> PlanSet:
    return plan(read_spec_document(document(ranking)))


def test_the_box_is_what_calibration_left_possible() -> None:
    profile = load_profile("ascend-800t-a2")
    box = corner_box(profile)
    covariance = covariance_of(profile)
    spread = dict(zip([f.name for f in covariance.factors], np.sqrt(np.diag(covariance.matrix())), strict=True))
    prior = {parameter.name: parameter.prior_sigma for parameter in (*PARAMETERS["ascend-910b"], *UNFITTED)}
    assert "gemm" in [p.name for p in box.parameters]
    assert not any(name.startswith("release_") for p in box.parameters for name in p.multiplies)
    for parameter, width in zip(box.parameters, box.half_widths, strict=True):
        assert width == pytest.approx(Z80 * spread[parameter.name])
        assert width <= Z80 * prior[parameter.name] * 1.001, "records only narrow it"
    corners = box.corners()
    assert len(np.unique(corners, axis=0)) == 2 ** len(box.parameters)
    for name, value in box.efficiency(profile, corners[-1]).items():
        if name in profile.efficiency and profile.quantity(f"efficiency.{name}").unit == "fraction":
            assert value <= 1.0
    assert box.efficiency(profile, 0.0 * corners[0])["hbm"] == profile.efficiency["hbm"]


def test_every_profile_has_a_box_with_all_of_its_links() -> None:
    for name in ("cloudmatrix-384", "nvidia-a100-80g", "nvidia-h100", "nvidia-h800", "nvidia-b200"):
        profile = load_profile(name)
        box = corner_box(profile)
        named = {each for p in box.parameters for each in p.multiplies}
        assert {f"link_{tier.name}" for tier in profile.tiers} <= named
        assert (box.half_widths > 0.0).all()


@pytest.mark.parametrize(("ranking", "field"), [("regret", "worst_regret_pct"), ("worst_time", "worst_step_time_s")])
def test_plans_come_in_the_order_asked_for(ranking: str, field: str) -> None:
    found = planned(ranking)
    assert found.robust is not None
    assert found.robust.criterion == ranking
    assert found.robust.plans >= len(found.plans)
    worst = [getattr(each.robustness, field) for each in found.plans]
    assert worst == sorted(worst)
    for each in found.plans:
        assert each.robustness is not None
        assert each.robustness.worst_step_time_s > each.step_time_s
        assert each.robustness.worst_regret_pct >= 0.0
    assert planned(True).plans == planned("regret").plans if ranking == "regret" else True


def test_the_worst_corner_is_simulated_as_any_estimate_is() -> None:
    """The profile with its numbers overridden, by another way, takes as long."""
    found = planned("regret")
    spec, profile = Spec.model_validate(found.search.spec), load_profile("ascend-800t-a2")
    places = {p.name: p.multiplies for p in (*PARAMETERS["ascend-910b"], *UNFITTED)}
    for each in found.plans[:2]:
        assert each.robustness is not None
        overrides: dict[str, float] = {}
        for name, factor in each.robustness.slowest_corner.items():
            for place in places[name]:
                tier = place.removeprefix("link_")
                path = "fixed_costs.vector_op_us" if place == "vector_op" else f"efficiency.{place}"
                path = f"{tier}.efficiency" if place.startswith("link_") else path
                fraction = profile.quantity(path).unit == "fraction"
                overrides[path] = min(profile.quantity(path).value * factor, 1.0 if fraction else math.inf)
        cluster = spec.cluster.model_copy(update={"overrides": overrides})
        again = reestimate(spec.model_copy(update={"cluster": cluster}), each)
        assert again.step_time_s == pytest.approx(each.robustness.worst_step_time_s, rel=1e-3)  # factors are rounded


def test_no_corner_that_was_left_out_is_worse(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a box of six numbers: all of a whole one has thousands of corners."""

    def small_box(profile: Profile) -> CornerBox:
        box = corner_box(profile)
        return box.only(np.arange(len(box.parameters)) < 6)

    monkeypatch.setattr(robust, "corner_box", small_box)
    few = plan(read_spec_document(document("regret")))

    def every_corner(box: CornerBox, *_: Any) -> Any:
        return box.corners()

    monkeypatch.setattr(robust, "_telling_corners", every_corner)
    whole = plan(read_spec_document(document("regret")))
    assert whole.robust is not None
    assert few.robust is not None
    assert whole.robust.corners == 2 ** len(whole.robust.box) > few.robust.corners
    exact = {each.plan_id: each.robustness for each in whole.plans}
    assert [each.plan_id for each in few.plans] == [each.plan_id for each in whole.plans]
    for each in few.plans:
        true = exact[each.plan_id]
        assert true is not None
        assert each.robustness is not None
        assert each.robustness.worst_step_time_s == pytest.approx(true.worst_step_time_s, rel=1e-9)
        assert each.robustness.worst_regret_pct == pytest.approx(true.worst_regret_pct, abs=0.05)


def test_without_it_nothing_is_said_of_corners() -> None:
    found = planned("off")
    assert found.robust is None
    assert all(each.robustness is None for each in found.plans)


def test_what_is_no_ranking_by_time_is_refused() -> None:
    with pytest.raises(UnsupportedError) as refused:
        plan(read_spec_document(document("regret", objective="peak_memory")))
    assert [e.path for e in refused.value.errors] == ["/search/robust"]
    with pytest.raises(SpecError) as unknown:
        read_spec_document(document("minimax"))
    assert [e.path for e in unknown.value.errors] == ["/search/robust"]
