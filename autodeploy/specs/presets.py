"""Well-known models by name. One YAML document a model in `models/`: its shape, the source of the numbers, what is
assumed where nothing is published, and the published parameter counts that the tests compare with."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError

from autodeploy.kit.errors import SpecError
from autodeploy.messages import Message
from autodeploy.specs.base import Document
from autodeploy.specs.field_errors import did_you_mean, field_errors
from autodeploy.specs.model import ModelSpec
from hardware_profiles.magnitudes import BillionParameters, Factor
from hardware_profiles.shipped_yaml import load_shipped_yaml

MODELS_DIR = Path(__file__).parent / "models"

CountedPart = Literal["embedding", "head", "mtp"]


class PublishedCounts(Document):
    """Parameters in billions as the publisher gives them, and which parts besides the layers that number counts."""

    total_params_b: BillionParameters
    active_params_b: Annotated[BillionParameters | None, Field(description="absent: a dense model")] = None
    mtp_params_b: Annotated[BillionParameters | None, Field(description="own parameters of the MTP modules")] = None
    total_counts: tuple[CountedPart, ...] = ("embedding", "head")
    active_counts: tuple[CountedPart, ...] = ("embedding", "head")
    tolerance_pct: Annotated[Factor, Field(le=10)] = 1.0
    tolerance_reason: Annotated[str | None, Field(description="why more than 1 %")] = None
    source: str


class Preset(Document):
    """A model and where its numbers come from."""

    title: Annotated[str, Field(min_length=1, max_length=100)]
    source: str
    recipe_source: Annotated[str | None, Field(description="of recipe values that the source does not state")] = None
    assumed: tuple[str, ...] = ()
    published: PublishedCounts
    model: ModelSpec

    def counted_params_b(self) -> tuple[float, float]:
        """Total and active parameters of the model in billions, counting what the publisher counts."""
        model, published = self.model, self.published
        sizes = {"embedding": model.embedding_params, "head": model.head_params, "mtp": model.mtp_params}
        ends = model.embedding_params + model.head_params
        total = model.total_params() - ends + sum(sizes[part] for part in published.total_counts)
        active = model.active_params() - ends + sum(sizes[part] for part in published.active_counts)
        return total / 1e9, active / 1e9


class PresetInfo(Document):
    """A preset in a list: its name, title and published parameter counts in billions."""

    name: str
    title: str
    params_b: float
    active_b: float
    source: str
    assumed: tuple[str, ...] = ()


@cache
def preset_names() -> tuple[str, ...]:
    """The names of all presets, in alphabetical order."""
    return tuple(sorted(path.stem for path in MODELS_DIR.glob("*.yaml")))


def read_preset(name: str) -> Preset:
    """The preset's whole document. Read once a process; case, spaces and underscores don't matter in the name.

    Raises SpecError when there is no preset of that name (the hint names close ones) or its file is not valid.
    """
    key = name[:100].strip().lower().replace("_", "-").replace(" ", "-")
    if key not in preset_names():
        hint = did_you_mean(key, preset_names()) or "autodeploy models ls"
        raise SpecError(
            Message("common.there_is_no", what=Message("label.model"), name=repr(name[:100])), path="/model", hint=hint
        )
    return _read(key)


@cache
def _read(key: str) -> Preset:
    document = _read_yaml(MODELS_DIR / f"{key}.yaml")
    try:
        document["model"] = {"name": document["title"], **document["model"]}
        return Preset.model_validate(document)
    except ValidationError as error:
        raise SpecError(errors=field_errors(error, prefix=f"/{key}", model=Preset)) from error


def presets_of_width(hidden_size: int) -> list[Preset]:
    """The presets with this hidden size, in alphabetical order of their names.

    Looks at a file's lines first: reading all of them takes longer than everything else that an import does.
    """
    line = re.compile(rf"^\s*hidden_size:\s*{hidden_size}\b", re.MULTILINE)
    near = (name for name in preset_names() if line.search((MODELS_DIR / f"{name}.yaml").read_text(encoding="utf-8")))
    return [preset for name in near if (preset := read_preset(name)).model.hidden_size == hidden_size]


def load_preset(name: str) -> ModelSpec:
    """The model of that name, for example `deepseek-v3`; its `name` is the preset's title.

    Raises SpecError when there is no preset of that name; the hint names close ones.
    """
    return read_preset(name).model


def preset_of(model: ModelSpec) -> str | None:
    """The name of the preset that is this model, field by field; None where there is none."""
    return next((name for name in preset_names() if load_preset(name) == model), None)


def list_presets() -> list[PresetInfo]:
    """All presets in alphabetical order of their names."""
    return [_info(name, read_preset(name)) for name in preset_names()]


def _info(name: str, preset: Preset) -> PresetInfo:
    published = preset.published
    return PresetInfo(
        name=name,
        title=preset.title,
        params_b=published.total_params_b,
        active_b=published.active_params_b or published.total_params_b,
        source=preset.source,
        assumed=preset.assumed,
    )


def _read_yaml(path: Path) -> Any:
    return load_shipped_yaml(path.read_text(encoding="utf-8"))
