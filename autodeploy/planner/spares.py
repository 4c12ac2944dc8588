"""The best plans of a spec with some nodes fewer, and what becomes of the checkpoint of the recommended plan there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from autodeploy.errors import SpecError
from autodeploy.evaluation.inputs.build_context import healthy_npus, profile_of
from autodeploy.messages import Message
from autodeploy.specs.spares import SparePlan, SpareRow
from autodeploy.training_run.checkpoint_change import Launched, checkpoint_change

if TYPE_CHECKING:
    from collections.abc import Callable

    from autodeploy.deadline import Deadline
    from autodeploy.specs.planset import Plan, PlanSet
    from autodeploy.specs.spec import Spec
    from autodeploy.specs.strategy import Strategy

SEARCH: Final[dict[str, Any]] = {"effort": "fast", "top_k": 1, "spare_nodes": ()}
LAYOUT: Final = ("tp", "pp", "vpp", "cp", "ep", "etp", "micro_batch_size", "schedule")
"""Axes of today's plan that decide what a rank holds, and how it computes it."""


def spare_rows(spec: Spec, today: Plan, plan: Callable[[Spec], PlanSet], stop: Deadline) -> tuple[SpareRow, ...]:
    """One row for each number of nodes in `search.spare_nodes` that leaves cards to plan on.

    Parameters
    ----------
    today : the recommended plan on all cards. plan : searches a spec of fewer cards; its plans may leave cards idle,
        as a batch seldom divides by what is left.
    """
    profile = profile_of(spec.cluster)
    cards = healthy_npus(profile, spec.cluster)
    rows: list[SpareRow] = []
    fewer: Plan | None = None  # the best on fewer cards still, which more cards can run as well
    for nodes in sorted(set(spec.search.spare_nodes), reverse=True):
        left = cards - nodes * profile.npus_per_node
        if left < 1 or stop():
            continue
        smaller = _with_cards(spec, left)
        best, reason = _planned(smaller, plan)
        if fewer is not None and (best is None or fewer.step_time_s < best.step_time_s):
            best, reason = fewer, None
        fewer = best
        kept = _with_layout(smaller, today.strategy, left, profile.devices_per_npu)
        same, _ = (None, None) if kept is None else _planned(kept, plan)
        rows.append(
            SpareRow(
                nodes=nodes,
                num_npus=left,
                best=None if best is None else _spare(spec, today, best, profile.vendor),
                same_layout=None if same is None else _spare(spec, today, same, profile.vendor),
                reason=reason,
            )
        )
    return tuple(reversed(rows))


def _with_cards(spec: Spec, cards: int) -> Spec:
    """The same work on so many cards at most; a run of weeks is not worked out for them."""
    changes: dict[str, Any] = {"num_npus": cards, "blocks": None, "spare_npus": 0, "use": "at_most"}
    cluster = spec.cluster.model_copy(update=changes)
    search = {**SEARCH, "objective": "tokens_per_s_per_npu" if spec.search.objective == "peak_memory" else "step_time"}
    return spec.model_copy(
        update={
            "cluster": cluster,
            "search": spec.search.model_copy(update=search),
            "training": spec.training.model_copy(update={"tokens": None}),
            "run": None,
            "strategy": None,
        }
    )


def _with_layout(spec: Spec, strategy: Strategy, cards: int, dies_per_card: int) -> Spec | None:
    """Today's degrees and schedule on as many replicas as fit on the cards; None where not even one does.

    The batch is lowered to what these replicas divide, in whole groups of micro batches where stages are interleaved.
    """
    ranks = strategy.tp * strategy.pp * strategy.cp
    experts = strategy.ep * (strategy.etp or 1)
    for dp in range(cards * dies_per_card // ranks, 0, -1):
        if dp * ranks % dies_per_card or dp * strategy.tp * strategy.cp % experts:
            continue
        unit = dp * strategy.micro_batch_size * (strategy.pp if strategy.vpp > 1 else 1)
        batch = spec.training.global_batch_size.value // unit * unit
        if not batch:
            continue
        sizes = spec.training.global_batch_size.model_copy(update={"value": batch, "tolerance_pct": 0.0})
        pinned = {axis: value for axis in LAYOUT if (value := getattr(strategy, axis)) is not None}
        search = spec.search
        fields: dict[str, Any] = {"fix": {**search.fix, **pinned}}
        for name in ("allow", "forbid"):
            kept = {axis: values for axis, values in getattr(search, name).items() if axis not in pinned}
            fields[name] = {axis: values for axis, values in kept.items() if axis != "dp"}
        return spec.model_copy(
            update={
                "cluster": spec.cluster.model_copy(update={"num_npus": dp * ranks // dies_per_card, "use": "exactly"}),
                "training": spec.training.model_copy(update={"global_batch_size": sizes}),
                "search": search.model_copy(update=fields),
            }
        )
    return None


def _planned(spec: Spec, plan: Callable[[Spec], PlanSet]) -> tuple[Plan | None, str | None]:
    """The recommended plan, or why there is none."""
    try:
        result = plan(spec)
    except SpecError as error:
        return None, error.errors[0].message
    return (result.plans[0], None) if result.plans else (None, Message("common.no_plan_fits"))


def _spare(spec: Spec, today: Plan, plan: Plan, vendor: str) -> SparePlan:
    """A plan with fewer nodes; checkpoints are saved and read as the spec's run says."""
    strategy = plan.strategy
    return SparePlan(
        plan_id=plan.plan_id,
        strategy=strategy,
        num_npus=plan.num_npus_used,
        global_batch_size=plan.micro_batches * strategy.micro_batch_size * (strategy.dp or 1),
        step_time_s=plan.step_time_s,
        tokens_per_s=plan.tokens_per_s,
        throughput_pct=100.0 * plan.tokens_per_s / today.tokens_per_s,
        peak_memory_gib=plan.peak_memory_gib,
        p_fits=plan.p_fits,
        checkpoint=checkpoint_change(Launched(spec, today, vendor), Launched(spec, plan, vendor)),
    )
