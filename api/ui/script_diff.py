"""In which lines the launch files of plans differ, comments left out."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from autodeploy.errors import SpecError
from autodeploy.specs.spec import Spec

if TYPE_CHECKING:
    from collections.abc import Sequence

    from api.ui.views import Views
    from autodeploy.services import PlanView

CONTEXT_LINES = 1  # lines that are equal, shown around one that differs
_KINDS: dict[str, Literal["added", "removed", "skipped"]] = {"+": "added", "-": "removed", "@": "skipped"}


@dataclass(frozen=True, slots=True)
class DiffLine:
    """One line of a difference, as it stands in the files; `skipped` stands for equal lines that are left out."""

    kind: Literal["same", "added", "removed", "skipped"]
    text: str


@dataclass(frozen=True, slots=True)
class ScriptDiff:
    """The launch file of a plan against that of the first one.

    lines : none where the files are equal. refused : why there is no file of one of them.
    """

    plan_id: str
    to: str
    lines: tuple[DiffLine, ...] = ()
    refused: str = ""


def script_diffs(compared: Sequence[PlanView], views: Views) -> list[ScriptDiff]:
    """Every plan but the first against it, as files of the framework that offers itself for the first."""
    first = compared[0]
    to = views.launch_format(first.plan, first.plan_set.search.spec)
    if to is None:
        return []
    (before, first_refused), *files = (_script_of(view, to, views) for view in compared)
    return [
        ScriptDiff(view.plan.plan_id, to, refused=first_refused or refused)
        if first_refused or refused
        else ScriptDiff(view.plan.plan_id, to, tuple(difference(before, after)))
        for view, (after, refused) in zip(compared[1:], files, strict=True)
    ]


def difference(before: str, after: str) -> list[DiffLine]:
    """Lines that one of two files has, with a line around them; comments say what a plan promises and are left out."""
    ours, theirs = (
        [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
        for text in (before, after)
    )
    marked = [*difflib.unified_diff(ours, theirs, n=CONTEXT_LINES, lineterm="")]
    of_lines = marked[2:]  # without the names of the files
    lines = [DiffLine(_KINDS.get(line[:1], "same"), line[1:]) for line in of_lines]
    return [DiffLine("skipped", "") if line.kind == "skipped" else line for line in lines]


def _script_of(view: PlanView, to: str, views: Views) -> tuple[str, str]:
    """The launch file of a plan; else why the framework can't launch it."""
    try:
        return views.script(view, Spec.model_validate(view.plan_set.search.spec), view.plan, to).text, ""
    except SpecError as error:
        return "", "; ".join(each.message for each in error.errors)
