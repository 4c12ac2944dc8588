"""Charts of plans: pure functions from plans to plotly figures, for the pages and the HTML reports."""

from autodeploy.reports.figures.charts import (
    batch_over_time,
    days_and_cost,
    phases_timeline,
    stage_memory,
    step_time_breakdown,
    time_and_memory,
)
from autodeploy.reports.figures.layout import figure_json, notebook_figure
from autodeploy.reports.figures.strategy import MANY_STAGES, group_spans, groups_on_nodes, layers_on_stages

__all__ = [
    "MANY_STAGES",
    "batch_over_time",
    "days_and_cost",
    "figure_json",
    "group_spans",
    "groups_on_nodes",
    "layers_on_stages",
    "notebook_figure",
    "phases_timeline",
    "stage_memory",
    "step_time_breakdown",
    "time_and_memory",
]
