"""What an exporter hands back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from autodeploy.specs.planset import Plan, PlanSet

REVIEW = "generated, review before launch"


@dataclass(frozen=True, slots=True)
class Artefact:
    """A text, what it is and what to call it. `notes` name what the format can't say; they are in the text too."""

    text: str
    media_type: str
    filename: str
    notes: tuple[str, ...] = ()


def provenance_line(plan_set: PlanSet, plan: Plan) -> str:
    """Where an artefact comes from: plan, search, engine, and the advice every artefact carries."""
    search = plan_set.search
    return f"AutoDeploy {search.engine_version}, plan {plan.plan_id}, spec {search.spec_hash[:12]}: {REVIEW}"
