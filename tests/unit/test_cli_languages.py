"""Every command speaks Chinese when asked: what it reports, what it tells beside it, and its mistakes."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from autodeploy.cli import main
from autodeploy.cli.comparisons import ablation_text, published_text
from autodeploy.cli.conversion import diagnostics_text
from autodeploy.cli.output import progress_text, write_text_report
from autodeploy.cli.runs import outcome_text
from autodeploy.cli.what_if import improve_text, recommendation_text
from autodeploy.formats.import_document import import_file
from autodeploy.messages import LANGUAGES, Language, in_language
from autodeploy.messages.message import Message
from autodeploy.reports.plan_report import render_plan_set
from autodeploy.reports.wording import change_name, report_text, width
from autodeploy.search.planner import Progress
from autodeploy.specs.answers import CardCount, Recommendation
from autodeploy.specs.measured_run import MeasuredRun
from autodeploy.specs.plan_details import AblationReport, AblationRow
from autodeploy.specs.published_effects import PublishedReport
from autodeploy.specs.resources import RunDocument, RunOutcomeDocument
from docs.commands import commands, options_of
from tests import factories

CHINESE = re.compile(r"[\u4e00-\u9fff]")
FILES = Path(__file__).parents[1] / "launch_files"
SILENT = {"worker"}  # it logs


def test_every_command_that_says_something_has_a_language() -> None:
    assert {words for words, command in commands() if "--lang" not in options_of(command)} == SILENT


@pytest.fixture
def chinese(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Any:
    """Runs the program with AUTODEPLOY_LANG=zh and a database of its own: exit code, stdout, stderr."""
    monkeypatch.setenv("AUTODEPLOY_LANG", "zh")
    monkeypatch.setenv("AUTODEPLOY_DATABASE_URL", f"sqlite:///{tmp_path / 'own.db'}")

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["autodeploy", *arguments])
        with pytest.raises(SystemExit) as caught:
            main.run()
        captured = capsys.readouterr()
        return int(caught.value.code or 0), captured.out, captured.err

    return run


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["profiles", "ls"], "卡/节点"),
        (["profiles", "show", "cloudmatrix-384"], "卡/节点"),
        (["models", "ls"], "参数量 (B)"),
        (["models", "show", "deepseek-v3"], "# 来源："),
        (["doctor"], "通过  数据库：SQLite，首次使用时建立"),
        (["keys", "ls"], "最近使用"),
        (["runs", "ls"], "区间内"),
        (["import", str(FILES / "mindspeed_moe.sh"), "--show"], "已采用"),
    ],
    ids=lambda each: " ".join(each[:2]) if isinstance(each, list) else "",
)
def test_a_list_is_titled_in_chinese(chinese: Any, arguments: list[str], said: str) -> None:
    code, out, _ = chinese(*arguments)
    assert code == 0
    assert said in out
    assert max(map(width, out.splitlines())) <= 100 or arguments[0] in {"doctor", "models"}


def test_talk_is_in_the_language_of_the_command(chinese: Any, tmp_path: Path) -> None:
    backup = tmp_path / "backup.jsonl"
    assert "数据库版本为 0011" in chinese("db", "upgrade")[2]
    assert f"写入 {backup}" in chinese("db", "export", str(backup))[2]
    assert "已加入：0" in chinese("db", "import", str(backup))[2]
    assert "already" not in chinese("db", "prune", "--older-than", "9d")[2]
    code, out, told = chinese("keys", "create", "ci")
    assert code == 0
    assert "请立即保存" in told
    assert "请立即保存" not in out
    assert "the database is at revision 0011" in chinese("db", "upgrade", "--lang", "en")[2]
    written = tmp_path / "spec.yaml"
    assert "已写入" in chinese("import", str(FILES / "megatron_dense.sh"), "-o", str(written))[2]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["import", "no/such/file.sh"], "错误：无法读取 no/such/file.sh：没有该文件或目录"),
        (["runs", "rm", "run_none"], "错误：运行不存在：run_none"),
        (["keys", "revoke", "key_none"], "错误：API 密钥不存在：key_none"),
        (["export", "p_aaaaaaaa", "--to", "html"], "提示：autodeploy plan SPEC"),
        (["db", "prune", "--older-than", "soon"], "--older-than：'soon' 不是 NUMBER{h|d|w} 形式"),
        (["recommend", "x.yaml", "--days", "0"], "--days：0 超出 (0, 36500]"),
        (["profiles", "show", "cloudmatrix"], "是否想写 cloudmatrix-384？"),
        (["check", str(FILES / "mindspeed_moe.sh")], "/cluster/profile：缺少必填项 profile"),
    ],
    ids=lambda each: " ".join(each[:2]) if isinstance(each, list) else "",
)
def test_a_mistake_and_its_hint_are_in_chinese(chinese: Any, arguments: list[str], said: str) -> None:
    code, _, told = chinese(*arguments)
    assert code == 2
    assert said in told


def test_a_broken_file_is_refused_in_chinese_with_its_place(chinese: Any, tmp_path: Path) -> None:
    broken = tmp_path / "spec.yaml"
    broken.write_text("model: llama2-7b\ncluster: {profile: ascend-800t-a2\ntraining: {}\n")
    code, _, told = chinese("plan", str(broken))
    assert code == 2
    assert told == "错误：spec.yaml：第 3 行第 9 列：缺少 ',' 或 }\n"


def test_a_broken_json_file_is_refused_in_chinese(chinese: Any, tmp_path: Path) -> None:
    broken = tmp_path / "spec.json"
    broken.write_text('{"model": "llama2-7b",,}')
    assert chinese("plan", str(broken))[2] == "错误：spec.json：第 1 行第 23 列：无效的 JSON：应为双引号括起的键名\n"


def words_of(text: str) -> list[str]:
    """Lines that hold words of English: three letters and a blank after them."""
    return [line for line in text.splitlines() if re.search(r"\b[a-z]{3,} [a-z]{3,} [a-z]{2,}", line)]


def test_reports_of_the_other_commands_are_in_chinese() -> None:
    plan = factories.plan()
    improvement = {
        "name": "recompute:none",
        "changes": {"recompute": {"granularity": "none"}},
        "add_flags": ("--micro-batch-size 2",),
        "drop_flags": ("--recompute-method",),
        "gain_pct": 3.0,
        "memory_gain_pct": 1.5,
        "step_time_s": 2.0,
        "peak_memory_gib": 40.0,
        "keeps_checkpoint_layout": True,
    }
    better = SimpleNamespace(**improvement)
    both = {"improvements": (better,), "keeping_layout": (better,)}
    report: Any = SimpleNamespace(plan=plan, **both, batch=None, fewer_cards=None, tried=9, best_gain_pct=5.0)
    found = Recommendation(
        tokens=1e12,
        days=30.0,
        num_npus=64,
        plan=plan,
        scaling=(CardCount(num_npus=64, tokens_per_s=1e6, efficiency=1.0, days=11.6),),
        message=Message("what_if.deadline_met", cards=64, days=11.6, limit=30.0),
        spec={},
        engine_version="1",
    )
    row = {"case": "c", "feature": "coc", "step_time_s": 2.0, "peak_memory_gib": 40.0, "fits": True}
    rows = (AblationRow(**row, mode="alone", predicted=3.0, unit="%", moved={"exposed_tp_s": -0.1}),)
    ablated = AblationReport(rows=rows, engine_version="1")
    for text, said in (
        (improve_text(report, "zh"), "无重计算：添加 --micro-batch-size 2；去掉 --recompute-method"),
        (recommendation_text(found, "zh"), "64 卡可在 11.6 天内完成训练（期限 30 天）"),
        (ablation_text(ablated, "zh"), "逐个单独开启"),
        (published_text(PublishedReport(rows=(), systems=(), engine_version="1"), "zh"), "0 个系统中 0 个达到"),
    ):
        assert said in text
        assert words_of(text) == []
        assert max(map(width, text.splitlines())) <= 100


@pytest.mark.parametrize("lang", LANGUAGES)
def test_a_terminal_shows_the_line_of_the_best_plan_in_bold(
    lang: Language, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setattr("autodeploy.cli.options.current_language", lambda: lang)
    write_text_report(render_plan_set(factories.plan_set(), lang), None)
    bold = [line for line in capsys.readouterr().out.splitlines() if "\x1b[1m" in line]
    assert len(bold) == 1
    assert report_text(lang, "best") in bold[0]


def test_a_run_and_progress_are_told_in_chinese() -> None:
    run = {"id": "run_1", "model": "M", "cluster": "c", "measured_step_time_s": 2.0, "predicted_step_time_s": 2.1}
    run |= {"predicted_low_s": 1.5, "predicted_high_s": 2.5, "error": 0.05, "inside": True}
    measured = MeasuredRun.model_construct(out_of_memory=None)
    document = RunDocument.model_construct(**run, measured=measured, counts=True)
    outcome = RunOutcomeDocument.model_construct(run=document, cluster=None, reranked=())
    told = outcome_text(outcome, "zh")
    assert "在区间 1.5-2.5 s 之内" in told
    assert words_of(told) == []
    progress = Progress(kind="incumbent", message="", enumerated=1000, rejected=10, solved=3, elapsed_s=2.0)
    assert progress_text(progress, "zh") == "  2.0 s  1,000 个策略，不合法 10，已求解 3"


@pytest.mark.parametrize("name", ["mindspeed_moe.sh", "megatron_dense.sh", "mindformers_moe.yaml"])
def test_every_note_of_an_import_is_in_chinese(name: str) -> None:
    diagnostics = import_file(FILES / name).diagnostics
    notes = [*diagnostics.taken, *diagnostics.defaulted, *diagnostics.ignored, *diagnostics.contradicted]
    reasons = {note.reason for note in notes if " " in note.reason}
    assert len(reasons) > 5
    assert [reason for reason in sorted(reasons) if not CHINESE.search(in_language(reason, "zh"))] == []
    text = diagnostics_text(diagnostics, "zh")
    assert "已忽略" in text
    assert max(map(width, text.splitlines())) <= 100


def test_single_changes_have_names() -> None:
    assert change_name("en", "tp:4") == "TP 4"
    assert change_name("en", "schedule:interleaved vpp:4") == "schedule interleaved VPP 4"
    assert change_name("zh", "swap_optimizer:off") == "关闭换出优化器状态"
    assert change_name("en", "recompute_full:12") == "recompute 12 layers of each stage"
    assert change_name("en", "coc") == "coc"


def test_a_plan_of_an_unknown_architecture_says_so(chinese: Any, tmp_path: Path) -> None:
    """Its sizes are read as Llama's: whoever plans is told before the figures."""
    config = {"architectures": ["NewForCausalLM"], "hidden_size": 1024, "num_hidden_layers": 4, "vocab_size": 32000}
    config |= {"num_attention_heads": 8, "intermediate_size": 4096, "some_new_key": 3, "d_model": 2048}
    (tmp_path / "config.json").write_text(json.dumps(config))
    spec = {"model": {"hf_config": "config.json"}, "cluster": {"profile": "ascend-800t-a2", "num_npus": 8}}
    spec |= {"training": {"seq_length": 4096, "global_batch_size": 8}, "strategy": {"tp": 1}}
    path = tmp_path / "spec.yaml"
    path.write_text(json.dumps(spec))
    _, _, told = chinese("estimate", str(path))
    assert "请核对：未知架构 NewForCausalLM，按 Llama 的键读取：请检查结果" in told
    assert "请核对：/d_model = 2048：/hidden_size 为 1024" in told
    assert "请核对：some_new_key：未知，请确认其不影响预测" in told
    assert "please check: unknown architecture NewForCausalLM" in chinese("estimate", str(path), "--lang", "en")[2]
