"""Plans side by side: only what differs."""

from __future__ import annotations

from typing import Literal

from autodeploy.specs.base import Document

Group = Literal["search", "strategy", "time", "breakdown", "stages"]
Cell = str | int | float | bool | None


class ComparedPlan(Document):
    """One column: its plan, the search that found it and its model."""

    plan_id: str
    search_id: str
    model: str
    layout: str


class Difference(Document):
    """One row: a field by its path, its value in each plan, and which column is best where that can be said."""

    group: Group
    field: str
    unit: str = ""
    values: tuple[Cell, ...]
    best: int | None = None


class Comparison(Document):
    """The plans and the fields in which they differ, in reading order."""

    plans: tuple[ComparedPlan, ...]
    differences: tuple[Difference, ...]
