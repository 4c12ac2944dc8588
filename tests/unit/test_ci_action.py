"""The composite action, run step by step as a runner does, with a `gh` that keeps the comments in a file."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from ruamel.yaml import YAML

import autodeploy.cli.check  # noqa: F401
from autodeploy.analysis.launch_checks.launch import launch_of
from autodeploy.analysis.launch_checks.launch_check import check
from autodeploy.cli.main import run
from autodeploy.formats.import_document import import_document, import_file
from autodeploy.kit.errors import SpecError
from autodeploy.reports.check_report import render_check_markdown
from autodeploy.search import planner
from autodeploy.specs.spec import spec_hash
from tests.support.forked_commands import forked_command

if TYPE_CHECKING:
    from collections.abc import Iterator

    from autodeploy.specs.planset import PlanSet
    from autodeploy.specs.spec import Spec

ROOT = Path(__file__).parents[2]
ACTION = YAML(typ="safe").load((ROOT / "examples" / "ci" / "github-action" / "action.yml").read_text())
SCRIPT = ROOT / "tests" / "launch_files" / "megatron_dense.sh"
MARK = "<!-- autodeploy-check -->"
# `gh api` as far as the action uses it; it is refused everything while a file `refused` is there.
GH = """
import json, os, sys
from pathlib import Path
words = sys.argv[2:]
if Path("refused").exists():
    sys.exit("HTTP 403: Resource not accessible by integration")
assert sys.argv[1] == "api" and os.environ["GH_TOKEN"] == "secret"
kept = Path("comments.json")
comments = json.loads(kept.read_text())
method = words[words.index("--method") + 1] if "--method" in words else "GET"
[path] = [word for word in words if word.startswith("repos/me/own/issues/")]
if method == "GET":
    assert path == "repos/me/own/issues/7/comments" and "--paginate" in words
    assert words[words.index("--jq") + 1].startswith(".[] |")
    for number, body in comments:
        print(number, body.split("\\n")[0].rstrip("\\r"))
    sys.exit()
name, _, value = words[words.index("-F") + 1].partition("=")
assert name == "body" and value[0] == "@"
body = Path(value[1:]).read_text()
if method == "POST":
    comments.append([100 + len(comments), body])
else:
    number = int(path.removeprefix("repos/me/own/issues/comments/"))
    comments = [[each, body if each == number else old] for each, old in comments]
kept.write_text(json.dumps(comments))
"""


class Runner:
    """A job's folder and the steps of the action in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "comments.json").write_text(json.dumps([[11, "looks good"]]))
        path = folder / "gh"
        path.write_text(f"#!{sys.executable} -IS\n{GH}")
        path.chmod(0o755)

    def run(self, event: str = "pull_request", **given: str) -> tuple[int, dict[str, str], str]:
        """Exit code of the first step that fails, outputs of the step `check`, and what was said."""
        known = {name.replace("_", "-"): value for name, value in given.items()}
        inputs = {name: known.get(name, str(each.get("default", ""))) for name, each in ACTION["inputs"].items()}
        values = {f"inputs.{name}": value for name, value in inputs.items()}
        values |= {"inputs.token": "secret", "github.event.pull_request.number": "7", "github.event_name": event}
        outputs: dict[str, str] = {}
        said = ""
        for step in ACTION["runs"]["steps"]:
            if "if" in step and event != "pull_request":
                assert "github.event_name == 'pull_request'" in step["if"]
                continue
            done = self._step(step, values)
            said += done.stdout + done.stderr
            if step.get("id") == "check":
                outputs = dict(line.split("=", 1) for line in (self.folder / "outputs").read_text().splitlines())
                values |= {f"steps.check.outputs.{name}": value for name, value in outputs.items()}
            if done.returncode:
                return done.returncode, outputs, said
        return 0, outputs, said

    def _step(self, step: dict[str, Any], values: dict[str, str]) -> subprocess.CompletedProcess[str]:
        script = self.folder / "step.sh"
        script.write_text(step["run"])
        for name in ("outputs", "summary"):
            (self.folder / name).write_text("")
        environment = {
            **os.environ,
            "PATH": f"{self.folder}:{os.environ['PATH']}",
            "RUNNER_TEMP": str(self.folder),
            "GITHUB_OUTPUT": str(self.folder / "outputs"),
            "GITHUB_STEP_SUMMARY": str(self.folder / "summary"),
            "GITHUB_REPOSITORY": "me/own",
            **{
                name: re.sub(r"\$\{\{ (.+?) \}\}", lambda found: values[found[1]], text)
                for name, text in step.get("env", {}).items()
            },
        }
        command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", str(script)]
        return subprocess.run(command, cwd=self.folder, env=environment, capture_output=True, text=True, check=False)

    @property
    def comments(self) -> list[str]:
        return [body for _, body in json.loads((self.folder / "comments.json").read_text())]


@pytest.fixture(scope="module", autouse=True)
def _imported() -> Iterator[None]:
    """What a check imports, makes ready and compares with, once for all the commands that are forked from here."""
    found: dict[str, PlanSet] = {}
    search = planner.plan

    def plan_once(spec: Spec, *, alone: bool = False) -> PlanSet:
        key = spec_hash(spec)
        if key not in found:
            found[key] = search(spec, alone=alone)
        return found[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(planner, "plan", plan_once)
        launch = launch_of(import_file(SCRIPT), "nvidia-h100")
        render_check_markdown(check(launch, planner=planner))
        with pytest.raises(SpecError):
            import_document('torchrun x.py "\n', "broken.sh")
        yield


@pytest.fixture
def runner(tmp_path: Path) -> Iterator[Runner]:
    (tmp_path / "broken.sh").write_text('torchrun x.py "\n')
    with forked_command(tmp_path / "autodeploy", run):
        yield Runner(tmp_path)


def test_one_comment_is_made_and_then_kept_up_to_date(runner: Runner) -> None:
    code, outputs, _ = runner.run(file=str(SCRIPT), cluster="nvidia-h100")
    assert (code, outputs["passed"], outputs["code"]) == (0, "true", "0")
    assert Path(outputs["junit"]).read_text().startswith("<?xml")
    assert len(runner.comments) == 2
    assert runner.comments[1].startswith(f"{MARK}\n## AutoDeploy check: PASS\n")
    code, outputs, _ = runner.run(file="broken.sh", cluster="nvidia-h100")
    assert (code, outputs["passed"], outputs["code"]) == (2, "false", "2")
    assert len(runner.comments) == 2
    assert runner.comments[0] == "looks good"
    assert runner.comments[1].startswith(f"{MARK}\n## AutoDeploy check: not checked\n"), "not the earlier report"
    assert "line 1, column 15" in runner.comments[1]
    assert not Path(outputs["junit"]).exists()


def test_checks_with_names_keep_comments_of_their_own(runner: Runner) -> None:
    for name in ("", "scripts/a b.sh", "other", "scripts/a b.sh"):
        assert runner.run(file="broken.sh", name=name)[0] == 2
    first = [body.partition("\n")[0] for body in runner.comments]
    assert first == [
        "looks good",
        MARK,
        "<!-- autodeploy-check: scripts/a b.sh -->",
        "<!-- autodeploy-check: other -->",
    ]


def test_a_token_that_may_not_write_does_not_decide_the_gate(runner: Runner) -> None:
    (runner.folder / "refused").touch()
    code, _, said = runner.run(file=str(SCRIPT), cluster="nvidia-h100")
    assert code == 0
    assert "::warning::the comment could not be written" in said
    assert len(runner.comments) == 1


def test_a_push_writes_no_comment_and_inputs_reach_the_command(runner: Runner) -> None:
    text = SCRIPT.read_text().replace("--seq-length 4096", "--seq-length $MY_SEQ")
    (runner.folder / "own.sh").write_text(text.replace("embeddings 4096", "embeddings $MY_SEQ"))
    code, outputs, said = runner.run("push", file="own.sh", cluster="nvidia-h100", set="MY_SEQ=8192\nOTHER=a b")
    assert "seq 8192" in said
    assert (code, outputs["code"]) == (0, "0")
    assert len(runner.comments) == 1
    code, _, said = runner.run("push", file=str(SCRIPT), cluster="nvidia-h100", max_memory="10%", num_npus="32")
    assert code == 1
    assert "FAIL" in said
