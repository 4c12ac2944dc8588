"""Pictures of plans: pure functions from plans to plotly figures, for the pages and the HTML reports."""

from autodeploy.figures.candidates import candidates_by_fate
from autodeploy.figures.layers_on_stages import layers_on_stages
from autodeploy.figures.layout import figure_json
from autodeploy.figures.stage_memory import stage_memory
from autodeploy.figures.step_time import step_time_breakdown
from autodeploy.figures.time_and_memory import time_and_memory

__all__ = [
    "candidates_by_fate",
    "figure_json",
    "layers_on_stages",
    "stage_memory",
    "step_time_breakdown",
    "time_and_memory",
]
