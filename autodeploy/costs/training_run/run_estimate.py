"""A plan's run: every phase predicted, then failures, checkpoints, restarts, price and power on top."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from autodeploy.costs.training_run.checkpoints import read_bytes, saved_bytes
from autodeploy.costs.training_run.priors import HOUR_S, Conditions, Recovery, conditions, recovery_of
from autodeploy.messages import Message
from autodeploy.specs.training_run import Phase, RunPhase, RunSpec, TrainingRun
from cost_models.goodput import optimum_checkpoint_interval_s, recovered_run_time
from cost_models.hbm import GIB

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autodeploy.specs.planset import Plan
    from autodeploy.specs.spec import Spec


# Which layout each phase runs with.
def cheapest_layouts(phase_s: Sequence[Sequence[float]], change_s: float) -> tuple[int, ...] | None:
    """Index of the layout of each phase; None where some phase runs with no layout.

    phase_s : [phase][layout] seconds; infinite where the layout can't run the phase.
    change_s : seconds of going from one layout to another between two phases; staying is free.

    Notes
    -----
    A shortest path, exact: the best way to end phase p with layout l extends the best way to end p - 1 with l, or with
    the layout that ended p - 1 cheapest. Of equal ways the one with the lower index is taken.
    """
    best = list(phase_s[0])
    came_from: list[list[int]] = []
    for seconds in phase_s[1:]:
        leader = min(range(len(best)), key=lambda i: best[i])
        origin = [i if best[i] <= best[leader] + change_s else leader for i in range(len(best))]
        best = [best[start] + (0.0 if start == i else change_s) + seconds[i] for i, start in enumerate(origin)]
        came_from.append(origin)
    last = min(range(len(best)), key=lambda i: best[i])
    if math.isinf(best[last]):
        return None
    way = [last]
    for origin in reversed(came_from):
        way.append(origin[way[-1]])
    return tuple(reversed(way))


# Phases as stretches of one sequence length and one batch.
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


DAY_S = 86_400.0
MIB_TOLERANCE = 1e-9
ENDLESS_S = 1e12


@dataclass(frozen=True, slots=True)
class Step:
    """A layout's step at another sequence length or batch, and why it can't run there, if it can't."""

    step_time_s: float
    peak_memory_gib: float
    problem: str | None = None


class StepOf(Protocol):
    """Predicts a step of a plan's strategy, on the cards it uses, at another sequence length and global batch."""

    def __call__(self, plan: Plan, seq_length: int, global_batch: int, /) -> Step: ...


class LayoutsFor(Protocol):
    """The best plans of a search at another sequence length and batch."""

    def __call__(self, seq_length: int, global_batch: int, /) -> Sequence[Plan]: ...


def planned_run(
    spec: Spec,
    plan: Plan,
    step_of: StepOf,
    *,
    host_link_bytes_per_s: float,
    layouts_for: LayoutsFor | None = None,
) -> TrainingRun | None:
    """Time and cost of a plan's run; None for a spec that says neither tokens nor phases.

    host_link_bytes_per_s : of a device, one way: what an asynchronous checkpoint waits for.
    layouts_for : searches a phase; only asked where the spec allows the layout to change.
    """
    phases = phases_of(spec)
    if not phases:
        return None
    run = spec.run or RunSpec()
    layouts = [plan]
    if run.layout_changes == "allowed" and layouts_for is not None:
        own = (spec.training.seq_length, spec.training.global_batch_size.value)
        wanted = dict.fromkeys((phase.seq_length, phase.stretches[-1].global_batch) for phase in phases)
        layouts += [assumed for key in wanted if key != own for assumed in layouts_for(*key)[:1]]
    assumed = conditions(run, plan.num_npus_used)
    save, recovery = _Saving.of(spec, plan, run, assumed, host_link_bytes_per_s)
    predicted = [
        [_phase(spec, phase, layout, step_of, own=i == 0) for i, layout in enumerate(layouts)] for phase in phases
    ]
    seconds = [[p.days * DAY_S if p.days is not None else math.inf for p in row] for row in predicted]
    change_s = save.write_s + assumed.restart_s + save.read_s
    way = cheapest_layouts(seconds, change_s)
    chosen = [row[0] for row in predicted] if way is None else [row[i] for row, i in zip(predicted, way, strict=True)]
    if way is not None:
        chosen = [
            phase.model_copy(
                update={
                    "strategy": layouts[i].strategy if i else None,
                    "layout_change_s": change_s if number and way[number - 1] != i else 0.0,
                }
            )
            for number, (phase, i) in enumerate(zip(chosen, way, strict=True))
        ]
    result = TrainingRun(
        phases=tuple(chosen),
        failure_interval_h=assumed.failure_interval_s / HOUR_S,
        checkpoint_gb=save.checkpoint_bytes / 1e9,
        checkpoint_s=save.pause_s,
        checkpoint_interval_s=save.interval_s,
        restart_s=assumed.restart_s + save.read_s,
        currency=run.currency,
        recovery=recovery.name,
        priors=(*assumed.priors, *recovery.priors),
    )
    return (
        result
        if way is None
        else _with_totals(result, run, save, assumed, recovery, plan.num_npus_used + spec.cluster.spare_npus)
    )


@dataclass(frozen=True, slots=True)
class _Saving:
    """A checkpoint: its size, how long training pauses for it, how long it is written and read, how often."""

    checkpoint_bytes: float
    pause_s: float
    write_s: float
    read_s: float
    interval_s: float
    asynchronous: bool

    @classmethod
    def of(
        cls, spec: Spec, plan: Plan, run: RunSpec, conditions: Conditions, link_bytes_per_s: float
    ) -> tuple[_Saving, Recovery]:
        size = saved_bytes(spec, plan)
        moved_s = size / conditions.storage_bytes_per_s
        asynchronous = run.checkpoint == "asynchronous"
        saved_bytes_of_rank = max(s.memory_gib.weights + s.memory_gib.optimizer for s in plan.stages) * GIB
        pause_s = saved_bytes_of_rank / link_bytes_per_s if asynchronous else moved_s
        read_s = read_bytes(spec, plan) / conditions.storage_bytes_per_s
        restart_s = conditions.restart_s + read_s
        recovery = recovery_of(run, plan.strategy.features, dump_s=moved_s, restart_s=restart_s)
        # Only the other failures lead back to a checkpoint.
        lost_s = conditions.failure_interval_s / (1.0 - recovery.share)
        interval_s = run.checkpoint_interval_s
        if interval_s is None:
            interval_s = float(optimum_checkpoint_interval_s(pause_s, lost_s))
            if asynchronous:  # the next copy waits until this one is written
                interval_s = max(interval_s, moved_s)
        return cls(size, pause_s, moved_s, read_s, interval_s, asynchronous), recovery


def _phase(spec: Spec, phase: PhaseStretches, plan: Plan, step_of: StepOf, *, own: bool) -> RunPhase:
    """A phase under a layout, `own` if it was planned for the spec's training itself.

    A batch that the layout's replicas do not divide is lowered to one they do.
    """
    strategy = plan.strategy
    share = strategy.micro_batch_size * (strategy.dp or 1)
    sequences = spec.training.sample_tokens // spec.training.seq_length
    steps = seconds = peak_gib = 0.0
    batches: list[int] = []
    problem: str | None = None
    for stretch in phase.stretches:
        same = own and phase.seq_length == spec.training.seq_length
        same = same and stretch.global_batch == spec.training.global_batch_size.value
        batch = plan.micro_batches * share if same else stretch.global_batch // share * share
        if batch == 0:
            problem = Message("training_run.batch_below_replicas", batch=stretch.global_batch, least=share)
            break
        step = Step(plan.step_time_s, plan.peak_memory_gib) if same else step_of(plan, phase.seq_length, batch)
        peak_gib = max(peak_gib, step.peak_memory_gib)
        batches.append(batch)
        count = stretch.tokens / (batch * phase.seq_length * sequences)
        steps, seconds = steps + count, seconds + count * step.step_time_s
        problem = step.problem
        if problem is None and step.peak_memory_gib > plan.memory_limit_gib * (1.0 + MIB_TOLERANCE):
            problem = Message("training_run.needs_of_gib", needed=step.peak_memory_gib, limit=plan.memory_limit_gib)
        if problem is not None:
            break
    fits = problem is None
    return RunPhase(
        seq_length=phase.seq_length,
        batches=(batches[0], batches[-1]) if batches else (phase.stretches[0].global_batch,) * 2,
        tokens=phase.tokens,
        steps=steps if fits else None,
        step_time_s=seconds / steps if fits else None,
        days=seconds / DAY_S if fits else None,
        peak_memory_gib=peak_gib or None,
        problem=problem,
    )


def _with_totals(
    result: TrainingRun, run: RunSpec, save: _Saving, conditions: Conditions, recovery: Recovery, num_npus_held: int
) -> TrainingRun:
    training_s = sum(phase.days or 0.0 for phase in result.phases) * DAY_S
    changes_s = sum(phase.layout_change_s for phase in result.phases)
    steps = sum(phase.steps or 0.0 for phase in result.phases)
    spent = recovered_run_time(
        training_s,
        save.pause_s,
        save.interval_s,
        conditions.failure_interval_s,
        result.restart_s,
        recovered_share=recovery.share,
        recovery_s=recovery.recovery_s,
        recovery_loss_s=0.5 * training_s / steps,  # a failure falls into the middle of a step
        write_s=save.write_s if save.asynchronous else 0.0,
    )
    total_s = float(spent.total_s) + changes_s
    if total_s > ENDLESS_S:
        last = result.phases[-1].model_copy(update={"problem": Message("training_run.endless_run")})
        return result.model_copy(update={"phases": (*result.phases[:-1], last)})
    hours = total_s / HOUR_S * num_npus_held
    energy_kwh = None if run.npu_power_w is None else hours * run.npu_power_w / 1e3 * run.power_usage_effectiveness
    return result.model_copy(
        update={
            "days": total_s / DAY_S,
            "npu_hours": hours,
            "goodput": training_s / total_s,
            "training_days": training_s / DAY_S,
            "checkpoint_days": float(spent.checkpoint_s) / DAY_S,
            "lost_work_days": float(spent.lost_work_s) / DAY_S,
            "restart_days": float(spent.restart_s) / DAY_S,
            "layout_change_days": changes_s / DAY_S,
            "failures": float(spent.failures),
            "cost": None if run.price_per_npu_hour is None else hours * run.price_per_npu_hour,
            "energy_mwh": None if energy_kwh is None else energy_kwh / 1e3,
            "energy_cost": None if run.price_per_kwh is None or energy_kwh is None else energy_kwh * run.price_per_kwh,
        }
    )
