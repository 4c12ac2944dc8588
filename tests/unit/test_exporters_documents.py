"""Exporters of documents: JSON, CSV, Markdown; the registry; the flag table."""

from __future__ import annotations

import csv
import io
import json
import re
from itertools import pairwise
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from api.ui.report_page import search_report as render_html
from autodeploy.formats import registry as exporters
from autodeploy.formats.common.launch_script import settings_table
from autodeploy.formats.megatron.arguments import LaunchArguments, ShellVariable, shell_array
from autodeploy.formats.megatron.layers import Placement, dualpipev_order, layout_string
from autodeploy.formats.registry import FORMATS, export
from autodeploy.kit.errors import SpecError, UnsupportedError
from autodeploy.specs.artefact import MEDIA_TYPES
from autodeploy.specs.planset import PARTS, PlanSet
from autodeploy.specs.spec import Spec
from autodeploy.stack.frameworks import FRAMEWORKS
from autodeploy.stack.padding import noop_padding
from autodeploy.stack.releases import release_named
from tests import factories, quick_planner
from tests.support.rl_plans import CASES, rl_plan_set
from tests.support.sharded_plans import sharded_plan_set


def test_json_is_a_plan_set_with_this_plan_alone():
    plan_set = factories.plan_set(3)
    found = PlanSet.model_validate_json(export(plan_set, plan_set.plans[1], "json").text)
    assert found.plans == (plan_set.plans[1],)
    assert found.search == plan_set.search


def test_csv_keeps_full_precision_and_a_line_a_plan():
    plan_set = factories.plan_set(3)
    rows = list(csv.DictReader(io.StringIO(export(plan_set, plan_set.plans[0], "csv").text)))
    assert [row["rank"] for row in rows] == ["1", "2", "3", ""]
    assert float(rows[0]["step_time_s"]) == plan_set.plans[0].step_time_s
    assert sum(float(rows[0][part]) for part in PARTS) == pytest.approx(plan_set.plans[0].step_time_s, rel=1e-12)
    assert rows[0]["recompute"] == "selective+mla_up_proj+activation"


def test_csv_runs_no_formula():
    plan_set = factories.plan_set(1, reference=factories.plan(2, label="=1+1"))
    rows = list(csv.DictReader(io.StringIO(export(plan_set, plan_set.plans[0], "csv").text)))
    assert rows[1]["label"] == "'=1+1"


def test_an_unknown_format_names_close_ones():
    plan_set = factories.plan_set(1)
    with pytest.raises(SpecError) as caught:
        export(plan_set, plan_set.plans[0], "mindspeed")
    assert "mindspeed-llm" in caught.value.errors[0].hint


@pytest.mark.parametrize("to", FORMATS)
def test_every_format_has_a_file_name_and_a_media_type(to):
    launches = FORMATS[to].launches
    if launches and FRAMEWORKS[launches].post_trains:
        plan_set, _ = rl_plan_set(CASES["dense"], to)
    elif launches and (FRAMEWORKS[launches].shards_alone or FRAMEWORKS[launches].one_stage):
        plan_set = sharded_plan_set(launches)
    else:
        plan_set = factories.plan_set(5)
    artefact = exported(plan_set, plan_set.plans[-1], to)
    assert re.fullmatch(r"[a-z0-9_]+\.(sh|json|csv|md|yaml|toml|html)", artefact.filename)
    assert plan_set.plans[-1].plan_id in artefact.filename
    assert "/" in artefact.media_type
    assert artefact.text.endswith("\n")
    assert plan_set.plans[-1].plan_id in artefact.text
    assert plan_set.search.engine_version in artefact.text


def test_a_format_of_the_pipeline_needs_a_timeline():
    plan_set = factories.plan_set(1)
    with pytest.raises(UnsupportedError):
        export(plan_set, plan_set.plans[0], "chrome-trace")


def exported(plan_set, plan, to):
    return export(plan_set, plan, to, timeline=lambda: quick_planner.timeline(factories.spec(), plan.strategy))


def test_a_trace_has_a_process_a_stage_and_no_overlap():
    plan_set = factories.plan_set(4)
    trace = json.loads(exported(plan_set, plan_set.plans[3], "chrome-trace").text)
    spans = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    assert {event["pid"] for event in spans} == set(range(16))
    for thread in {(event["pid"], event["tid"]) for event in spans}:
        mine = sorted((e["ts"], e["ts"] + e["dur"]) for e in spans if (e["pid"], e["tid"]) == thread)
        assert all(end <= start for (_, end), (start, _) in pairwise(mine))
    assert trace["otherData"]["plan_id"] == plan_set.plans[3].plan_id
    named = {e["args"]["name"] for e in trace["traceEvents"] if e["name"] == "process_name"}
    assert "stage 0 (4 layers)" in named


def test_html_is_one_file_that_asks_for_nothing():
    spec = factories.spec(model=factories.DEEPSEEK_V3 | {"name": "<script>alert(1)</script>"})
    plan_set = factories.plan_set(3, spec=spec)
    text = exported(plan_set, plan_set.plans[1], "html").text
    assert "<script" not in text
    assert not re.search(r"(src|href)=|url\(|@import", text)
    # The plan's time, what became of the candidates, days of the run, every plan's time, and every stage's memory.
    assert text.count('class="bar"') == 3 + 4 + plan_set.plans[1].strategy.pp
    assert text.count(plan_set.plans[1].plan_id) >= 1
    assert "<form" not in text
    assert "<button" not in text
    assert "&lt;script&gt;" in text
    zh = render_html(plan_set, "zh")
    assert "优化器状态" in zh
    assert "通信缓冲" in zh
    assert "communication_buffers<" not in text + zh
    assert 'lang="zh-Hans"' in zh
    assert "并行布局" in zh
    assert render_html(factories.infeasible_plan_set()).count("<li>") >= 1


def test_an_ascend_job_brings_its_script_and_asks_for_whole_nodes():
    plan_set = factories.plan_set(1)
    config, job = YAML(typ="safe").load_all(exported(plan_set, plan_set.plans[0], "ascendjob").text)
    assert config["data"]["pretrain.sh"] == exported(plan_set, plan_set.plans[0], "mindspeed-llm").text
    replicas = job["spec"]["replicaSpecs"]
    assert (job["kind"], replicas["Master"]["replicas"], replicas["Worker"]["replicas"]) == ("AscendJob", 1, 47)
    assert job["spec"]["runPolicy"]["schedulingPolicy"]["minAvailable"] == 48
    pod = replicas["Worker"]["template"]["spec"]
    assert pod["containers"][0]["resources"]["requests"] == {"huawei.com/Ascend910": 16}
    assert pod["nodeSelector"]["accelerator-type"] == "module-a3-16-super-pod"
    assert job["metadata"]["annotations"]["sp-block"] == "768"
    assert pod["volumes"][0]["configMap"]["name"] == config["metadata"]["name"]


def test_an_ascend_job_is_for_ascend():
    spec = Spec.model_validate(factories.spec_document() | {"cluster": {"profile": "nvidia-h100", "num_npus": 768}})
    plan_set = factories.plan_set(1, spec=spec)
    with pytest.raises(UnsupportedError):
        exported(plan_set, plan_set.plans[0], "ascendjob")


def test_mindformers_places_layers_by_offsets():
    plan_set = factories.plan_set(5)
    document = YAML(typ="safe").load(exported(plan_set, plan_set.plans[3], "mindformers").text)
    offset = document["model"]["model_config"]["offset"]
    assert [61 // 16 + extra for extra in offset] == list(plan_set.plans[3].strategy.layers_per_stage)
    assert document["parallel_config"]["micro_batch_num"] == 1280
    assert document["recompute_config"] == {
        "recompute": False,
        "select_recompute": True,
        "parallel_optimizer_comm_recompute": False,
        "mp_comm_recompute": False,
    }


def test_mindformers_refuses_a_schedule_it_does_not_have():
    plan_set = factories.plan_set(1)
    with pytest.raises(UnsupportedError, match="adaptive_pipe"):
        exported(plan_set, plan_set.plans[0], "mindformers")


def test_every_setting_has_its_source():
    entries = settings_table()
    assert len({entry.name for entry in entries}) == len(entries)
    assert {entry.kind for entry in entries} == {"env", "yaml"}
    for entry in entries:
        assert re.match(r"[\w-]+/[\w-]+@[\w.]+( \(and [\w.]+\))?:\S", entry.source), entry


@pytest.mark.parametrize(
    ("flag", "values", "fault"),
    [
        ("--make-it-fast", (), "unknown key --make-it-fast"),
        ("--balanced-moe-experts", (), "unknown key --balanced-moe-experts"),
        ("--swiglu", (1,), "number of values of --swiglu must be 0, not 1"),
        ("--num-layers", ("many",), "--num-layers takes a whole number, not 'many'"),
        ("--moe-token-dispatcher-type", ("hierarchical",), "--moe-token-dispatcher-type takes one of"),
    ],
)
def test_what_the_release_does_not_accept_is_refused(flag, values, fault):
    arguments = LaunchArguments(release_named("mindspeed-llm-master"))
    with pytest.raises(UnsupportedError, match=fault):
        arguments.add("GPT_ARGS", flag, *values)
    assert arguments.flags() == []


def test_values_are_quoted_for_the_shell():
    lines = [("--split", ("a b; rm -rf x",)), ("--lr", (ShellVariable("LR"),)), ("--clip-grad", (1e-5,))]
    assert shell_array("X", lines) == "X=(\n    --split 'a b; rm -rf x'\n    --lr \"${LR}\"\n    --clip-grad 1e-05\n)"


def test_layouts():
    assert layout_string(Placement(((2, 2, 2, 2),), mtp_stage=3), 0) == "Ett|tt|tt|ttL"
    assert layout_string(Placement(((1, 1, 1), (1, 1, 0)), mtp_stage=2), 1) == "Et|(t|)*4mL"
    assert layout_string(Placement(((4,),), mtp_stage=0), 0) == "EttttL"


def test_padding_fills_every_chunk_of_the_way_down_and_back():
    placed = Placement(((3, 3), (2, 3)), mtp_stage=0)  # stage 0 holds chunks 0 and 3 of the V
    assert dualpipev_order(placed) == [3, 3, 3, 2]
    assert noop_padding(dualpipev_order(placed)) == (12, [11])


def test_every_media_type_of_an_exporter_is_one_that_the_service_documents():
    product = Path(exporters.__file__).parents[1]
    sources = [
        *(product / "formats").rglob("*.py"),
        *(product / "reports").glob("*.py"),
        product / "specs" / "artefact.py",
    ]
    said = {kind for source in sources for kind in re.findall(r'"((?:text|application)/[\w.+-]+)"', source.read_text())}
    assert said == set(MEDIA_TYPES)
