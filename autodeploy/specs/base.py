"""The one base of every document: frozen, unknown keys refused, no infinities."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Document(BaseModel):
    """A value that goes in or out. Immutable; unknown keys are an error; numbers are finite."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)
