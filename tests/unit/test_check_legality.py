"""The gate `legality`: what cannot start is said with its rule and numbers, and what can start passes."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from autodeploy.analysis.launch_checks.baseline import Baseline
from autodeploy.analysis.launch_checks.flag_rules import flag_rules, flag_values, words
from autodeploy.analysis.launch_checks.launch import launch_of
from autodeploy.analysis.launch_checks.launch_check import check
from autodeploy.analysis.launch_checks.legality import check_unread, known_rules
from autodeploy.cli import main
from autodeploy.formats.import_document import import_document, import_file
from autodeploy.kit.errors import SpecError
from autodeploy.messages import in_language
from autodeploy.reports.check_report import MARK, render_check, render_check_junit, render_check_markdown
from autodeploy.reports.wording import width
from autodeploy.search import planner
from autodeploy.specs.answers import CheckLimits, CheckReport
from autodeploy.stack.features import FEATURES
from autodeploy.stack.releases import releases
from tests import factories

FILES = Path(__file__).parents[1] / "launch_files"
SOUND = FILES / "mindspeed_sound.sh"
PROFILE = "ascend-800t-a2"
CHINESE = re.compile(r"[\u4e00-\u9fff]")
# The real planner without its search, which says nothing of legality.
QUICK: Any = SimpleNamespace(
    estimate=planner.estimate,
    launch_rules=planner.launch_rules,
    plan=lambda spec, alone=False: factories.plan_set(),
)
# Each file of broken/ breaks one rule; MindSpeed-LLM's own parser and validators refuse all but the group over nodes.
BROKEN: dict[str, tuple[str, dict[str, Any]]] = {
    "batch_does_not_divide": ("batch_divides", {"global_batch": 1000, "micro_batch_size": 1, "dp": 32}),
    "dualpipev_with_few_micro_batches": ("dualpipev_micro_batches", {"micro_batches": 4, "pp": 4}),
    "ep_does_not_divide_experts": ("experts_divide_by_ep", {"experts": 96, "ep": 7}),
    "expert_groups_above_the_ranks": ("expert_world_divides", {"world": 128, "etp": 4, "ep": 32, "pp": 4}),
    "fb_overlap_with_gradient_overlap": ("fb_overlap_alone", {"overlap_grad_reduce": True}),
    "fb_overlap_without_alltoall": ("fb_overlap_needs_alltoall", {"dispatcher": "allgather"}),
    "fb_overlap_without_virtual_stages": ("fb_overlap_needs_chunks", {"pp": 4}),
    "flag_of_another_framework": (
        "flag_is_registered",
        {"flag": "--balanced-moe-experts", "registered_by": "megatron-mindspeed-master"},
    ),
    "heads_do_not_divide": ("heads_divide_by_tp", {"heads": 36, "tp": 8}),
    "key_value_heads_do_not_divide": ("kv_heads_divide_by_tp", {"kv_heads": 4, "tp": 8}),
    "layers_do_not_divide": ("layers_divide_by_pp", {"layers": 30, "counted_ends": 0, "pp": 4}),
    "mc2_without_tensor_parallel": ("mc2_needs_tensor_parallel", {"tp": 1}),
    "mistyped_flag": ("flag_is_registered", {"did_you_mean": "--use-fused-swiglu"}),
    "reuse_with_swap": ("reuse_not_with_swap", {"reuse_fp32_param": True, "swap_optimizer": True}),
    "query_groups_do_not_divide": ("query_groups_divide_heads", {"heads": 32, "kv_heads": 6}),
    "sequence_does_not_divide_by_cp": ("sequence_divides_by_cp_ring", {"seq_length": 4104, "cp": 8}),
    "short_positions": ("positions_hold_the_sequence", {"positions": 2048, "seq_length": 4096}),
    "swap_without_sharding": ("swap_needs_sharded_optimizer", {"swap_optimizer": True}),
    "tensor_group_over_nodes": ("tp_inside_node", {"tp": 16, "tp_limit": 8}),
    "value_of_a_switch": ("flag_takes_value", {"flag": "--sequence-parallel", "value": "true"}),
    "virtual_stages_do_not_divide": ("layers_divide_by_chunks", {"stage_layers": 8, "chunk_layers": 3}),
    "world_does_not_divide": ("world_divides", {"world": 128, "tp": 2, "pp": 3, "cp": 1}),
    "wrong_choice": ("flag_takes_value", {"flag": "--recompute-method", "value": "blocks"}),
    "wrong_type": ("flag_takes_value", {"flag": "--clip-grad", "value": "high"}),
    "zero_memory_without_overlap": ("zero_memory_needs_overlap", {"zero_memory": "level0"}),
}
NO_LIMITS = CheckLimits()
# Values that a sentence says in other words.
UNSAID = {"level0", "true", "megatron-mindspeed-master"}


def checked(path: Path, limits: CheckLimits = NO_LIMITS, cluster: str = PROFILE) -> CheckReport:
    try:
        launch = launch_of(import_file(path), cluster)
    except SpecError as error:
        return check_unread(path.read_text(), error, limits, cluster=cluster)
    return check(launch, limits, planner=QUICK)


def changed(flags: str, *without: str) -> str:
    """The sound script with more flags, and without some."""
    kept = [line for line in SOUND.read_text().splitlines() if not any(line.split()[:1] == [name] for name in without)]
    return "\n".join(kept) + f" {flags}\n"


def report_of(text: str, limits: CheckLimits = NO_LIMITS) -> CheckReport:
    return check(launch_of(import_document(text, "a.sh"), PROFILE), limits, planner=QUICK)


def test_a_sound_script_is_legal() -> None:
    report = checked(SOUND)
    assert report.gates[0].name == "legality"
    assert report.gates[0].passed
    assert report.broken_rules == ()
    assert report.release == "MindSpeed-LLM master of August 2026"
    assert {path.stem for path in (FILES / "broken").iterdir()} == BROKEN.keys()


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_rule_is_named_with_its_numbers(name: str) -> None:
    report = checked(FILES / "broken" / f"{name}.sh")
    rule, values = BROKEN[name]
    assert not report.passed
    assert not report.gates[0].passed
    found = next(each for each in report.broken_rules if each.rule == rule)
    assert values.items() <= found.values.items()
    numbers = [str(value) for value in values.values() if not isinstance(value, bool) and value not in UNSAID]
    assert all(number in found.text for number in numbers)
    said = {each.rule for each in report.broken_rules}
    assert said <= {rule, "dualpipev_two_rounds"}, "nothing else is wrong with it"
    for text in (render_check(report), render_check_markdown(report), render_check_junit(report)):
        assert rule in text.replace("\\_", "_")
    assert max(width(line) for line in render_check(report, "zh").splitlines()) <= 100
    assert CHINESE.search(render_check(report, "zh"))


def test_a_launch_that_contradicts_itself_has_a_report_without_a_plan() -> None:
    few = checked(FILES / "broken" / "dualpipev_with_few_micro_batches.sh")
    assert few.plan is None
    assert "micro batches" in few.unpredicted
    assert [gate.name for gate in few.gates] == ["legality"]
    assert few.spec
    unread = checked(FILES / "broken" / "virtual_stages_do_not_divide.sh")
    assert unread.plan is None
    assert unread.spec == {}
    assert unread.flags is not None
    assert unread.flags["--num-layers-per-virtual-pipeline-stage"] == "3"
    assert CheckReport.model_validate_json(unread.model_dump_json()) == unread


def test_a_model_that_is_not_modelled_is_judged_by_its_flags() -> None:
    text = changed("--full-attention-interval 4 --use-ascend-mc2", "--sequence-parallel")
    refusal = None
    try:
        import_document(text, "a.sh")
    except SpecError as error:
        refusal = error
    assert refusal is not None
    report = check_unread(text, refusal, NO_LIMITS, cluster=PROFILE)
    assert {rule.rule for rule in report.broken_rules} == {"mc2_needs_tensor_parallel", "mc2_not_with_grouped_gemm"}
    assert "linear attention" in render_check(report)
    with pytest.raises(SpecError, match="linear attention"):
        check_unread(changed("--full-attention-interval 4"), refusal, NO_LIMITS, cluster=PROFILE)
    with pytest.raises(SpecError, match="linear attention"):
        check_unread(text, refusal, NO_LIMITS)


def test_rules_and_flags_can_be_allowed() -> None:
    text = changed("--our-own-switch on", "--use-distributed-optimizer")
    report = report_of(text)
    assert [rule.rule for rule in report.broken_rules] == ["flag_is_registered"]
    assert report_of(text, CheckLimits(allow_flags=("--our-own-switch",))).gates[0].passed
    assert report_of(text, CheckLimits(allow_flags=("our-own-switch",))).gates[0].passed
    allowed = report_of(text, CheckLimits(allow_rules=("flag_is_registered",)))
    assert allowed.gates[0].passed
    assert [rule.allowed for rule in allowed.broken_rules] == [True]
    assert "allowed: " in render_check(allowed)
    with pytest.raises(SpecError, match="invalid value") as caught:
        report_of(text, CheckLimits(allow_rules=("expert_divide_by_ep",)))
    assert "experts_divide_by_ep" in caught.value.errors[0].hint


@pytest.mark.parametrize("names", [("--a-b", "--c-d"), tuple(f"--own-{n}" for n in range(40))])
def test_flags_of_a_fork_are_one_finding(names: tuple[str, ...]) -> None:
    report = report_of(changed(" ".join(names), "--use-distributed-optimizer"))
    (rule,) = report.broken_rules
    assert (rule.rule, rule.values["count"], rule.values["flag"]) == ("flag_is_registered", len(names), names[0])
    assert "--allow-flag" in rule.text
    assert report_of(changed(" ".join(names)), CheckLimits(allow_flags=names)).gates[0].passed


def test_what_changes_the_result_stands_above_the_verdict() -> None:
    report = report_of(changed("--optimizer sgd --reset-attention-mask"))
    assert len(report.unmodelled) == 2
    text = render_check(report)
    assert text.index("--optimizer sgd") < text.index("broken rules")
    assert text.startswith("changes the result and is not modelled")
    markdown = render_check_markdown(report)
    assert markdown.startswith(MARK)
    assert markdown.index("\\-\\-optimizer" if "\\-\\-optimizer" in markdown else "--optimizer") < markdown.index("## ")
    assert "改变结果" in render_check(report, "zh")


def test_what_changes_the_result_travels_with_an_imported_spec() -> None:
    imported = import_document(changed("--optimizer sgd --reset-attention-mask --our-own 1"), "a.sh")
    of_script = launch_of(imported, PROFILE)
    of_spec = launch_of(import_document(json.dumps(imported.spec_document(PROFILE)), "spec.yaml"))
    assert len(of_spec.unmodelled) == 2
    assert of_spec.unmodelled == of_script.unmodelled
    assert any("--our-own" in text for text in of_spec.assumptions)
    warnings = of_spec.spec.to_check
    assert ["changes the result" in text for text in warnings] == [True, True, *(False for _ in of_spec.assumptions)]
    assert "会改变结果且未建模" in in_language(warnings[0], "zh")


def test_a_fixed_router_is_predicted_as_balanced() -> None:
    report = report_of(changed("--fix-router"))
    assert report.spec["training"]["routing_imbalance"] == 1.0
    assert "fix_router" not in {rule.rule for rule in report.broken_rules}


def test_the_script_before_a_change_tells_what_changed_and_why() -> None:
    before = launch_of(import_file(SOUND), PROFILE)
    after = launch_of(import_document(changed("--micro-batch-size 2", "--recompute-num-layers"), "a.sh"), PROFILE)
    baseline = Baseline(launch=before, flags=before.flags, name="pretrain.sh")
    report = check(after, CheckLimits(allow_rules=("full_recompute_has_a_method",)), planner=QUICK, baseline=baseline)
    assert report.changes is not None
    assert [(each.name, each.before, each.after) for each in report.changes.fields] == [
        ("--micro-batch-size", "1", "2"),
        ("--recompute-num-layers", "4", None),
    ]
    assert report.changes.moved
    assert report.changes.cause
    markdown = render_check_markdown(report)
    assert "| --micro-batch-size | 1 -> 2 |" in markdown
    assert "pretrain.sh" in markdown
    assert "why: " in markdown
    assert "step time" in markdown
    assert "原因" in render_check_markdown(report, "zh")
    assert "--recompute-num-layers  4 -> –" in render_check(report)
    again = check(before, planner=QUICK, baseline=baseline)
    assert again.changes is not None
    assert again.changes.fields == ()
    assert "no differences" in render_check(again)


def test_a_baseline_without_a_prediction_still_tells_its_flags() -> None:
    launch = launch_of(import_file(SOUND), PROFILE)
    report = check(launch, planner=QUICK, baseline=Baseline(flags={"--bf16": "", "--old": "1"}, name="old.sh"))
    assert report.baseline is None
    assert report.changes is not None
    assert {each.name: each.before for each in report.changes.fields if each.before}["--old"] == "1"


def test_every_name_of_the_rules_is_known() -> None:
    registered = {flag for release in releases() for flag in release.flags}
    for rule in flag_rules():
        known = {"megatron", "mindspeed", "mindspeed-llm", *(release.name for release in releases())}
        assert {*rule.component.split(), *rule.without.split()} <= known
        for name in rule.names() | set(rule.blanks()):
            if (
                name in words()
                or name in flag_values()
                or name in {"world", "blackwell"}
                or name.removeprefix("on_") in FEATURES
            ):
                continue
            flag = f"--{name.removeprefix('given_').replace('_', '-')}"
            assert flag in registered or flag in {"--use-layer-wise-distributed-optimizer", "--use-nanopipe"}, flag
    for value in flag_values().values():
        assert set(value.flags) <= registered
    assert len(known_rules()) == len(set(known_rules()))


@pytest.fixture
def command(monkeypatch, capsys):
    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["autodeploy", *map(str, arguments)])
        with pytest.raises(SystemExit) as caught:
            main.run()
        captured = capsys.readouterr()
        return caught.value.code or 0, captured.out, captured.err

    return run


def test_the_command_fails_with_the_rule_and_compares_with_the_script_before(
    command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planner, "plan", QUICK.plan)
    broken = FILES / "broken" / "virtual_stages_do_not_divide.sh"
    code, out, _ = command("check", broken, "--cluster", PROFILE, "--baseline", SOUND, "-f", "json")
    assert code == 1
    report = json.loads(out)
    assert report["broken_rules"][0]["values"] == {"stage_layers": 8, "chunk_layers": 3}
    [field] = report["changes"]["fields"]
    assert (field["name"], field["before"], field["after"]) == ("--num-layers-per-virtual-pipeline-stage", None, "3")
    code, _, err = command("check", broken, "--cluster", PROFILE, "--allow-rule", "layers_divide_by_chunk")
    assert code == 2
    assert "layers_divide_by_chunks" in err
    code, _, err = command("check", broken, "--cluster", PROFILE, "--allow-rule", "layers_divide_by_chunks")
    assert code == 2, "the file can't be read as a spec"
    doubtful = tmp_path / "doubtful.sh"
    doubtful.write_text(changed("--rampup-batch-size 16 16 1000 --use-fused-swiglux"))
    code, out, err = command("check", doubtful, "--cluster", PROFILE, "-f", "json")
    assert code == 1
    assert "the batch grows" in json.loads(out)["unmodelled"][0]
    assert "--rampup-batch-size" in err
    junit = tmp_path / "check.xml"
    code, out, _ = command("check", broken, "--cluster", PROFILE, "--junit", junit)
    assert code == 1
    assert out.startswith("FAIL")
    assert "layers_divide_by_chunks" in junit.read_text()


def test_nodes_that_the_environment_tells_are_not_one_node() -> None:
    text = SOUND.read_text().replace("NNODES=16\n", "")
    with pytest.raises(SpecError, match="num_npus is required"):
        launch_of(import_document(text, "a.sh"), PROFILE)
    launch = launch_of(import_document(text, "a.sh"), PROFILE, num_npus=128)
    assert check(launch, planner=QUICK).gates[0].passed
    few = launch_of(import_document(text, "a.sh"), PROFILE, num_npus=120)
    assert {"world": 120, "etp": 1, "ep": 8, "pp": 4} in [
        rule.values for rule in check(few, planner=QUICK).broken_rules
    ]
