"""Choice of the recommended plan of post-training: the one that costs least on average, wherever uncertain numbers are.

Training follows the error box of its update, as in pre-training; generation is as uncertain as its interval says, of
each mode of the engine by itself, and a little of each degree.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np

from autodeploy.calibration.evidence import evidence_of_generation
from autodeploy.calibration.uncertain_numbers import Uncertain
from autodeploy.costs.post_training.step import placed
from autodeploy.costs.prediction_spread import Z80
from autodeploy.costs.steps.one_strategy import priced_by
from autodeploy.costs.steps.scenarios import step_times_in
from autodeploy.messages import Message
from autodeploy.search.ranking.advice import DRAWS
from autodeploy.search.ranking.expected_cost import price_of
from autodeploy.search.ranking.regret import regret_order
from autodeploy.search.ranking.sensitivities import Responses, as_predicted, responses_of
from autodeploy.search.ranking.uncertainty_set import HIGH_QUANTILE, UncertaintySet, uncertainty_set
from autodeploy.search.ranking.unproven import unproven_in, unproven_of
from autodeploy.space.candidates import concatenate

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from autodeploy.costs.post_training.overheads import Overheads
    from autodeploy.costs.steps.one_strategy import Estimated
    from autodeploy.costs.steps.scenarios import Scenario
    from autodeploy.search.post_training.search import Choice
    from autodeploy.search.ranking.expected_cost import RiskPrice
    from autodeploy.specs.spec import Spec
    from cost_models.arrays import Floats
    from hardware_profiles.profile import Profile

DEGREE_SIGMA: Final = 0.05
"""Log standard deviation of a time per output token between degrees of one engine and mode: the constants of a layer
that serving on H100 fits at TP2, 4 and 8 differ by 1 to 5 % in each of three engines (profiles of generation)."""
MEANING: Final = "time per output token"
BASIS: Final = Message("rl_planning.token_time_interval")
OF_DEGREES: Final = Message("rl_planning.serving_constants")


@dataclass(frozen=True, eq=False)
class WeighedChoice:
    """One choice among those that were considered, as `Considered`."""

    choice: Choice
    unproven: frozenset[str]
    regret: float | None
    expected_s: float
    row: int

    @property
    def step_s(self) -> float:
        """Predicted step time."""
        return self.choice.step.step_time_s

    @property
    def p_fits(self) -> float:
        """Probability that training fits; generation takes what is left."""
        return self.choice.update.p_fits

    @property
    def p_starts(self) -> float:
        """The same of the first steps."""
        return self.choice.update.p_starts

    @property
    def axes(self) -> Mapping[str, object]:
        """Degrees and words by the name of their axis."""
        how = self.choice.layout
        generation = {f"rl.generation.{name}": value for name, value in how.generation.model_dump().items()}
        return {**self.choice.update.strategy.model_dump(), "rl.placement": how.placement, **generation}


@dataclass(frozen=True, eq=False)
class RlAdvice:
    """Choices from the one to recommend on, as `RiskAdvice`; the fastest is among them. price : what risks cost."""

    weighed: tuple[WeighedChoice, ...]
    responses: Responses
    least_p_fits: float
    price: RiskPrice

    @property
    def weights(self) -> Floats:
        """Values of a second of each plan's step in the objective, by row: all alike."""
        return np.ones(len(self.responses.nominal))

    @property
    def fastest(self) -> WeighedChoice:
        """The choice with the shortest predicted step."""
        return min(self.weighed, key=lambda each: (each.step_s, each.row))


def advise(
    spec: Spec,
    profile: Profile,
    choices: Sequence[Choice],
    overheads: Overheads,
    should_cancel: Callable[[], bool],
) -> RlAdvice | None:
    """The choices ranked by the 80th percentile of their regret; None where the search was cancelled meanwhile."""
    updates = list({id(each.update): each.update for each in choices}.values())
    trained = [update.part.trained for update in updates]
    numbers = uncertainty_set(profile, trained[0].context)
    training = _responses(trained, numbers, should_cancel)
    if training is None:
        return None
    joint = _with_generation(numbers, choices)
    place = {id(update): row for row, update in enumerate(updates)}
    columns = [place[id(each.update)] for each in choices]

    def log_times(moves: Floats) -> Floats:
        slower = np.exp(training.at(moves[:, : len(numbers.numbers)]) - training.nominal)
        return np.log(
            np.stack(
                [
                    _step_s(spec, each, overheads, slower[:, column], _slower_generation(joint, moves, each))
                    for each, column in zip(choices, columns, strict=True)
                ],
                axis=1,
            )
        )

    nominal = np.log([each.step.step_time_s for each in choices])
    far = np.diag([abs(joint.at(number, HIGH_QUANTILE)[number.name]) for number in joint.numbers])
    low, high = log_times(-far), log_times(far)
    answers = Responses(joint, nominal, (low - nominal).T, (high - nominal).T)
    return _ranked(spec, profile, choices, log_times(joint.draws(DRAWS)), answers)


def by_prediction(spec: Spec, profile: Profile, choices: Sequence[Choice]) -> RlAdvice:
    """The choices ranked by their expected cost as far as predicted times and P(fits) tell it: no time for draws."""
    box = _with_generation(uncertainty_set(profile, choices[0].update.part.trained.context), choices)
    answers = as_predicted(box, [each.step.step_time_s for each in choices])
    return _ranked(spec, profile, choices, answers.at(box.draws(DRAWS)), answers)


def _ranked(spec: Spec, profile: Profile, choices: Sequence[Choice], log_times: Floats, answers: Responses) -> RlAdvice:
    """The choices by their expected cost; log_times : in the draws [draws, choices]."""
    rests: dict[int, frozenset[str]] = {}
    alike: dict[int, int] = {}
    for each in choices:
        trained, key = each.update.part.trained, id(each.update)
        if key not in rests:
            alike[key], rests[key] = len(rests), unproven_of(trained.candidate, trained.context)
    family, moe = profile.document.family, spec.model.is_moe
    unproven = [
        rests[id(each.update)] | unproven_in(evidence_of_generation(each.layout, family, moe=moe)) for each in choices
    ]
    price = price_of(spec, min(each.step.step_time_s for each in choices))
    order = regret_order(
        log_times,
        answers.nominal,
        np.array([each.update.p_fits for each in choices]),
        unproven,
        price.floor,
        starts=np.array([each.update.p_starts for each in choices]),
        alike=np.array([alike[id(each.update)] for each in choices]),
        price=price,
    )
    weighed = (
        WeighedChoice(choices[row], unproven[row], order.regret.get(row), float(order.expected_s[row]), row)
        for row in order.order
    )
    return RlAdvice(tuple(weighed), answers, order.least_p_fits, price)


def _responses(
    trained: Sequence[Estimated], box: UncertaintySet, should_cancel: Callable[[], bool]
) -> Responses | None:
    """Step times of updates as functions of the numbers of their box."""
    worlds: list[Scenario] = [{}, *box.ends()]
    alike: dict[tuple[object, ...], list[int]] = {}
    for row, each in enumerate(trained):
        alike.setdefault(priced_by(each.context), []).append(row)
    times = np.zeros((len(trained), len(worlds)))
    for rows in alike.values():
        if should_cancel():
            return None
        of_rows = [trained[row] for row in rows]
        together = concatenate([each.candidate for each in of_rows])
        layouts = [each.layout for each in of_rows]
        times[rows] = step_times_in(together, of_rows[0].context, layouts, box.numbers, worlds)
    return responses_of(box, times)


def _with_generation(box: UncertaintySet, choices: Sequence[Choice]) -> UncertaintySet:
    """The box with what is uncertain of generation: of each mode, and of each degree in it."""
    sigma = max(math.log1p(each.generation.generator.half_width) / Z80 for each in choices)
    own = min(DEGREE_SIGMA, sigma)
    added: dict[str, Uncertain] = {}
    for each in choices:
        mode, degree = _numbers_of(each)
        of_mode = math.sqrt(sigma**2 - own**2)
        added[mode] = Uncertain(mode, f"{MEANING}, {_mode(each)} mode", (), of_mode, BASIS)
        meaning = f"{MEANING}, {_mode(each)} mode at TP{each.layout.generation.tp}"
        added[degree] = Uncertain(degree, meaning, (), own, OF_DEGREES)
    count = len(box.numbers)
    covariance = np.diag([0.0] * count + [number.log_sigma**2 for number in added.values()])
    covariance[:count, :count] = box.covariance
    return replace(box, numbers=(*box.numbers, *added.values()), covariance=covariance)


def _mode(choice: Choice) -> str:
    return str(choice.generation.generator.mode)


def _numbers_of(choice: Choice) -> tuple[str, str]:
    """Names of the numbers that generation follows: its mode's, and its degree's in that mode."""
    mode = f"generation_{_mode(choice)}"
    return mode, f"{mode}_tp{choice.layout.generation.tp}"


def _slower_generation(box: UncertaintySet, moves: Floats, choice: Choice) -> Floats:
    """By what generation is longer than predicted in draws of the box's numbers [draws]."""
    names = [number.name for number in box.numbers]
    return np.asarray(np.exp(sum(moves[:, names.index(name)] for name in _numbers_of(choice))))


def _step_s(spec: Spec, choice: Choice, overheads: Overheads, training: Floats, generating: Floats) -> Floats:
    """Seconds of a step whose training and generation take by these factors longer [draws]."""
    rl = spec.training.rl
    assert rl is not None
    step = placed(
        *(choice.update.part, choice.generation, rl, choice.layout, overheads, choice.step.hand_over_s),
        training=training,
        generating=generating,
    )
    return np.broadcast_to(step.step_s, training.shape)
