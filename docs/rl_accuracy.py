"""docs/rl_accuracy.md: measured steps of post-training against their prediction."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from autodeploy.calibration.post_training import validate_rl
from autodeploy.calibration.shipped.overhead_fit import (
    EAGER,
    HOST,
    OverheadFit,
    left_out,
    of_framework,
    row_weights,
    shipped_rl,
    speed_errors,
)
from autodeploy.costs.post_training.overheads import defaults_of
from docs.accuracy_page.page import percent, signed, table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autodeploy.calibration.post_training import RlRow
    from autodeploy.specs.measurements import RlRecord
    from cost_models.arrays import Floats

PAGE = Path(__file__).resolve().parent / "rl_accuracy.md"

INTRO = """<!-- Made by `make rl`. Change the code or the measurements, not this page. -->

# Accuracy of post-training steps

Predicted against measured steps of reinforcement learning, as error of the speed (tokens per second by the source's
own rule of counting): positive is predicted too fast. 16 public steps, each with its source:
`autodeploy/calibration/records/rl.jsonl`. `autodeploy validate autodeploy/calibration/records/rl.jsonl` compares one
by one; what is predicted: [rollouts](explanation/rollout.md).

Training and generation are predicted as everywhere else, with numbers that no row here has touched. Fitted are two
constants of NeMo RL (seconds of the host in each step; seconds of the host for each sequence and token) and one of
MindSpeed-RL (the constant of a layer of eager decoding inside the framework, against the engine alone). All three
have priors, and a recipe counts once however many releases measured it.

Not blind: which overheads there are was decided with these rows in sight, and the prior of the step's constant keeps
the worst row left out below 20 %; without it that row is 22 % too slow."""

READ = """What a source leaves out is read as its framework has it unless told: packs of the longest sample, updates of
512 responses, weights and states on the host while the engine runs, its share of memory
(`autodeploy/costs/post_training/framework_defaults.yaml`). Recomputation is not published: it is read as full where
training does not fit without. Splits between trainers and generators are not published: the best one is taken, and
with whole nodes it is the recipes' own. Spread of lengths: cv 0.8, assumed."""

MINDSPEED = """No mean length is published: all six are read with one share of mean to greatest length, {share:g},
prompts too. Any other share changes all six, and the constant was fitted under this one. The constant of a layer that
results is several times that of the engine alone ([generation](generation_accuracy.md)), more than a busy host
explains, so it holds whatever else is slow in that framework's generation. Read the six as a check of size."""

MISSES = """Why they are off:

- **DeepSeek-V3**: tensor parallelism across four nodes, with the latency of all-reduces of eight devices, the largest
  degree that was measured. Hand-over and moves over the host link are a third of this step and rest on one report of
  another layout (64 devices a replica).
- **Qwen3-235B**: 395 s and 431 s were measured of one recipe in two releases; no input tells them apart.
- **Llama-3.1-8B, one step ahead**: trainers set the pace, and the constant of the host is that of colocated steps
  too, where engines go to sleep and wake.
- **Qwen3-30B-A3B of DAPO on A3**: DAPO samples until prompts are useful, and what it generates and drops is not
  counted; eager decoding with experts on Ascend carries +-50 % besides.
- **Qwen2.5-32B of PPO on A3**: how its tokens were counted is not known, nor how policy and critic share the memory:
  they are predicted to take turns."""


def main(records: Sequence[RlRecord] | None = None, file: Path = PAGE) -> None:
    """Fit to these steps or to all, then write the page."""
    file.write_text(page(shipped_rl() if records is None else records), encoding="utf-8")
    sys.stdout.write(f"written: {file}\n")


def page(records: Sequence[RlRecord]) -> str:
    """The page's text."""
    nemo, mindspeed = (of_framework(records, fit.framework) for fit in (HOST, EAGER))
    grid = {fit.framework: speed_errors(of_framework(records, fit.framework), fit) for fit in (HOST, EAGER)}
    rows = {row.id: row for row in validate_rl(records)}
    others, _ = left_out(nemo, HOST, grid[HOST.framework])
    alone, _ = left_out(mindspeed, EAGER, grid[EAGER.framework])
    share = float(defaults_of(EAGER.framework)["mean_to_max"])
    parts = [
        INTRO,
        "## Aims\n\n" + _aims(nemo, mindspeed, rows, others),
        f"## How they are read\n\n{READ}",
        "## NeMo RL on H100\n\n" + _steps(nemo, rows, others),
        "## One step ahead or in turn\n\n" + _pairs(nemo, rows),
        f"## MindSpeed-RL on A3\n\n{MINDSPEED.format(share=share)}\n\n" + _steps(mindspeed, rows, alone),
        "## Intervals\n\n" + _intervals(records, rows),
        f"## Misses\n\n{MISSES}",
        "## Constants\n\n" + _constants(nemo, mindspeed, grid),
    ]
    return "\n\n".join(parts) + "\n"


def _error(row: RlRow) -> float:
    assert row.error.time is not None, row.skipped
    return row.error.time


def _aims(nemo: Sequence[RlRecord], mindspeed: Sequence[RlRecord], rows: dict[str, RlRow], others: Floats) -> str:
    ours = [abs(_error(rows[record.id])) for record in nemo]
    theirs = [abs(_error(rows[record.id])) for record in mindspeed]
    right = sum(first < second for _, first, second in pairs_of(nemo, rows))
    return table(
        ("figure", "aim", "reached"),
        [
            ["NeMo RL, in sample: median", "15 %", percent(float(np.median(ours)))],
            ["NeMo RL, a model left out: median", "-", percent(float(np.median(np.abs(others))))],
            ["the same: worst", "20 %", percent(float(np.max(np.abs(others))))],
            ["pairs of asynchronous and synchronous steps in the right order", "3", right],
            ["MindSpeed-RL, one share of mean to greatest length: median", "40 %", percent(float(np.median(theirs)))],
        ],
    )


def _steps(records: Sequence[RlRecord], rows: dict[str, RlRow], others: Floats) -> str:
    lines = []
    for record, without in zip(records, others, strict=True):
        row = rows[record.id]
        assert row.predicted is not None, row.skipped
        measured = row.measured.step_time_s or row.predicted.step_time_s * (1.0 + _error(row))
        seconds = [measured, row.predicted.step_time_s, row.predicted.generation_s, row.predicted.update_s]
        lines.append([f"`{record.id}`", *(f"{s:.0f}" for s in seconds), signed(_error(row)), signed(float(without))])
    titles = ("step", "measured s", "predicted s", "generation", "update", "error", "without its model")
    return table(titles, lines)


def pairs_of(records: Sequence[RlRecord], rows: dict[str, RlRow]) -> list[tuple[str, float, float]]:
    """Asynchronous steps with their synchronous ones of the same model, cards and release: name and predicted times."""
    pairs = []
    for record in records:
        for other in records:
            same = (record.model.name, record.cluster, record.source) == (other.model.name, other.cluster, other.source)
            if same and record.layout.placement == "async" and other.layout.placement == "colocated":
                first, second = rows[record.id].predicted, rows[other.id].predicted
                assert first is not None
                assert second is not None
                pairs.append((record.id, first.step_time_s, second.step_time_s))
    return pairs


def _pairs(records: Sequence[RlRecord], rows: dict[str, RlRow]) -> str:
    by_id = {record.id: record for record in records}
    lines = []
    for name, ahead, turn in pairs_of(records, rows):
        record = by_id[name]
        other = next(
            each.measured.step_time_s
            for each in records
            if each.layout.placement == "colocated"
            and (each.model.name, each.source) == (record.model.name, record.source)
        )
        measured = record.measured.step_time_s
        assert measured is not None
        assert other is not None
        lines.append([f"`{name}`", f"{measured:.0f} : {other:.0f}", f"{ahead:.0f} : {turn:.0f}"])
    return table(("asynchronous : synchronous", "measured s", "predicted s"), lines)


def _intervals(records: Sequence[RlRecord], rows: dict[str, RlRow]) -> str:
    lines = []
    for fit in (HOST, EAGER):
        own = [rows[record.id] for record in of_framework(records, fit.framework)]
        inside, widths = 0, []
        for row in own:
            assert row.predicted is not None
            low, high = row.predicted.step_time_interval_s
            measured = row.predicted.step_time_s * (1.0 + _error(row))
            inside += low <= measured <= high
            widths.append(high / row.predicted.step_time_s - 1.0)
        lines.append([fit.framework, f"{inside} of {len(own)}", f"+-{percent(float(np.median(widths)))}"])
    return table(("80 % intervals of the step", "measured inside", "median half width"), lines)


def _constants(nemo: Sequence[RlRecord], mindspeed: Sequence[RlRecord], grid: dict[str, Floats]) -> str:
    lines = []
    for fit, own in ((HOST, nemo), (EAGER, mindspeed)):
        lines += [
            [fit.framework, f"`{name}`", f"{median:g} (x or / {np.exp(1.2816 * sigma):.1f})", f"{value:g}", ground]
            for name, median, sigma, value, ground in fitted(fit, own, grid[fit.framework])
        ]
    return table(("framework", "constant", "prior, its 80 %", "fitted", "ground of the prior"), lines)


def fitted(fit: OverheadFit, records: Sequence[RlRecord], errors: Floats) -> list[tuple[str, float, float, float, str]]:
    """Each constant with its prior's median and deviation, its value and the prior's ground."""
    best = fit.choices[fit.best(errors, row_weights(records))]
    return [(c.name, c.median, c.log_sigma, best[c.name], c.ground) for c in fit.constants]


if __name__ == "__main__":
    main()
