"""Constants of a framework's overheads, fitted to its measured steps; and predictions without a model's own steps."""

from __future__ import annotations

from dataclasses import dataclass, replace
from importlib.resources import files
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from autodeploy.calibration.evidence import RL_FILE
from autodeploy.calibration.post_training import predict_rl, speed_error
from autodeploy.costs.post_training.overheads import overheads_of
from autodeploy.specs.measurements import rl_records
from autodeploy.stack.records import read_records
from hardware_profiles.shipped_yaml import shipped

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autodeploy.costs.post_training.overheads import Overheads
    from autodeploy.specs.measurements import RlRecord
    from cost_models.arrays import Floats, Ints


@dataclass(frozen=True, slots=True)
class Constant:
    """A number of `Overheads` that is fitted: the values among which, and its prior, a lognormal with its ground."""

    name: str
    values: tuple[float, ...]
    median: float
    log_sigma: float
    ground: str


@dataclass(frozen=True, slots=True)
class OverheadFit:
    """Numbers fitted to the steps of a framework. log_sigma : of a row's speed, what else is not known included."""

    framework: str
    constants: tuple[Constant, ...]
    log_sigma: float

    @property
    def choices(self) -> list[dict[str, float]]:
        """All combinations of values."""
        names = [constant.name for constant in self.constants]
        return [dict(zip(names, each, strict=True)) for each in product(*(c.values for c in self.constants))]

    def penalties(self) -> Floats:
        """Minus the logarithm of the prior of each choice, up to a constant [choices]."""
        penalties = np.zeros(len(self.choices))
        for constant in self.constants:
            values = np.array([choice[constant.name] for choice in self.choices])
            penalties += (np.log(values / constant.median) / constant.log_sigma) ** 2 / 2.0
        return penalties

    def best(self, errors: Floats, weights: Floats) -> int:
        """Place of the choice with the largest posterior, the first of equals.

        errors : of the rows under each choice [n, choices]. weights : of the rows [n].
        """
        squares = (np.log1p(errors) / self.log_sigma) ** 2 / 2.0
        return int(np.argmin(weights @ squares + self.penalties()))


HOST, EAGER = read_records(OverheadFit, shipped("autodeploy.calibration.shipped", "overheads.yaml"))


def shipped_rl() -> list[RlRecord]:
    """All measured steps of post-training that ship with the product."""
    return rl_records(Path(str(files("autodeploy.calibration").joinpath("records", RL_FILE))))


def of_framework(records: Sequence[RlRecord], framework: str) -> list[RlRecord]:
    """Those of one framework, in order."""
    return [record for record in records if record.framework == framework]


def speed_errors(records: Sequence[RlRecord], fit: OverheadFit) -> Floats:
    """predicted / measured - 1 of the speed of each step, under each choice [n, choices]."""
    choices = fit.choices
    errors = np.empty((len(records), len(choices)))
    for row, record in enumerate(records):
        own = overheads_of(record.framework)
        for column, choice in enumerate(choices):
            errors[row, column] = speed_error(predict_rl(record, changed(own, choice)))
    return errors


def changed(overheads: Overheads, choice: dict[str, float]) -> Overheads:
    """With other numbers."""
    return replace(overheads, **choice)  # type: ignore[arg-type]


def row_weights(records: Sequence[RlRecord]) -> Floats:
    """Each recipe counts once, however many releases measured it [n]."""
    recipes = [(record.model.name, record.cluster.num_npus, record.layout.placement) for record in records]
    return np.array([1.0 / recipes.count(recipe) for recipe in recipes])


def left_out(records: Sequence[RlRecord], fit: OverheadFit, errors: Floats) -> tuple[Floats, Ints]:
    """Error of each step under the choice of the steps of all other models, and the place of that choice [n]."""
    models, weights = np.array([record.model.name for record in records]), row_weights(records)
    chosen = np.array([fit.best(errors[models != model], weights[models != model]) for model in models])
    return errors[np.arange(len(records)), chosen], chosen
