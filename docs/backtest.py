"""Writes docs/backtest.md: which strategy of each group of measured runs the rankings choose, and what it cost.

Run by `make backtest`, about a minute.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from autodeploy.calibration.shipped.strategy_groups import came_true, gains
from autodeploy.calibration.shipped.tables import shipped_records
from docs.accuracy_page.aims import fits
from docs.accuracy_page.page import table
from docs.backtest_groups import MEAN_AIM, WORST_AIM, backtests, layout_words, lines, summary, weights_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autodeploy.calibration.shipped.strategy_groups import Gain
    from autodeploy.specs.record import Record
    from docs.backtest_groups import Backtest

PAGE = Path(__file__).resolve().parent / "backtest.md"
ENOUGH_STRATEGIES = 5  # strategies of a group from which the order of all is told

HEADING = """# Strategies chosen, held against measured runs

Made by `make backtest` from the shipped records. A group is timed runs that share model, cards, batch, sequence,
number format and stack and differ in strategy. Its families of models leave the fit, the evidence and the share of
unproven gains; then the rankings choose among its strategies as a search does among plans: the neutral one by the
predicted time, the averse one by the 80th percentile, over 200 draws of the error box, of how much longer a strategy
takes than the best, with the gains of what no run has shown shrunk. Regret is how much longer the chosen strategy
took, measured, than the fastest of the group. All of them ran, so all of them fit: memory decides nothing here.
Strategies that the formulas do not tell apart, and one script on several releases, count as one, with the mean of
their times."""

WHY = """## Above 6 %

All are one pair: Llama3-70B in FP8 on H100, TP4 PP4 CP2 on NeMo 25.02.02 against TP4 PP8 on 25.04.02, on six numbers
of cards. By the predicted times the first is up to 0.5 % faster, measured it took 6 to 8 % longer. The records do not
say how much of that is the strategy:

- No run of either layout is on the other's release. One script of Llama3.1-405B took 5.0 % less time in FP8 on
  25.04.02 than on 25.05 and 0.2 % less in BF16, so releases differ by about as much in FP8 alone, and no record names
  why. In BF16 the first layout itself is 0.6 % faster on the later release.
- The last stage sets the pace of both: the vocabulary's product and the loss are 14 % of its predicted time at PP8
  and 7 % at PP4. A record that does not list its layers is read with equal stages.

What would decide it is one FP8 run of either layout on the other's release, or the layers of each stage. The two
rankings agree: every degree of both layouts is proven without the family, and of two plans the one with the smaller
median has the smaller regret too."""

GAINS = """## Unproven gains that came true

Each degree or feature of a group, predicted by a fit that has seen no run with it: log(time without / time with) of
the fastest strategy without it and the fastest with it, both by that fit ([how](explanation/calibration.md)). Only
gains predicted above zero are listed: those a search would have taken."""


def page(results: Sequence[Backtest], promised: Sequence[Gain]) -> str:
    """The whole page."""
    parts = [HEADING, _summary(results), _groups(results), WHY, _orders(results), GAINS, *_gains(promised)]
    return "\n\n".join(part.strip() for part in parts) + "\n"


def _summary(results: Sequence[Backtest]) -> str:
    one, shares = [each for each in results if each.group.releases == 1], weights_of(results)
    rows = []
    for title, groups, weights in (
        (f"all {len(results)} groups", results, None),
        (f"the same layouts on several numbers of cards once, {round(sum(shares))}", results, shares),
        (f"of one release, {len(one)}", one, None),
    ):
        pairs = (summary(groups, ranking, weights) for ranking in ("averse", "neutral"))
        rows.append([title, *(_pc(value) for pair in pairs for value in pair)])
    aim = ["aim", _pc(MEAN_AIM), _pc(WORST_AIM), "", ""]
    titles = ["Groups", "averse: mean regret", "largest", "neutral: mean regret", "largest"]
    return "## Regret\n\n" + table(titles, [*rows, aim])


def _groups(results: Sequence[Backtest]) -> str:
    rows = [
        [
            each.group.name,
            len(each.choices),
            each.group.releases,
            _fastest(each),
            layout_words(each.choices[each.averse].records[0]),
            ", ".join(sorted(each.choices[each.averse].unproven)) or "-",
            _pc(each.regret(each.averse)),
            _pc(each.regret(each.neutral)),
        ]
        for each in results
    ]
    titles = ["Group", "strategies", "releases", "fastest, measured", "chosen, averse", "unproven", "regret", "neutral"]
    return "## Groups\n\n" + table(titles, rows)


def _fastest(each: Backtest) -> str:
    return layout_words(min(each.choices, key=lambda choice: choice.measured_s).records[0])


def _orders(results: Sequence[Backtest]) -> str:
    large = [each for each in results if len(each.choices) >= ENOUGH_STRATEGIES]
    rows = [[e.group.name, len(e.choices), f"{e.tau('neutral'):.2f}", f"{e.tau('averse'):.2f}"] for e in large]
    titles = ["Group", "strategies", "Kendall's tau, neutral", "averse"]
    return "## Order of all strategies\n\n" + table(titles, rows)


def _gains(promised: Sequence[Gain]) -> list[str]:
    came = came_true(promised)
    if came is None:
        return []
    taken = [gain for gain in promised if gain.predicted > 0.0005]
    rows = [[g.group, f"{g.axis} {g.value}", g.fitted, _pc(g.predicted), _pc(g.measured)] for g in taken]
    spread = "" if came.sigma is None else f" +- {came.sigma:.2f}"
    models = ", ".join(f"{name} {value:.2f}" for name, value in came.of_model.items())
    return [
        table(["Group", "what", "records fitted", "predicted", "measured"], rows),
        f"Share that came true, each model once: {came.raw:.2f}{spread}. By model: {models}.",
    ]


def _pc(value: float) -> str:
    return f"{100 * value:.1f} %"


def main(records: Sequence[Record] | None = None, file: Path = PAGE) -> None:
    """Write the page, of these records or of all, and print its figures."""
    records = shipped_records() if records is None else records
    fitted = fits(records)
    promised = gains(records, list(fitted.values()))
    results = backtests(records, fitted, promised)
    file.write_text(page(results, promised), encoding="utf-8")
    for line in lines(results):
        sys.stdout.write(f"{line.text()}\n")


if __name__ == "__main__":
    main()
