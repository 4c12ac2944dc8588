"""The gate of CI: limits, shortage, remedies, reports and exit codes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

import pytest
from ruamel.yaml import YAML

from autodeploy.analysis.launch_checks.launch import Launch, best_of_short_search, launch_of
from autodeploy.analysis.launch_checks.launch_check import check
from autodeploy.analysis.launch_requests import baseline_in
from autodeploy.cli import main
from autodeploy.cli.check import share
from autodeploy.formats.import_document import import_file
from autodeploy.kit.errors import SpecError
from autodeploy.reports.check_report import (
    MARK,
    gate_cells,
    render_check,
    render_check_annotations,
    render_check_junit,
    render_check_markdown,
)
from autodeploy.reports.wording import excess_words, width
from autodeploy.search import planner
from autodeploy.specs.answers import CheckLimits, CheckReport, Gate
from autodeploy.specs.reading import parse_spec
from autodeploy.specs.search import SHORT_SEARCH, SearchSpec
from autodeploy.specs.spec import Spec, spec_hash
from autodeploy.specs.strategy import Recompute
from tests import factories

if TYPE_CHECKING:
    from autodeploy.specs.planset import PlanSet

FILES = Path(__file__).parents[1] / "launch_files"
CI = Path(__file__).parents[2] / "examples" / "ci"
SCRIPT = FILES / "megatron_dense.sh"
FAST = ("flash_attention", "fused_operators")
FOUND: dict[str, PlanSet] = {}


search = planner.plan


def plan_once(spec: Spec, *, alone: bool = False) -> PlanSet:
    """What the planner finds; most reports are of one launch, whose best plan is the same."""
    key = spec_hash(spec)
    if key not in FOUND:
        FOUND[key] = search(spec, alone=alone)
    return FOUND[key]


PLANNER: Any = SimpleNamespace(**{name: getattr(planner, name) for name in planner.__all__} | {"plan": plan_once})


@pytest.fixture(scope="module")
def launch() -> Launch:
    return launch_of(import_file(SCRIPT), "nvidia-h100")


@pytest.fixture(scope="module")
def good(launch: Launch) -> CheckReport:
    return check(launch, planner=PLANNER)


@pytest.fixture(scope="module")
def tight(launch: Launch, good: CheckReport) -> CheckReport:
    """Held to nine tenths of what it needs."""
    share_used = good.plan.peak_memory_gib / good.plan.memory_limit_gib
    return check(launch, CheckLimits(max_memory=0.9 * share_used), planner=PLANNER)


@pytest.fixture
def command(monkeypatch, capsys):
    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["autodeploy", *map(str, arguments)])
        with pytest.raises(SystemExit) as caught:
            main.run()
        captured = capsys.readouterr()
        return caught.value.code or 0, captured.out, captured.err

    return run


def test_a_good_launch_passes_and_tells_how_far_it_is_from_the_best(good: CheckReport) -> None:
    assert good.passed
    assert good.best is not None
    assert good.best.slowdown == pytest.approx(good.plan.step_time_s / good.best.plan.step_time_s - 1.0, rel=1e-9)
    assert good.shortage is None
    assert good.remedies == ()


def test_a_launch_without_memory_names_stage_bytes_and_fixes_that_fit(tight: CheckReport) -> None:
    assert not tight.passed
    short = tight.shortage
    assert short is not None
    stages = tight.plan.stages
    assert stages[short.stage].total_gib == max(stage.total_gib for stage in stages)
    assert short.needed_bytes - short.limit_bytes == short.excess_bytes > 0
    assert short.largest_part_bytes <= short.needed_bytes
    assert tight.remedies
    allowed = tight.limits.max_memory * tight.plan.memory_limit_gib
    assert all(remedy.peak_memory_gib <= allowed for remedy in tight.remedies)
    times = [remedy.step_time_s for remedy in tight.remedies]
    assert times == sorted(times)


@pytest.mark.parametrize(("least", "passed"), [(0.1, True), (0.5, False)])
def test_a_launch_whose_interval_has_the_limit_in_it_passes_with_its_chance(
    launch: Launch, good: CheckReport, least: float, passed: bool
) -> None:
    share_used = good.plan.peak_memory_gib / good.plan.memory_limit_gib
    report = check(launch, CheckLimits(max_memory=0.98 * share_used, min_p_fits=least), planner=PLANNER)
    gate = report.gates[1]
    assert gate.chance == pytest.approx(good.plan.p_within(0.98 * good.plan.peak_memory_gib))
    assert 0.1 < gate.chance < 0.5
    assert (report.passed, gate.passed) == (passed, passed)
    assert report.remedies  # though it passes
    assert f"fits with {100 * gate.chance:.0f} %" in gate_cells(gate, "en")[-1]
    assert ("::warning" if passed else "::error") in render_check_annotations(report)


def test_a_plan_does_not_fit_where_its_whole_interval_is_above_the_limit(good: CheckReport) -> None:
    plan = good.plan
    assert plan.memory_interval is not None
    low, high = plan.memory_interval.low_gib, plan.memory_interval.high_gib
    assert plan.p_within(low) == pytest.approx(0.1, abs=0.01)
    assert plan.p_within(high) == pytest.approx(0.9, abs=0.01)
    above = {"fits": False, "memory_limit_gib": 0.99 * plan.peak_memory_gib}
    unsure, out = (plan.model_copy(update=above | {"p_fits": chance}) for chance in (0.4, 0.05))
    assert (unsure.may_fit, out.may_fit) == (True, False)
    assert excess_words(unsure, "en") != excess_words(out, "en")
    assert not out.model_copy(update={"p_fits": None, "memory_interval": None}).may_fit  # of an earlier version


def test_a_remedy_is_what_an_estimate_of_the_changed_strategy_says(launch: Launch, tight: CheckReport) -> None:
    remedy = tight.remedies[0]
    document = launch.spec.model_dump(mode="json")
    document["strategy"] |= remedy.changes
    changed = planner.estimate(Spec.model_validate(document))
    assert changed.step_time_s == remedy.step_time_s
    assert changed.peak_memory_gib == remedy.peak_memory_gib


def test_the_flags_of_a_remedy_make_the_script_fit(tight: CheckReport, tmp_path: Path) -> None:
    for remedy in tight.remedies:
        assert remedy.add_flags
        text = "\n".join(
            line
            for line in SCRIPT.read_text().splitlines()
            if line.split() == [] or line.split()[0] not in remedy.drop_flags
        )
        mended = tmp_path / "mended.sh"
        mended.write_text(text + " " + " ".join(remedy.add_flags) + "\n")  # its last line is the launch
        changed = launch_of(import_file(mended), "nvidia-h100")
        plan = planner.estimate(changed.spec)
        assert (plan.peak_memory_gib, plan.step_time_s) == (remedy.peak_memory_gib, remedy.step_time_s)
        assert all(flag in render_check(tight).replace("\n   ", "") for flag in remedy.add_flags)


def test_cheap_changes_together_are_preferred_to_a_dear_one() -> None:
    """Two memory switches of MindSpeed free what would otherwise take recomputing most layers."""
    document = {
        "model": "llama2-70b",
        "cluster": {"profile": "ascend-800t-a2", "num_npus": 32},
        "training": {"seq_length": 8192, "global_batch_size": 512},
        "strategy": {
            "tp": 8,
            "pp": 4,
            "micro_batch_size": 2,
            "sequence_parallel": True,
            "features": FAST,
        },
        "search": {"fix": {"tp": 8, "pp": 4, "cp": 1, "vpp": 1}, "risk": "neutral"},
    }
    dense = Launch(parse_spec(document))
    report = check(dense, planner=PLANNER)
    first, *others = report.remedies
    assert len(first.names) == 2
    assert first.peak_memory_gib <= report.plan.memory_limit_gib
    assert first.slowdown < 0.02 < 0.1 < min(other.slowdown for other in others)


def test_only_a_mixture_of_experts_is_told_of_its_experts(good: CheckReport) -> None:
    assert "expert" not in render_check(good)
    experts = {"n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 1024}
    plan = good.plan.model_copy(update={"oom_imbalance": 2.4})
    moe = good.model_copy(update={"spec": good.spec | {"model": good.spec["model"] | experts}, "plan": plan})
    assert "OOM if expert imbalance exceeds 2.4" in " ".join(render_check(moe).split())
    for survived, told in ((1.4, True), (0.7, False)):  # more even experts fit, or not even those
        lacking = plan.model_copy(update={"fits": False, "oom_imbalance": survived})
        text = " ".join(render_check(moe.model_copy(update={"plan": lacking})).split())
        assert (f"OOM if expert imbalance exceeds {survived}" in text) is told


def test_no_more_layers_are_recomputed_than_memory_asks_for(launch: Launch, good: CheckReport) -> None:
    limit = 0.6 * good.plan.peak_memory_gib / good.plan.memory_limit_gib
    report = check(launch, CheckLimits(max_memory=limit), planner=PLANNER)
    name = next(r.names[0] for r in report.remedies if r.names[0].startswith("recompute_full:"))
    count = int(name.partition(":")[2])
    assert report.shortage is not None
    assert launch.spec.strategy is not None
    allowed = report.shortage.limit_bytes / 2**30
    peaks = []
    for layers in (count - 1, count):
        recompute = Recompute(granularity="full", num_layers=layers)
        strategy = launch.spec.strategy.model_copy(update={"recompute": recompute})
        spec = launch.spec.model_copy(update={"strategy": strategy})
        peaks.append(planner.estimate(spec).peak_memory_gib)
    assert peaks[1] <= allowed < peaks[0]


def test_the_search_that_a_launch_is_compared_with_ends_early(launch: Launch) -> None:
    asked = []

    def plan(spec, *, alone=False):
        asked.append(spec)
        return planner.plan(spec, alone=alone)

    run = launch.spec.training.model_copy(update={"tokens": 1e12})
    asked_of = SimpleNamespace(plan=plan)
    found = best_of_short_search(launch.spec.model_copy(update={"training": run}), asked_of, time_limit_s=300.0)
    assert found.plans == planner.plan(asked[0]).plans
    assert found.reference is None
    assert asked[0].strategy is None
    assert asked[0].training.tokens is None
    assert asked[0].search.gap == SHORT_SEARCH["gap"] > SearchSpec().gap


def test_changes_are_combined_where_none_is_enough(launch: Launch, good: CheckReport) -> None:
    used = good.plan.peak_memory_gib / good.plan.memory_limit_gib
    report = check(launch, CheckLimits(max_memory=0.4 * used), planner=PLANNER)
    assert [len(remedy.names) > 1 for remedy in report.remedies] == [True]
    nothing = check(launch, CheckLimits(max_memory=0.01), planner=PLANNER)
    assert nothing.remedies == ()
    assert "no choice of recompute, swap, optimizer or micro batch" in render_check(nothing)
    assert "use the best plan" not in render_check(nothing), "that needs more, too"


def test_limits_fail_their_own_gate(launch: Launch, good: CheckReport) -> None:
    limits = CheckLimits(min_mfu=0.99, max_slowdown=0.01)
    report = check(launch, limits, planner=PLANNER)
    assert {gate.name for gate in report.gates if not gate.passed} == {"mfu", "slowdown"}
    against_itself = check(launch, limits, planner=PLANNER, baseline=good.plan)
    by_name = {gate.name: gate for gate in against_itself.gates}
    assert by_name["baseline"].passed
    assert by_name["baseline"].value == 0.0
    assert by_name["slowdown"].limit is None, "the baseline takes the limit"
    faster = good.plan.model_copy(update={"tokens_per_s_per_npu": 1.06 * good.plan.tokens_per_s_per_npu})
    regressed = check(launch, planner=PLANNER, baseline=faster)
    assert [gate.name for gate in regressed.gates if not gate.passed] == ["baseline"]


def test_a_script_has_only_the_features_it_names(launch: Launch) -> None:
    assert launch.spec.strategy is not None
    assert "swap_optimizer" not in (launch.spec.strategy.named_features or {"swap_optimizer"})
    moe = launch_of(import_file(FILES / "mindspeed_moe.sh"), "cloudmatrix-384")
    assert moe.spec.strategy is not None
    assert moe.spec.strategy.named_features == frozenset(moe.spec.strategy.features)
    assert moe.unknown_flags == ("--some-flag-of-ours (line 87)",)


def test_what_has_no_strategy_cannot_be_checked(tmp_path: Path) -> None:
    path = tmp_path / "spec.yaml"
    path.write_text(json.dumps(factories.spec_document()))
    with pytest.raises(SpecError, match="strategy is required"):
        launch_of(import_file(path))


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_reports_fit_and_say_the_same(good: CheckReport, tight: CheckReport, lang: str) -> None:
    for report in (good, tight):
        text = render_check(report, lang)  # type: ignore[arg-type]
        assert max(width(line) for line in text.splitlines()) <= 100
        markdown = render_check_markdown(report, lang)  # type: ignore[arg-type]
        assert markdown.startswith(MARK)
        suite = ElementTree.fromstring(render_check_junit(report, lang).partition("\n")[2])  # type: ignore[arg-type]
        assert suite.get("tests") == str(len(report.gates)) == str(len(suite.findall("./testsuite/testcase")))
        assert suite.get("failures") == str(sum(not gate.passed for gate in report.gates))
    assert f"{tight.shortage.needed_bytes:,}" in render_check(tight, lang)  # type: ignore[arg-type, union-attr]


def test_a_launch_that_beats_the_best_plan_takes_less_time(good: CheckReport) -> None:
    told = Gate(name="slowdown", passed=True, value=-0.022)
    held = told.model_copy(update={"limit": 0.05})
    assert gate_cells(told, "en") == ["time relative to the best plan", "-2.2 %", "", "–"]
    assert gate_cells(held, "zh") == ["相对最优方案的用时", "-2.2 %", "<= +5.0 %", "通过"]
    report = good.model_copy(update={"gates": (held,)})
    for text in (render_check(report), render_check_markdown(report), render_check_junit(report)):
        assert "time relative to the best plan" in text
        assert "-2.2 %" in text
    assert gate_cells(told.model_copy(update={"value": -0.0001}), "en")[1] == "+0.0 %"


def test_junit_holds_any_file_name(good: CheckReport) -> None:
    text = render_check_junit(good, name='a"<&\x00>.sh')
    assert ElementTree.fromstring(text.partition("\n")[2]).find("testsuite").get("name") == 'a"<&>.sh'  # type: ignore[union-attr]


def test_baselines_are_plans_plan_sets_and_checks(good: CheckReport) -> None:
    plan_set = factories.plan_set()
    assert baseline_in(plan_set.model_dump(mode="json")).plan == plan_set.plans[0]
    assert baseline_in(good.plan.model_dump(mode="json") | {"search_id": "srch_1"}).plan == good.plan
    assert baseline_in(good.model_dump(mode="json")).plan == good.plan
    with pytest.raises(SpecError):
        baseline_in({"plans": []})


@pytest.mark.parametrize(("text", "value"), [("95%", 0.95), ("0.95", 0.95), (" 5 %", 0.05), ("0%", 0.0)])
def test_shares(text: str, value: float) -> None:
    assert share(text, "--max-slowdown", most=1.0) == pytest.approx(value)


@pytest.mark.parametrize("text", ["", "much", "-1%", "101%", "nan", "%"])
def test_what_is_no_share(text: str) -> None:
    with pytest.raises(SpecError):
        share(text, "--max-memory", most=1.0)


def test_exit_codes_and_files(command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planner, "plan", plan_once)
    junit, markdown = tmp_path / "check.xml", tmp_path / "check.md"
    code, out, _ = command("check", SCRIPT, "--cluster", "nvidia-h100", "--junit", junit, "--markdown", markdown)
    assert code == 0
    assert out.startswith("PASS")
    assert markdown.read_text().startswith(MARK)
    assert ElementTree.parse(junit).getroot().get("failures") == "0"
    code, out, _ = command("check", SCRIPT, "--cluster", "nvidia-h100", "--max-memory", "20%", "-f", "json")
    assert code == 1
    assert not CheckReport.model_validate_json(out).passed
    code, out, err = command("check", SCRIPT)
    assert (code, out) == (2, "")
    assert "--cluster PROFILE" in err
    broken = tmp_path / "broken.sh"
    broken.write_text('torchrun pretrain.py --num-layers "2\n')
    code, _, err = command("check", broken, "--cluster", "nvidia-h100")
    assert code == 2
    assert "line 1, column" in err
    broken.with_suffix(".yaml").write_text("model: [1, 2\ncluster: {")
    code, _, err = command("check", broken.with_suffix(".yaml"))
    assert code == 2
    assert "line" in err


def test_plans_are_compared_by_their_differences(command, tmp_path: Path) -> None:
    first, second = factories.plan_set(), factories.plan_set()
    swapped = second.model_copy(update={"plans": second.plans[1:]})
    paths = [tmp_path / name for name in ("a.json", "b.json")]
    for path, plan_set in zip(paths, (first, swapped), strict=True):
        path.write_text(plan_set.model_dump_json())
    code, out, _ = command("compare", *paths)
    assert code == 0
    assert first.plans[0].plan_id in out
    assert "ep" in out
    assert "seq_length" not in out, "what is equal is not shown"
    code, out, _ = command("compare", *paths, "-f", "json")
    rows = {row["field"]: row for row in json.loads(out)["differences"]}
    assert rows["step_time_s"]["best"] == 0
    assert rows["tp"]["values"] == [2, 1]
    assert command("compare", paths[0], paths[0], "--lang", "zh", "-f", "markdown")[1].count("没有差别") == 1
    assert command("compare", paths[0])[0] == 2


def test_the_action_is_a_composite_one_and_its_scripts_are_sound() -> None:
    yaml = YAML(typ="safe")
    action = yaml.load((CI / "github-action" / "action.yml").read_text())
    assert action["runs"]["using"] == "composite"
    names = set(action["inputs"])
    for step in action["runs"]["steps"]:
        assert step["shell"] == "bash"
        assert "${{" not in step["run"], "what a pull request says never becomes part of a script"
        subprocess.run(["bash", "-n"], input=step["run"], text=True, check=True)
        for value in step.get("env", {}).values():
            if "inputs." in value:
                assert value.removeprefix("${{ inputs.").removesuffix(" }}") in names
    assert all(MARK in step["run"] for step in action["runs"]["steps"][:2])
    workflow = yaml.load((CI / "github-workflow.yml").read_text())
    assert set(workflow["jobs"]["check"]["steps"][-1]["with"]) <= names
    job = yaml.load((CI / "gitlab-ci.yml").read_text())["check-launch"]
    assert job["artifacts"]["reports"]["junit"] == "check.xml"


def test_the_action_runs_the_check(tmp_path: Path) -> None:
    yaml = YAML(typ="safe")
    step = yaml.load((CI / "github-action" / "action.yml").read_text())["runs"]["steps"][0]
    program = tmp_path / "autodeploy"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m autodeploy.cli.main "$@"\n')
    program.chmod(0o755)
    (tmp_path / "broken.sh").write_text('torchrun x.py "\n')
    summary, outputs = tmp_path / "summary", tmp_path / "outputs"
    environment = {
        **os.environ,
        **dict.fromkeys(step["env"], ""),
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "RUNNER_TEMP": str(tmp_path),
        "GITHUB_STEP_SUMMARY": str(summary),
        "GITHUB_OUTPUT": str(outputs),
        "FILE": str(tmp_path / "broken.sh"),
        "MAX_MEMORY": "100%",
    }
    subprocess.run(["bash", "-e", "-c", step["run"]], env=environment, check=True, capture_output=True)
    assert "passed=false" in outputs.read_text()
    assert "code=2" in outputs.read_text()
    assert summary.read_text().startswith(MARK)
    assert "line 1" in summary.read_text()
