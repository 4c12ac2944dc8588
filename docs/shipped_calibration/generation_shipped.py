"""The numbers of generation that ship: fitted to the shipped measurements of serving, one file a system."""

from __future__ import annotations

import math
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autodeploy.calibration.evidence import GENERATION_FILE
from autodeploy.calibration.overlays import rounded
from autodeploy.costs.prediction_spread import Z80
from autodeploy.kit.yaml_text import profile_text
from autodeploy.specs.measurements import generation_records
from docs.shipped_calibration.generation_fit import fit_generation, text
from hardware_profiles.generation import GENERATION_TERMS, generation_numbers
from hardware_profiles.loader import load_profile

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autodeploy.specs.measurements import GenerationRecord
    from docs.shipped_calibration.generation_fit import GenerationFit

LEAST_FITTED = 12  # measurements of a time per output token that a system's numbers are fitted to
HEADING = "Made by `make generation`: fitted to measured serving. Edit the priors or the measurements, not this."


def shipped_generation() -> list[GenerationRecord]:
    """All measurements of serving that ship with the product."""
    return generation_records(Path(str(files("autodeploy.calibration").joinpath("records", GENERATION_FILE))))


def records_of(records: Sequence[GenerationRecord], profile: str) -> list[GenerationRecord]:
    """Those of one system, in order."""
    return [record for record in records if record.cluster.profile == profile]


def fitted_systems(records: Sequence[GenerationRecord]) -> tuple[str, ...]:
    """Systems with enough measured times per output token, sorted."""
    timed = [record.cluster.profile for record in records if record.measured.tpot_ms is not None]
    return tuple(sorted(name for name in set(timed) if timed.count(name) >= LEAST_FITTED))


def overlay_of_fit(fitted: GenerationFit, profile: str, count: int) -> dict[str, Any]:
    """A fit as the file that lies over the priors of a system."""
    prior = generation_numbers(load_profile(profile), calibrated=False)
    source = f"MAP fit to {count} measurements of serving on {profile}"

    def entry(value: float, before: float, sigma: float, unit: str, upper: float = math.inf) -> dict[str, Any]:
        wide = math.exp(Z80 * sigma)
        return {
            "value": rounded(value),
            "unit": unit,
            "kind": "fitted",
            "source": source,
            "interval": [rounded(value / wide), rounded(min(value * wide, upper))],
            "note": f"factor {rounded(value / before)} on the prior, +- {100 * sigma:.0f} %",
        }

    overlay: dict[str, Any] = {"profile": profile, "numbers": {}, "layer_us": {}, "engines": {}}
    for name, value in fitted.numbers.items():
        term, before = GENERATION_TERMS[name], prior.value(name)
        overlay["numbers"][name] = entry(value, before, fitted.deviations[name], term.unit, term.upper)
    for (mode, tp), value in fitted.layers.items():
        before = prior.layer("", mode, tp).value  # type: ignore[arg-type]
        overlay["layer_us"].setdefault(mode, {})[tp] = entry(value, before, fitted.deviations[text((mode, tp))], "us")
    for (engine, mode, tp), value in fitted.engines.items():
        shared = fitted.layers[mode, tp]
        sigma = fitted.deviations[text((engine, mode, tp))]
        note = f"factor {rounded(value / shared)} on that of all engines"
        number = entry(value, shared, sigma, "us") | {"note": note}
        overlay["engines"].setdefault(engine, {}).setdefault(mode, {})[tp] = number
    return overlay


def write_generation(folder: Path, records: Sequence[GenerationRecord]) -> dict[str, GenerationFit]:
    """Fit every system again and write its file."""
    done = {}
    folder.mkdir(parents=True, exist_ok=True)
    for name in fitted_systems(records):
        own = records_of(records, name)
        done[name] = fit_generation(own, name)
        text_of = profile_text(overlay_of_fit(done[name], name, len(own)), HEADING)
        (folder / f"{name}.yaml").write_text(text_of, encoding="utf-8")
    return done
