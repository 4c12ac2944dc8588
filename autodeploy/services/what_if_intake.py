"""Requests of what-if questions: why not this strategy, what would improve a launch, the cards of a deadline."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Self

from pydantic import Field, ValidationError, model_validator

from autodeploy.errors import SpecError
from autodeploy.services.check_intake import LaunchRequest
from autodeploy.specs.base import Document
from autodeploy.specs.cluster import MAX_NPUS
from autodeploy.specs.strategy import Strategy
from autodeploy.specs.validation import field_errors

if TYPE_CHECKING:
    from collections.abc import Mapping

# What follows from other fields of a strategy or was chosen for one layout: left to follow anew when these change.
DERIVED = ("dp", "layers_per_stage", "swap_per_stage")


class WhyNotRequest(Document):
    """A strategy, and what it is not the plan of: `spec`, or `plan_id` of a stored plan, whose strategy it changes.

    For a spec absent axes are those of the best plan with the given ones.
    """

    plan_id: Annotated[str | None, Field(max_length=200)] = None
    spec: dict[str, Any] | None = None
    strategy: Annotated[dict[str, Any], Field(min_length=1, description="fields of a strategy, such as tp")]

    @model_validator(mode="after")
    def _one_subject(self) -> Self:
        if (self.plan_id is None) == (self.spec is None):
            raise ValueError("give either plan_id or spec")
        return self


class ImproveRequest(LaunchRequest):
    """What to improve: `spec` with a strategy, or `file` with the text of a launch script or a framework's YAML."""


class RecommendRequest(Document):
    """The deadline; `tokens` by default those of the spec."""

    spec: dict[str, Any]
    days: Annotated[float, Field(gt=0, le=36_500)]
    tokens: Annotated[float | None, Field(gt=0, le=1e18)] = None
    max_npus: Annotated[int | None, Field(ge=1, le=MAX_NPUS, description="default: 16 times the spec's cards")] = None


def without_layout(strategy: Strategy) -> dict[str, Any]:
    """The fields of a strategy that hold for other degrees, too."""
    kept = {k: v for k, v in strategy.model_dump(mode="json", exclude_none=True).items() if k not in DERIVED}
    for name in ("per_stage", "num_layers_per_stage"):
        kept["recompute"].pop(name, None)
    return kept


def read_strategy(document: Mapping[str, Any], base: Strategy | None = None) -> Strategy:
    """A strategy as written; with a base that one with some fields changed.

    Raises
    ------
    SpecError
        with every bad field.
    """
    fields = dict(document)
    if base is not None:
        fields = without_layout(base) | fields
    try:
        return Strategy.model_validate(fields)
    except ValidationError as error:
        raise SpecError(errors=field_errors(error, prefix="/strategy", model=Strategy)) from error
