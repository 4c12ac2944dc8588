"""A training step of several phases: passes that go forward alone, and updates, each as often as the step has it.

Pre-training is one update. Post-training scores what it trains on first, and may update several times a step. Both are
the one estimate of a strategy: a forward pass alone keeps nothing and is followed by nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from autodeploy.evaluation.steps.one_strategy import estimated

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autodeploy.evaluation.inputs.context import Context
    from autodeploy.evaluation.steps.one_strategy import Estimated
    from autodeploy.specs.strategy import Strategy


@dataclass(frozen=True, slots=True)
class StepPhase:
    """What a phase does with the model.

    kind : forward alone, or an update: forward, backward, reduction of gradients and optimizer. rows : sequences of one
    pass, on all ranks together. passes : of the step, in turn: each fills the pipeline anew.
    """

    kind: Literal["forward", "update"]
    rows: int
    passes: int = 1


@dataclass(frozen=True)
class PhaseCost:
    """Seconds of a phase, all its passes; the parts of `breakdown` add up to them. `estimated`: of one pass."""

    seconds: float
    breakdown: dict[str, float]
    estimated: Estimated

    @property
    def bound_by(self) -> str:
        """The part that takes longest, the first of equals."""
        return max(self.breakdown, key=lambda name: self.breakdown[name])


def phase_costs(phases: Sequence[StepPhase], strategy: Strategy, context: Context) -> list[PhaseCost]:
    """The cost of each phase; `context` says what a sequence is. Phases with as many rows share their layers' costs.

    Raises
    ------
    SpecError
        as of `estimated`.
    """
    found: list[PhaseCost] = []
    priced: dict[int, Estimated] = {}
    for phase in phases:
        forward_only, known = phase.kind == "forward", priced.get(phase.rows)
        if known is None:
            one = estimated(strategy, replace(context, global_batch=phase.rows), forward_only=forward_only)
        else:
            one = known.again(forward_only=forward_only)
        priced[phase.rows] = one
        parts = {name: phase.passes * seconds for name, seconds in one.estimate.breakdown.items()}
        found.append(PhaseCost(phase.passes * one.estimate.step_time_s, parts, one))
    return found


def phase_cost(phase: StepPhase, strategy: Strategy, context: Context) -> PhaseCost:
    """The cost of one phase, as of `phase_costs`."""
    return phase_costs([phase], strategy, context)[0]
