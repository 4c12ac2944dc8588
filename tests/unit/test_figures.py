"""The pictures say what the plans say."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import plotly.graph_objects as go
import pytest

from autodeploy.reports import figures
from autodeploy.reports.figures import figure_json, group_spans, groups_on_nodes
from autodeploy.reports.figures import layout as palette
from autodeploy.reports.figures.charts import pareto_front
from autodeploy.reports.figures.layout import plotly_js, plotly_style_ids
from autodeploy.reports.figures.strategy import layer_runs, place_of
from autodeploy.reports.wording import degrees, memory_names, part_names, plan_label
from autodeploy.specs.planset import Breakdown, StageMemory
from autodeploy.specs.strategy import Strategy
from tests import factories

if TYPE_CHECKING:
    from collections.abc import Iterator

    from autodeploy.messages import Language
    from autodeploy.reports.figures.layout import Figure
    from autodeploy.specs.planset import Plan

# A page with a content security policy without 'unsafe-eval' draws these and no other.
SVG_TRACES = {"bar", "scatter"}


@pytest.fixture
def plans() -> tuple[Plan, ...]:
    plan_set = factories.plan_set(5)
    assert plan_set.reference is not None
    return (*plan_set.plans, plan_set.reference)


def drawn(figure: Figure) -> go.Figure:
    """The figure as plotly's own object, which refuses every name and value that plotly.js does not know."""
    return go.Figure(figure_json(figure))


def every_figure(plans: tuple[Plan, ...], lang: Language) -> Iterator[Any]:
    yield figures.step_time_breakdown(plans, lang)
    yield figures.stage_memory(plans[0], lang)
    yield figures.groups_on_nodes(plans[0].strategy, 16, lang)
    yield figures.time_and_memory(plans, lang)
    yield figures.layers_on_stages(plans[0], {0, 1, 2}, lang)


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_axes_of_time_and_memory_have_their_units(plans: tuple[Plan, ...], lang: Language) -> None:
    steps, stages, both = (
        figures.figure_json(draw)["layout"]
        for draw in (
            figures.step_time_breakdown(plans, lang),
            figures.stage_memory(plans[0], lang),
            figures.time_and_memory(plans, lang),
        )
    )
    assert steps["xaxis"]["title"]["text"].endswith("(s)")
    assert stages["yaxis"]["title"]["text"].endswith("(GiB)")
    assert both["xaxis"]["title"]["text"].endswith("(GiB)")
    assert both["yaxis"]["title"]["text"].endswith("(s)")


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_figures_are_plain_json_and_drawn_as_svg(plans: tuple[Plan, ...], lang: Language) -> None:
    for figure in every_figure(plans, lang):
        document = figures.figure_json(figure)
        assert len(drawn(figure).data) == len(document["data"])
        assert set(document) == {"data", "layout"}
        assert {trace["type"] for trace in document["data"]} <= SVG_TRACES
        assert json.loads(json.dumps(document, allow_nan=False)) == document
        assert len(json.dumps(document)) < 60_000  # a cell for each of 768 devices is the largest


def test_equal_plans_give_equal_figures(plans: tuple[Plan, ...]) -> None:
    first, second = ([figures.figure_json(f) for f in every_figure(plans, "en")] for _ in range(2))
    assert first == second


def test_the_parts_of_a_bar_sum_to_the_step_time(plans: tuple[Plan, ...]) -> None:
    figure = drawn(figures.step_time_breakdown(plans))
    for index, plan in enumerate(plans):
        assert sum(trace.x[index] for trace in figure.data) == pytest.approx(plan.step_time_s, rel=1e-12)
        assert sum(trace.customdata[index] for trace in figure.data) == pytest.approx(100.0)
    assert list(figure.data[0].y) == [plan_label(plan, "en") for plan in plans]
    assert len(set(figure.data[0].y)) == len(plans)


def test_parts_that_are_zero_everywhere_are_left_out(plans: tuple[Plan, ...]) -> None:
    parts = {trace.meta for trace in drawn(figures.step_time_breakdown(plans)).data}
    assert "exposed_cp_s" not in parts  # zero in every plan of the factory
    of_reinforcement = {"generation_s", "hand_over_s"}
    assert parts == set(palette.PART_COLOURS) - {"exposed_cp_s", "uneven_stages_s"} - of_reinforcement


def test_a_step_of_no_time_has_no_shares() -> None:
    plan = factories.plan(1, step_time_s=0.0, run=None, breakdown=Breakdown())
    assert figures.figure_json(figures.step_time_breakdown([plan]))["data"] == []


def test_the_memory_of_a_stage_stacks_up_to_its_total_below_the_limit_line() -> None:
    plan = factories.plan(1)
    figure = drawn(figures.stage_memory(plan))
    for index, stage in enumerate(plan.stages):
        assert sum(trace.y[index] for trace in figure.data) == pytest.approx(stage.total_gib, rel=1e-12)
    assert figure.layout.shapes[0].y0 == figure.layout.shapes[0].y1 == plan.memory_limit_gib
    assert figure.layout.yaxis.range[1] > plan.memory_limit_gib


def test_a_stage_above_the_limit_stays_in_the_picture() -> None:
    plan = factories.plan(1, memory_limit_gib=20.0)
    assert drawn(figures.stage_memory(plan)).layout.yaxis.range[1] > max(stage.total_gib for stage in plan.stages)


def test_the_front_is_what_no_plan_beats_in_both() -> None:
    sizes = [(10.0, 60.0), (12.0, 50.0), (11.0, 55.0), (13.0, 55.0), (12.0, 52.0), (9.0, 61.0)]
    plans = [factories.plan(i + 1, step_time_s=time, peak_memory_gib=gib) for i, (time, gib) in enumerate(sizes)]
    front = pareto_front(plans)
    assert [(p.step_time_s, p.peak_memory_gib) for p in front] == [
        (12.0, 50.0),
        (11.0, 55.0),
        (10.0, 60.0),
        (9.0, 61.0),
    ]


def test_a_point_has_the_interval_of_its_step_time(plans: tuple[Plan, ...]) -> None:
    points = drawn(figures.time_and_memory(plans)).data[0]
    for index, plan in enumerate(plans[:5]):
        assert points.y[index] + points.error_y.array[index] == pytest.approx(plan.uncertainty.high_s)
        assert points.y[index] - points.error_y.arrayminus[index] == pytest.approx(plan.uncertainty.low_s)
    assert sorted(", ".join(filter(None, points.text)).split(", ")) == ["1", "2", "3", "4", "5"]


def test_no_plans_is_an_empty_picture() -> None:
    assert figures.figure_json(figures.time_and_memory([]))["data"] == []


@pytest.mark.parametrize(
    ("schedule", "layers", "order"),
    [
        ("interleaved", ((2, 1), (2, 1)), [(0, 0, 0, 2), (1, 0, 2, 2), (0, 1, 4, 1), (1, 1, 5, 1)]),
        ("dualpipev", ((2, 1), (2, 1)), [(0, 0, 0, 2), (1, 0, 2, 2), (1, 1, 4, 1), (0, 1, 5, 1)]),
        ("1f1b", ((3,), (3,)), [(0, 0, 0, 3), (1, 0, 3, 3)]),
        ("1f1b", ((0,), (3,)), [(1, 0, 0, 3)]),
    ],
)
def test_layers_follow_the_way_of_the_model_through_the_stages(
    schedule: str, layers: tuple[tuple[int, ...], ...], order: list[tuple[int, int, int, int]]
) -> None:
    stages = tuple(
        stage.model_copy(update={"layers": own}) for stage, own in zip(factories.plan(1).stages, layers, strict=False)
    )
    plan = factories.plan(1).model_copy(
        update={"stages": stages, "strategy": Strategy.model_validate({"pp": len(stages), "schedule": schedule})}
    )
    runs = layer_runs(plan, dense_layers=())
    assert [(run.stage, run.chunk, run.first_layer, run.num_layers) for run in runs] == order


def test_every_layer_is_on_the_map_once_and_of_its_kind() -> None:
    plan = factories.plan(1)
    runs = layer_runs(plan, dense_layers={0, 1, 2})
    held = [layer for run in runs for layer in range(run.first_layer, run.first_layer + run.num_layers)]
    assert held == list(range(61))
    assert [(run.kind, run.num_layers) for run in runs if run.stage == 0] == [("dense", 3), ("moe", 1)]
    figure = drawn(figures.layers_on_stages(plan, {0, 1, 2}))
    assert sum(sum(trace.x) for trace in figure.data) == 61


def test_many_stages_are_columns_of_the_layers_that_they_hold() -> None:
    first = factories.plan(1)
    stages = tuple(first.stages[0].model_copy(update={"layers": (2, 1)}) for _ in range(figures.MANY_STAGES + 1))
    strategy = Strategy.model_validate({"pp": len(stages), "vpp": 2, "schedule": "interleaved"})
    plan = first.model_copy(update={"stages": stages, "strategy": strategy})
    figure = drawn(figures.layers_on_stages(plan, {0}))
    blocks = [block for trace in figure.data for block in zip(trace.x, trace.base, trace.y, strict=True)]
    assert sum(layers for _, _, layers in blocks) == 3 * len(stages)
    for stage in map(str, range(len(stages))):
        own = sorted((base, layers) for at, base, layers in blocks if at == stage)
        assert [base for base, _ in own] == [sum(layers for _, layers in own[:n]) for n in range(len(own))]


def test_palette_and_names_cover_every_part() -> None:
    assert set(palette.PART_COLOURS) == set(Breakdown.model_fields)
    assert set(palette.MEMORY_COLOURS) == set(StageMemory.model_fields)
    for colours in (palette.PART_COLOURS, palette.MEMORY_COLOURS):
        assert len(set(colours.values())) == len(colours)
        assert all(re.fullmatch(r"#[0-9a-f]{6}", colour) for colour in colours.values())
    for names, fields in ((part_names, palette.PART_COLOURS), (memory_names, palette.MEMORY_COLOURS)):
        assert set(names("en")) == set(names("zh")) >= set(fields)


def test_short_names_of_strategies() -> None:
    assert degrees(Strategy(tp=2, pp=8, vpp=4, ep=64, dp=48)) == "TP2 PP8 VPP4 EP64 DP48"
    assert degrees(Strategy()) == "TP1 PP1"
    assert degrees(Strategy(cp=2, ep=8, etp=4, tp=4)) == "TP4 PP1 CP2 EP8 ETP4"


def test_plotly_js_is_the_installed_one_and_names_its_style_sheets() -> None:
    assert "plotly.js v" in plotly_js()[:200]
    assert all(f'getElementById("{style_id}")' in plotly_js() for style_id in plotly_style_ids())


def test_ranks_stand_in_the_frameworks_order():
    strategy = factories.plan(1).strategy  # tp 2, pp 16, ep 32, dp 24
    places = [place_of(rank, strategy) for rank in range(768)]
    assert len({(p.tp, p.cp, p.dp, p.pp) for p in places}) == 768
    assert places[1].tp == 1
    assert (places[2].tp, places[2].dp) == (0, 1)
    assert places[48].pp == 1
    spans = {span.name: span for span in group_spans(strategy, 16)}
    assert (spans["TP"].size, spans["TP"].groups, spans["TP"].nodes) == (2, 384, 1)
    assert (spans["PP"].size, spans["PP"].first_ranks[:2], spans["PP"].nodes) == (16, (0, 48), 16)
    assert "CP" not in spans


def test_the_map_has_a_cell_for_each_device_and_darkens_with_the_stage():
    figure = figure_json(groups_on_nodes(factories.plan(1).strategy, 16))
    stages = figure["data"]
    assert [len(cells["y"]) for cells in stages] == [48] * 16
    assert [cells["name"] for cells in stages] == [f"stage {stage}" for stage in range(16)]
    assert len({cells["marker"]["color"] for cells in stages}) == 16
    assert "DP 1" in stages[0]["customdata"][2]


def test_names_of_nodes_have_room() -> None:
    """Of 24 nodes not every row can be named."""
    strategy = factories.plan(1).strategy.model_copy(update={"dp": 6})
    figure = groups_on_nodes(strategy, 8)
    rows = {y for cells in figure.data for y in cells["y"]}
    assert len(rows) == 24
    row_px = (figure.layout["height"] - 120) / len(rows)
    assert figure.layout["yaxis"]["dtick"] * row_px >= 18


def test_points_on_each_other_share_one_text() -> None:
    def at(rank: int, memory_gib: float) -> Plan:
        return factories.plan(rank).model_copy(
            update={"peak_memory_gib": memory_gib, "step_time_s": 60.0, "memory_limit_gib": 61.0}
        )

    figure = drawn(figures.time_and_memory([at(1, 60.0), at(2, 50.0), at(3, 60.1)]))
    texts = next(trace.text for trace in figure.data if trace.mode == "markers+text")
    assert list(texts) == ["1, 3", "2", ""]
