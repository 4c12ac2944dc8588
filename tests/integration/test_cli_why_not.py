"""`autodeploy why-not --server` asks the server: about a plan it holds, or about a spec that is read here."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from starlette.testclient import TestClient

from api.app import create_app
from autodeploy.analysis.launch_requests import read_strategy
from autodeploy.cli import main, remote
from autodeploy.client import Client
from autodeploy.search.planner import why_not
from autodeploy.service.runner.planning import PLANNER
from autodeploy.specs.answers import WhyNot
from autodeploy.specs.spec import Spec
from tests.integration.conftest import quick_settings

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.integration
SPEC: dict[str, Any] = {
    "model": "llama2-7b",
    "cluster": {"profile": "ascend-800t-a2", "num_npus": 8},
    "training": {"seq_length": 4096, "global_batch_size": 64},
    "search": {"effort": "fast", "top_k": 1, "fix": {"micro_batch_size": 1, "vpp": 1}, "allow": {"tp": [2], "pp": [2]}},
}


@pytest.fixture
def server(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    """An app inside this process, which `--server http://test` leads to."""
    with TestClient(create_app(quick_settings(sqlite_url), planner=PLANNER)) as inside:

        def client() -> Client:
            return Client("http://test", timeout_s=120.0, transport=inside._transport)

        monkeypatch.setattr(remote, "connect", lambda address: client())
        with client() as own:
            yield own


def asked(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str, here: bool = False
) -> WhyNot:
    """What the command prints as JSON; here: without the server."""
    command = ["autodeploy", "why-not", *arguments, "-f", "json", *(() if here else ("--server", "http://test"))]
    monkeypatch.setattr("sys.argv", command)
    with pytest.raises(SystemExit) as ended:
        main.run()
    printed = capsys.readouterr()
    assert not ended.value.code, printed.err
    # The app logs to the same stdout, since it runs in this process.
    return WhyNot.model_validate_json(printed.out[printed.out.index("{\n") :].partition("\n}\n")[0] + "}")


def test_the_server_answers_as_its_api_does(
    server: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    spec_file = tmp_path / "spec.json"
    spec_file.write_text(json.dumps(SPEC), encoding="utf-8")
    plan = server.plan(SPEC, wait_s=60).plans[0]

    of_spec = asked(monkeypatch, capsys, str(spec_file), "--strategy", "tp=3")
    assert of_spec.rule is not None
    assert of_spec == server.why_not({"spec": SPEC, "strategy": {"tp": 3}})
    of_plan = asked(monkeypatch, capsys, plan.plan_id, "--strategy", "pp=4")
    assert of_plan == server.why_not({"plan_id": plan.plan_id, "strategy": {"pp": 4}})
    assert of_plan.step_time_s is not None, "the plan is in the server's database only"


@pytest.mark.parametrize("change", [{"tp": 4}, {"pp": 1}, {"cp": 2}])
def test_library_command_service_and_form_say_the_same_of_a_changed_plan(
    server: Client,
    sqlite_url: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    change: dict[str, int],
) -> None:
    found = server.plan(SPEC, wait_s=60)
    plan, spec = found.plans[0], Spec.model_validate(found.search.spec)
    by_library = why_not(spec, read_strategy(change, plan.strategy), best=found)
    assert by_library.completed is not None
    words = ",".join(f"{axis}={value}" for axis, value in change.items())
    assert server.why_not({"plan_id": plan.plan_id, "strategy": change}) == by_library
    assert asked(monkeypatch, capsys, plan.plan_id, "--strategy", words) == by_library
    form = {axis: str(value) for axis, value in change.items()}
    headers = {"Accept": "application/json"}
    answer = server._http.post(f"/plans/{plan.plan_id}/what-if?lang=en", data=form, headers=headers)
    assert answer.status_code == 200, answer.text
    turned = answer.json()
    assert turned["plan"]["strategy"] == by_library.completed.strategy.model_dump(mode="json")
    assert turned["plan"]["step_time_s"] == pytest.approx(by_library.completed.step_time_s, rel=1e-6)
    assert f"TP{by_library.completed.strategy.tp} " in turned["strategy"]
    monkeypatch.setenv("AUTODEPLOY_DATABASE_URL", sqlite_url)
    assert asked(monkeypatch, capsys, plan.plan_id, "--strategy", words, here=True) == by_library
    bad = server._http.post(f"/plans/{plan.plan_id}/what-if?lang=en", data={"pp": "64"}, headers=headers)
    assert bad.status_code == 422
    assert bad.json()["errors"][0]["detail"]


def test_an_address_that_is_none_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["autodeploy", "why-not", "p_aaaaaaaa", "--strategy", "tp=2", "--server", "here"])
    with pytest.raises(SystemExit) as ended:
        main.run()
    assert ended.value.code == 2
    assert "--server" in capsys.readouterr().err
