"""The shell commands of README, tutorial and how-to guides run as they are written, page by page.

Each page runs in a folder of its own with the files that guides assume (a spec, a script, a log, ...) and a database
with a plan, whose id stands in for those of the pages. What can't run here is listed with the reason.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import httpx
import pytest

from api.app import create_app
from autodeploy.cli import main
from autodeploy.kit.settings import Settings
from autodeploy.service.runner.planning import PLANNER
from tests.ui.conftest import serving
from tests.unit import test_importers_cluster as cluster_files
from tests.unit import test_importers_profiler as profiler_files
from tests.unit.test_documentation import NAMES, PAGES, blocks, text_of
from tests.unit.test_importers_measured import log_line

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.integration
ROOT = Path(__file__).parents[2]
GUIDES = [page for page in PAGES if page.parent.name == "how-to" or page.name in {"README.md", "tutorial.md"}]
SPEC = """\
model: llama2-7b
cluster: {profile: ascend-800t-a2, num_npus: 32, name: hall-2}
training: {seq_length: 4096, global_batch_size: 256, tokens: 1e11}
search:
  effort: 0.02
  risk: neutral
  top_k: 1
  allow: {tp: [2, 4]}
  fix: {micro_batch_size: 1, vpp: 1, cp: 1, schedule: 1f1b}
"""
# Of specs that pages show without one.
SEARCH = "search: {effort: 0.02, risk: neutral, fix: {micro_batch_size: 1, vpp: 1, cp: 1, schedule: 1f1b}}\n"
STRATEGY = "strategy: {tp: 2, pp: 2, recompute: {granularity: full}}\n"
HF_CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "vocab_size": 32000,
}

# Beginning of a command -> why it does not run here.
NOT_RUN = {
    "make": "tests/unit/test_documentation.py holds the targets; .ci/run runs `make check` and `make test`",
    "source": "changes the shell of the reader",
    "export": "settings of a server; tests/integration/test_deployment.py runs servers with them",
    "autodeploy serve": "runs until it is stopped; tests/integration/test_serve_start.py",
    "autodeploy worker": "runs until it is stopped; tests/integration/test_workers.py",
    "autodeploy db downgrade": "needs an older revision; tests/migration",
    "autodeploy plan examples/qwen3_235b_fsdp2_256.yaml": "tests/acceptance/test_examples.py plans all examples",
    "autodeploy export PLAN_ID --to verl": "a plan of post-training; tests/unit/test_exporters_rl.py",
    "autodeploy export PLAN_ID --to mindspeed-rl": "a plan of post-training; tests/unit/test_exporters_rl.py",
    "autodeploy export PLAN_ID --to mindspeed-llm-fsdp2": "a plan of FSDP2; tests/unit/test_fsdp2.py",
    "autodeploy import pretrain_qwen3_235b_4k_fsdp2_A3.sh": "of MindSpeed-LLM; tests/unit/test_importers_fsdp2.py",
    "autodeploy check pretrain_qwen3_235b_4k_fsdp2_A3.sh": "of MindSpeed-LLM; tests/unit/test_importers_fsdp2.py",
    "autodeploy import run_qwen3_30b_a3b_megatron.sh": "a file of verl; tests/unit/test_importers_rl.py",
    "autodeploy check configs/grpo_deepseek_r1_671b_A3.yaml": "a file of MindSpeed-RL; tests/unit/test_importers_rl.py",
    "autodeploy validate autodeploy/calibration/records/": "tests/unit/test_calibration_validate.py",
    "autodeploy verify": "needs torch and trees of frameworks; tests/unit/test_witness.py",
    "autodeploy check pretrain.sh --cluster nvidia-h100 --run": "needs torch and trees of frameworks",
    "mkdir -p trees": "needs trees of frameworks",
    "git -C Megatron-LM": "needs a clone of Megatron-LM",
    "python -m venv torchenv": "an environment with torch",
    "torchenv/bin/pip": "an environment with torch",
    "autodeploy probe": "tests/unit/test_probe_script.py runs the script that it writes",
    "autodeploy calibrate autodeploy_probe.json": "written on the reader's machines; tests/unit/test_probe_fit.py",
    "planner/bin/pip": "an install from a wheelhouse",
    "python3 -m venv": "an install from a wheelhouse",
    "torchrun": "needs devices",
    "EXTRA_ARGS=": "launches training",
    "kubectl": "needs Kubernetes; tests/integration/test_deployment.py holds the manifests to their schema",
    "systemctl": "needs systemd; tests/integration/test_deployment.py verifies the units",
    "docker": "needs Docker; tests/integration/test_deployment.py runs the commands of the compose files",
    "git show": "the reader's repository",
    "pg_dump": "tests/integration/test_backup.py runs these commands",
    "createdb": "tests/integration/test_backup.py",
    "pg_restore": "tests/integration/test_backup.py",
    "AUTODEPLOY_DATABASE_URL=": "tests/integration/test_backup.py",
    "pg_basebackup": "tests/integration/test_backup.py",
    "pg_ctl": "tests/integration/test_backup.py",
    "cp -r $BACKUP": "tests/integration/test_backup.py",
    "chmod 700 $NEW": "tests/integration/test_backup.py",
    "touch $NEW": "tests/integration/test_backup.py",
    "cat >> $NEW": "tests/integration/test_backup.py",
    "curl -s -X POST http://127.0.0.1:8000/v1/searches?webhook": "a receiver that is allowed; test_webhooks.py",
    "curl http://127.0.0.1:8000/v1/searches?author": "needs a key; tests/integration/test_api_teams.py",
    "curl http://127.0.0.1:8000/v1/runs?team": "needs a key; tests/integration/test_api_teams.py",
    "curl -N": "follows events until the search ends; tests/integration/test_api_client.py",
    "#": "a line for a script",
}
# A gate may fail and a deadline be missed; nothing else may end with another code than 0.
ALSO_RIGHT = {"check": {1}, "recommend": {3}}


class Command(NamedTuple):
    """A command of a page: its words, and what a here-document hands to it."""

    words: list[str]
    stdin: str = ""

    @property
    def text(self) -> str:
        return re.sub(r"\bp_[a-z0-9]{8}\b", "PLAN_ID", " ".join(self.words))

    @property
    def reason(self) -> str | None:
        return next((reason for start, reason in NOT_RUN.items() if self.text.startswith(start)), None)


def commands_of(page: Path) -> list[Command]:
    """All commands of the page's shell blocks, in order."""
    found = []
    for block in blocks(text_of(page)):
        if block.language != "sh":
            continue
        lines = iter(block.text.replace("\\\n", " ").splitlines())
        for line in lines:
            here = re.search(r"<<'?(\w+)'?$", line)
            body = []
            if here:
                for inside in lines:
                    if inside == here[1]:
                        break
                    body.append(inside)
                line = line[: here.start()]
            comment = line.startswith("#")
            words = [line] if comment else shlex.split(line, comments=True)
            if words:
                found.append(Command(words, "\n".join(body)))
    return found


def run(words: list[str], monkeypatch: pytest.MonkeyPatch) -> int:
    """Exit code of the command line in this process."""
    monkeypatch.setattr("sys.argv", words)
    try:
        main.run()
    except SystemExit as ended:
        code = ended.code
        return code if isinstance(code, int) else int(bool(code))
    return 0


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str]]:
    """A folder with what the guides assume, and the id of the plan in its database."""
    folder = tmp_path_factory.mktemp("guides")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("AUTODEPLOY_DATABASE_URL", f"sqlite:///{folder / 'autodeploy.db'}")
        write_files(folder)
        assert run(["autodeploy", "plan", "spec.yaml", "-f", "json", "-o", "plans.json"], patch) == 0
        plan = json.loads((folder / "plans.json").read_text(encoding="utf-8"))["plans"][0]
        milliseconds = 1e3 * plan["step_time_s"]
        log = [log_line(number, milliseconds, batch=256) for number in range(1, 9)]
        (folder / "train.log").write_text("\n".join(log) + "\n", encoding="utf-8")
        assert run(["autodeploy", "export", plan["plan_id"], "--to", "mindspeed-llm", "-o", "pretrain.sh"], patch) == 0
        (folder / "scripts").mkdir()
        for copy in ("before.sh", "scripts/pretrain.sh"):
            shutil.copy(folder / "pretrain.sh", folder / copy)
        yield folder, plan["plan_id"]


def write_files(folder: Path) -> None:
    """Files that guides take for granted, small and valid."""
    records = (ROOT / "autodeploy/calibration/records/ascend.jsonl").read_text(encoding="utf-8").splitlines()
    oom = "[rank3]: RuntimeError: NPU out of memory. Tried to allocate 2.00 GiB (NPU 3; 60.97 GiB total capacity; "
    table = cluster_files.table(4, 8, 0)
    texts = {
        "spec.yaml": SPEC,
        "examples/llama2_70b_32.yaml": SPEC,  # one of the same form that takes less time
        "spec_with_strategy.yaml": SPEC + STRATEGY,
        "spec_with_our_stack.yaml": SPEC + STRATEGY + "software: our_stack.yaml\n",
        "our_stack.yaml": "{name: our-megatron, title: ours, inherits: mindspeed-llm}\n",
        "config.json": json.dumps(HF_CONFIG),
        "runs.jsonl": "\n".join(records[3:9]) + "\n",
        "gemm.csv": "m,n,k,us\n4096,4096,4096,520\n8192,4096,4096,1010\n",
        "hccl.txt": cluster_files.HCCL.format(us=1000.0),
        "hccl_test.txt": cluster_files.HCCL.format(us=1000.0),
        "hccl.json": json.dumps(table),
        "topo.txt": cluster_files.matrix(8, far="HCCS"),
        "hccn.txt": cluster_files.speeds(*[200_000] * 8),
        "rank3.log": f"{oom}57.90 GiB already allocated; 1.10 GiB free; 58.50 GiB reserved)\n",
        "ASCEND_PROFILER_OUTPUT/step_trace_time.csv": profiler_files.STEP_TRACE,
        "ASCEND_PROFILER_OUTPUT/kernel_details.csv": profiler_files.kernels(profiler_files.LINEAR),
        "ASCEND_PROFILER_OUTPUT/communication.json": json.dumps(profiler_files.COMMUNICATION),
    }
    for page in (ROOT / "docs" / "tutorial.md",):
        specs = [block.text for block in blocks(text_of(page)) if block.language == "yaml"]
        whole = [text + SEARCH for text in specs]
        texts |= {"qwen3_30b.yaml": whole[0], "mine.yaml": whole[1]}
    for name, text in texts.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    for name in ("hardware_profiles", "autodeploy"):
        (folder / name).symlink_to(ROOT / name)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, prepared: tuple[Path, str]) -> Iterator[str]:
    """A server with the real planner, on a copy of the prepared database."""
    path = tmp_path_factory.mktemp("server") / "autodeploy.db"
    shutil.copy(prepared[0] / "autodeploy.db", path)
    app = create_app(Settings(database_url=f"sqlite:///{path}", poll_s=0.1), planner=PLANNER)
    with serving(app, at_once=True) as url:
        yield url


def test_every_reason_is_needed_and_names_tests_that_are_there() -> None:
    named = {name for reason in NOT_RUN.values() for name in re.findall(r"tests/[\w/]+(?:\.py)?", reason)}
    assert [name for name in sorted(named) if not (ROOT / name).exists()] == []
    texts = [command.text for page in GUIDES for command in commands_of(page)]
    assert [start for start in NOT_RUN if not any(text.startswith(start) for text in texts)] == []


def test_most_commands_run() -> None:
    commands = [command for page in GUIDES for command in commands_of(page)]
    assert len([command for command in commands if command.reason is None]) > 60


def asked(command: Command, server: str, ids: dict[str, str]) -> httpx.Response:
    """The answer to a curl command, sent to the server of the test."""
    words = iter(command.words[1:])
    method, url, content, headers = "GET", "", None, {}
    for word in words:
        if word == "-X":
            method = next(words)
        elif word == "-H":
            name, _, value = next(words).partition(": ")
            headers[name] = value
        elif word in {"-d", "--data-binary"}:
            given, method = next(words), "POST" if method == "GET" else method
            content = command.stdin if given == "@-" else given
            if given.startswith("@") and given != "@-":
                content = Path(given[1:]).read_text(encoding="utf-8")
        elif not word.startswith("-"):
            url = word.replace("http://127.0.0.1:8000", server)
    for name, value in ids.items():
        url = url.replace(name, value)
    return httpx.request(method, url, headers=headers, content=content, timeout=120.0, verify=False)


@pytest.mark.parametrize("page", GUIDES, ids=[NAMES[PAGES.index(page)] for page in GUIDES])
def test_commands_run(
    page: Path,
    prepared: tuple[Path, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    request: pytest.FixtureRequest,
) -> None:
    commands = [command for command in commands_of(page) if command.reason is None]
    if not commands:
        return
    folder = tmp_path / "work"
    shutil.copytree(prepared[0], folder, symlinks=True)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("AUTODEPLOY_DATABASE_URL", f"sqlite:///{folder / 'autodeploy.db'}")
    ids = {"PLAN_ID": prepared[1]}
    for command in commands:
        words = [re.sub(r"\b(?:p_[a-z0-9]{8}|PLAN_ID)\b", prepared[1], word) for word in command.words]
        if words[0] == "curl":
            server = request.getfixturevalue("server")
            answer = asked(Command(words, command.stdin), server, ids)
            too_late = answer.status_code == 409 and words[-1].endswith("/cancel")
            assert answer.status_code < 300 or too_late, (command.text, answer.text[:500])
            found: Any = answer.json() if "json" in answer.headers["content-type"] else {}
            if isinstance(found, dict) and "search" in found:
                ids["SEARCH_ID"] = found["search"]["id"]
            if isinstance(found, dict) and str(found.get("id", "")).startswith("bat_"):
                ids["BATCH_ID"] = found["id"]
            continue
        if words[0] == "cp":
            shutil.copy(words[1], words[2])
            continue
        assert words[0] == "autodeploy", command.text
        if "--server" in words:
            words[words.index("--server") + 1] = request.getfixturevalue("server")
        words = [ids.get(word, word) for word in words]
        if "rehearse.log" in words:
            (batch,) = re.findall(r"global_batch_size 256 -> (\d+)", Path("rehearse.sh").read_text(encoding="utf-8"))
            log = Path("train.log").read_text(encoding="utf-8")
            log = log.replace("batch size:   256", f"batch size: {batch:>5}")
            Path("rehearse.log").write_text(log, encoding="utf-8")
        code = run(words, monkeypatch)
        printed = capsys.readouterr()
        assert code == 0 or code in ALSO_RIGHT.get(words[1], set()), (command.text, code, printed.err[-1500:])
        for key in re.findall(r"\bkey_[a-z0-9]{16}\b", printed.out + printed.err):
            ids["key_01m3xk7pq2w9a4fh"] = key
