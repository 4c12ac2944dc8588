"""Exporters of documents: JSON, CSV, Markdown; the registry; the flag table."""

from __future__ import annotations

import csv
import io
import re

import pytest

from autodeploy.errors import SpecError
from autodeploy.exporters import FORMATS, export
from autodeploy.exporters.arguments import LaunchArguments, ShellVariable, shell_array
from autodeploy.exporters.flag_table import flag_table, launch_flags
from autodeploy.exporters.layer_placement import Placement, dualpipev_order, layout_string, noop_padding
from autodeploy.specs.planset import PARTS, PlanSet
from tests import factories


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
    plan_set = factories.plan_set(1)
    artefact = export(plan_set, plan_set.plans[0], to)
    assert re.fullmatch(r"[a-z0-9_]+\.(sh|json|csv|md)", artefact.filename)
    assert "/" in artefact.media_type
    assert artefact.text.endswith("\n")


def test_every_flag_has_its_source():
    entries = flag_table()
    assert len(entries) > 200
    assert len({(entry.kind, entry.name) for entry in entries}) == len(entries)
    assert {entry.kind for entry in entries} == {"flag", "env", "yaml"}
    for entry in entries:
        assert re.match(r"[\w-]+/[\w-]+@[\w.]+( \(and [\w.]+\))?:\S", entry.source), entry
        if entry.kind == "flag":
            assert re.fullmatch(r"--[a-z0-9-]+", entry.name)
    assert {"--moe-fb-overlap", "--num-layers"} <= launch_flags("mindspeed-llm").keys()
    assert "--moe-fb-overlap" not in launch_flags("megatron")


def test_a_flag_outside_the_table_is_refused():
    with pytest.raises(KeyError, match="--make-it-fast"):
        LaunchArguments("megatron").add("GPT_ARGS", "--make-it-fast")


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
