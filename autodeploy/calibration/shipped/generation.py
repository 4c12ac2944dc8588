"""Numbers of generation: fitted to served tokens, and written to the profiles that ship."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from autodeploy.calibration.evidence import GENERATION_FILE
from autodeploy.calibration.fit import FitParameter, differences, fit
from autodeploy.calibration.overlays import rounded
from autodeploy.calibration.validation import alike_records, batch_of, service_of
from autodeploy.costs.prediction_spread import Z80
from autodeploy.kit.yaml_text import profile_text
from autodeploy.specs.measurements import generation_records
from hardware_profiles.generation import GENERATION_TERMS, generation_numbers
from hardware_profiles.loader import load_profile

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from autodeploy.calibration.fit import Fit
    from autodeploy.calibration.validation import Batch
    from autodeploy.specs.measurements import GenerationRecord
    from cost_models.arrays import Floats
    from cost_models.generation import Generation
    from hardware_profiles.generation import GenerationNumbers, Number


FREE = ("weights", "cache", "all_reduce", "prefill", "issue_us")
NOISE = 0.06  # log standard deviation of a measured time: what repeats and unknown settings of engines leave
ENGINE_SIGMA = 0.2  # of an engine's constant around that of all engines

Degree = tuple[str, int]  # mode, tensor-parallel degree
Own = tuple[str, str, int]  # engine, mode, tensor-parallel degree


@dataclass(frozen=True)
class GenerationFit:
    """Numbers as fitted, by name; constants of a layer [us], of all engines and of each."""

    numbers: dict[str, float]
    layers: dict[Degree, float]
    engines: dict[Own, float]
    deviations: dict[str, float]  # log standard deviations, by name of a number, or of a constant as text

    def constant(self, engine: str, mode: str, tp: int) -> float | None:
        """Constant of a layer: the engine's own, else that of all engines at the degree; None where neither is."""
        return self.engines.get((engine, mode, tp), self.layers.get((mode, tp)))


def batches_of(records: Sequence[GenerationRecord], numbers: GenerationNumbers | None = None) -> list[Batch]:
    """The records by model, system and layout, in the order in which they come."""
    return [batch_of(records, places, numbers) for places in alike_records(records)]


def own_of(batch: Batch) -> Own:
    """Part of a layer that a constant is of."""
    layout = batch.records[0].generation
    return layout.engine, batch.generator.mode, layout.tp


def seconds_measured(record: GenerationRecord) -> float:
    """Quantity that the fit compares: the time per output token [s], else that of a token per die."""
    measured = record.measured
    if measured.tpot_ms is not None:
        return measured.tpot_ms / 1e3
    return 1.0 / (measured.decode_tokens_per_s_per_die or math.nan)


def seconds_predicted(batch: Batch, values: Mapping[str, float] | None = None) -> Floats:
    """The same as predicted [s]; `values`: numbers of generation that replace the system's, by name."""
    if values:
        model = with_numbers(batch.generator.model, values)
        batch = replace(batch, generator=replace(batch.generator, model=model))
    service, tp = service_of(batch), batch.records[0].generation.tp
    told = np.array([record.measured.tpot_ms is not None for record in batch.records])
    return np.where(told, service.tpot_s, tp / service.tokens_per_s)


def with_numbers(model: Generation, values: Mapping[str, float]) -> Generation:
    """The model with other numbers of generation by name (fractions, ratios; times in microseconds): a fit varies them.

    `layer_us` is the constant of a layer.
    """
    rates, given = model.rates, dict(values)
    compute = replace(rates.compute, operand_fraction=given.pop("weights", rates.compute.operand_fraction))
    seconds = {"layer_us": "layer_s", "issue_us": "issue_s"}
    names = {"expert_weights": "expert_fraction", "cache": "cache_fraction", "all_reduce": "reduce_fraction"}
    named = {seconds.get(key, names.get(key, key)): v * (1e-6 if key in seconds else 1.0) for key, v in given.items()}
    return replace(model, rates=replace(rates, compute=compute, **named))


def fit_generation(records: Sequence[GenerationRecord], profile: str, *, noise: float = NOISE) -> GenerationFit:
    """The maximum a posteriori numbers of a system.

    records : of this system alone. noise : log standard deviation of a record.
    """
    prior = generation_numbers(load_profile(profile), calibrated=False)
    batches = batches_of(records, prior)
    own = sorted({own_of(batch) for batch in batches})
    degrees = sorted({(mode, tp) for _, mode, tp in own})
    of_system = {name: prior.document.numbers[name] for name in FREE}
    of_layer = {(mode, tp): prior.layer("", mode, tp) for mode, tp in degrees}  # type: ignore[arg-type]
    parameters = [
        *(
            FitParameter(name, (name,), sigma_of(each), GENERATION_TERMS[name].meaning)
            for name, each in of_system.items()
        ),
        *(FitParameter(text(key), (text(key),), sigma_of(each), "layer") for key, each in of_layer.items()),
        *(FitParameter(text(key), (text(key),), ENGINE_SIGMA, "engine") for key in own),
    ]
    upper = np.full(len(parameters), np.inf)
    upper[: len(FREE)] = [math.log(GENERATION_TERMS[name].upper / of_system[name].value) for name in FREE]

    def values(log_factors: Floats) -> GenerationFit:
        factor = dict(zip((p.name for p in parameters), np.exp(log_factors), strict=True))
        layers = {key: float(each.value * factor[text(key)]) for key, each in of_layer.items()}
        return GenerationFit(
            numbers={name: float(each.value * factor[name]) for name, each in of_system.items()},
            layers=layers,
            engines={key: layers[key[1:]] * float(factor[text(key)]) for key in own},
            deviations={},
        )

    fitted = _fitted(records, batches, parameters, values, noise, upper)
    deviations = {parameter.name: float(sigma) for parameter, _, sigma in fitted.moved()}
    return replace(values(fitted.log_factors), deviations=deviations)


def _fitted(
    records: Sequence[GenerationRecord],
    batches: Sequence[Batch],
    parameters: Sequence[FitParameter],
    values: Callable[[Floats], GenerationFit],
    noise: float,
    upper: Floats | None = None,
) -> Fit:
    """The fit of parameters to the measured seconds.

    values : numbers of generation under log factors. noise, upper : as `fit` and `fit_generation` have them.
    """
    measured = np.array([seconds_measured(record) for record in records])
    known: dict[object, Floats] = {}

    @differences
    def linear(log_factors: Floats) -> Floats:
        return np.asarray(np.log(predicted_seconds(batches, len(records), values(log_factors), known) / measured))

    return fit(parameters, linear, np.full(len(records), noise), upper=upper, iterations=20)


def predicted_seconds(
    batches: Sequence[Batch], count: int, numbers: GenerationFit, known: dict[object, Floats] | None = None
) -> Floats:
    """Seconds per token of all records under fitted numbers [count].

    known : seconds of batches under numbers that they have had: a step along a constant moves only its own batches.
    """
    seconds = np.empty(count)
    known = {} if known is None else known
    for batch in batches:
        layer = numbers.constant(*own_of(batch))
        constant = {} if layer is None else {"layer_us": layer}
        values = {**numbers.numbers, **constant}
        key = own_of(batch), *values.items()
        if key not in known:
            known[key] = seconds_predicted(batch, values)
        seconds[batch.index] = known[key]
    return seconds


def refit_constants(
    records: Sequence[GenerationRecord], profile: str, numbers: GenerationFit, *, noise: float = NOISE
) -> GenerationFit:
    """The fit with constants of a layer that are these records': one an engine, mode and degree, nothing else.

    The prior of each is the constant that the fit has for other engines, as wide as that of any constant.
    """
    prior = generation_numbers(load_profile(profile), calibrated=False)
    batches = batches_of(records, prior)
    own = sorted({own_of(batch) for batch in batches})
    start = {key: numbers.constant(*key) or prior.layer(*key).value for key in own}  # type: ignore[arg-type]
    wide = {key: sigma_of(prior.layer(*key)) for key in own}  # type: ignore[arg-type]
    parameters = [FitParameter(text(key), (text(key),), wide[key], "layer") for key in own]

    def values(log_factors: Floats) -> GenerationFit:
        constants = {key: start[key] * float(np.exp(log_factors[place])) for place, key in enumerate(own)}
        return replace(numbers, engines={**numbers.engines, **constants})

    return values(_fitted(records, batches, parameters, values, noise).log_factors)


def sigma_of(number: Number) -> float:
    """Log standard deviation of a number whose 80 % interval is given."""
    low, high = number.interval
    return math.log(high / low) / (2.0 * Z80)


def text(key: tuple[object, ...]) -> str:
    """A key as one word: mode and degree, with the engine before them."""
    return "/".join(str(part) for part in key)


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
