"""A measured run as a spec: the same words, with what its stack has otherwise as overrides."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from autodeploy.specs.reading import read_spec_document
from autodeploy.specs.software import features_of, release_of
from autodeploy.stack.features import FEATURES

if TYPE_CHECKING:
    from autodeploy.specs.record import Record
    from autodeploy.specs.spec import Spec


def spec_of_record(record: Record) -> Spec:
    """The spec of a record that was made runnable."""
    software, on = release_of(record), features_of(record)
    overrides = {f"features.{name}": "on" for name in sorted(on - FEATURES.keys() - software.features)}
    overrides |= {f"features.{name}": "off" for name in sorted(software.features - on - FEATURES.keys())}
    strategy = record.strategy.model_dump(mode="json", exclude_none=True, exclude={"dp"})
    strategy["features"] = sorted(on & FEATURES.keys())
    if record.model.is_moe:
        strategy.setdefault("moe_dispatcher", software.dispatcher)
    stack: dict[str, Any] = {"stack": software.stack.name, "overrides": overrides}
    if record.software is not None:
        stack["overrides"] = record.software.overrides | overrides
    if record.date is not None:
        stack["release"] = record.date
    sections = {
        name: getattr(record, name).model_dump(mode="json", exclude_defaults=True)
        for name in ("model", "cluster", "training")
    }
    return read_spec_document({**sections, "strategy": strategy, "search": {"target": "any"}, "software": stack})
