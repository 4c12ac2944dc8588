"""The 80 % interval of a record's predicted step time: as plans have it, widened for what its diagnoses leave open."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from autodeploy.calibration.covariances import covariance_of
from autodeploy.calibration.coverage import run_in_context
from autodeploy.calibration.measured import memory_counts, memory_regime
from autodeploy.calibration.release_defaults import features_of
from autodeploy.calibration.spreads import MemorySpread, Spread, memory_spread, spread_of
from autodeploy.evaluation.steps.worlds import sensitivities

if TYPE_CHECKING:
    from autodeploy.calibration.predict import Prediction


def record_spread(predicted: Prediction) -> Spread:
    """Spread of a record's prediction. Each thing that the nearest known one stands in for counts as a feature that no
    record vouches for.
    """
    return spread_of(predicted.context.family, _run(predicted), _parameter_variance(predicted))


def record_memory_spread(predicted: Prediction) -> MemorySpread:
    """Spread of a record's predicted peak of memory."""
    maker, record = predicted.context.family.split("-")[0], predicted.record
    on_card = memory_counts(record) != "allocated"
    return memory_spread(maker, _run(predicted), regime=memory_regime(record), on_card=on_card)


def _run(predicted: Prediction) -> dict[str, Any]:
    """A record's run in the axes of the coverage table."""
    record = predicted.record
    open_questions = {f"{d.path.removeprefix('/')}: {d.text}" for d in record.diagnoses if d.widens}
    return run_in_context(predicted.candidate, predicted.context, features_of(record) | open_questions)


def _parameter_variance(predicted: Prediction) -> float:
    """Variance of a record's log prediction from the uncertainty of the fitted numbers."""
    covariance, slopes = covariance_of(predicted.profile), predicted.slopes
    if slopes is None:
        slopes = sensitivities(predicted.candidate, predicted.context, [predicted.layout], covariance.factors)[0]
    return covariance.variance_of(slopes)
