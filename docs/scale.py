"""Writes docs/scale.md: what many devices add to a step, where each number is from, and what runs on 1,024 cards say.

`make scale`; half a minute of processor time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING

import numpy as np

from autodeploy.calibration.profile_fit import configuration_of
from autodeploy.calibration.record_prediction import counts_for_time, fits_time, measured_step_s, predict_record
from autodeploy.calibration.shipped.tables import shipped_records
from autodeploy.costs.prediction_spread import Z80
from autodeploy.reports.tables import Table, markdown
from cost_models.host_bound import slowest_of
from hardware_profiles.efficiencies import EFFICIENCY_TERMS
from hardware_profiles.loader import load_profile

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from autodeploy.specs.record import Record
    from cost_models.arrays import Floats

PAGE = Path(__file__).resolve().parent / "scale.md"
LARGE = 1024
NODE = 8
NODES = (1, 2, 8, 32, 128, 512, 2048)
SCATTER = "device_scatter"
FAR_OFF = 5.0  # %, from which a run's error is told apart
LEAD = (
    "A step ends when the last of its ranks is done, so that its time on thousands of cards is not that of one card. "
    "What each mechanism adds is below, with the distribution that it is priced by, and whether it moves the "
    "prediction or its interval alone. Nothing here is fitted to a run."
)
SLOWEST = (
    "Chips of one kind differ: of five computing centres' GPUs the fastest and the slowest of a cluster are 8 % of the "
    "median apart, outliers left out, and 22 % at most (Sinha et al., arXiv:2208.11035). Read as the distance between "
    "the whiskers of a normal sample, 5.4 standard deviations, that is a scatter of {scatter:.1f} % "
    "(`efficiency.device_scatter`, {low:.1f} to {high:.1f} % in 80 %). Rates are measured on a node, where {node} "
    "devices wait for each other already. On N of them computation takes 1 + scatter (m(N) - m({node})) times as "
    "long, m the expected largest of N independent standard normal variables (David and Nagaraja, Order Statistics, "
    "2003; `cost_models/order_statistics.py`). The factor is the machine's: estimate, sweep, bounds and time line "
    "read the same one. A spec that names its slowest device (`cluster.slowest_device_factor`) has that besides."
)
SERIES = (
    "{count} configurations ran on several numbers of cards, {runs} runs, alike but for their replicas. Within them, "
    "the scatter with the least squares and its standard error, whole configurations at a time; none of it is used. "
    "What is left is the standard deviation of log time within a configuration. In FP8 more is lost than unequal chips "
    "explain: products are done sooner, so that what is beside them weighs more, and which part of it grows no series "
    "tells."
)
MECHANISMS = (
    (
        "devices of unequal speed, late hosts",
        "slowest of N normal variables, 1.5 %",
        "computation, in the mean; its width in the interval",
        "arXiv:2208.11035",
    ),
    (
        "hosts whose work differs (packs, changing shapes)",
        "slowest of those that meet, 5 % (0 to 15)",
        "time to issue operators, in the mean",
        "assumed, host.scatter of a stack",
    ),
    (
        "stragglers",
        "machines and links that slow down for seconds to ten hours; how many, nobody publishes by node",
        "neither: see below; cluster.slowest_device_factor says what one costs",
        "arXiv:2410.12588",
    ),
    (
        "stages, packs and experts of unequal work",
        "counted from layout, lengths and routing",
        "bubble and imbalance, in the mean",
        "arXiv:2505.05713 finds these before slow machines",
    ),
    (
        "shared uplinks, leaf switches",
        "ratio of a leaf's ports to its uplinks, where it is stated",
        "rate of what crosses leaves, in the mean",
        "cluster.leaf of a spec",
    ),
    (
        "traffic of other jobs",
        "rate of the outer tier uncertain by 30 % where no run of a fit used it, else as its fit says",
        "interval",
        "link_scale_out of the error box",
    ),
    (
        "collectives of thousands of ranks",
        "a start a rank and pass; the rate of token exchange falls 0 to 28 % a doubling",
        "exposed communication, in the mean; its width in the interval",
        "DeepEP, NCCL: explanation/collectives.md",
    ),
    (
        "heat of the day, repeats",
        "1 to 2 % over a day, 3.5 % between two runs",
        "interval",
        "arXiv:2407.21783, section 3.3; the records' repeats",
    ),
    (
        "failures",
        "Poisson in node hours, with restart and lost steps",
        "days of a run, not its step",
        "arXiv:2407.21783: explanation/training_run.md",
    ),
)
LAGGING = 0.01  # of nodes, a rate to compare runs with
STRAGGLERS = (
    "Were one node in a hundred a straggler that loses a twentieth, {expected:.0f} of the {large} runs below would be "
    "expected to have met one. {slow} lost more than that against the same configuration on its fewest cards. So the "
    "runs give no support to a shift by stragglers: those who publish look for slow machines first, and so should a "
    "launch (`autodeploy runs follow` tells by how much ranks differ). A prediction is of a swept cluster."
)


@dataclass(frozen=True)
class Timed:
    """One run: cards, measured time, and predictions with and without the slowest device, s."""

    record: Record
    cards: int
    devices: int
    measured_s: float
    alone_s: float
    waiting_s: float

    @property
    def slope(self) -> float:
        """Change of log time with the scatter."""
        scatter = load_profile(self.record.cluster.profile).efficiency[SCATTER]
        return math.log(self.waiting_s / self.alone_s) / scatter

    def error(self, *, waiting: bool = True) -> float:
        """Predicted over measured speed less one, %."""
        return 100.0 * (self.measured_s / (self.waiting_s if waiting else self.alone_s) - 1.0)


def timed(record: Record) -> Timed:
    """A run beside its two predictions by the shipped profile."""
    profile = load_profile(record.cluster.profile)
    cards = int(record.cluster.num_npus or 1)
    alone = predict_record(record, efficiency={SCATTER: 0.0}).step_time_s
    measured_s = measured_step_s(record)
    assert measured_s is not None
    devices = cards * profile.devices_per_npu
    return Timed(record, cards, devices, measured_s, alone, predict_record(record).step_time_s)


def series_of(records: Sequence[Record]) -> list[list[Timed]]:
    """Runs of every configuration that ran on several numbers of cards, fewest cards first."""
    alike: dict[str, list[Record]] = {}
    for record in records:
        if fits_time(record):
            alike.setdefault(configuration_of(record), []).append(record)
    several = [group for group in alike.values() if len({r.cluster.num_npus for r in group}) > 1]
    return [sorted(map(timed, group), key=lambda run: (run.cards, run.record.id)) for group in several]


@dataclass(frozen=True)
class Scatter:
    """Scatter of devices that series ask for, its standard error, and what each assumption leaves over, all in %."""

    series: int
    value: float
    error: float
    left_without: float
    left_with: float
    left_at_best: float


def scatter_of(series: Sequence[Sequence[Timed]]) -> Scatter:
    """Least squares within configurations; the standard error of the sum over whole configurations.

    References
    ----------
    Liang and Zeger, Biometrika 73, 1986: the sandwich estimate over clusters of observations.
    """
    slopes, excess, shipped = [], [], []
    for group in series:
        slope = _centred([run.slope for run in group])
        over = _centred([math.log(run.measured_s / run.alone_s) for run in group])
        slopes.append(slope)
        excess.append(over)
        shipped.append(_centred([math.log(run.measured_s / run.waiting_s) for run in group]))
    x, y = np.concatenate(slopes), np.concatenate(excess)
    square = math.fsum(x * x)
    best = math.fsum(x * y) / square
    scores = [math.fsum(a * (b - best * a)) for a, b in zip(slopes, excess, strict=True)]
    error = math.sqrt(math.fsum(score**2 for score in scores)) / square
    left = (float(np.sqrt(np.mean(each**2))) for each in (y, np.concatenate(shipped), y - best * x))
    return Scatter(len(series), 100.0 * best, 100.0 * error, *(100.0 * each for each in left))


def _centred(values: Sequence[float]) -> Floats:
    array = np.asarray(values, dtype=np.float64)
    return np.asarray(array - array.mean())


def page(records: Sequence[Record]) -> str:
    """The whole page."""
    series = series_of(records)
    large = [timed(r) for r in records if (r.cluster.num_npus or 1) >= LARGE and counts_for_time(r)]
    large.sort(key=lambda run: (run.cards, run.record.id))
    note = "<!-- Made by `python -m docs.scale` from the shipped records. -->"
    titles = ["what", "distribution", "where it counts", "source"]
    return "\n".join(
        [
            *(note, "", "# What many cards add to a step", "", fill(LEAD, 140), ""),
            *markdown(Table(titles, [list(row) for row in MECHANISMS], set())),
            *("", "## The slowest of all", "", *_slowest(), ""),
            *("## What series of runs say of it", "", *_series(series), ""),
            *(f"## Runs on {LARGE:,} cards and more", "", *_large(large, series), ""),
        ]
    )


def _slowest() -> list[str]:
    term = EFFICIENCY_TERMS[SCATTER]
    widths = [term.default * math.exp(side * Z80 * term.prior_sigma) for side in (-1.0, 0.0, 1.0)]
    low, middle, high = (100.0 * each for each in widths)
    rows = []
    for nodes in NODES:
        slower = (slowest_of(nodes * NODE, each) - slowest_of(NODE, each) for each in widths)
        rows.append([f"{nodes:,}", f"{nodes * NODE:,}", *(f"{100.0 * float(each):.1f} %" for each in slower)])
    text = SLOWEST.format(scatter=middle, low=low, high=high, node=NODE)
    titles = ["nodes", "devices", f"at {low:.1f} %", f"at {middle:.1f} %", f"at {high:.1f} %"]
    return [fill(text, 140), "", "Computation is longer by:", "", *markdown(Table(titles, rows, {0, 1, 2, 3, 4}))]


def _series(series: Sequence[Sequence[Timed]]) -> list[str]:
    def is_of(profile: str, precision: str | None = None) -> Callable[[Sequence[Timed]], bool]:
        return lambda group: (
            group[0].record.cluster.profile == profile and precision in (None, group[0].record.training.precision)
        )

    groups: tuple[tuple[str, Callable[[Sequence[Timed]], bool]], ...] = (
        ("all", lambda _: True),
        ("H100, BF16", is_of("nvidia-h100", "bf16")),
        ("H100, FP8", is_of("nvidia-h100", "fp8")),
        ("A100", is_of("nvidia-a100-80g")),
    )
    rows = []
    for name, kept in groups:
        chosen = [group for group in series if kept(group)]
        if not chosen:
            continue
        found = scatter_of(chosen)
        rows.append(
            [
                name,
                str(found.series),
                f"{found.value:.1f} +- {found.error:.1f} %",
                *(f"{each:.2f} %" for each in (found.left_without, found.left_with, found.left_at_best)),
            ]
        )
    titles = ["configurations", "number", "scatter", "left without waiting", "left at 1.5 %", "left at the best"]
    text = SERIES.format(count=len(series), runs=sum(map(len, series)))
    return [fill(text, 140), "", *markdown(Table(titles, rows, {1, 2, 3, 4, 5}))]


def _large(large: Sequence[Timed], series: Sequence[Sequence[Timed]]) -> list[str]:
    fewest = {run.record.id: group[0] for group in series for run in group if run.cards > group[0].cards}
    rows, grown = [], []
    for run in large:
        first = fewest.get(run.record.id)
        moved = "" if first is None else f"{run.error() - first.error():+.1f}"
        if first is not None:
            grown.append(run.error() - first.error())
        rows.append(
            [
                run.record.id,
                f"{run.cards:,}",
                f"{run.error(waiting=False):+.1f}",
                f"{run.error():+.1f}",
                "" if first is None else f"{first.error():+.1f} on {first.cards:,}",
                moved,
                _told(run, first),
            ]
        )
    chance = 1.0 - (1.0 - LAGGING) ** (np.array([run.cards for run in large]) / NODE)
    without, now = ([run.error(waiting=side) for run in large] for side in (False, True))
    text = (
        f"Errors of speed in %, positive where predicted too fast: with the profiles as shipped, without and with the "
        f"wait for the slowest device. Mean {np.mean(np.abs(without)):.1f} and {np.mean(np.abs(now)):.1f} %, bias "
        f"{np.mean(without):+.1f} and {np.mean(now):+.1f} %. What the same configuration is off by on its fewest cards "
        f"is no matter of scale; beyond it {len(grown)} runs are off by {np.mean(np.abs(grown)):.1f} % on average "
        f"(bias {np.mean(grown):+.1f} %)."
    )
    titles = ["run", "cards", "without", "with", "on fewest cards", "of scale", "told"]
    slow = sum(each > FAR_OFF for each in grown)
    said = STRAGGLERS.format(expected=float(chance.sum()), large=len(large), slow=slow or "None")
    return [fill(text, 140), "", fill(said, 140), "", *markdown(Table(titles, rows, {1, 2, 3, 5}))]


def _told(run: Timed, first: Timed | None) -> str:
    """Cause of an error beyond FAR_OFF, as far as it is known."""
    if abs(run.error()) <= FAR_OFF:
        return ""
    if not fits_time(run.record):
        return "in no fit"
    if first is not None and abs(run.error() - first.error()) <= FAR_OFF:
        return "as on few cards"
    return "unexplained"


def main(records: Sequence[Record] | None = None, output: Path = PAGE) -> None:
    """Predict these records, or those shipped, and write the page."""
    output.write_text(page(shipped_records() if records is None else records), encoding="utf-8")


if __name__ == "__main__":
    main()
