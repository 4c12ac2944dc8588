"""The cluster a run is planned for."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, field_validator, model_validator

from autodeploy.messages import Message
from autodeploy.specs.base import Document

MAX_NPUS = 200_000
_Name = BeforeValidator(lambda value: str(value) if type(value) is int else value)  # YAML reads 950 as a number
NAME = r"^[^\s\x00-\x1f/\\][^\x00-\x1f/\\]*$"  # a name, in any language, that is no path


class Block(Document):
    """Healthy nodes of one supernode: a broken node is simply not counted."""

    supernode: Annotated[int, Field(ge=0, le=10_000)]
    nodes: Annotated[int, Field(ge=1, le=25_000)]


class Leaf(Document):
    """Leaf switches between nodes and cluster, narrower above than below.

    `nodes`: below one leaf switch, in the order of ranks; they reach each other at the full rate of the network.
    `oversubscription`: bandwidth towards them over that of the uplinks, which all of them share.
    """

    nodes: Annotated[int, Field(ge=1, le=25_000, examples=[32])]
    oversubscription: Annotated[float, Field(ge=1.0, le=1000.0, allow_inf_nan=False, examples=[2.0])]


class ClusterSpec(Document):
    """The cards and those of them that may be used. Cards as the vendor counts them."""

    profile: Annotated[str, Field(min_length=1, max_length=4096, examples=["cloudmatrix-384"]), _Name]
    device: Annotated[str, Field(max_length=64), _Name] | None = None
    num_npus: (
        Annotated[
            int,
            Field(ge=1, le=MAX_NPUS, description="or nodes: 16, whole nodes of the profile", examples=[384]),
        ]
        | None
    ) = None
    blocks: Annotated[tuple[Block, ...], Field(min_length=1, max_length=4096)] | None = None
    leaf: Annotated[
        Leaf | None, Field(description="leaf switches of the network between nodes; absent: the profile's, if any")
    ] = None
    spare_npus: Annotated[int, Field(ge=0, le=MAX_NPUS)] = 0
    use: Literal["exactly", "at_most"] = "exactly"
    slowest_device_factor: Annotated[float, Field(ge=1.0, le=10.0)] = 1.0
    overrides: dict[str, float] = {}
    name: (
        Annotated[
            str,
            Field(min_length=1, max_length=200, pattern=NAME, description="absent: the profile's", examples=["hall-2"]),
        ]
        | None
    ) = None
    overlay: Annotated[
        Literal["auto", "none"] | dict[str, Any],
        Field(description="auto: fitted to the runs stored for this cluster; none: as shipped; or an overlay"),
    ] = "auto"
    grade_is_inferred: bool = False

    @property
    def ledger_name(self) -> str:
        """The name under which runs of this cluster are kept: its own, by default the profile's."""
        return self.name or self.profile[-200:]

    @field_validator("overlay", mode="after")
    @classmethod
    def _overlay_is_json(cls, value: str | dict[str, Any]) -> str | dict[str, Any]:
        try:
            json.dumps(value, allow_nan=False)
        except (TypeError, ValueError):
            raise ValueError(Message("specs.overlay_values")) from None
        return value

    @model_validator(mode="after")
    def _count_is_given_once(self) -> Self:
        if (self.num_npus is None) == (self.blocks is None):
            raise ValueError(Message("common.give_either", one="num_npus", other="blocks"))
        if self.num_npus is not None and self.spare_npus >= self.num_npus:
            raise ValueError(Message("specs.no_card_left", spare=self.spare_npus, all=self.num_npus))
        return self
