"""`autodeploy runs` and `autodeploy calibrate` with a cluster's own files, on the real planner."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

import pytest
from ruamel.yaml import YAML

from autodeploy.cli import main
from autodeploy.kit.settings import load_settings
from autodeploy.search import planner
from autodeploy.service.session import open_services
from autodeploy.specs.reading import read_spec_file
from autodeploy.specs.spec import Spec

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

SPEC = """
model: llama2-7b
cluster: {profile: ascend-800t-a2, num_npus: 8}
training: {seq_length: 4096, global_batch_size: 32}
search: {effort: fast, top_k: 3, risk: neutral, allow: {tp: [2, 4, 8], pp: [1], micro_batch_size: [1]}}
"""
GEMM = "m,n,k,tflops\n4096,4096,4096,290\n8192,8192,8192,310\n"


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


@pytest.fixture
def spec_path(tmp_path: Path) -> str:
    path = tmp_path / "spec.yaml"
    path.write_text(SPEC)
    return str(path)


def steps(path: Path, step_s: float) -> str:
    path.write_text("step,step_time_s\n" + "".join(f"{n},{step_s * (2 if n == 1 else 1)}\n" for n in range(1, 6)))
    return str(path)


def test_a_run_is_added_listed_and_followed(command: Callable[..., str], spec_path: str, tmp_path: Path) -> None:
    before = json.loads(command("plan", spec_path, "-f", "json"))
    best = before["plans"][0]
    file = steps(tmp_path / "steps.csv", 1.25 * best["step_time_s"])
    text = command("runs", "add", best["plan_id"], file)
    assert "+25.0 %" in text
    assert "measurements on ascend-800t-a2: 1" in text
    assert best["plan_id"] in text
    (row,) = json.loads(command("runs", "ls", "-f", "json"))
    assert (row["plan_id"], row["error"]) == (best["plan_id"], pytest.approx(0.25))
    assert best["plan_id"] in command("runs", "ls", "--cluster", "ascend-800t-a2")
    after = json.loads(command("plan", spec_path, "-f", "json"))
    # The overlay is as slow as the run was; under it another plan may be the best.
    assert 0.85 <= after["plans"][0]["step_time_s"] / row["measured_step_time_s"] <= 1.06
    strategy = tmp_path / "one.yaml"
    strategy.write_text(SPEC + f"strategy: {json.dumps(best['strategy'])}\n")
    estimated = json.loads(command("estimate", str(strategy), "-f", "json"))
    assert estimated["step_time_s"] == pytest.approx(row["measured_step_time_s"], rel=0.06)
    command("runs", "rm", row["id"])
    assert json.loads(command("runs", "ls", "-f", "json")) == []
    assert json.loads(command("plan", spec_path, "-f", "json"))["plans"] == before["plans"]


def test_stored_plans_are_predicted_again_exactly(command: Callable[..., str], spec_path: str) -> None:
    found = json.loads(command("plan", spec_path, "-f", "json"))
    with open_services(load_settings()) as services:
        view = services.searches.plan(found["plans"][-1]["plan_id"])
        spec = Spec.model_validate(view.plan_set.search.spec)
        assert [planner.reestimate(spec, p).step_time_s for p in view.plan_set.plans] == [
            p.step_time_s for p in view.plan_set.plans
        ]
        assert not view.stale


def test_files_are_calibrated_to_without_a_ledger(command: Callable[..., str], spec_path: str, tmp_path: Path) -> None:
    out, gemm = tmp_path / "overlay.yaml", tmp_path / "gemm.csv"
    gemm.write_text(GEMM)
    command("calibrate", str(gemm), "--profile", "ascend-800t-a2", "-o", str(out))
    overlay = YAML(typ="safe").load(out.read_text())
    assert overlay["efficiency"]["gemm_k_half"]["kind"] == "measured"

    one = tmp_path / "one.yaml"
    one.write_text(SPEC + "strategy: {tp: 8, micro_batch_size: 1, recompute: {granularity: full}}\n")
    predicted = planner.estimate(read_spec_file(one)).step_time_s
    table = tmp_path / "layouts.csv"
    table.write_text(f"tp,step_time_s\n8,{1.2 * predicted}\n")
    command("calibrate", str(table), str(gemm), "--profile", "ascend-800t-a2", "--spec", str(one), "-o", str(out))
    follow = tmp_path / "follow.yaml"
    follow.write_text(one.read_text().replace("num_npus: 8}", "num_npus: 8, overlay: overlay.yaml}"))
    spec = read_spec_file(follow)
    assert isinstance(spec.cluster.overlay, dict)
    assert planner.estimate(spec).step_time_s == pytest.approx(1.2 * predicted, rel=0.06)


def test_what_cannot_be_calibrated_to_is_refused(command: Callable[..., str], spec_path: str, tmp_path: Path) -> None:
    file = steps(tmp_path / "steps.csv", 1.0)
    to = ("--profile", "ascend-800t-a2", "-o", str(tmp_path / "o.yaml"))
    assert "does not say what ran" in command("calibrate", file, *to, code=2)
    assert "no strategy given for the run" in command("calibrate", file, *to, "--spec", spec_path, code=2)
    assert "No such file" in command("calibrate", str(tmp_path / "none"), *to, code=2)
    page = ("--plan", "p_nothere", "--page", str(tmp_path / "page.md"))
    assert "No such file" in command("calibrate", str(tmp_path / "none"), *to, *page, code=2)
    assert "there is no plan" in command("runs", "add", "p_nothere", file, code=2)
    (tmp_path / "steps.csv").write_text("step_time_s\n1\nx\n")
    assert "steps.csv: line 3" in command("runs", "add", "p_nothere", file, code=2)


@pytest.mark.parametrize(
    ("overlay", "pointer"),
    [
        ({"profile": "cloudmatrix-384"}, "/cluster/overlay/profile"),
        ({"profile": "ascend-800t-a2", "efficiency": {"hbn": 0.5}}, "/cluster/overlay/efficiency/hbn"),
        ({"profile": "ascend-800t-a2", "efficiency": {"hbm": 7.0}}, "/cluster/overlay/efficiency/hbm"),
        ({"profile": "ascend-800t-a2", "report": float("nan")}, "/cluster/overlay"),
        ("none.yaml", "/cluster/overlay"),
    ],
)
def test_a_bad_overlay_in_a_spec_is_named(tmp_path: Path, overlay: object, pointer: str) -> None:
    from autodeploy.kit.errors import SpecError

    path = tmp_path / "spec.yaml"
    written = str(overlay).replace("nan", ".nan").replace("'", '"')
    path.write_text(SPEC.replace("num_npus: 8", f"num_npus: 8, overlay: {written}"))
    with pytest.raises(SpecError) as caught:
        planner.prepare(read_spec_file(path))
    assert pointer in {error.path for error in caught.value.errors}
