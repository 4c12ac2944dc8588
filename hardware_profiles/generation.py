"""Rates of devices and engines in generation: one YAML a system beside its profile, and what was fitted to records.

Numbers of generation stand apart from the profile's efficiencies, so that no plan of pre-training changes with them.
Each has unit, kind, source and an 80 % interval. A system without a file takes that of its family, else of its vendor,
as assumed.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import Field, ValidationError, model_validator

from autodeploy.messages import Message
from hardware_profiles.errors import ProfileError
from hardware_profiles.loader import load_profile
from hardware_profiles.magnitudes import ProfileNumber
from hardware_profiles.schema import Document, Kind, Source, Text
from hardware_profiles.shipped_yaml import load_shipped_yaml, shipped

if TYPE_CHECKING:
    from hardware_profiles.profile import Profile

Mode = Literal["eager", "graph"]
FOLDER = files("hardware_profiles") / "data" / "generation"


@dataclass(frozen=True, slots=True)
class GenerationTerm:
    """Meaning of one number: its unit ("fraction", "ratio" or "us") and how high it can be."""

    meaning: str
    unit: str
    upper: float


_ROWS = shipped("hardware_profiles", "efficiencies.yaml")["generation"]
GENERATION_TERMS: dict[str, GenerationTerm] = {name: GenerationTerm(**row) for name, row in _ROWS.items()}


class Number(Document):
    """One number: value, unit, the ground it rests on, where it is from and its 80 % interval."""

    value: ProfileNumber
    unit: Literal["fraction", "ratio", "us"]
    kind: Kind
    source: Text
    interval: tuple[ProfileNumber, ProfileNumber]
    note: Annotated[str, Field(max_length=2000)] = ""

    @model_validator(mode="after")
    def _lies_inside(self) -> Self:
        low, high = self.interval
        if not low <= self.value <= high:
            raise ValueError(Message("common.is_outside", value=f"{self.value:g}", range=f"[{low:g}, {high:g}]"))
        return self


Degree = Annotated[int, Field(ge=1, le=4096)]
Layers = dict[Mode, dict[Degree, Number]]


class GenerationDocument(Document):
    """The file of one system.

    `layer_us`: constant of a layer in a step of decoding, by mode and tensor-parallel degree: launches, norms, latency
    of its collectives. `engines`: the same of engines that were measured. `assumed_mode`: of an engine whose run does
    not say its mode; `graph` where it is not named.
    """

    profile: Text
    numbers: dict[str, Number]
    layer_us: Layers
    engines: dict[str, Layers] = Field(default_factory=dict)
    assumed_mode: dict[str, Mode] = Field(default_factory=dict)
    sources: dict[str, Source] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _names_are_known(self) -> Self:
        missing = sorted(set(GENERATION_TERMS) - set(self.numbers))
        unknown = sorted(set(self.numbers) - set(GENERATION_TERMS))
        if missing or unknown:
            raise ValueError(
                Message(
                    "profiles.numbers_missing_unknown",
                    missing=", ".join(missing) or "-",
                    unknown=", ".join(unknown) or "-",
                )
            )
        for name, number in self.numbers.items():
            term = GENERATION_TERMS[name]
            if number.unit != term.unit or number.value > term.upper:
                raise ValueError(Message("profiles.number_range", name=name, unit=term.unit, upper=term.upper))
        return self


@dataclass(frozen=True, slots=True)
class GenerationNumbers:
    """Numbers of one system. `own`: of the system itself, not of one like it."""

    document: GenerationDocument
    own: bool

    def value(self, name: str) -> float:
        """A number by name, in its unit."""
        return self.document.numbers[name].value

    def mode(self, engine: str, mode: Mode | None) -> Mode:
        """The mode of a run, or the one that is assumed of its engine where it does not say it."""
        return mode or self.document.assumed_mode.get(engine, "graph")

    def layer(self, engine: str, mode: Mode, tp: int) -> Number:
        """Constant of a layer: the engine's own where it was measured at this degree, else of any at the nearest.

        The nearest degree is by ratio, the smaller of two.
        """
        own = self.document.engines.get(engine, {}).get(mode, {})
        table = own if tp in own else self.document.layer_us.get(mode) or self.document.layer_us["eager"]
        return table[min(table, key=lambda degree: (max(degree, tp) / min(degree, tp), degree))]


@cache
def generation_systems() -> tuple[str, ...]:
    """Names of the profiles that have numbers of generation of their own, sorted."""
    return tuple(sorted(e.name.removesuffix(".yaml") for e in FOLDER.iterdir() if e.name.endswith(".yaml")))


@cache
def _document(name: str, calibrated: bool) -> GenerationDocument:
    content = load_shipped_yaml((FOLDER / f"{name}.yaml").read_text(encoding="utf-8"))
    fitted = FOLDER / "calibrated" / f"{name}.yaml"
    if calibrated and fitted.is_file():
        over = load_shipped_yaml(fitted.read_text(encoding="utf-8"))
        content = {**content, **{key: _over(content.get(key), over[key]) for key in over if key != "profile"}}
    try:
        return GenerationDocument.model_validate(content)
    except ValidationError as error:
        raise ProfileError(Message("common.place", place=name, message=str(error))) from error


def _over(below: Any, above: Any) -> Any:
    """A mapping with what the other says in its place, numbers as wholes."""
    if not isinstance(below, dict) or not isinstance(above, dict) or "value" in above:
        return above
    return {**below, **{key: _over(below.get(key), value) for key, value in above.items()}}


def generation_numbers(profile: Profile, *, calibrated: bool = True) -> GenerationNumbers:
    """The numbers of a profile: its own, else of its family, else of its vendor, else of any system.

    calibrated : as fitted to the shipped records; without, as the files of the systems say them.
    """
    if profile.name in generation_systems():
        return GenerationNumbers(_document(profile.name, calibrated), own=True)
    profiles = [load_profile(name) for name in generation_systems()]
    near = (
        [p for p in profiles if p.family == profile.family]
        or [p for p in profiles if p.vendor == profile.vendor]
        or profiles
    )
    return GenerationNumbers(_document(near[0].name, calibrated), own=False)
