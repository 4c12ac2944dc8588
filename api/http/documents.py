"""Bodies that requests send and responses carry."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from pydantic import BaseModel, ConfigDict, Field

from autodeploy.specs.base import Document
from autodeploy.specs.planset import Plan
from autodeploy.specs.presets import PresetInfo
from autodeploy.specs.resources import StackItem

if TYPE_CHECKING:
    from collections.abc import Iterable


class PlanList(BaseModel):
    """The ranked plans of a search."""

    items: tuple[Plan, ...]

    @staticmethod
    def json_of(plans: Iterable[str]) -> bytes:
        """The document of these plans, which are JSON already."""
        return f'{{"items":[{",".join(plans)}]}}'.encode()


MOST_KEY_DAYS = 3650
Tag = Annotated[str, Field(min_length=1, max_length=64)]


class Annotations(BaseModel):
    """Annotations of a search by people. A key that is absent stays as it is."""

    model_config = ConfigDict(extra="forbid")

    tags: Annotated[list[Tag] | None, Field(max_length=20, examples=[["v3", "baseline"]])] = None
    note: Annotated[str | None, Field(max_length=4000)] = None


class KeyChange(Document):
    """Change of the time for which a key is valid."""

    expires_in_days: Annotated[
        float | None, Field(ge=0, le=MOST_KEY_DAYS, description="null: only once it is revoked", examples=[30])
    ]


class ProfileItem(BaseModel):
    """A hardware profile and its chip grades."""

    name: str
    title: str
    devices: list[str]


class ProfileList(BaseModel):
    """Hardware profiles."""

    items: list[ProfileItem]


class StackList(BaseModel):
    """Software stacks."""

    items: list[StackItem]


class ModelList(BaseModel):
    """Model presets."""

    items: list[PresetInfo]


class SchemaList(BaseModel):
    """Names under /v1/schemas/."""

    items: list[str]


class Version(BaseModel):
    """Version of the service."""

    name: str
    version: str


class Health(BaseModel):
    """Whether requests are answered, and each thing that takes.

    `degraded`: requests are answered, but searches wait for a worker or writes are refused.
    """

    status: str
    checks: dict[str, bool] = {}


class WebhookSecret(BaseModel):
    """Secret that signs the webhooks of one team."""

    team: str
    secret: str
