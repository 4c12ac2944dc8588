"""Which strategy of each group of measured runs the rankings choose, and what it cost.

A group shares model, cards, batch, sequence, number format and stack; its families of models are left out of
the fit, of the evidence and of the share of unproven gains. Uncommitted formulas, profiles and parameters count.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from autodeploy.calibration.evidence import evidence_of
from autodeploy.calibration.families import family_of
from autodeploy.calibration.record_prediction import predict_record
from autodeploy.calibration.shipped.class_spreads import covering, run_row
from autodeploy.calibration.shipped.strategy_groups import calibration_of, realised_of, strategy_groups, told_apart
from autodeploy.costs.prediction_spread import coverage
from autodeploy.costs.steps.scenarios import step_times_in
from autodeploy.search.ranking.regret import cautious_order, regrets, with_unproven_gains
from autodeploy.search.ranking.sensitivities import Responses
from autodeploy.search.ranking.uncertainty import run_of
from autodeploy.search.ranking.uncertainty_set import uncertainty_set
from autodeploy.search.ranking.unproven import share_draws, unproven_in
from docs.accuracy_page.aims import Line
from docs.accuracy_page.errors import kendall_tau
from docs.accuracy_page.refits import overlays_of, without
from hardware_profiles.loader import recalibrated

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy.typing as npt

    from autodeploy.calibration.profile_fit import Calibration
    from autodeploy.calibration.record_prediction import Prediction
    from autodeploy.calibration.shipped.strategy_groups import Gain, StrategyGroup
    from autodeploy.specs.record import Record

DRAWS = 200
MEAN_AIM, WORST_AIM = 0.011, 0.06
WORDS = (("TP", "tp"), ("PP", "pp"), ("VPP", "vpp"), ("CP", "cp"), ("EP", "ep"), ("ETP", "etp"))


@dataclass(frozen=True)
class Choice:
    """One strategy of a group: seconds of a step, predicted and measured (the mean of its runs), and its runs.

    unproven : axes and features that no run outside the group's families has.
    """

    records: tuple[Record, ...]
    predicted_s: float
    measured_s: float
    unproven: frozenset[str]


@dataclass(frozen=True)
class Backtest:
    """What the rankings choose in one group: `averse_order`: places of `choices`, the first first."""

    group: StrategyGroup
    choices: tuple[Choice, ...]
    averse_order: tuple[int, ...]

    @property
    def neutral(self) -> int:
        """The strategy of the least predicted time."""
        return int(np.argmin([choice.predicted_s for choice in self.choices]))

    @property
    def averse(self) -> int:
        """The strategy that the averse ranking puts first."""
        return self.averse_order[0]

    def tau(self, ranking: str) -> float:
        """Kendall's tau of a ranking's order, `neutral` or `averse`, with the measured one."""
        places = np.argsort(self.averse_order).astype(np.float64)
        by_time = np.array([choice.predicted_s for choice in self.choices])
        measured = np.array([choice.measured_s for choice in self.choices])
        return kendall_tau(by_time if ranking == "neutral" else places, measured)

    def regret(self, chosen: int) -> float:
        """How much longer the chosen strategy took than the fastest, measured, as a share."""
        return self.choices[chosen].measured_s / min(c.measured_s for c in self.choices) - 1.0

    @property
    def layouts(self) -> tuple[str, ...]:
        """What tells groups of the same layouts on other cards apart from those of others."""
        strategies = {layout_words(choice.records[0]) for choice in self.choices}
        return self.group.model, self.group.device, self.group.records[0].training.precision, *sorted(strategies)


def layout_words(record: Record) -> str:
    """TP4 PP8 VPP5, micro batch 2, full recomputation."""
    s, row = record.strategy, run_row(record)
    named = [f"{word}{row[axis]}" for word, axis in WORDS if row[axis] > 1 and (axis != "etp" or row["ep"] > 1)]
    parts = [" ".join(named) or "data parallel alone"]
    parts += [f"micro batch {s.micro_batch_size}"] if s.micro_batch_size > 1 else []
    parts += [f"{s.recompute.granularity} recomputation"] if s.recompute.granularity != "none" else []
    return ", ".join(parts)


def summary(results: Sequence[Backtest], ranking: str, weights: Sequence[float] | None = None) -> tuple[float, float]:
    """Mean and largest regret of a ranking, `neutral` or `averse`."""
    regrets = [each.regret(getattr(each, ranking)) for each in results]
    return float(np.average(regrets, weights=weights)), max(regrets)


def weights_of(results: Sequence[Backtest]) -> list[float]:
    """Groups of the same layouts on several numbers of cards share one."""
    counts = Counter(each.layouts for each in results)
    return [1.0 / counts[each.layouts] for each in results]


def lines(results: Sequence[Backtest]) -> list[Line]:
    """Figures beside their aims."""
    mean, worst = summary(results, "averse")
    one = [each for each in results if each.group.releases == 1]
    told = {
        "  of one release": summary(one, "averse"),
        "  the same layouts on several numbers of cards once": summary(results, "averse", weights_of(results)),
        "  by the predicted time alone": summary(results, "neutral"),
    }
    title = f"strategies chosen in {len(results)} groups left out: mean, largest regret"
    first = Line(title, _pair(mean, worst), _pair(MEAN_AIM, WORST_AIM), mean <= MEAN_AIM and worst <= WORST_AIM)
    return [first, *(Line(name, _pair(*each), "told") for name, each in told.items())]


def _pair(mean: float, worst: float) -> str:
    return f"{100 * mean:.1f} %, {100 * worst:.1f} %"


def backtests(records: Sequence[Record], fitted: Mapping[str, Calibration], promised: Sequence[Gain]) -> list[Backtest]:
    """All groups in which the formulas tell strategies apart; `promised`: all gains that `gains` finds."""
    results = (backtest(group, list(fitted.values()), promised) for group in strategy_groups(records))
    return [each for each in results if each is not None]


def backtest(group: StrategyGroup, calibrations: Sequence[Calibration], promised: Sequence[Gain]) -> Backtest | None:
    """One group; None where the formulas tell no two strategies apart.

    Parameters
    ----------
    promised : gains of all groups that fits promised; those of the group's own model do not count.
    """
    families = frozenset(family_of(record) for record in group.records)
    calibration = calibration_of(group.records[0].cluster.profile, calibrations)
    rest = [] if calibration is None else [without(calibration, partial(_is_of, families))]
    with recalibrated(overlays_of(*rest)), covering(table_without(families, group, promised)):
        predictions = [predict_record(record) for record in group.records]
        log_times = np.log([each.step_time_s for each in predictions])
        strategies = told_apart(group, log_times)
        if len(strategies) < 2:
            return None
        first = [predictions[places[0]] for places in strategies]
        nominal = np.array([log_times[places].mean() for places in strategies])
        unproven = [unproven_in(evidence_of(run_of(p.candidate, p.context), p.context.family)) for p in first]
        averse = averse_order(first, nominal, unproven)
    choices = tuple(
        Choice(
            tuple(group.records[place] for place in places),
            float(np.exp(nominal[number])),
            float(np.exp(group.log_measured[places].mean())),
            unproven[number],
        )
        for number, places in enumerate(strategies)
    )
    return Backtest(group, choices, averse)


def _is_of(families: frozenset[str], record: Record) -> bool:
    return family_of(record) in families


def table_without(families: frozenset[str], group: StrategyGroup, promised: Sequence[Gain]) -> dict[str, Any]:
    """The coverage table without families of models, and without the gains of a group's own model."""
    table = coverage()
    rows = [row for row in table["records"] if row["model_family"] not in families]
    others = [gain for gain in promised if gain.model != group.model]
    return {**table, "records": rows, "realised": realised_of(others)}


def averse_order(
    predictions: Sequence[Prediction], nominal: npt.NDArray[np.float64], unproven: Sequence[frozenset[str]]
) -> tuple[int, ...]:
    """Places of strategies as the averse ranking orders plans that all fit, with as much headroom."""
    context = predictions[0].context
    assert context.profile is not None
    box = uncertainty_set(context.profile, context)
    worlds = [{}, *box.ends()]
    times = np.concatenate(
        [step_times_in(p.candidate, p.context, [p.layout], box.numbers, worlds) for p in predictions]
    )
    logs = np.log(times)
    ends = (logs[:, 1:] - logs[:, :1]).reshape(len(predictions), len(box.numbers), 2)
    answers = Responses(box, nominal, ends[:, :, 0], ends[:, :, 1])
    shares = share_draws(frozenset().union(*unproven), DRAWS)
    drawn = with_unproven_gains(answers.at(box.draws(DRAWS)), nominal, unproven, shares)
    rests = np.array([len(each) for each in unproven])
    return tuple(int(place) for place in cautious_order(1.0 + regrets(drawn).mean(axis=0), rests, rests))
