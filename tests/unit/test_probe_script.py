"""The probe's script on a torch of words: what it is made of, what it calls and what it writes."""

from __future__ import annotations

import ast
import json
import sys
from functools import cache
from typing import TYPE_CHECKING, Any

import pytest

from autodeploy.analysis.probe.document import ProbeFile, read_probe_file
from autodeploy.analysis.probe.script import Wanted, fitting, request_of, script_of
from autodeploy.search.planner import estimate
from autodeploy.specs.spec import Spec, parse_spec
from tests.support.stub_torch import stub_torch

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.unit

# Names that the public documentation has: docs.pytorch.org, and the API list of Ascend Extension for PyTorch.
NPU_NAMES = {"npu_grouped_matmul", "npu_fusion_attention", "npu_moe_token_permute", "npu_rms_norm"}


@cache
def spec(profile: str = "ascend-800t-a2") -> Spec:
    return parse_spec(
        {
            "model": "qwen3-30b-a3b",
            "cluster": {"profile": profile, "num_npus": 16},
            "training": {"seq_length": 4096, "global_batch_size": 64},
            "strategy": {"tp": 2, "pp": 2, "ep": 4, "micro_batch_size": 1},
        }
    )


@cache
def request(nodes: int = 1) -> dict[str, Any]:
    return request_of(spec(), [estimate(spec())], nodes=nodes)


def run(script: str, kind: str, output: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[dict[str, Any], set[str]]:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    scope: dict[str, Any] = {"__name__": "probe_under_test"}
    exec(compile(script, "probe.py", "exec"), scope)
    scope["SAMPLE_S"] = 1e-6
    with stub_torch(kind) as calls:
        assert scope["main"](["-o", str(output), "--seconds", "20"]) == 0
    return json.loads(output.read_text(encoding="utf-8")), calls


def test_it_imports_the_standard_library_alone() -> None:
    tree = ast.parse(script_of(request()))
    names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    names |= {str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert {name.partition(".")[0] for name in names} <= sys.stdlib_module_names


def test_the_request_stands_in_it_as_json() -> None:
    scope: dict[str, Any] = {"__name__": "probe_under_test"}
    exec(compile(script_of(request()), "probe.py", "exec"), scope)
    assert json.loads(scope["REQUEST_JSON"]) == json.loads(json.dumps(request()))


def test_it_asks_for_what_the_plan_computes_and_sends() -> None:
    wanted = request()["measurements"]
    model = spec().model
    experts = [each["shape"] for each in wanted if each["name"] == "expert_up_proj"]
    assert len(experts) == 3  # forward, dX and dW
    assert experts[0]["groups"] == (model.n_routed_experts or 0) / 4
    assert experts[0]["n"] == 2 * (model.moe_intermediate_size or 0) / (spec().strategy.etp or 2)  # type: ignore[union-attr]
    kinds = {each["kind"] for each in wanted}
    assert kinds == {
        *("gemm", "grouped_gemm", "attention", "vector", "movement"),
        *("launch", "synchronisation", "host_link", "collective"),
    }
    groups = {(each["shape"]["ranks"], each["shape"]["stride"]) for each in wanted if each["kind"] == "collective"}
    assert (2, 1) in groups  # tensor parallel
    assert (4, 2) in groups or (4, 1) in groups  # expert parallel


def test_groups_are_cut_to_the_launch() -> None:
    assert fitting(8, 1, 8) == (8, 1)
    assert fitting(64, 1, 8) == (8, 1)
    assert fitting(4, 8, 8) == (2, 4)
    assert fitting(3, 1, 8) == (2, 1)
    wanted = Wanted(8)
    wanted.message("all_to_all", "ep", 64, 1, 1e6, 1.0)
    assert wanted.cut == {"ep: 64 ranks 1 apart": "8 ranks 1 apart"}
    alone = Wanted(1)
    alone.message("all_reduce", "dp", 4, 1, 1e6, 1.0)
    assert alone.found == {}
    assert list(alone.cut.values()) == ["left out"]


@pytest.mark.parametrize("kind", ["cpu", "cuda", "npu"])
def test_it_runs_on_a_device_of_every_kind(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    output = tmp_path / "probe.json"
    document, calls = run(script_of(request()), kind, output, monkeypatch)
    found = ProbeFile.model_validate(document)
    assert read_probe_file(output) == found
    assert found.device.kind == kind
    measured = {each.kind for each in found.measurements}
    reasons = {each["kind"]: each["reason"] for each in found.skipped}
    assert "collective" in reasons  # one rank alone
    assert ("host_link" in measured) is (kind != "cpu")
    assert {"gemm", "grouped_gemm", "attention", "vector", "movement", "launch", "synchronisation"} <= measured
    assert set(reasons) <= {"collective", "host_link"}
    used = {name.removeprefix("torch_npu.") for name in calls if name.startswith("torch_npu.")}
    assert used == (NPU_NAMES if kind == "npu" else set())


def test_a_measurement_that_fails_leaves_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = [{"kind": "nonsense"}, {"kind": "launch", "pass": "", "shape": {}}]
    script = script_of({**request(), "measurements": wanted})
    document, _ = run(script, "cpu", tmp_path / "probe.json", monkeypatch)
    assert [each["kind"] for each in document["measurements"]] == ["launch"]
    assert "KeyError" in document["skipped"][0]["reason"]


def test_time_that_runs_out_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    scope: dict[str, Any] = {"__name__": "probe_under_test"}
    exec(compile(script_of(request()), "probe.py", "exec"), scope)
    with stub_torch("cpu"):
        scope["main"](["-o", str(tmp_path / "probe.json"), "--seconds", "0"])
    document = json.loads((tmp_path / "probe.json").read_text(encoding="utf-8"))
    assert document["measurements"] == []
    assert {each["reason"] for each in document["skipped"]} == {"out of time"}
