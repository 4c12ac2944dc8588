"""Phases as stretches of one sequence length and one batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from autodeploy.specs.run import Phase

if TYPE_CHECKING:
    from autodeploy.specs.spec import Spec


@dataclass(frozen=True, slots=True)
class Stretch:
    """Tokens that are trained with one global batch."""

    global_batch: int
    tokens: float


@dataclass(frozen=True, slots=True)
class PhaseStretches:
    """A phase's sequence length and its stretches, in order."""

    seq_length: int
    stretches: tuple[Stretch, ...]

    @property
    def tokens(self) -> float:
        """Tokens of the whole phase."""
        return sum(s.tokens for s in self.stretches)


def phases_of(spec: Spec) -> tuple[PhaseStretches, ...]:
    """The phases of a spec, in order; without any, its tokens as one phase; without these, none."""
    phases: tuple[Phase, ...] = spec.run.phases if spec.run is not None else ()
    if not phases and spec.training.tokens is not None:
        phases = (Phase(tokens=spec.training.tokens),)
    return tuple(_stretched(spec, phase) for phase in phases)


def _stretched(spec: Spec, phase: Phase) -> PhaseStretches:
    seq_length = phase.seq_length or spec.training.seq_length
    batch = phase.global_batch_size or spec.training.global_batch_size.value
    ramp = phase.ramp
    if ramp is None:
        return PhaseStretches(seq_length, (Stretch(batch, phase.tokens),))
    rising = range(ramp.start, batch, ramp.increment)
    each = ramp.tokens / len(rising)
    stretches = [Stretch(value, each) for value in rising]
    if phase.tokens > ramp.tokens:
        stretches.append(Stretch(batch, phase.tokens - ramp.tokens))
    return PhaseStretches(seq_length, tuple(stretches))
