"""Overrides and calibration overlays change numbers, keep provenance and refuse what does not exist."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from hardware_profiles import Profile, ProfileError, apply_overlay, apply_overrides, load_profile

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def profile() -> Profile:
    return load_profile("cloudmatrix-384", calibrated=False)


def test_override_changes_one_number_and_its_kind(profile: Profile) -> None:
    changed = apply_overrides(profile, {"scale_out.gb_per_s_per_npu": 12.5})
    assert changed.tier("scale_out").bytes_per_s == 6.25e9
    quantity = changed.quantity("scale_out.gb_per_s_per_npu")
    assert (quantity.unit, quantity.kind, quantity.source) == ("GB/s", "assumed", ("user override",))
    different = {path for path, q in changed.quantities.items() if q != profile.quantity(path)}
    assert different == {"scale_out.gb_per_s_per_npu"}
    assert profile.tier("scale_out").bytes_per_s == 25e9


def test_no_override_is_the_same_profile(profile: Profile) -> None:
    assert apply_overrides(profile, {}) is profile


def test_oversubscription_takes_off_bandwidth(profile: Profile) -> None:
    changed = apply_overrides(profile, {"scale_out.oversubscription": 4})
    assert changed.tier("scale_out").bytes_per_s == 25e9 / 4


def test_every_number_can_be_overridden(profile: Profile) -> None:
    """With its own value: all that changes is the provenance."""
    same = apply_overrides(profile, {path: quantity.value for path, quantity in profile.quantities.items()})
    assert {path: q.value for path, q in same.quantities.items()} == {
        path: q.value for path, q in profile.quantities.items()
    }
    assert {quantity.source for quantity in same.quantities.values()} == {("user override",)}


def test_overridden_structure_moves_the_tiers(profile: Profile) -> None:
    assert apply_overrides(profile, {"supernode_nodes": 24}).tier("ub").ranks == 384


def test_all_bad_overrides_are_named_with_hints(profile: Profile) -> None:
    with pytest.raises(ProfileError) as error:
        apply_overrides(profile, {"scale_out.gbps": 1.0, "host.synch_us": 2.0, "host.sync_us": float("nan")})
    assert [problem.path for problem in error.value.problems] == ["/scale_out.gbps", "/host.synch_us", "/host.sync_us"]
    assert "did you mean host.sync_us" in error.value.problems[1].hint
    assert error.value.problems[2].hint == "us"


@pytest.mark.parametrize(
    ("path", "value"),
    [("scale_out.gb_per_s_per_npu", 0.0), ("efficiency.hbm", 1.5), ("npus_per_node", 0.5), ("ub.efficiency", 2.0)],
)
def test_override_out_of_range_points_at_the_override(profile: Profile, path: str, value: float) -> None:
    with pytest.raises(ProfileError, match="overrides:") as error:
        apply_overrides(profile, {path: value})
    assert error.value.path == f"/{path}"


def test_overlay_is_merged_over_the_profile(profile: Profile) -> None:
    overlay = {
        "profile": "cloudmatrix-384",
        "report": {"records": 12, "median_error": 0.07},
        "efficiency": {"hbm": 0.77, "permute": {"value": 0.25, "kind": "measured", "source": "our own benchmark"}},
        "ub": {"efficiency": 0.5},
        "release_factors": {"2024-06": 1.15},
        "fixed_costs": {"comm_op_us": 14},
    }
    fitted = apply_overlay(profile, overlay)
    assert (fitted.efficiency["hbm"], fitted.efficiency["permute"]) == (0.77, 0.25)
    assert fitted.tier("ub").efficiency == 0.5
    assert fitted.release_factors == {"current": 1.0, "2024-06": 1.15}
    assert fitted.fixed_costs.comm_op_s == pytest.approx(14e-6)
    assert fitted.quantity("efficiency.hbm").kind == "fitted"
    assert fitted.quantity("efficiency.hbm").prior_sigma == profile.quantity("efficiency.hbm").prior_sigma
    assert fitted.quantity("efficiency.permute").kind == "measured"
    assert fitted.efficiency["gemm_k_half"] == profile.efficiency["gemm_k_half"]


def test_overlay_file_then_overrides(tmp_path: Path) -> None:
    overlay = tmp_path / "overlay.yaml"
    overlay.write_text("profile: nvidia-h100\nefficiency: {hbm: 0.7, permute: 0.3}\n", encoding="utf-8")
    changed = load_profile("nvidia-h100", overrides={"efficiency.hbm": 0.6}, overlay=overlay, calibrated=False)
    assert (changed.efficiency["hbm"], changed.efficiency["permute"]) == (0.6, 0.3)
    assert load_profile("nvidia-h100", calibrated=False).efficiency["hbm"] == 0.85


def test_an_overlay_goes_over_the_calibrated_numbers(tmp_path: Path) -> None:
    overlay = tmp_path / "overlay.yaml"
    overlay.write_text("profile: nvidia-h100\nefficiency: {hbm: 0.123}\n", encoding="utf-8")
    shipped, changed = load_profile("nvidia-h100"), load_profile("nvidia-h100", overlay=overlay)
    assert changed.efficiency == {**shipped.efficiency, "hbm": 0.123}


def test_overlay_of_another_profile_is_refused(profile: Profile) -> None:
    with pytest.raises(ProfileError, match="is for profile 'ascend-800t-a2'") as error:
        apply_overlay(profile, {"profile": "ascend-800t-a2", "efficiency": {"hbm": 0.7}})
    assert error.value.path == "/profile"


def test_bad_overlay_names_every_field(profile: Profile) -> None:
    with pytest.raises(ProfileError) as error:
        apply_overlay(
            profile,
            {
                "profile": "cloudmatrix-384",
                "efficiency": {"hmb": 0.7, "permute": {"value": "high"}},
                "ub": {"latency_ms": 0.5},
                "ladder": 3,
            },
        )
    assert [problem.path for problem in error.value.problems] == [
        "/efficiency/hmb",
        "/efficiency/permute/value",
        "/ub/latency_ms",
        "/ladder",
    ]
    with pytest.raises(ProfileError) as error:
        apply_overlay(profile, {"profile": "cloudmatrix-384", "ub": {"efficiency": 1.5}})
    assert error.value.path == "/ub/efficiency"
