"""Writes docs/replay.md: public runs commissioned as a user would, by what was measured on few cards.

`python -m docs.replay`; some minutes of processor time.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING

import numpy as np

from autodeploy.calibration.profile_fit import calibrate, configuration_of
from autodeploy.calibration.record_prediction import fits_time
from autodeploy.calibration.shipped.tables import alike_log_sigma, fitted_profiles, shipped_records
from autodeploy.costs.prediction_spread import Z80
from autodeploy.reports.tables import Table, markdown
from docs.accuracy_page.sets import Split
from docs.accuracy_page.splits import Held, SmallFit, share_inside

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autodeploy.specs.record import Record

PAGE = Path(__file__).resolve().parent / "replay.md"
RUNGS = (16, 64, 256)
LARGE = 1024
NARROW = {"ascend-800t-a2": 0.20, "nvidia-a100-80g": 0.20}
USUAL = 0.25
COVERAGE = (0.72, 0.90)
FAR = 0.09


@dataclass(frozen=True)
class Rung:
    """One fit to clusters of at most so many cards.

    held : runs on more, each beside its interval. commissioned : of which the very configuration was in the fit, on
    fewer cards: its error there is taken off, and what configurations differ by between sizes is their interval.
    plain : residuals of the fit itself.
    """

    profile: str
    cards: int
    fitted: int
    held: tuple[Held, ...]
    commissioned: tuple[bool, ...]
    plain: tuple[float, ...]

    @property
    def near(self) -> list[Held]:
        """Runs on at most four times the cards."""
        return [each for each in self.held if cards_of(each.record) <= 4 * self.cards]

    @property
    def half_width(self) -> float | None:
        """Median over the near runs, as a share; None without any."""
        return float(np.median([math.expm1(each.half_width) for each in self.near])) if self.near else None

    @property
    def error(self) -> float:
        """Mean absolute error of speed."""
        return mean_error(self.held)


def mean_error(held: Sequence[Held]) -> float:
    """Mean absolute error of the predicted speed."""
    return float(np.mean([abs(math.expm1(-each.residual)) for each in held]))


def configurations_inside(held: Sequence[Held]) -> tuple[float, int]:
    """Share inside where each configuration counts once, whatever the number of its sizes; their number."""
    names = [configuration_of(each.record) for each in held]
    count = Counter(names)
    inside = sum(each.inside / count[name] for each, name in zip(held, names, strict=True))
    return inside / len(count), len(count)


def cards_of(record: Record) -> int:
    """Cards of a run."""
    return int(record.cluster.num_npus or 1)


def rung_of(profile: str, cards: int, small: SmallFit) -> Rung:
    """The runs that a fit has not seen, beside what it says of them."""
    fit = small.calibration
    seen: dict[str, dict[int, list[float]]] = {}
    for record, residual in zip(fit.records, fit.fit.residuals, strict=True):
        seen.setdefault(configuration_of(record), {}).setdefault(cards_of(record), []).append(float(residual))
    alike = alike_log_sigma([fit])
    held, commissioned = [], []
    for each in small.intervals():
        own = seen.get(configuration_of(each.record))
        commissioned.append(own is not None)
        if own is None:
            held.append(each)
            continue
        largest = max(own)
        doublings = math.log2(cards_of(each.record) / largest)
        sigma = math.hypot(alike, small.slope * doublings)
        held.append(Held(each.record, each.residual - float(np.mean(own[largest])), Z80 * sigma))
    plain = tuple(map(float, small.residuals))
    return Rung(profile, cards, len(fit.records), tuple(held), tuple(commissioned), plain)


def rungs(records: Sequence[Record]) -> list[Rung]:
    """Every device and rung that has runs on both sides."""
    made = []
    calibrations = {name: calibrate(records, name) for name in fitted_profiles()}
    for profile in calibrations:
        sizes = [cards_of(r) for r in records if r.cluster.profile == profile and fits_time(r)]
        for cards in RUNGS if sizes else ():
            if min(sizes) <= cards < max(sizes):
                small = SmallFit.of(Split(profile, cards, cards + 1), records, calibrations.values())
                made.append(rung_of(profile, cards, small))
    return made


def percent(value: float, digits: int = 0) -> str:
    """A share in per cent."""
    return f"{100.0 * value:.{digits}f} %"


def page(made: Sequence[Rung]) -> str:
    """The whole page."""
    return "\n".join([*_head(), *_by_rung(made), *_large(made), ""])


LEAD = (
    "Every device with measured runs of its own is commissioned once more: a fit sees runs on at most 16, 64 or "
    "256 cards, as whoever launches small jobs first would have them, and predicts those on more. Where the very "
    "configuration (chip, software, shape of the model, strategy) ran on fewer cards, its error there is taken "
    "off, as the overlay of a cluster does, and its interval is what such pairs differ by. Intervals are a plan's: "
    "they know of this device the small runs alone, and of all others what ships, with which whoever buys a new one "
    "begins. Errors are of speed; intervals are of 80 %. Sizes of one configuration err alike: the share inside "
    "stands beside that of configurations, each once. Of CloudMatrix 384 no public run with a fit of its own exists: "
    "its rungs cannot be replayed."
)
GROWTH = (
    "from one size to twice that of {count} configurations the prediction of time loses {middle:.1f} % (median; "
    "standard deviation {spread:.1f} %): what is left of slow hosts, shared links and collectives of thousands of"
    " ranks once the wait for the slowest device is priced. No run names its stragglers or the traffic beside it, so "
    "they stay a width."
)


def _head() -> list[str]:
    note = "<!-- Made by `python -m docs.replay` from the shipped records. -->"
    title = "# Replay: small runs predict large ones"
    return [note, "", title, "", fill(LEAD, 140), "", "## Coverage and width by rung", ""]


def _by_rung(made: Sequence[Rung]) -> list[str]:
    rows = []
    for rung in made:
        width, aim = rung.half_width, NARROW.get(rung.profile, USUAL)
        rows.append(
            [
                rung.profile,
                f"<= {rung.cards}",
                str(rung.fitted),
                str(len(rung.held)),
                str(sum(rung.commissioned)),
                percent(share_inside(rung.held)),
                percent(configurations_inside(rung.held)[0]),
                str(len(rung.near)),
                "" if width is None else f"+-{percent(width, 1)}",
                "" if width is None else ("yes" if width <= aim else f"no: above {percent(aim)}"),
                percent(rung.error, 1),
            ]
        )
    titles = [
        "device",
        "fit to cards",
        "runs fitted",
        "predicted",
        "same configuration",
        "inside 80 %",
        "configurations",
    ]
    titles += ["up to 4x", "median half-width", "as aimed", "mean error"]
    lines = markdown(Table(titles, rows, set(range(2, 11)) - {9}))
    lines += ["", "Over all devices:", ""]
    for cards in RUNGS:
        held = [each for rung in made if rung.cards == cards for each in rung.held]
        if held:
            share = share_inside(held)
            inside = COVERAGE[0] <= share <= COVERAGE[1]
            verdict = "as aimed" if inside else f"outside the aim of {percent(COVERAGE[0])} to {percent(COVERAGE[1])}"
            once, count = configurations_inside(held)
            counted = f"{percent(share)} of {len(held)} runs inside, {percent(once)} of {count} configurations"
            lines.append(f"- fit to <= {cards} cards: {counted}; {verdict} by runs")
    return [*lines, ""]


def _large(made: Sequence[Rung]) -> list[str]:
    rows, held, errors = [], [], []
    for rung in made:
        if rung.cards != RUNGS[-1]:
            continue
        for each, own, residual in zip(rung.held, rung.commissioned, rung.plain, strict=True):
            if cards_of(each.record) >= LARGE:
                held.append((each, own))
                errors.append(abs(math.expm1(-residual)))
    if not held:
        return []
    for each, own in sorted(held, key=lambda pair: (cards_of(pair[0].record), pair[0].record.id)):
        record = each.record
        basis = "its own on fewer cards" if own else "others"
        rows.append([record.id, f"{cards_of(record):,}", f"{100 * math.expm1(-each.residual):+.1f} %", basis])
    mean = mean_error([each for each, _ in held])
    plain = float(np.mean(errors))
    verdict = "as aimed" if mean <= FAR else f"above the aim of {percent(FAR)}"
    sources = Counter(each.record.source.split("@")[0].split("#")[0] for each, _ in held)
    text = f"{len(held)} runs, mean error {percent(mean, 1)}, {verdict} ({percent(plain, 1)} as the fit says)"
    return [
        f"## Runs on {LARGE:,} cards and more, by fits to at most {RUNGS[-1]}",
        "",
        fill(f"{text}; {_growth(held)}", 140),
        "",
        *markdown(Table(["run", "cards", "error", "rests on"], rows, {1, 2})),
        "",
        "Sources:",
        "",
        *(f"- {source} ({count})" for source, count in sorted(sources.items())),
    ]


def _growth(held: Sequence[tuple[Held, bool]]) -> str:
    """By how much errors change with a doubling, within configurations that ran on several of these sizes."""
    sizes: dict[str, dict[int, float]] = {}
    for each, _ in held:
        sizes.setdefault(configuration_of(each.record), {})[cards_of(each.record)] = each.residual
    moved = [
        (series[max(series)] - series[min(series)]) / math.log2(max(series) / min(series))
        for series in sizes.values()
        if len(series) > 1
    ]
    if not moved:
        return "no configuration ran on two of these sizes."
    middle, spread = 100.0 * float(np.median(moved)), 100.0 * float(np.std(moved))
    return GROWTH.format(count=len(moved), middle=-middle, spread=spread)


def main(records: Sequence[Record] | None = None, output: Path = PAGE) -> None:
    """Fit every rung of these records, or of those shipped, and write the page."""
    output.write_text(page(rungs(shipped_records() if records is None else records)), encoding="utf-8")


if __name__ == "__main__":
    main()
