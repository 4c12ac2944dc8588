"""Writes docs/generation_accuracy.md and the fitted numbers of generation. Run by `make generation`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from autodeploy.calibration.shipped.generation import fitted_systems, records_of, shipped_generation, write_generation
from autodeploy.calibration.validation import validate_generation
from autodeploy.costs.post_training.generator import generator_of
from autodeploy.specs.presets import load_preset
from autodeploy.specs.rl import GenerationLayout
from docs.accuracy_page.errors import Errors, errors_of
from docs.accuracy_page.generation import FITTED_SETS, LeftOut, files_left_out, lengths_left_out, residuals_as_shipped
from docs.accuracy_page.page import percent, signed, table
from hardware_profiles.generation import generation_numbers
from hardware_profiles.loader import load_profile

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from autodeploy.specs.measurements import GenerationRecord
    from hardware_profiles.generation import Number

DOCS = Path(__file__).resolve().parent
PAGE = "generation_accuracy.md"
OVERLAYS = DOCS.parent / "hardware_profiles" / "data" / "generation" / "calibrated"
SYSTEMS = {"nvidia-h100": "H100", "ascend-800t-a2": "800T A2", "cloudmatrix-384": "A3"}
FILES_OF, LENGTHS_OF, REPORTED = SYSTEMS
WORST_SHOWN = 12
TITLES = ("set", "measurements", "median", "90th percentile", "mean", "bias")
# Printed beside predictions and fitted by nothing: vllm-ascend's tutorial of Kimi-K2-Thinking, 16 dies of A3.
TUTORIAL = {1: 57.7, 2: 60.3, 4: 70.0, 8: 87.4}

INTRO = """<!-- Made by `make generation`. Change the code or the measurements, not this page. -->

# Accuracy of generation

Predicted against measured time per output token (TPOT), as error of 1 / TPOT: positive is predicted too fast.
372 public measurements of serving, each with its source: `autodeploy/calibration/records/generation.jsonl`.
What is predicted: [generation](explanation/generation.md). `autodeploy validate
autodeploy/calibration/records/generation.jsonl` compares one by one.

Fitted are five numbers of a system (weights, cache, all-reduce, prefill, issue) and a constant of a layer for
each tensor-parallel degree, from which an engine's own strays by 20 %; all have priors, and none is of a row."""

LEFT_OUT = """A file is a model on an engine. "As it is": nothing of the file was seen, other engines'
constants are taken. "Refitted": its own constant of a layer for each tensor-parallel degree from every tenth
row, nothing else."""

LENGTHS = """All 18 are Qwen3-32B on four cards, in sets that share the mean lengths of prompts and answers
(six sets are public here). Every choice of three was fitted and the others predicted. They are one model,
degree and engine: what other models do on Ascend is not measured, so the interval stays +-25 %."""

A3_NOTE = """Nothing of A3 is fitted. CI publishes total tokens per second, prompts included, without the mode:
graph is assumed, since eager takes twice as long as was measured. Experts carry +-50 %: one row."""

TUTORIAL_NOTE = """Kimi-K2-Thinking on 16 dies (TP16), from a tutorial: no mode, no lengths, and weights of 4
bits, which are read as 8. Eager, 2,000 tokens. Batch 8 is further off: dequantisation on the way is not
modelled."""

CAUSES = """Why they are off:

- **TensorRT-LLM, 128 requests, TP4 and TP8**: requests wait up to 2 s for their first token although keys and
  values take a tenth of the memory: the engine holds them back and takes several prompts up together. Rows of one
  layout err in both directions, so no constant helps; its scheduler is not modelled.
- **vLLM, TP2, 4,096 tokens, 64 requests and more**: keys and values fill the memory. vLLM admits by what a request
  holds now, not by what it will hold, so more run at once than fit at half of their lengths, and some are evicted
  and prefilled again.
- **SGLang, TP1**: a few requests fit beside 65 GB of weights; how many depends on settings that were not published.
- **Many short requests**: whether requests that begin together stay together decides how many prompts fall between
  tokens; the model has one share of them for an engine.
- **Experts on A3**: one row, whose mode, batch over time and share of prompts were not published."""


def main(
    records: Sequence[GenerationRecord] | None = None, file: Path = DOCS / PAGE, overlays: Path = OVERLAYS
) -> None:
    """Fit to these measurements or to all, then write the page."""
    records = shipped_generation() if records is None else records
    done = write_generation(overlays, records)
    sys.stdout.write("".join(f"{name}: {found.numbers}\n" for name, found in done.items()))
    file.write_text(page(records), encoding="utf-8")
    sys.stdout.write(f"written: {file}\n")


def page(records: Sequence[GenerationRecord]) -> str:
    """The page's text."""
    h100, a2, a3 = (records_of(records, name) for name in SYSTEMS)
    left_out, by_lengths = files_left_out(h100, FILES_OF), lengths_left_out(a2, LENGTHS_OF)
    parts = [
        INTRO,
        _aims(h100, a2, left_out, list(by_lengths.values())),
        _all_sets(records),
        f"## H100: a file left out\n\n{LEFT_OUT}\n\n{_files(left_out)}",
        f"## 800T A2: lengths left out\n\n{LENGTHS}\n\n{_lengths(list(by_lengths.values()))}",
        f"## A3: reported\n\n{A3_NOTE}\n\n{_reported(a3)}\n\n{TUTORIAL_NOTE}\n\n{_tutorial()}",
        _others(h100),
        _intervals(records),
        _worst(records),
        _numbers(records),
    ]
    return "\n\n".join(parts) + "\n"


def _aims(
    h100: Sequence[GenerationRecord], a2: Sequence[GenerationRecord], left_out: Sequence[LeftOut], lengths: list[Errors]
) -> str:
    seen, others = errors_of(residuals_as_shipped(h100)), errors_of(np.concatenate([e.refitted for e in left_out]))
    worst = max(lengths, key=lambda each: each.median_ape)
    rows = [
        ["H100, in sample: median", "7 %", percent(seen.median_ape)],
        ["H100, in sample: 90th percentile", "25 %", percent(seen.p90_ape)],
        ["H100, a file left out, constants refitted on every tenth row: median", "10 %", percent(others.median_ape)],
        ["the same: 90th percentile", "30 %", percent(others.p90_ape)],
        [f"A2, {FITTED_SETS} sets of lengths fitted, worst choice: median of others", "6 %", percent(worst.median_ape)],
        ["A2, in sample: median", "-", percent(errors_of(residuals_as_shipped(a2)).median_ape)],
    ]
    return "## Aims\n\n" + table(("figure", "aim", "reached"), rows)


def _all_sets(records: Sequence[GenerationRecord]) -> str:
    rows = []
    for name, title in SYSTEMS.items():
        own = records_of(records, name)
        rows.append([f"{title}, priors alone, no fit", *_cells(errors_of(residuals_as_shipped(own, calibrated=False)))])
        if name in fitted_systems(records):
            rows.append([f"{title}, fitted", *_cells(errors_of(residuals_as_shipped(own)))])
    text = (
        "Priors stand in the files of the systems with their grounds. They are not blind: the form of the model and "
        "the size of its numbers were tried on these rows first, so the rows without a fit flatter, and those below a "
        "little too. On A3 the graph mode, its constant and the rate of experts were set with the three rows in sight."
    )
    return f"## Before and after the fit\n\n{text}\n\n{table(TITLES, rows)}"


def _files(left_out: Sequence[LeftOut]) -> str:
    rows = []
    for each in left_out:
        rows.append([f"{each.name}, as it is", *_cells(errors_of(each.plain))])
        rows.append([f"{each.name}, refitted", *_cells(errors_of(each.refitted))])
        rows.append(["the same without the tenth rows", *_cells(errors_of(each.refitted[each.rest > 0.0]))])
    rows.append(["all, refitted", *_cells(errors_of(np.concatenate([each.refitted for each in left_out])))])
    return table(TITLES, rows)


def _lengths(errors: Sequence[Errors]) -> str:
    medians = np.array([each.median_ape for each in errors])
    worst = max(errors, key=lambda each: each.median_ape)
    rows = [
        ["median error of the other sets, middle choice", percent(float(np.median(medians)))],
        ["the same, worst of all choices", percent(worst.median_ape)],
        ["90th percentile of the other sets, worst choice", percent(max(each.p90_ape for each in errors))],
    ]
    return table((f"{len(errors)} choices of {FITTED_SETS} sets", "error"), rows)


def _reported(records: Sequence[GenerationRecord]) -> str:
    rows = []
    for record, row in zip(records, validate_generation(records), strict=True):
        assert row.predicted is not None
        rate = record.measured.decode_tokens_per_s_per_die
        told = [f"{rate:.0f}", f"{row.predicted.decode_tokens_per_s_per_die:.0f}", signed(row.error.time or 0.0)]
        rows.append([f"`{record.id}`", record.generation.precision, row.predicted.mode, *told])
    return table(("measurement", "precision", "mode", "tokens/s/die", "predicted", "error"), rows)


def _tutorial() -> str:
    profile = load_profile(REPORTED)
    layout = GenerationLayout(tp=16, ep=16, precision="w8a8", engine="vllm-ascend", mode="eager")
    model = generator_of(load_preset("kimi-k2"), profile, profile.device(), layout).model
    rows = []
    for batch, measured in TUTORIAL.items():
        predicted = 1e3 * float(np.max(model.tpot_s(float(batch), 2000.0)))
        rows.append([batch, f"{measured:.1f}", f"{predicted:.1f}", signed(measured / predicted - 1.0)])
    return table(("batch", "TPOT ms", "predicted", "error"), rows)


def _others(records: Sequence[GenerationRecord]) -> str:
    """Errors of what nothing is fitted to: time to the first token, and tokens per second of the whole."""
    rows = []
    found = list(zip(records, validate_generation(records), strict=True))
    for engine in sorted({record.generation.engine for record in records}):
        errors = [row.error for record, row in found if record.generation.engine == engine]
        cells = []
        for name in ("time", "ttft"):
            of = np.array([getattr(error, name) for error in errors if getattr(error, name) is not None])
            cells += [percent(float(np.median(np.abs(of)))), signed(float(np.median(of)))]
        rows.append([engine, len(errors), *cells])
    titles = ("H100, engine", "measurements", "tokens/s, median", "bias", "1 / TTFT, median", "bias")
    text = (
        "Tokens per second count prompts and waiting. The time to the first token (TTFT) is a by-product: engines "
        "queue in ways that no source describes, and post-training does not ask for it."
    )
    return f"## H100: throughput and the first token\n\n{text}\n\n{table(titles, rows)}"


def _intervals(records: Sequence[GenerationRecord]) -> str:
    rows = []
    for name, title in SYSTEMS.items():
        own = records_of(records, name)
        inside = [_inside(record, row) for record, row in zip(own, validate_generation(own), strict=True)]
        numbers = generation_numbers(load_profile(name))
        widths = [f"+-{100 * numbers.value(of):.0f} %" for of in ("half_width", "half_width_experts")]
        rows.append([title, *widths, f"{sum(inside)} of {len(inside)}"])
    titles = ("system", "dense", "experts", "measured inside")
    text = (
        "80 % intervals are wider than the errors above: engines, models and releases that nobody measured count too."
    )
    return f"## Intervals\n\n{text}\n\n{table(titles, rows)}"


def _inside(record: GenerationRecord, row: object) -> bool:
    error, width = getattr(row, "speed_error", 0.0), generation_numbers(load_profile(record.cluster.profile))
    wide = width.value("half_width_experts" if record.model.is_moe else "half_width")
    return 1.0 / (1.0 + wide) - 1.0 <= float(error or 0.0) <= wide


def _worst(records: Sequence[GenerationRecord]) -> str:
    residuals = residuals_as_shipped(records)
    far = sorted(range(len(records)), key=lambda place: -abs(float(np.expm1(-residuals[place]))))[:WORST_SHOWN]
    rows = []
    for place in far:
        record, layout = records[place], records[place].generation
        load = f"{layout.input_length} + {layout.output_length}, {layout.concurrency:.0f}"
        run = f"{record.model.name}, {layout.engine}, TP{layout.tp}"
        rows.append([f"`{record.id}`", run, load, signed(float(np.expm1(-residuals[place])))])
    titles = ("measurement", "run", "prompt + answer, requests", "error")
    return f"## Farthest off\n\n{table(titles, rows)}\n\n{CAUSES}"


def _numbers(records: Sequence[GenerationRecord]) -> str:
    rows: list[list[str]] = []
    for name in fitted_systems(records):
        title, now = SYSTEMS[name], generation_numbers(load_profile(name)).document
        before = generation_numbers(load_profile(name), calibrated=False).document
        for of, number in now.numbers.items():
            if number.kind == "fitted":
                rows.append([title, of, *_number(before.numbers[of]), *_number(number)])
        for mode, degrees in now.layer_us.items():
            for tp, number in degrees.items():
                if number.kind == "fitted":
                    rows.append([title, f"layer, {mode}, TP{tp} [us]", "", "", *_number(number)])
    titles = ("system", "number", "prior", "its 80 %", "fitted", "its 80 %")
    return f"## Numbers\n\n{table(titles, rows)}"


def _number(number: Number) -> Iterable[str]:
    return f"{number.value:.3g}", f"{number.interval[0]:.3g} to {number.interval[1]:.3g}"


def _cells(errors: Errors) -> list[str]:
    shown = [percent(value) for value in (errors.median_ape, errors.p90_ape, errors.mape)]
    return [str(errors.n), *shown, signed(errors.bias)]


if __name__ == "__main__":
    main()
