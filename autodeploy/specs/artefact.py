"""Result of an exporter."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import PurePath
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from autodeploy.specs.planset import Plan, PlanSet

REVIEW = "generated, review before launch"
MEDIA_TYPES = (
    *("application/json", "application/yaml", "application/toml", "text/csv", "text/html"),
    *("text/markdown", "text/plain", "text/x-shellscript"),
)
"""What artefacts are in: what the service documents."""


@dataclass(frozen=True, slots=True)
class Artefact:
    """A text, what it is and what to call it. `notes` name what the format can't say; they are in the text too."""

    text: str
    media_type: str
    filename: str
    notes: tuple[str, ...] = ()


def with_remarks(artefact: Artefact, remarks: tuple[str, ...], suffix: str) -> Artefact:
    """The artefact with more notes, which are in its text where that has comments, and another name.

    Comments of scripts and YAML begin with `#`; JSON and tables have none.
    """
    name = PurePath(artefact.filename)
    text = artefact.text
    if text.startswith("#"):
        first, _, rest = text.partition("\n")
        comments = [f"# {remark}" for remark in remarks]
        lines = [first, *comments] if first.startswith("#!") else [*comments, first]
        text = "\n".join(lines) + "\n" + rest
    filename = f"{name.stem}_{suffix}{name.suffix}"
    return replace(artefact, text=text, filename=filename, notes=(*remarks, *artefact.notes))


def provenance_line(plan_set: PlanSet, plan: Plan) -> str:
    """Provenance of an artefact: plan, search, engine, and the advice every artefact carries."""
    search = plan_set.search
    return f"AutoDeploy {search.engine_version}, plan {plan.plan_id}, spec {search.spec_hash[:12]}: {REVIEW}"
