"""The software's numbers of a calibration as a stack of its own, apart from those of the hardware."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from autodeploy.calibration.overlays import software_overlay
from autodeploy.kit.yaml_text import profile_text
from autodeploy.search import planner
from autodeploy.specs.reading import read_spec_document
from autodeploy.stack.software import default_stack, stack_of_document

if TYPE_CHECKING:
    from pathlib import Path

PROFILE = "ascend-800t-a2"
FITTED = {"kind": "fitted", "source": "fit to our runs"}
OVERLAY: dict[str, Any] = {
    "profile": PROFILE,
    "efficiency": {"gemm_peak_fraction": {"value": 0.71, **FITTED}},
    "host": {"issue_us_per_op": {"value": 21.0, **FITTED}, "sync_us": {"value": 77.0, **FITTED, "note": "x 2"}},
    "release_factors": {"current": {"value": 1.23, **FITTED}, "2024": {"value": 1.4, **FITTED}},
}


def step_s(overlay: Path, **more: Any) -> float:
    document = {
        "model": "qwen3-30b-a3b",
        "cluster": {"profile": PROFILE, "num_npus": 32, "overlay": overlay.name},
        "training": {"seq_length": 4096, "global_batch_size": 64},
        "strategy": {"ep": 8, "pp": 2},
        **more,
    }
    return planner.estimate(read_spec_document(document, base_dir=overlay.parent)).step_time_s


def test_both_parts_together_predict_as_the_whole_did(tmp_path: Path) -> None:
    stack = default_stack("mindspeed-llm", "huawei")
    hardware, software = software_overlay(OVERLAY, stack)
    for name, document in (("whole.yaml", OVERLAY), ("hardware.yaml", hardware)):
        (tmp_path / name).write_text(profile_text(document, "Fitted."), encoding="utf-8")
    whole = step_s(tmp_path / "whole.yaml")
    assert step_s(tmp_path / "hardware.yaml", software={"stack": software}) == pytest.approx(whole, rel=1e-12)
    assert step_s(tmp_path / "hardware.yaml") != pytest.approx(whole, rel=1e-3)


def test_only_the_softwares_numbers_move_with_unit_and_source() -> None:
    stack = default_stack("mindspeed-llm", "huawei")
    hardware, software = software_overlay(OVERLAY, stack)
    assert hardware == {
        "profile": PROFILE,
        "efficiency": OVERLAY["efficiency"],
        "release_factors": {"2024": OVERLAY["release_factors"]["2024"]},
    }
    own = stack_of_document(software)
    facts = {name: own.facts["host"][name][0] for name in ("issue_us_per_op", "sync_us", "operator_factor")}
    assert {name: (fact.value, fact.unit) for name, fact in facts.items()} == {
        "issue_us_per_op": ("21.0", "us"),
        "sync_us": ("77.0", "us"),
        "operator_factor": ("1.23", "ratio"),
    }
    assert facts["sync_us"].source == "fit to our runs: x 2"
    assert own.facts["features"] == stack.facts["features"]
