"""Charts of plans: pure functions from plans to plotly figures, for the pages and the HTML reports."""

from autodeploy.figures import labels
from autodeploy.figures.days_and_cost import days_and_cost
from autodeploy.figures.groups_on_nodes import group_spans, groups_on_nodes
from autodeploy.figures.layers_on_stages import MANY_STAGES, layers_on_stages
from autodeploy.figures.layout import figure_json
from autodeploy.figures.rl_charts import batch_over_time, phases_timeline
from autodeploy.figures.stage_memory import stage_memory
from autodeploy.figures.step_time import step_time_breakdown
from autodeploy.figures.time_and_memory import time_and_memory

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
