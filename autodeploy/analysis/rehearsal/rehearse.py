"""rehearse(plan_set, plan, nodes): the rehearsal that is most like the plan, is launched by its target and fits."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, fields
from itertools import groupby
from typing import TYPE_CHECKING, Final

from autodeploy.analysis.rehearsal.doubts import doubts_of
from autodeploy.analysis.rehearsal.shape import (
    Shape,
    degrees_of,
    loses_schedule,
    most_dropped,
    rehearsal_of,
    says_every_chunk,
)
from autodeploy.costs.inputs.build_context import profile_of
from autodeploy.costs.layers.layer_cost import PhaseCost
from autodeploy.costs.layers.unit_costs import unit_costs
from autodeploy.costs.stages.step_classes import step_classes
from autodeploy.kit.errors import SpecError, UnsupportedError
from autodeploy.messages import Message, joined
from autodeploy.specs.commissioning import LAUNCH
from autodeploy.specs.planset import plan_set_of_one
from autodeploy.specs.spec import spec_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autodeploy.analysis.rehearsal.shape import Degrees
    from autodeploy.costs.inputs.context import Context
    from autodeploy.search.planner import Planner
    from autodeploy.space.candidates import Candidates
    from autodeploy.specs.planset import Plan, PlanSet
    from autodeploy.specs.spec import Spec


# What one layer of each kind takes for one micro batch, by part.
PARTS = tuple(field.name for field in fields(PhaseCost))


def unit_times(context: Context, candidate: Candidates) -> dict[str, dict[str, float]]:
    """Seconds of a layer, forward and backward together, by kind of layer and by part.

    context, candidate : `autodeploy.search.planner.lowered` of a plan.
    """
    classes = step_classes(unit_costs(context, candidate), candidate, context)
    return {
        step.name: {
            part: float(getattr(step.cost.forward, part)[0] + getattr(step.cost.backward, part)[0]) for part in PARTS
        }
        for step in classes.layers
    }


LEAST_NODES: Final = 1, 8
SHARE: Final = 8
"""A commissioning begins on one node, goes on eight, and ends on this part of the plan's nodes."""
DIGITS: Final = 4
LEAST_P_FITS: Final = 0.9
"""A rehearsal that runs out of memory rehearses nothing; where its plan fits with less, as much as that."""


@dataclass(frozen=True, slots=True)
class Rehearsal:
    """A rehearsal and its prediction, beside that of its plan.

    plan_set : of the rehearsal alone, as exporters and records take it. layer_s : kind of layer -> seconds of a layer
    and micro batch by part, in the plan and here. changed : as in `Shape`.
    """

    nodes: int
    of: Plan
    plan_set: PlanSet
    spec: Spec
    changed: dict[str, tuple[int, int]]
    layer_s: dict[str, tuple[dict[str, float], dict[str, float]]] = field(default_factory=dict)

    @property
    def plan(self) -> Plan:
        """The rehearsal's strategy with its predicted time and memory."""
        return self.plan_set.plans[0]


def rehearse(plan_set: PlanSet, plan: Plan, nodes: str, planner: Planner) -> Rehearsal:
    """The rehearsal of a plan on fewer nodes.

    Of the shapes that its target launches and that fit, one that keeps the schedule and has the largest expert group,
    as exchanges are what a small launch says least of; of those the one after which least is in doubt (`doubts`).

    nodes : "1node", "2nodes" and so on.

    Raises SpecError where there is no such number of nodes, or the plan has no more cards than that; UnsupportedError
    where no shape on these cards can be launched, or none fits; with the rule or the memory that says so.
    """
    count = nodes_of(nodes)
    spec = spec_of(plan_set.search)
    if plan.strategy.rl is not None:
        raise UnsupportedError(Message("rehearsal.no_post_training"), path="/rehearse")
    if not says_every_chunk(plan):
        raise UnsupportedError(Message("rehearsal.unknown_chunk_layers", stages=plan.strategy.pp), path="/rehearse")
    profile = profile_of(spec.cluster)
    npus = count * profile.npus_per_node
    if npus >= plan.num_npus_used:
        raise SpecError(
            Message("rehearsal.as_large_as_plan", nodes=count, npus=npus, cards=plan.num_npus_used),
            path="/rehearse",
            hint=Message("rehearsal.use_fewer_nodes"),
        )
    ranks = npus * profile.devices_per_npu
    options = degrees_of(plan, spec.model, ranks)
    if not options:
        raise UnsupportedError(
            Message(
                "rehearsal.degrees_do_not_divide",
                least=plan.strategy.tp * plan.strategy.cp,
                ranks=ranks,
                nodes=count,
            ),
            path="/rehearse",
            hint=Message("rehearsal.rehearse_on_more_nodes"),
        )
    shape, fitting = _nearest_that_fits(spec, plan, npus, ranks, options, planner)
    alone = plan_set_of_one(plan_set.search, shape.spec, fitting, "rehearsal")
    rehearsed_s, plan_s = (unit_times(*planner.lowered(*each)) for each in ((shape.spec, fitting), (spec, plan)))
    both = {kind: (plan_s[kind], rehearsed_s[kind]) for kind in plan_s if kind in rehearsed_s}
    return Rehearsal(count, plan, alone, shape.spec, shape.changed, both)


def nodes_of(launch: str) -> int:
    """8 of "8nodes".

    Raises SpecError where it is no number of nodes.
    """
    if re.fullmatch(LAUNCH, launch) is None:
        raise SpecError(
            Message("common.is_not_of_form", value=repr(launch[:40]), form="1node, 8nodes"), path="/rehearse"
        )
    return int(launch.partition("node")[0])


def launches_before(plan_set: PlanSet, plan: Plan) -> tuple[str, ...]:
    """The launches before a plan's own, as `rehearse` takes them: a node, eight, and an eighth of its nodes.

    Fewer where the plan has no more nodes than that; none of post-training.
    """
    if plan.strategy.rl is not None:
        return ()
    full = plan.num_npus_used / profile_of(spec_of(plan_set.search).cluster).npus_per_node
    sizes = sorted({*LEAST_NODES, round(full / SHARE)})
    return tuple(f"{nodes}node{'s' if nodes > 1 else ''}" for nodes in sizes if 0 < nodes < full)


def _nearest_that_fits(
    spec: Spec, plan: Plan, npus: int, ranks: int, options: Sequence[Degrees], planner: Planner
) -> tuple[Shape, Plan]:
    """Of the shapes with the largest expert group that are launched and fit, with as few layers dropped as need be, the
    one that leaves least in doubt; of equal ones the first of the options.
    """
    enough = min(LEAST_P_FITS, plan.p_fits if plan.p_fits is not None else LEAST_P_FITS)
    refused, least = "", 0.0
    allowed = []
    for degrees in options:
        try:
            shape = rehearsal_of(spec, plan, npus, ranks, degrees)
            rules = planner.launch_rules(shape.spec, features=frozenset(shape.strategy.features) or None)
        except SpecError as error:
            refused = refused or str(error)
            continue
        if rules.broken:
            refused = refused or joined((rule.text for rule in rules.broken), "semicolon")
        else:
            allowed.append((degrees, rules.memory_choices))
    for _, alike in groupby(allowed, key=lambda each: (loses_schedule(plan.strategy, each[0].pp), each[0].ep)):
        shapes = []
        for degrees, choices in alike:
            for dropped in range(most_dropped(plan) + 1):
                fewer = type(degrees)(degrees.pp, degrees.ep, dropped)
                try:
                    shape = rehearsal_of(spec, plan, npus, ranks, fewer, choices)
                except SpecError:  # no layer with experts is left
                    break
                smaller = {"strategy": shape.strategy, "micro_batches": shape.micro_batches, "num_npus_used": npus}
                fitting = planner.reestimate(shape.spec, plan.model_copy(update=smaller))
                if fitting.fits and (fitting.p_fits or 0.0) >= enough:
                    shapes.append((shape, fitting))
                    break
                least = max(least, fitting.p_fits or 0.0)
        if len(shapes) > 1:
            doubts = doubts_of(spec, plan, planner)
            return min(shapes, key=lambda each: round(doubts.left_by(each[0].spec, each[1], planner), DIGITS))
        if shapes:
            return shapes[0]
    if allowed:
        raise UnsupportedError(
            Message("rehearsal.exceeds_memory", npus=npus, chance=100 * least),
            path="/rehearse",
            hint=Message("rehearsal.rehearse_on_more_nodes"),
        )
    raise UnsupportedError(
        Message("rehearsal.not_launchable", npus=npus, reason=refused),
        path="/rehearse",
        hint=Message("rehearsal.rehearse_on_more_nodes"),
    )
