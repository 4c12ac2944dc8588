"""What published runs say of where and how a plan generates: steps of post-training, and serving."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from autodeploy.calibration.coverage import carried_from
from autodeploy.calibration.evidence import MAX_DEGREE_RATIO
from autodeploy.specs.generation import layout_read, profile_read
from autodeploy.specs.planset import Evidence
from hardware_profiles.loader import load_profile

if TYPE_CHECKING:
    from collections.abc import Iterator

    from autodeploy.specs.generation_layout import GenerationLayout
    from autodeploy.specs.rl import RlStrategy

GENERATION_FILE = "generation.jsonl"
RL_FILE = "rl.jsonl"
PLACEMENT = "rl.placement"
_DEGREES = {"tp": "rl.generation.tp", "ep": "rl.generation.ep"}
_WORDS = {"precision": "rl.generation.precision", "engine": "rl.generation.engine"}


@dataclass(frozen=True, slots=True)
class _Run:
    """One published measurement. placement : of a step of post-training; None: serving, which has none."""

    id: str
    family: str
    moe: bool
    placement: str | None
    layout: dict[str, Any]

    def has(self, name: str, value: int | str) -> bool:
        """Whether it generates so: the word, or the degree within a factor of two."""
        own = self.layout[name]
        if isinstance(value, str):
            return bool(own == value)
        return bool(1.0 / MAX_DEGREE_RATIO <= own / value <= MAX_DEGREE_RATIO and (own > 1 or value == 1))


def evidence_of_generation(how: RlStrategy, family: str, *, moe: bool) -> tuple[Evidence, ...]:
    """What runs on a family's chips, and on those whose errors its predictions take, say of placement and engine.

    Degrees count within a factor of two. A degree of one needs no evidence, and experts that every rank holds need
    none: all runs count. Serving counts for the engine, and not for where it stands beside training.
    """
    families = {family.removesuffix("/own"), carried_from(family.removesuffix("/own"))}
    runs = [run for run in _published() if run.family in families]
    evidence = [_evidence(PLACEMENT, how.placement, [run for run in runs if run.placement == how.placement])]
    return (*evidence, *_of_engine(how.generation, runs, moe=moe))


def _of_engine(layout: GenerationLayout, runs: list[_Run], *, moe: bool) -> Iterator[Evidence]:
    for name, axis in _WORDS.items():
        value = getattr(layout, name)
        yield _evidence(axis, value, [run for run in runs if run.has(name, value)])
    for name, axis in _DEGREES.items():
        value = getattr(layout, name)
        if name == "ep" and not moe:
            continue
        alike = [run for run in runs if run.moe] if name == "ep" else runs
        yield _evidence(axis, value, [run for run in alike if value == 1 or run.has(name, value)])


def _evidence(axis: str, value: int | str, runs: list[_Run]) -> Evidence:
    return Evidence(axis=axis, value=value, runs=len(runs), nearest_record=runs[0].id if runs else None)


@cache
def _published() -> tuple[_Run, ...]:
    """All measurements that ship with the product, steps of post-training first."""
    return tuple(_read(RL_FILE)) + tuple(_read(GENERATION_FILE))


def _read(name: str) -> Iterator[_Run]:
    text = files("autodeploy.calibration").joinpath("records", name).read_text(encoding="utf-8")
    for row in map(json.loads, text.splitlines()):
        how = row.get("strategy", {}).get("rl")
        layout = layout_read(how["generation"] if how else row["generation"], [], "/generation")
        profile = load_profile(profile_read(row["cluster"]["profile"], []), calibrated=False)
        model = row["model"]
        yield _Run(
            id=row["id"],
            family=profile.document.family,
            moe=bool(model.get("n_routed_experts")),
            placement=how["placement"] if how else None,
            layout={"tp": layout.get("tp", 1), "ep": layout["ep"] or 1, **{word: layout[word] for word in _WORDS}},
        )
