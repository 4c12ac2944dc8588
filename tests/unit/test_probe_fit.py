"""A profile fitted to a probe's file: one recorded on two processes of a CPU, and files made from known numbers."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from autodeploy.analysis.probe.document import ProbeFile, is_probe_text, read_probe_file
from autodeploy.analysis.probe.fit import ProbeFit, fit_probe, predictions_s, probed_machine
from autodeploy.analysis.probe.own_cpu import CpuFacts, profile_yaml
from autodeploy.analysis.probe.script import request_of
from autodeploy.cli.main import app
from autodeploy.kit.errors import SpecError
from autodeploy.search.planner import estimate
from autodeploy.specs.spec import parse_spec
from hardware_profiles import apply_overlay, load_profile

pytestmark = pytest.mark.unit

RECORDED = Path(__file__).parent.parent / "support" / "probes" / "cpu_two_processes.json"
MACHINE = CpuFacts("AMD EPYC", 2, 25.3e9, 2596.0, 64.0)


def own_cpu(directory: Path, processes: int = 2) -> Path:
    path = directory / "cpu.yaml"
    path.write_text(profile_yaml(MACHINE, processes), encoding="utf-8")
    return path


@cache
def made(profile: str = "nvidia-h100") -> tuple[dict[str, Any], dict[str, float]]:
    """A file whose times are the formulas' own at other numbers, and those numbers."""
    spec = parse_spec(
        {
            "model": "qwen3-30b-a3b",
            "cluster": {"profile": profile, "num_npus": 8},
            "training": {"seq_length": 4096, "global_batch_size": 64},
            "search": {"target": "any"},
            "strategy": {"tp": 2, "ep": 4, "micro_batch_size": 1},
        }
    )
    shipped = load_profile(profile)
    known = {
        "efficiency.gemm_peak_fraction": 0.95 * shipped.efficiency["gemm_peak_fraction"],
        "efficiency.gemm_k_half": 1.3 * shipped.efficiency["gemm_k_half"],
        "efficiency.hbm": 0.9 * shipped.efficiency["hbm"],
        "efficiency.permute": 1.5 * shipped.efficiency["permute"],
        "efficiency.attention_forward": 1.1 * shipped.efficiency["attention_forward"],
        "nvlink.efficiency": 0.7 * shipped.tier("nvlink").efficiency,
    }
    nested: dict[str, Any] = {"profile": profile}
    for path, value in known.items():
        section, _, leaf = path.rpartition(".")
        nested.setdefault(section, {})[leaf] = value
    request = request_of(spec, [estimate(spec)])
    document: dict[str, Any] = {
        "schema": "autodeploy-probe/1",
        "request": {name: value for name, value in request.items() if name != "measurements"},
        "device": {"kind": "cuda", "name": "stub", "memory_bytes": 8e10, "asynchronous": True, "runtime_bytes": 5e8},
        "versions": {"torch": "0.0"},
        "ranks": 8,
        "ranks_per_node": 8,
        "measurements": [],
    }
    for wanted in request["measurements"]:
        median = {"launch": 6e-6, "synchronisation": 4e-5}.get(wanted["kind"], 1e-3)
        timed = {"unit": "s", "repetitions": 5, "median": median, "spread": 0.01, "slowest_rank": median}
        document["measurements"].append({**wanted, **timed})
    probe = ProbeFile.model_validate(document)
    machine = probed_machine(apply_overlay(shipped, nested), probe)
    for each, point in zip(document["measurements"], probe.measurements, strict=True):
        if point.kind == "host_link":
            each["median"] = point.size("bytes") / 5e10
        elif point.kind not in {"launch", "synchronisation"}:
            each["median"] = predictions_s([point], machine)[0]
    return document, known


@cache
def fitted() -> ProbeFit:
    """The shipped profile fitted to that file."""
    return fit_probe(load_profile("nvidia-h100"), ProbeFile.model_validate(made()[0]))


@pytest.fixture(scope="module")
def fitted_to_recorded(tmp_path_factory: pytest.TempPathFactory) -> ProbeFit:
    """A profile of the recorded machine fitted to its measurements."""
    return fit_probe(load_profile(own_cpu(tmp_path_factory.mktemp("cpu"))), read_probe_file(RECORDED))


def test_known_numbers_are_found_again() -> None:
    _, known = made()
    found = fitted()
    changed = {change.path: change for change in found.changes}
    for path, value in known.items():
        assert changed[path].new == pytest.approx(value, rel=0.06), path
    assert all(each.after < 0.03 for each in found.agreements)
    assert changed["host.issue_us_per_op"].new == pytest.approx(6.0)
    assert changed["host.sync_us"].new == pytest.approx(40.0)
    assert changed["host.host_link_gb_per_s"].new == pytest.approx(50.0)
    assert changed["memory.runtime_gib"].new == pytest.approx(5e8 / 2**30)


def test_the_overlay_is_one_and_says_where_it_comes_from() -> None:
    found = fitted()
    calibrated = apply_overlay(load_profile("nvidia-h100"), found.overlay)
    for change in found.changes:
        quantity = calibrated.quantity(change.path)
        assert quantity.value == pytest.approx(change.new, rel=1e-4, abs=1e-9)
        assert quantity.kind == "measured"
        assert quantity.source == ("probe of stub, 8 ranks, torch 0.0",)


def test_what_the_host_issues_too_slowly_says_nothing_of_the_device() -> None:
    document, _ = made()
    slow = json.loads(json.dumps(document))
    slow["measurements"] = [each for each in slow["measurements"] if each["kind"] in {"gemm", "vector", "launch"}]
    for each in slow["measurements"]:
        if each["kind"] == "gemm":
            each |= {"host_bound": True, "median": 1.0}
    found = fit_probe(load_profile("nvidia-h100"), ProbeFile.model_validate(slow))
    assert not any(change.path.startswith("efficiency.gemm") for change in found.changes)


def test_a_recorded_cpu_is_met(fitted_to_recorded: ProbeFit) -> None:
    """34 measurements of torch 2.13 on two processes of a two-core EPYC."""
    found = fitted_to_recorded
    after = {each.kind: each for each in found.agreements}
    assert after["gemm"].points >= 10
    assert after["gemm"].after < 0.08
    assert abs(after["gemm"].bias) < 0.05
    assert after["attention"].after < 0.02
    changed = {change.path: change.new for change in found.changes}
    assert 0.0 < changed["efficiency.gemm_peak_fraction"] < 1.0
    assert changed["fixed_costs.cube_op_us"] == changed["fixed_costs.vector_op_us"]  # who computes also issues
    assert "host.issue_us_per_op" not in changed
    assert 0.05 < changed["memory.runtime_gib"] < 0.2
    assert not any(path.startswith("efficiency.grouped") for path in changed)


def test_processes_share_the_machine(tmp_path: Path) -> None:
    one, two = (load_profile(own_cpu(tmp_path, processes)) for processes in (1, 2))
    device = one.device().peak_flops["fp32"]
    assert two.device().peak_flops["fp32"] == pytest.approx(device / 2.0, rel=1e-3)
    assert two.device().hbm_bytes == pytest.approx(one.device().hbm_bytes / 2.0, rel=1e-3)
    assert two.npus_per_node == 2


def test_the_command_says_what_changed(tmp_path: Path) -> None:
    overlay = tmp_path / "overlay.yaml"
    arguments = ["calibrate", str(RECORDED), "--profile", str(own_cpu(tmp_path)), "-o", str(overlay)]
    answer = CliRunner().invoke(app, arguments)
    assert answer.exit_code == 0, answer.output
    for word in ("efficiency.gemm_peak_fraction", "deviation from prior", "measurements on AMD EPYC", "error"):
        assert word in answer.output.replace("\n", " ") or word in answer.stderr
    text = overlay.read_text(encoding="utf-8")
    assert "Fitted by autodeploy calibrate to cpu_two_processes.json." in text
    profile = load_profile(own_cpu(tmp_path), overlay=overlay)
    assert profile.quantity("efficiency.gemm_peak_fraction").kind == "measured"


def test_the_command_writes_a_script(tmp_path: Path) -> None:
    spec, script = tmp_path / "spec.yaml", tmp_path / "probe.py"
    spec.write_text(
        "model: llama2-7b\ncluster: {profile: ascend-800t-a2, num_npus: 16}\n"
        "training: {seq_length: 4096, global_batch_size: 64}\nstrategy: {tp: 2, pp: 2}\n",
        encoding="utf-8",
    )
    answer = CliRunner().invoke(app, ["probe", str(spec), "-o", str(script), "--ranks", "2"])
    assert answer.exit_code == 0, answer.output
    assert '"kind": "gemm"' in script.read_text(encoding="utf-8")
    assert "the launch has too few ranks" in answer.output


def test_the_profile_of_this_machine_can_be_planned_on(tmp_path: Path) -> None:
    path = tmp_path / "cpu.yaml"
    answer = CliRunner().invoke(app, ["profiles", "this-machine", "-o", str(path)])
    assert answer.exit_code == 0, answer.output
    assert load_profile(path).device().hbm_bytes > 2**28


def test_a_file_that_is_none_is_refused_with_the_place(tmp_path: Path) -> None:
    document = json.loads(RECORDED.read_text(encoding="utf-8"))
    document["measurements"][0]["median"] = -1.0
    broken = tmp_path / "broken.json"
    broken.write_text(json.dumps(document), encoding="utf-8")
    with pytest.raises(SpecError) as error:
        read_probe_file(broken)
    assert error.value.errors[0].path == "/measurements/0/median"
    assert is_probe_text(broken.read_text(encoding="utf-8"))
    assert not is_probe_text('{"measured": 1}')


def test_a_step_of_the_recorded_machine_is_predicted_in_seconds(tmp_path: Path, fitted_to_recorded: ProbeFit) -> None:
    """The run that the probe was made for took 2.5 s a step there; `make soak` measures anew."""
    from tests.soak.real_training import spec_document

    own_cpu(tmp_path)
    overlay = fitted_to_recorded.overlay
    from autodeploy.specs.reading import read_spec_document

    plan = estimate(read_spec_document(spec_document("medium", 2, "cpu.yaml", overlay), base_dir=tmp_path))
    assert plan.step_time_s == pytest.approx(2.52, rel=0.15)
    assert np.isclose(plan.peak_memory_gib, 945 / 1024, rtol=0.2)
