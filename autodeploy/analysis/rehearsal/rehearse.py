"""rehearse(plan_set, plan, nodes): the rehearsal that is most like the plan, is launched by its target and fits."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Final, Protocol

from autodeploy.analysis.rehearsal.shape import (
    Shape,
    degrees_of,
    most_dropped,
    needs_ranks,
    rehearsal_of,
    says_every_chunk,
)
from autodeploy.costs.inputs.build_context import profile_of
from autodeploy.costs.layers.layer_cost import PhaseCost
from autodeploy.costs.layers.unit_costs import unit_costs
from autodeploy.costs.stages.step_classes import step_classes
from autodeploy.kit.errors import SpecError, UnsupportedError
from autodeploy.messages import Message, joined
from autodeploy.specs.planset import plan_set_of_one
from autodeploy.specs.spec import spec_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autodeploy.analysis.rehearsal.shape import Degrees
    from autodeploy.costs.inputs.context import Context
    from autodeploy.search.planner import LaunchRules
    from autodeploy.space.candidates import Candidates
    from autodeploy.specs.planset import Plan, PlanSet
    from autodeploy.specs.spec import Spec


# What one layer of each kind takes for one micro batch, by part.
PARTS = tuple(field.name for field in fields(PhaseCost))


def unit_times(context: Context, candidate: Candidates) -> dict[str, dict[str, float]]:
    """Seconds of a layer, forward and backward together, by kind of layer and by part.

    Parameters
    ----------
    context, candidate : `autodeploy.search.planner.lowered` of a plan.
    """
    classes = step_classes(unit_costs(context, candidate), candidate, context)
    return {
        step.name: {
            part: float(getattr(step.cost.forward, part)[0] + getattr(step.cost.backward, part)[0]) for part in PARTS
        }
        for step in classes.layers
    }


NODES: Final = {"1node": 1, "2nodes": 2, "4nodes": 4}
LEAST_P_FITS: Final = 0.9
"""A rehearsal that runs out of memory rehearses nothing; where its plan fits with less, as much as that."""


class RehearsalPlanner(Protocol):
    """The functions of `autodeploy.search.planner` that are called here."""

    def reestimate(self, spec: Spec, plan: Plan) -> Plan: ...

    def launch_rules(self, spec: Spec, *, features: frozenset[str] | None = None) -> LaunchRules: ...

    def lowered(self, spec: Spec, plan: Plan) -> tuple[Context, Candidates]: ...


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


def rehearse(plan_set: PlanSet, plan: Plan, nodes: str, planner: RehearsalPlanner) -> Rehearsal:
    """The rehearsal of a plan on 1, 2 or 4 nodes.

    Of the shapes that its target launches and that fit, the one that drops the fewest layers of a chunk, then the one
    with the fewest stages, then the one with the largest expert group.

    Parameters
    ----------
    nodes : "1node", "2nodes" or "4nodes".

    Raises
    ------
    SpecError
        where there is no such number of nodes, or the plan has no more cards than that.
    UnsupportedError
        where no shape on these cards can be launched, or none fits; with the rule or the memory that says so.
    """
    if nodes not in NODES:
        raise SpecError(Message("rehearsal.unknown_size", name=repr(nodes[:40])), path="/rehearse")
    spec = spec_of(plan_set.search)
    if plan.strategy.rl is not None:
        raise UnsupportedError(
            Message("rehearsal.no_post_training"),
            path="/rehearse",
        )
    if not says_every_chunk(plan):
        raise UnsupportedError(Message("rehearsal.unknown_chunk_layers", stages=plan.strategy.pp), path="/rehearse")
    profile = profile_of(spec.cluster)
    npus = NODES[nodes] * profile.npus_per_node
    if npus >= plan.num_npus_used:
        raise SpecError(
            Message("rehearsal.as_large_as_plan", nodes=NODES[nodes], npus=npus, cards=plan.num_npus_used),
            path="/rehearse",
            hint=Message("rehearsal.use_fewer_nodes"),
        )
    ranks = npus * profile.devices_per_npu
    options = degrees_of(plan, spec.model, ranks)
    if not options:
        raise UnsupportedError(
            Message(
                "rehearsal.degrees_do_not_divide",
                least=needs_ranks(plan.strategy),
                ranks=ranks,
                nodes=NODES[nodes],
            ),
            path="/rehearse",
            hint=Message("rehearsal.rehearse_on_more_nodes"),
        )
    shape, fitting = _first_that_fits(spec, plan, npus, ranks, options, planner)
    alone = plan_set_of_one(plan_set.search, shape.spec, fitting, "rehearsal")
    rehearsed_s, plan_s = (unit_times(*planner.lowered(*each)) for each in ((shape.spec, fitting), (spec, plan)))
    both = {kind: (plan_s[kind], rehearsed_s[kind]) for kind in plan_s if kind in rehearsed_s}
    return Rehearsal(NODES[nodes], plan, alone, shape.spec, shape.changed, both)


def smaller_than(plan_set: PlanSet, plan: Plan) -> tuple[str, ...]:
    """The numbers of nodes that have fewer cards than the plan, as `rehearse` takes them; none after post-training."""
    if plan.strategy.rl is not None:
        return ()
    npus = profile_of(spec_of(plan_set.search).cluster).npus_per_node
    return tuple(name for name, nodes in NODES.items() if nodes * npus < plan.num_npus_used)


def _first_that_fits(
    spec: Spec, plan: Plan, npus: int, ranks: int, options: Sequence[Degrees], planner: RehearsalPlanner
) -> tuple[Shape, Plan]:
    """The first shape that is launched and fits, by layers dropped, then in the order of the options."""
    enough = min(LEAST_P_FITS, plan.p_fits if plan.p_fits is not None else LEAST_P_FITS)
    refused, least = "", 0.0
    allowed = []
    for degrees in options:
        try:
            shape = rehearsal_of(spec, plan, npus, ranks, degrees)
            broken = planner.launch_rules(shape.spec, features=frozenset(shape.strategy.features) or None).broken
        except SpecError as error:
            refused = refused or str(error)
            continue
        if broken:
            refused = refused or joined((rule.text for rule in broken), "semicolon")
        else:
            allowed.append(degrees)
    for dropped in range(most_dropped(plan) + 1):
        for degrees in allowed:
            shape = rehearsal_of(spec, plan, npus, ranks, type(degrees)(degrees.pp, degrees.ep, dropped))
            smaller = {"strategy": shape.strategy, "micro_batches": shape.micro_batches, "num_npus_used": npus}
            fitting = planner.reestimate(shape.spec, plan.model_copy(update=smaller))
            if fitting.fits and (fitting.p_fits or 0.0) >= enough:
                return shape, fitting
            least = max(least, fitting.p_fits or 0.0)
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
