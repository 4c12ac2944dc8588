"""The calibrated overlays that ship: over which profiles, with what provenance, and what they may change."""

from __future__ import annotations

from importlib.resources import files
from typing import Any

import pytest

from autodeploy.calibration.fit import ELSEWHERE
from hardware_profiles import EFFICIENCY_TERMS, apply_overlay, list_profiles, load_profile
from hardware_profiles.reading import parse_yaml

FOLDER = files("hardware_profiles") / "data" / "calibrated"
FITTED = ("ascend-800t-a2", "nvidia-a100-80g", "nvidia-b200", "nvidia-h100")
CARRIED = ("cloudmatrix-384", "nvidia-a800-80g", "nvidia-h800")


def overlay_of(name: str) -> dict[str, Any]:
    return parse_yaml((FOLDER / f"{name}.yaml").read_text(encoding="utf-8"))


def changed_paths(name: str) -> list[str]:
    """Numbers of the calibrated profile that are not the prior ones, provenance included."""
    prior, calibrated = load_profile(name, calibrated=False), load_profile(name)
    assert set(calibrated.quantities) >= set(prior.quantities)
    return [path for path, quantity in calibrated.quantities.items() if prior.quantities.get(path) != quantity]


def test_overlays_ship_for_fitted_and_carried_profiles() -> None:
    names = {entry.name.removesuffix(".yaml") for entry in FOLDER.iterdir() if entry.name.endswith(".yaml")}
    assert names == {*FITTED, *CARRIED}
    assert names < set(list_profiles())


@pytest.mark.parametrize("name", [*FITTED, *CARRIED])
def test_an_overlay_belongs_to_its_profile_and_is_what_loading_applies(name: str) -> None:
    prior = load_profile(name, calibrated=False)
    assert overlay_of(name)["profile"] == name
    assert apply_overlay(prior, overlay_of(name)) == load_profile(name)
    assert load_profile(name) != prior
    assert load_profile(name).content_hash != prior.content_hash


@pytest.mark.parametrize("name", [*FITTED, *CARRIED])
def test_calibration_changes_efficiencies_and_release_factors_alone(name: str) -> None:
    profile = load_profile(name)
    own = {f"{tier.name}.efficiency" for tier in profile.tiers} | {f"efficiency.{term}" for term in EFFICIENCY_TERMS}
    own |= set(ELSEWHERE.values())
    changed = changed_paths(name)
    assert changed
    assert {path for path in changed if not path.startswith("release_factors.")} <= own
    assert profile.release_factors["current"] == 1.0


@pytest.mark.parametrize(
    ("name", "kind"), [*((n, "fitted") for n in (*FITTED, "cloudmatrix-384")), ("nvidia-h800", "assumed")]
)
def test_fitted_numbers_say_what_they_were_fitted_to(name: str, kind: str) -> None:
    profile = load_profile(name)
    for path in changed_paths(name):
        quantity = profile.quantity(path)
        assert quantity.kind == kind or "carried over" in quantity.source[0], path
        assert "records on" in quantity.source[0], path
        assert "on the prior" in quantity.note, path


@pytest.mark.parametrize("name", [*FITTED, *CARRIED])
def test_fractions_stay_at_or_below_one(name: str) -> None:
    profile = load_profile(name)
    for path in changed_paths(name):
        quantity = profile.quantity(path)
        assert quantity.value > 0.0, path
        assert quantity.value <= 1.0 or quantity.unit != "fraction", path


@pytest.mark.parametrize("name", CARRIED)
def test_carried_factors_are_those_of_the_fitted_profile(name: str) -> None:
    origin = load_profile(name, calibrated=False).document.calibration.factors_of or ""

    def number(profile: str, path: str, *, calibrated: bool = True) -> float:
        found = load_profile(profile, calibrated=calibrated)
        room, _, release = path.partition(".")
        return found.release_factors.get(release, 1.0) if room == "release_factors" else found.quantity(path).value

    carried = changed_paths(name)
    assert carried
    for path in carried:
        assert path.startswith(("efficiency.", "fixed_costs.", "host.", "release_factors.")), (
            "links are not carried over"
        )
        capped = path.startswith("efficiency.") and 1.0 in {number(origin, path), number(name, path)}
        factors = [number(p, path) / number(p, path, calibrated=False) for p in (name, origin)]
        assert capped or factors[0] == pytest.approx(factors[1], rel=1e-5)


def test_a_profile_without_records_of_its_own_or_its_kin_keeps_its_priors() -> None:
    for name in set(list_profiles()) - {*FITTED, *CARRIED}:
        assert load_profile(name) is not None
        assert load_profile(name) == load_profile(name, calibrated=False)


@pytest.mark.parametrize("name", FITTED)
def test_the_report_states_errors_of_families_left_out(name: str) -> None:
    report = overlay_of(name)["report"]
    assert report["records"] > 0
    assert 0.0 < report["left_out_mape_pct"] < 100.0
    assert report["left_out_mape_pct"] <= report["left_out_p90_pct"]
