"""The published effects, predicted: one row a figure, a miss with the flip of the input that explains it."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import TYPE_CHECKING, get_args

import numpy as np

from autodeploy.analysis.ablation.cases import CASES, read_cases
from autodeploy.analysis.ablation.comparison_sides import Change, Run, Runs
from autodeploy.costs.layers.layer_cost import layer_times
from autodeploy.costs.layers.operator_time import operator_time
from autodeploy.costs.layers.unit_costs import layer_inputs, sharding_of
from autodeploy.costs.workload.flops import mfu
from autodeploy.costs.workload.layers import layer_kinds, layer_table
from autodeploy.kit.errors import SpecError
from autodeploy.kit.version import ENGINE_VERSION
from autodeploy.messages import Message
from autodeploy.search.ranking.operator_report import lane_report
from autodeploy.specs.planset import StageMemory
from autodeploy.specs.published_effects import Outcome, PublishedReport, PublishedRow, System, SystemVerdict, Verdict
from cost_models.hbm import GIB
from cost_models.schedule import operation_order, simulate

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from autodeploy.search.planner import Predicted
    from autodeploy.specs.published_effects import Case, Effect


# Figures that a plan does not carry, read off the formulas that made it.
# Operators that the articles' three rewrites touch: attention, matrix products, and the permute and sort class.
REWRITTEN_KINDS = frozenset({"attention", "gemm", "grouped_gemm", "movement"})


def operator_seconds(predicted: Predicted) -> dict[str, float]:
    """Seconds of one micro batch through all layers, forward and backward, by kind of operator; experts balanced."""
    context, candidate = predicted.context, predicted.candidate
    shard = sharding_of(candidate, context)
    seconds: dict[str, float] = {}
    for kind, count in layer_kinds(context.model):
        for op in layer_table(context.model, shard, context.operators, kind).operators:
            time = operator_time(op, context.machine, 1.0)
            once = float(np.asarray(time.forward_s).flat[0] + np.asarray(time.backward_s).flat[0])
            seconds[op.kind] = seconds.get(op.kind, 0.0) + count * once
    return seconds


def rewritten_share(predicted: Predicted) -> float:
    """Share of the layers' computation in operators that RECT-FA, AscendP-MM and VectorSort rewrite."""
    seconds = operator_seconds(predicted)
    return sum(s for kind, s in seconds.items() if kind in REWRITTEN_KINDS) / sum(seconds.values())


def host_event_s(predicted: Predicted) -> float:
    """Host seconds for the forward pass of one layer: issuing its operators, and every round trip of its waits.

    Whether the device waits for them or not. Source of the reading: a host-bound event of the articles is what the host
    does between two points at which it is ahead of the device, once a layer with experts; it synchronises there more
    than once (`host_operators.synchronisations`).
    """
    report = lane_report(predicted.candidate, predicted.context, 0)
    model = predicted.context.model
    layers = sum(model.is_moe_layer(layer) for layer in range(model.num_hidden_layers))
    waits = report.synchronisations / layers if layers else 0.0
    return report.forward_issue_s + waits * float(np.asarray(predicted.context.machine.host.sync_s))


def dispatch_s(predicted: Predicted) -> float:
    """Seconds of one dispatch of a layer with experts, on the busiest rank."""
    priced = list(islice(layer_inputs(predicted.context, predicted.candidate), len(predicted.context.layer_kinds)))
    return max(
        float(layer_times(layer).exchanged.once_s("dispatch", backward=False).flat[0])
        for layer, _ in priced
        if any(each.kind == "dispatch" for each in layer.table.exchanges)
    )


def ideal_bubble(predicted: Predicted) -> float:
    """Idle share of the pipeline when all chunks take the same time and sends take none, from the schedule's graph.

    For 1F1B and its interleaved form that is (P - 1) / (P - 1 + M V): arXiv 2104.04473, section 2.2.
    """
    strategy, micro_batches = predicted.plan.strategy, predicted.plan.micro_batches
    shape = (1, strategy.pp, strategy.vpp)
    order = operation_order(strategy.schedule, strategy.pp, strategy.vpp, micro_batches)
    nothing_hidden = np.zeros((*shape, strategy.vpp))
    timeline = simulate(order, np.full(shape, 1.0), np.full(shape, 2.0), nothing_hidden)
    return float(timeline.idle_s[0, 0] / timeline.makespan_s[0])


# What is read off a published comparison.
STATE_KINDS = ("weights", "gradients", "optimizer")
ACTIVATIONS = ("activations",)
MODEL_KINDS = (*STATE_KINDS, *ACTIVATIONS)


Figure = Callable[[Run], float]
Metric = Callable[[Run, Run], float]


def _of_variant(figure: Figure) -> Metric:
    return lambda _, variant: figure(variant)


def _of_baseline(figure: Figure) -> Metric:
    return lambda baseline, _: figure(baseline)


def _more_pct(figure: Figure) -> Metric:
    """By how much the variant's figure is more than the baseline's."""
    return lambda baseline, variant: 100.0 * (figure(variant) / figure(baseline) - 1.0)


def _less_pct(figure: Figure) -> Metric:
    """Share of the baseline's figure that the variant does without."""
    return lambda baseline, variant: 100.0 * (1.0 - figure(variant) / figure(baseline))


def _ratio(figure: Figure) -> Metric:
    """Variant over baseline."""
    return lambda baseline, variant: figure(variant) / figure(baseline)


def _saved(figure: Figure) -> Metric:
    """Baseline less variant."""
    return lambda baseline, variant: figure(baseline) - figure(variant)


def _speed(run: Run) -> float:
    """Tokens per second and card."""
    return run.plan.tokens_per_s_per_npu


def _waiting_share_pct(run: Run) -> float:
    """Share of the step that is not useful computation: waiting, or work done twice."""
    return 100.0 * (1.0 - run.plan.breakdown.compute_s / run.plan.step_time_s)


def _host_event_ms(run: Run) -> float:
    return 1e3 * host_event_s(run.predicted)


def _mfu_pct(run: Run) -> float:
    return 100.0 * run.plan.mfu


def _mfu_full_attention_pct(run: Run) -> float:
    """MFU with every query counted against the whole sequence: the convention that the Pangu articles' figures fit."""
    context, plan = run.predicted.context, run.plan
    per_rank = plan.tokens_per_s / context.world
    return 100.0 * mfu(context.model, context.seq_length, per_rank, context.machine.peak_flops, causal=False)


def _million_tokens_per_s(run: Run) -> float:
    return run.plan.tokens_per_s / 1e6


def _ep_hidden_added_points(baseline: Run, variant: Run) -> float:
    """Points of the step's expert communication that the variant hides beyond the baseline."""
    return 100.0 * (variant.plan.hidden.ep_share_step - baseline.plan.hidden.ep_share_step)


def _operator_gain_pct(baseline: Run, variant: Run) -> float:
    """Time of one micro batch's operators through all layers, baseline over variant; experts balanced."""
    before, after = (sum(operator_seconds(run.predicted).values()) for run in (baseline, variant))
    return 100.0 * (before / after - 1.0)


def _state_saved_gb(baseline: Run, variant: Run) -> float:
    """Decimal gigabytes of weights, gradients and optimizer states saved on the worst stage of a card."""
    return _saved(_worst_gib(STATE_KINDS))(baseline, variant) * GIB / 1e9


def _mean_gib(kinds: tuple[str, ...]) -> Figure:
    """GiB of these kinds on the mean device."""

    def mean_gib(run: Run) -> float:
        stages = run.plan.stages
        return sum(float(getattr(stage.memory_gib, kind)) for stage in stages for kind in kinds) / len(stages)

    return mean_gib


def _worst_gib(kinds: tuple[str, ...]) -> Figure:
    """GiB of these kinds on the stage that holds most of them."""
    assert set(kinds) <= set(StageMemory.model_fields)
    return lambda run: max(sum(float(getattr(stage.memory_gib, kind)) for kind in kinds) for stage in run.plan.stages)


METRICS: dict[str, Metric] = {
    "throughput_gain_pct": _more_pct(_speed),
    "mfu_gain_pct": _more_pct(lambda run: run.plan.mfu),
    "step_time_added_pct": _more_pct(lambda run: run.plan.step_time_s),
    # Expert communication hidden inside the steady one-forward-one-backward phase; over the whole step, warm-up and
    # cool-down included.
    "ep_hidden_steady_pct": _of_variant(lambda run: 100.0 * run.plan.hidden.ep_share_steady),
    "ep_hidden_step_pct": _of_variant(lambda run: 100.0 * run.plan.hidden.ep_share_step),
    "ep_hidden_added_points": _ep_hidden_added_points,
    # One dispatch of a layer's tokens, baseline over variant; whether anything hides it or not.
    "exchange_speedup": lambda baseline, variant: dispatch_s(baseline.predicted) / dispatch_s(variant.predicted),
    "waiting_share_pct": _of_baseline(_waiting_share_pct),
    # Share of the step in which the device waits for the host.
    "free_share_pct": _of_variant(lambda run: 100.0 * run.plan.breakdown.host_bound_s / run.plan.step_time_s),
    # Change of the host's work for one layer and micro batch.
    "host_event_change_pct": _more_pct(lambda run: host_event_s(run.predicted)),
    "host_event_ms": _of_variant(_host_event_ms),
    "baseline_host_event_ms": _of_baseline(_host_event_ms),
    "bubble_share_pct": _of_variant(lambda run: 100.0 * run.plan.breakdown.pipeline_bubble_s / run.plan.step_time_s),
    # Idle share of the pipeline if all chunks were equal.
    "ideal_bubble_pct": _of_variant(lambda run: 100.0 * ideal_bubble(run.predicted)),
    # Share of computation in attention, matrix products and the permute and sort class.
    "operator_share_pct": _of_variant(lambda run: 100.0 * rewritten_share(run.predicted)),
    "operator_gain_pct": _operator_gain_pct,
    "micro_batches": _of_variant(lambda run: float(run.plan.micro_batches)),
    "mfu_pct": _of_variant(_mfu_pct),
    "baseline_mfu_pct": _of_baseline(_mfu_pct),
    "mfu_full_attention_pct": _of_variant(_mfu_full_attention_pct),
    "baseline_mfu_full_attention_pct": _of_baseline(_mfu_full_attention_pct),
    "baseline_million_tokens_per_s": _of_baseline(_million_tokens_per_s),
    "throughput_ratio": _ratio(_speed),
    "million_tokens_per_s": _of_variant(_million_tokens_per_s),
    "thousand_tokens_per_s": _of_variant(lambda run: run.plan.tokens_per_s / 1e3),
    # Weights, gradients and optimizer states of the mean device; with activations, of the worst stage.
    "state_memory_ratio": _ratio(_mean_gib(STATE_KINDS)),
    "model_memory_ratio": _ratio(_worst_gib(MODEL_KINDS)),
    # Activations of the worst stage.
    "activations_saved_pct": _less_pct(_worst_gib(ACTIVATIONS)),
    "activations_saved_gib": _saved(_worst_gib(ACTIVATIONS)),
    "state_saved_gb": _state_saved_gb,
    "peak_saved_gib": _saved(lambda run: run.plan.peak_memory_gib),
}


# Figures and systems.
def ablate_published(
    folder: Path = CASES, *, ends: bool = True, tell: Callable[[str], None] | None = None
) -> PublishedReport:
    """Every figure of every case of a folder, and what they make of each system.

    ends : also predict each figure at both ends of each assumed input.
    tell : called with each case's title before it is run.

    Raises SpecError if a case is not valid, or names a metric that there is none of.
    """
    runs, rows = Runs(), []
    for case in read_cases(folder):
        if tell is not None:
            tell(case.title)
        rows += [_row(case, effect, runs, ends=ends) for effect in case.effects]
    return PublishedReport(rows=tuple(rows), systems=tuple(_systems(rows)), engine_version=ENGINE_VERSION)


def _systems(rows: list[PublishedRow]) -> Iterator[SystemVerdict]:
    """Each system's rows together, in the order of the vocabulary."""
    for system in get_args(System):
        own = [row for row in rows if row.system == system]
        counted = [row for row in own if row.verdict != "not_countable"]
        met = sum(row.verdict == "met" for row in counted)
        verdict: Verdict = "not_countable" if not counted else "met" if met == len(counted) else "missed"
        confirmed = sum(row.has_confirmed_cause for row in counted)
        if own:
            yield SystemVerdict(system=system, verdict=verdict, met=met, counted=len(counted), confirmed=confirmed)


def predicted_of(case: Case, effect: Effect, runs: Runs, change: Change | None = None) -> float:
    """The figure of an effect as it is predicted, with one input changed."""
    return METRICS[effect.metric](*runs.both(case, effect, change))


def _row(case: Case, effect: Effect, runs: Runs, *, ends: bool) -> PublishedRow:
    for name in (effect.metric, *effect.beside):
        if name not in METRICS:
            raise SpecError(
                Message("common.place", place=case.case, message=Message("field_fault.is_invalid", value=repr(name))),
                path="/effects",
                hint=", ".join(METRICS),
            )
    baseline, variant = runs.both(case, effect)
    predicted = METRICS[effect.metric](baseline, variant)
    verdict: Verdict = "not_countable"
    if effect.published is not None and effect.band is not None:
        verdict = "met" if effect.band.holds(predicted, effect.published) else "missed"
    cause = effect.cause if verdict == "missed" else None
    return PublishedRow(
        case=case.case,
        system=effect.system,
        feature=effect.feature,
        says=effect.says,
        predicted=predicted,
        unit=effect.unit,
        published=effect.published,
        band="" if effect.band is None else str(effect.band),
        verdict=verdict,
        step_time_s=variant.plan.step_time_s,
        peak_memory_gib=variant.plan.peak_memory_gib,
        fits=variant.plan.fits,
        beside={name: METRICS[name](baseline, variant) for name in effect.beside},
        ends=tuple(_ends(case, effect, runs)) if ends else (),
        flip=None if cause is None else _outcome(case, effect, runs, Change(cause.input, cause.value, cause.factor)),
        why="" if cause is None else cause.why,
    )


def _ends(case: Case, effect: Effect, runs: Runs) -> Iterator[Outcome]:
    """A figure at both ends of each assumed input that its two runs depend on."""
    usual = runs.both(case, effect)
    for path, each in case.inputs.items():
        for value in (each.low, each.high) if each.is_assumed else ():
            change = Change(path, value, each.factor)
            try:
                again = runs.both(case, effect, change)
                same = all(one is other for one, other in zip(again, usual, strict=True))
            except SpecError:
                same = False
            if not same:
                yield _outcome(case, effect, runs, change)


def _outcome(case: Case, effect: Effect, runs: Runs, change: Change) -> Outcome:
    value = f"x {change.value:g}" if change.factor else change.value
    try:
        predicted = predicted_of(case, effect, runs, change)
    except SpecError:
        return Outcome(input=change.path, value=value, predicted=None, met=False)
    met = effect.published is not None and effect.band is not None and effect.band.holds(predicted, effect.published)
    return Outcome(input=change.path, value=value, predicted=predicted, met=met)
