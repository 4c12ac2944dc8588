"""Stored runs under this release, and a cluster's overlay for others."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from ruamel.yaml import YAML
from sqlalchemy import update

from autodeploy.cli import main
from autodeploy.kit.settings import load_settings
from autodeploy.service.runs.replay import Replay, ReplayedRun
from autodeploy.service.session import open_services
from autodeploy.service.store.tables import RunRow
from hardware_profiles import load_profile

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

SPEC = """
model: llama2-7b
cluster: {profile: ascend-800t-a2, num_npus: 8, name: hall-2}
training: {seq_length: 4096, global_batch_size: 32}
search: {effort: fast, top_k: 1, fix: {tp: 2, pp: 1, cp: 1, micro_batch_size: 1}}
"""
RUN = ReplayedRun("run_1", "p_1", "hall-2", "llama2-7b", "1", 1.1, 1.0, 1.0, 0.10, 0.10, None, None)


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Callable[..., str]:
    """Runs the program on a database of its own; gives stdout, or stderr where it fails."""
    monkeypatch.setenv("AUTODEPLOY_DATABASE_URL", f"sqlite:///{tmp_path / 'runs.db'}")

    def run(*arguments: str, code: int = 0) -> str:
        monkeypatch.setattr(sys, "argv", ["autodeploy", *arguments])
        with pytest.raises(SystemExit) as caught:
            main.run()
        captured = capsys.readouterr()
        assert (caught.value.code or 0) == code, captured.err
        return captured.err if code else captured.out

    return run


def test_runs_are_predicted_again_and_an_overlay_goes_out_without_models(
    command: Callable[..., str], tmp_path: Path
) -> None:
    assert json.loads(command("replay", "-f", "json")) == {
        "mean_before": None,
        "mean_after": None,
        "passes": True,
        "runs": [],
    }
    spec, steps, out = tmp_path / "spec.yaml", tmp_path / "steps.csv", tmp_path / "overlay.yaml"
    spec.write_text(SPEC)
    plan = json.loads(command("plan", str(spec), "-f", "json"))["plans"][0]
    measured_s = 1.1 * plan["step_time_s"]
    steps.write_text("step,step_time_s\n" + "".join(f"{n},{measured_s}\n" for n in range(1, 6)))
    command("runs", "add", plan["plan_id"], str(steps))

    found = json.loads(command("replay", "-f", "json"))
    (run,) = found["runs"]
    assert run["after_s"] == run["before_s"] == plan["step_time_s"]  # the same release says the same
    assert found["mean_before"] == found["mean_after"] == pytest.approx(0.1)
    with open_services(load_settings()) as services, services.database.write() as session:
        session.execute(update(RunRow).values(predicted_step_time_s=measured_s))  # a release that was right
    assert "errors grew" in command("replay", code=1)
    command("replay", "--allowed-mean", "11", "--allowed-run", "11")
    assert "no measured run" not in command("replay", "--cluster", "hall-2", "--allowed-mean", "9", code=1)

    command("cluster", "export", "hall-2", "--author", "NPU team", "--release", "CANN 8.3.RC1", "-o", str(out))
    text = out.read_text()
    assert "NPU team" in text
    assert "CANN 8.3.RC1" in text
    for secret in ("llama", "hall-2", "run_", plan["plan_id"]):
        assert secret not in text
    overlay = YAML(typ="safe").load(text)
    assert load_profile("ascend-800t-a2", overlay=overlay).efficiency != load_profile("ascend-800t-a2").efficiency
    assert "has no overlay" in command("cluster", "export", "hall-3", "--author", "a", code=2)


@pytest.mark.parametrize(
    ("changes", "passes"),
    [
        ({}, True),
        ({"error_after": -0.10}, True),
        ({"error_after": 0.02}, True),
        ({"error_after": 0.104}, True),
        ({"error_after": 0.12}, False),
        ({"error_after": -0.30}, False),
        ({"error_after": None, "refused": "no"}, False),
        ({"memory_error_before": 0.01, "memory_error_after": -0.02}, True),
        ({"memory_error_before": 0.01, "memory_error_after": -0.09}, False),
    ],
)
def test_the_gate_closes_where_errors_grow(changes: dict[str, object], passes: bool) -> None:
    changed = replace(RUN, **changes)  # type: ignore[arg-type]
    assert Replay((changed,)).passes(0.005, 0.05) is passes


def test_one_bad_run_among_many_good_ones_closes_the_gate() -> None:
    better = tuple(replace(RUN, error_after=0.05) for _ in range(50))
    assert Replay(better).passes(0.005, 0.05)
    assert not Replay((*better, replace(RUN, error_after=0.16))).passes(0.005, 0.05)
