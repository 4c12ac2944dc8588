"""The command line: what goes to stdout and stderr, exit codes, formats, errors."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from types import SimpleNamespace

import pytest

from autodeploy.cli import main, plan, what_if
from autodeploy.cli.output import SearchTalk, progress_text
from autodeploy.cli.validate import report_text
from autodeploy.kit.errors import ConflictError, NotFoundError, SearchCancelled
from autodeploy.reports.wording import width
from autodeploy.search.planner import Progress
from autodeploy.specs.planset import NearestChange, PlanSet
from docs.commands import commands, options_of
from tests import factories


@pytest.fixture
def command(monkeypatch, capsys):
    """Runs the program in this process: exit code, stdout, stderr."""

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["autodeploy", *arguments])
        with pytest.raises(SystemExit) as caught:
            main.run()
        captured = capsys.readouterr()
        return caught.value.code or 0, captured.out, captured.err

    return run


@pytest.fixture
def spec_path(tmp_path):
    path = tmp_path / "spec.yaml"
    path.write_text(json.dumps(factories.spec_document()))
    return str(path)


@pytest.fixture
def planned(monkeypatch):
    """Searches answer with a known PlanSet; the specs they were asked are kept."""
    asked = []

    def answer(result):
        def plan_here(spec, *, fresh=False):
            asked.append(spec)
            if isinstance(result, Exception):
                raise result
            return result

        monkeypatch.setattr(plan, "_plan_here", plan_here)
        return asked

    return answer


def test_version_starts_quickly():
    program = [sys.executable, "-c", "from autodeploy.cli.main import run_alone; run_alone()", "--version"]
    seconds = []
    for _ in range(3):
        before = os.times()
        done = subprocess.run(program, capture_output=True, text=True, check=True)
        after = os.times()
        spent = after.children_user + after.children_system - before.children_user - before.children_system
        seconds.append(spent)
    assert re.fullmatch(r"autodeploy \d+\.\d+\.\d+\S*\n", done.stdout)
    assert 0.0 < min(seconds) < 0.4, "CPU seconds of the process: other programs on the machine don't count"


def test_starting_loads_nothing_heavy():
    code = (
        "import sys, autodeploy.cli.main; "
        "heavy = {'numpy', 'ortools', 'pydantic', 'sqlalchemy', 'fastapi', 'plotly', 'httpx'}; "
        "print(sorted(heavy & {*sys.modules}))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


@pytest.mark.parametrize(
    "name",
    ["plan", "estimate", "validate", "export", "why-not", "import", "serve", "doctor", "profiles", "models", "db"],
)
def test_every_command_has_help(command, name):
    code, out, _ = command(name, "--help")
    assert code == 0
    assert f"autodeploy {name}" in out


def test_the_table_is_the_report(command, planned, spec_path):
    planned(factories.plan_set())
    code, out, err = command("plan", spec_path)
    assert code == 0
    assert out.startswith("DeepSeek-V3 on CloudMatrix 384")
    assert err == ""
    assert "\x1b" not in out


def test_json_is_exactly_the_plan_set(command, planned, spec_path):
    planned(factories.plan_set())
    code, out, _ = command("plan", spec_path, "-f", "json")
    assert code == 0
    assert out == factories.plan_set().model_dump_json(indent=2) + "\n"
    assert PlanSet.model_validate_json(out) == factories.plan_set()


@pytest.mark.parametrize(("form", "start"), [("markdown", "# DeepSeek"), ("csv", "rank,plan_id")])
def test_other_formats_into_a_file(command, planned, spec_path, tmp_path, form, start):
    planned(factories.plan_set())
    target = tmp_path / "out.txt"
    code, out, err = command("plan", spec_path, "-f", form, "-o", str(target))
    assert (code, out) == (0, "")
    assert "written to" in err
    assert target.read_text().startswith(start)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out.txt", "spec.yaml"]


def test_chinese(command, planned, spec_path):
    planned(factories.plan_set())
    assert "推荐" in command("plan", spec_path, "--lang", "zh")[1]


def test_top_changes_the_search(command, planned, spec_path):
    asked = planned(factories.plan_set())
    command("plan", spec_path, "--top", "9")
    assert asked[0].search.top_k == 9


@pytest.mark.parametrize(
    ("result", "code"),
    [
        (factories.plan_set(1, "optimal"), 0),
        (factories.plan_set(1, "feasible"), 0),
        (factories.infeasible_plan_set(), 3),
        (factories.plan_set(0, "failed", error="boom"), 4),
        (factories.plan_set(0, "cancelled"), 4),
        (SearchCancelled("stopped"), 4),
        (NotFoundError("gone"), 2),
        (ConflictError("busy"), 2),
        (RuntimeError("bug"), 4),
    ],
)
def test_exit_codes(command, planned, spec_path, result, code):
    planned(result)
    assert command("plan", spec_path)[0] == code


def test_every_mistake_is_told_on_stderr_with_its_place(command, tmp_path):
    path = tmp_path / "bad.yaml"
    document = factories.spec_document(targt="any")
    document["cluster"]["profile"] = "cloudmatrix-348"
    path.write_text(json.dumps(document))
    code, out, err = command("plan", str(path))
    assert (code, out) == (2, "")
    assert "2 invalid fields" in err
    assert "/cluster/profile: there is no profile" in err
    assert "hint: did you mean cloudmatrix-384?" in err
    assert "/search/targt: unknown key" in err


@pytest.mark.parametrize(
    "arguments",
    [
        ["plan", "missing.yaml"],
        ["plan"],
        ["plan", "x.yaml", "-f", "xml"],
        ["nothing"],
        ["profiles", "show", "cloudmatrix-348"],
        ["models", "show", "deepseek-v9"],
        ["validate", "missing.jsonl"],
        ["import", "missing.json"],
        ["plan", "examples/llama2_70b_32.yaml", "--server", "localhost"],
        ["why-not", "examples/llama2_70b_32.yaml", "--strategy", "tp:8"],
        ["export", "p_aaaaaaaa", "--to", "json"],
        ["estimate", "examples/llama2_70b_32.yaml"],
    ],
)
def test_bad_input_is_exit_code_2(command, arguments):
    code, out, err = command(*arguments)
    assert code == 2
    assert out == ""
    assert err != ""


def test_a_server_that_is_not_there_is_exit_code_4(command, spec_path):
    code, out, err = command("plan", spec_path, "--server", "http://127.0.0.1:9")
    assert (code, out) == (4, "")
    assert "error:" in err


def test_a_server_that_can_not_start_says_why_in_one_line(command, monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        code, _, err = command("serve", "--port", str(taken.getsockname()[1]))
    assert (code, "Address already in use" in err, "Traceback" in err) == (4, True, False)
    monkeypatch.setenv("AUTODEPLOY_DATABASE_URL", "postgresql://nobody@127.0.0.1:9/nothing")
    for arguments in (["serve", "--port", "0"], ["db", "upgrade"]):
        code, _, err = command(*arguments)
        assert (code, "the database can't be used" in err, "Traceback" in err) == (4, True, False)


@pytest.mark.parametrize(
    "arguments",
    [["profiles", "ls"], ["profiles", "show", "cloudmatrix-384"], ["models", "ls"], ["models", "show", "deepseek-v3"]],
)
def test_lists_fit_100_columns_and_come_as_json(command, arguments):
    code, out, _ = command(*arguments)
    assert code == 0
    assert max(map(width, out.splitlines())) <= 100
    code, out, _ = command(*arguments, "-f", "json")
    assert json.loads(out)


def test_a_shown_model_is_one_a_spec_can_hold(command):
    from autodeploy.specs.model import ModelSpec
    from autodeploy.specs.presets import load_preset
    from autodeploy.specs.text_files import load_yaml

    shown = load_yaml(command("models", "show", "qwen3-235b-a22b")[1])
    assert ModelSpec.model_validate(shown["model"]) == load_preset("qwen3-235b-a22b")


def test_import_gives_a_model_and_says_what_it_did(command, tmp_path):
    from tests.unit.test_spec_file import LLAMA

    path = tmp_path / "config.json"
    path.write_text(json.dumps(LLAMA))
    code, out, _ = command("import", str(path), "--name", "mine")
    assert code == 0
    assert "name: mine" in out
    assert "num_key_value_heads: 8" in out
    code, out, _ = command("import", str(path), "--show")
    assert code == 0
    assert "taken" in out
    assert "num_key_value_heads" in out


def test_import_reads_a_launch_script(command, tmp_path):
    from pathlib import Path

    from autodeploy.specs.reading import read_spec_file

    script = Path(__file__).parent.parent / "launch_files" / "mindspeed_moe.sh"
    code, out, err = command("import", str(script))
    assert (code, "cluster:" in out) == (0, False)
    assert "--cluster" in err
    spec_path = tmp_path / "spec.yaml"
    assert command("import", str(script), "--cluster", "cloudmatrix-384", "-o", str(spec_path))[0] == 0
    assert read_spec_file(spec_path).strategy.pp == 4
    code, out, _ = command("import", str(script), "--show")
    assert code == 0
    assert re.search(r"^60 +--\S+", out, re.MULTILINE)
    assert max(map(width, out.splitlines())) <= 100


def test_import_of_a_broken_script_names_line_and_column(command, tmp_path):
    path = tmp_path / "broken.sh"
    path.write_text('TP=8\nGPT_ARGS="\n  --num-layers 8\n')
    code, _, err = command("import", str(path))
    assert code == 2
    assert 'broken.sh: line 2, column 10: missing "' in err


def test_import_takes_variables(command, tmp_path):
    path = tmp_path / "run.sh"
    path.write_text(
        "torchrun pretrain_gpt.py --num-layers 4 --hidden-size 512 --num-attention-heads 8 --seq-length 512 "
        "--global-batch-size 8 --tensor-model-parallel-size $TP\n"
    )
    assert "--set TP=VALUE" in command("import", str(path))[2]
    code, out, _ = command("import", str(path), "--set", "TP=2", "--set", "VOCAB_SIZE=1000")
    assert code == 0
    assert "tp: 2" in out
    assert command("import", str(path), "--set", "TP")[0] == 2


def test_html_is_a_report_format(command, planned, spec_path):
    planned(factories.plan_set(2))
    code, out, _ = command("plan", spec_path, "-f", "html")
    assert code == 0
    assert out.startswith("<!doctype html>")


def test_the_state_of_the_database_is_told_and_another_revision_is_an_error(command, monkeypatch, tmp_path):
    url = f"sqlite:///{tmp_path / 'state.db'}"
    monkeypatch.setenv("AUTODEPLOY_DATABASE_URL", url)
    monkeypatch.setenv("AUTODEPLOY_JOBS", "procrastinate")  # as on a machine whose service has PostgreSQL
    code, out, _ = command("db", "status")
    assert (code, json.loads(out)["revision"]) == (4, None)
    command("db", "upgrade")
    code, out, _ = command("db", "status")
    told = json.loads(out)
    assert (code, told["revision"], told["searches"], told["live_workers"]) == (0, told["needed_revision"], {}, 0)
    assert told["bytes"] > 0
    command("db", "downgrade", "0008")
    code, out, _ = command("db", "status")
    assert (code, json.loads(out)["revision"]) == (4, "0008")


def test_database_upgrade_and_doctor(command, monkeypatch, tmp_path):
    monkeypatch.setenv("AUTODEPLOY_DATABASE_URL", f"sqlite:///{tmp_path / 'new.db'}")
    code, out, _ = command("doctor")
    assert (code, "created on first use" in out) == (0, True)
    code, out, err = command("db", "upgrade")
    assert (code, out) == (0, "")
    assert "the database is at revision 0011" in err
    code, out, _ = command("doctor")
    assert code == 0
    assert "PASS  database: SQLite\n" in out


def test_output_that_can_not_be_written(command, planned, spec_path):
    planned(factories.plan_set())
    code, _, err = command("plan", spec_path, "-o", "/nowhere/at/all.txt")
    assert code == 2
    assert "can't be written" in err


def test_what_is_no_file_is_written_to_and_stays(command, planned, spec_path, tmp_path):
    """As root, a file renamed over /dev/null would take its place."""
    planned(factories.plan_set())
    pipe, link, target = tmp_path / "pipe", tmp_path / "link", tmp_path / "target"
    os.mkfifo(pipe)
    link.symlink_to(target)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    for output in (pipe, link):
        assert command("plan", spec_path, "-o", str(output))[0] == 0
    assert os.read(reader, 5) == target.read_bytes()[:5]
    os.close(reader)
    assert pipe.is_fifo()
    assert link.is_symlink()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "pipe", "spec.yaml", "target"]


def test_a_reader_that_leaves_early_is_no_error(tmp_path):
    program = f"{sys.executable} -c 'from autodeploy.cli.main import run_alone; run_alone()' models ls | head -1"
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", program], capture_output=True, text=True, check=False, env=dict(os.environ)
    )
    assert done.stderr == ""


def test_progress_in_one_line():
    progress = Progress(
        "incumbent", "", enumerated=1000, rejected=10, solved=3, incumbent_s=61.25, gap=0.125, elapsed_s=2.0
    )
    assert progress_text(progress) == "  2.0 s  1,000 strategies, invalid 10, solved 3, best 61.25 s, gap 12.5 %"


def test_the_first_interrupt_asks_the_search_to_stop(capsys):
    import signal

    before = signal.getsignal(signal.SIGINT)
    with SearchTalk() as talk:
        assert not talk.should_cancel()
        signal.raise_signal(signal.SIGINT)
        assert talk.should_cancel()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        talk(Progress("enumerated", "", enumerated=5))
    assert signal.getsignal(signal.SIGINT) is before
    assert "stopping" in capsys.readouterr().err


def test_why_not_parses_axes_and_answers():
    assert what_if.parse_changes("tp=8, PP=4,schedule=1f1b") == {"tp": 8, "pp": 4, "schedule": "1f1b"}
    answer = SimpleNamespace(
        rule="heads_divide_by_tp",
        message="128 heads are not a multiple of tp 3",
        step_time_s=70.0,
        against_best_pct=14.2,
        against_fastest_pct=None,
        completed=None,
        nearest=(NearestChange(change="tp=4", effect="legal"),),
        fitting=None,
    )
    assert what_if.answer_text(answer).splitlines() == [
        "rejected by heads_divide_by_tp: 128 heads are not a multiple of tp 3",
        "  step time would be 70 s, +14.2 % relative to the best plan",
        "  Smallest changes that make it feasible",
        "    - tp=4: legal",
    ]


def test_a_validation_report_shows_errors_and_what_was_skipped():
    report = {
        "rows": [
            {
                "id": "A",
                "measured": {"tokens_per_s_per_npu": 1000.0, "peak_memory_gib": 50.0},
                "predicted": {"tokens_per_s_per_npu": 1100.0, "step_time_s": 3.0, "peak_memory_gib": 49.0},
                "error": {"time": 0.1, "memory": -0.02},
            },
            {"id": "B", "measured": {"step_time_s": 2.0}, "predicted": None, "error": None, "skipped": "no such chip"},
        ],
        "summary": {
            "time": {"n": 1, "mape": 0.1, "median_ape": 0.1, "p90_ape": 0.1, "bias": 0.1},
            "memory": {"n": 0},
            "by_class": {"dense": {"n": 1, "mape": 0.1, "median_ape": 0.1, "p90_ape": 0.1, "bias": 0.1}},
        },
    }
    text = report_text(report)
    assert max(map(width, text.splitlines())) <= 100
    assert "+10.0 %" in text
    assert "no such chip" in text
    assert [line.split() for line in text.splitlines() if line.strip().startswith(("time", "memory", "dense"))] == [
        [name, "1", "10.0", "%", "10.0", "%", "10.0", "%", "+10.0", "%"] for name in ("time", "dense")
    ]
    assert "runs: 1/2" in text


@pytest.fixture
def own_database(monkeypatch, tmp_path):
    """A database of this test alone; gives the directory of its file."""
    monkeypatch.setenv("AUTODEPLOY_DATABASE_URL", f"sqlite:///{tmp_path / 'own.db'}")
    return tmp_path


def test_a_database_goes_through_a_file(command, own_database, monkeypatch):
    backup, spec = own_database / "backup.jsonl", own_database / "spec.yaml"
    spec.write_text(
        "{model: qwen3-0.6b, cluster: {profile: ascend-800t-a2, num_npus: 8},"
        " training: {seq_length: 4096, global_batch_size: 16},"
        " search: {effort: fast, top_k: 1, risk: neutral, fix: {tp: 1, pp: 1, micro_batch_size: 1}}}"
    )
    assert command("plan", str(spec))[0] == 0
    assert command("db", "export", str(backup))[0] == 0
    (own_database / "own.db").rename(own_database / "before.db")
    monkeypatch.setenv("AUTODEPLOY_JOBS", "procrastinate")  # of the service that it came from
    code, out, err = command("db", "import", str(backup))
    assert (code, out) == (0, "")
    assert "1 searches" in err
    assert "added: 0\n" in command("db", "import", str(backup))[2]
    assert "deleted: 0" in command("db", "prune", "--older-than", "1d")[2]
    assert "deleted: 1" in command("db", "prune", "--older-than", "0h")[2]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is truncated"),
        ("no json\n", "not a JSON object"),
        ("[1]\n", "not a JSON object"),
        ("\xff\n", "not a JSON object"),
        ("{}\n", "not an export"),
    ],
)
def test_a_file_that_is_no_export_is_refused(command, own_database, text, message):
    path = own_database / "backup.jsonl"
    path.write_bytes(text.encode("latin-1"))
    code, _, err = command("db", "import", str(path))
    assert code == 2
    assert message in err


@pytest.mark.parametrize("arguments", [("db", "prune", "--older-than", "soon"), ("worker",)])
def test_what_cannot_be_done_is_bad_input(command, own_database, arguments):
    code, _, err = command(*arguments)
    assert code == 2
    assert "hint:" in err


def test_a_search_says_something_at_least_every_few_seconds(monkeypatch, capsys):
    monkeypatch.setattr("sys.stderr.isatty", lambda: False)
    with SearchTalk() as talk:
        for kind, elapsed_s in (("enumerated", 1.0), ("bound", 2.0), ("bound", 6.0), ("bound", 8.0), ("solved", 11.0)):
            talk(Progress(kind, "", enumerated=1_000, elapsed_s=elapsed_s))
    said = [line.split()[0] for line in capsys.readouterr().err.splitlines()]
    assert said == ["1.0", "6.0", "11.0"]


def test_the_package_runs_as_a_module():
    command = [sys.executable, "-m", "autodeploy", "--version"]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.startswith("autodeploy ")


def test_models_name_their_source_in_short(command):
    _, shown, _ = command("models", "ls")
    assert "deepseek-ai/DeepSeek-V3" in shown
    assert "(Hugging Face)" not in shown


def test_every_command_can_be_quiet_or_verbose():
    for words, command_of in commands():
        assert {"--quiet", "-q", "--verbose", "-v"} <= options_of(command_of), words


def test_quiet_leaves_the_report_and_errors(command, planned, spec_path, tmp_path):
    planned(factories.plan_set(2))
    written = str(tmp_path / "report.json")
    loud = command("plan", spec_path, "-o", written)
    quiet = command("plan", spec_path, "-o", written, "--quiet")
    assert loud[0] == quiet[0] == 0
    assert f"written to {written}" in loud[2]
    assert quiet[2] == ""
    assert command("plan", spec_path)[1] == command("plan", spec_path, "-q")[1]
    code, _, err = command("plan", "nowhere.yaml", "--quiet")
    assert code == 2
    assert "nowhere.yaml" in err


def test_verbose_tells_every_step_and_the_trace_of_an_error(command, planned, spec_path, monkeypatch, capsys):
    planned(RuntimeError("broken"))
    assert "Traceback" not in command("plan", spec_path)[2]
    assert "Traceback" in command("plan", spec_path, "--verbose")[2]
    monkeypatch.setattr("autodeploy.cli.output.verbosity", lambda: "verbose")
    with SearchTalk() as talk:
        for elapsed_s in (1.0, 1.1, 1.2):
            talk(Progress("bound", "", enumerated=1_000, elapsed_s=elapsed_s))
    assert len(capsys.readouterr().err.splitlines()) == 3


def test_quiet_and_verbose_exclude_each_other(command, spec_path):
    code, _, err = command("plan", spec_path, "-q", "-v")
    assert code == 2
    assert "--verbose: not allowed with --quiet" in err


@pytest.mark.parametrize(("option", "level"), [("--quiet", "warning"), ("--verbose", "debug")])
def test_the_log_of_a_server_follows(command, monkeypatch, option, level):
    started = []
    monkeypatch.setattr("api.server.serve", lambda settings, **_: started.append(settings))
    assert command("serve", option)[0] == 0
    assert started[0].log_level == level


def test_a_file_of_no_plan_set_is_refused_field_by_field(command, spec_path, tmp_path):
    plans = tmp_path / "plans.json"
    plans.write_text('{"id": "a"}', encoding="utf-8")
    code, _, said = command("probe", spec_path, "-o", str(tmp_path / "probe.py"), "--plans", str(plans))
    assert code == 2
    assert "/plans/status: 'status' is required" in said
    assert "one of \n" not in said


def test_an_overlay_that_cannot_be_read_is_refused_before_any_record(command, tmp_path):
    records = tmp_path / "runs.jsonl"
    records.write_text('{"id": "a"}\n', encoding="utf-8")
    code, _, said = command("validate", str(records), "--profile-overlay", str(tmp_path / "none.yaml"))
    assert code == 2
    assert "none.yaml" in said


@pytest.mark.parametrize(
    ("option", "example"), [("--min-mfu", "35%"), ("--max-memory", "95%"), ("--max-slowdown", "5%")]
)
def test_hints_of_limits_are_of_the_limit(command, spec_path, option, example):
    code, _, said = command("check", spec_path, option, "lots")
    assert code == 2
    assert f"such as {example}" in said


GIVEN = (
    "{{model: qwen3-0.6b, cluster: {{profile: {profile}, num_npus: 8}},"
    " training: {{seq_length: 4096, global_batch_size: {batch}}}, strategy: {{tp: 2}}}}"
)


@pytest.mark.parametrize(
    ("profile", "batch", "to", "code", "said"),
    [
        ("ascend-800t-a2", 16, "mindspeed-llm", 0, "--tensor-model-parallel-size"),
        ("ascend-800t-a2", 16, "mindformers", 0, "model_parallel: 2"),
        ("nvidia-h100", 16, "megatron", 0, "pretrain_gpt.py"),
        ("nvidia-h100", 16, "mindspeed-llm", 2, "nvidia"),
        ("nvidia-h100", 18, "megatron", 2, "batch_divides"),
    ],
)
def test_the_strategy_in_a_spec_is_exported(command, own_database, profile, batch, to, code, said):
    spec = own_database / "given.yaml"
    spec.write_text(GIVEN.format(profile=profile, batch=batch))
    found, out, err = command("export", str(spec), "--to", to)
    assert (found, said in (err if code else out)) == (code, True)


@pytest.mark.parametrize(("limit", "code"), [("500%", 0), ("9.5", 0), ("100%", 1), ("10001%", 2), ("0%", 2)])
def test_a_check_may_allow_more_memory_than_there_is(command, tmp_path, limit, code):
    spec = tmp_path / "large.yaml"
    given = GIVEN.format(profile="ascend-800t-a2", batch=16).replace("qwen3-0.6b", "qwen3-32b")
    spec.write_text("# a flow mapping that is no JSON\n" + given)
    assert command("check", str(spec), "--max-memory", limit)[0] == code
