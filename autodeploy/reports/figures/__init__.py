"""Charts of plans: pure functions from plans to plotly figures, for the pages and the HTML reports."""

from autodeploy.reports import labels
from autodeploy.reports.figures.charts import (
    batch_over_time,
    days_and_cost,
    phases_timeline,
    stage_memory,
    step_time_breakdown,
    time_and_memory,
)
from autodeploy.reports.figures.groups_on_nodes import group_spans, groups_on_nodes
from autodeploy.reports.figures.layers_on_stages import MANY_STAGES, layers_on_stages
from autodeploy.reports.figures.layout import figure_json

__all__ = [
    "MANY_STAGES",
    "batch_over_time",
    "days_and_cost",
    "figure_json",
    "group_spans",
    "groups_on_nodes",
    "labels",
    "layers_on_stages",
    "phases_timeline",
    "stage_memory",
    "step_time_breakdown",
    "time_and_memory",
]
