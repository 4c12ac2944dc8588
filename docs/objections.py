"""What an experienced engineer would object to in a plan, by rules over what the plan says of itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from autodeploy.reports.plan_report import in_words, unproven
from autodeploy.reports.wording import chance, percent, seconds
from hardware_profiles import load_profile

if TYPE_CHECKING:
    from collections.abc import Callable

    from autodeploy.specs.planset import Plan
    from autodeploy.specs.spec import Spec

LONG_PIPELINE: Final = 16
FEW_MICRO_BATCHES: Final = 4  # a stage
LARGE_BUBBLE: Final = 0.08
FULL_CARD: Final = 0.95
SURE_TO_FIT: Final = 0.9
FEW_EXPERTS: Final = 2  # a rank
MANY_EXPERTS: Final = 64  # a rank


def objections(plan: Plan, spec: Spec) -> tuple[str, ...]:
    """What speaks against a plan, in the order of `RULES`; empty where nothing does."""
    texts = (rule(plan, spec) for rule in RULES.values())
    return tuple(text for text in texts if text)


def _tensor_groups(plan: Plan, spec: Spec) -> str:
    node = load_profile(spec.cluster.profile).ranks_per_node
    if plan.strategy.tp <= node:
        return ""
    return f"TP{plan.strategy.tp} crosses nodes of {node} ranks: every layer waits for the network four times."


def _expert_groups(plan: Plan, spec: Spec) -> str:
    profile, strategy = load_profile(spec.cluster.profile), plan.strategy
    group = strategy.ep * (strategy.etp or 1)
    inside, name = profile.ranks_per_node, "node"
    if profile.supernode_nodes is not None:
        inside, name = inside * profile.supernode_nodes, "supernode"
    if strategy.ep == 1 or group <= inside:
        return ""
    size = strategy.ep if group == strategy.ep else f"{strategy.ep} x ETP{strategy.etp}"
    waits = _share(plan.breakdown.exposed_ep_s, plan)
    return (
        f"EP{size} spreads a layer's experts over {-(-group // inside)} {name}s of {inside} ranks: {waits} of the step "
        "waits for their exchange, if the links keep their rate."
    )


def _experts_of_a_rank(plan: Plan, spec: Spec) -> str:
    experts, ep = spec.model.n_routed_experts, plan.strategy.ep
    if experts is None:
        return ""
    each = experts / ep
    if each >= MANY_EXPERTS:
        return f"{each:.0f} experts on every rank: each of them sees few tokens, and their weights fill the card."
    if each > FEW_EXPERTS:
        return ""
    busiest = "" if plan.experts is None else f" (taken to have {plan.experts.time_factor:.2f} times the mean)"
    return (
        f"{each:.0f} expert{'s' if each > 1 else ''} a rank: a hot expert is a hot rank{busiest}, and all wait for it."
    )


def _stages(plan: Plan, spec: Spec) -> str:
    pp = plan.strategy.pp
    if pp <= LONG_PIPELINE:
        return ""
    layers = spec.model.num_hidden_layers / pp
    return (
        f"{pp} stages of {layers:.1f} layers on average: one slow stage, or one layer too many, sets the pace of all."
    )


def _micro_batches(plan: Plan, spec: Spec) -> str:
    pp, bubble_s = plan.strategy.pp, plan.breakdown.pipeline_bubble_s
    few = plan.micro_batches < FEW_MICRO_BATCHES * pp
    if pp == 1 or not (few or bubble_s > LARGE_BUBBLE * plan.step_time_s):
        return ""
    return f"{plan.micro_batches} micro batches for {pp} stages: {_share(bubble_s, plan)} of the step is bubble."


def _recomputation(plan: Plan, spec: Spec) -> str:
    recompute = plan.strategy.recompute
    if recompute.granularity != "full":
        return ""
    if recompute.per_stage is not None:
        layers = sum(stage.get("full", 0) for stage in recompute.per_stage)
        if layers < spec.model.num_hidden_layers:
            return ""
    elif recompute.num_layers is not None:
        return ""
    return f"Every layer runs forward twice: {_share(plan.breakdown.recompute_s, plan)} of the step."


def _host(plan: Plan, spec: Spec) -> str:
    if not plan.strategy.swap_optimizer:
        return ""
    return (
        f"Optimizer states live on the host: each step moves them over a link that others share, and waits "
        f"{seconds(plan.breakdown.exposed_swap_s)} s for it by the plan."
    )


def _memory(plan: Plan, spec: Spec) -> str:
    share = plan.peak_memory_gib / plan.memory_limit_gib
    unsure = plan.p_fits is not None and plan.p_fits < SURE_TO_FIT
    if share <= FULL_CARD and not unsure:
        return ""
    text = f"{plan.peak_memory_gib:.1f} of {plan.memory_limit_gib:.1f} GiB"
    if plan.memory_interval is not None:
        text += f" (80 % interval {plan.memory_interval.low_gib:.1f} to {plan.memory_interval.high_gib:.1f})"
    if plan.p_fits is not None:
        text += f", which fits with {chance(plan.p_fits)}"
    return f"{text}: predicted memory is off by several percent."


def _mfu(plan: Plan, spec: Spec) -> str:
    best = plan.best_measured_mfu
    if best is None or plan.mfu <= best.highest:
        return ""
    runs = f"the best of {best.runs} published runs" if best.runs > 1 else "the only published run"
    return f"{percent(plan.mfu)} % MFU: {runs} of the class reached {percent(best.highest)} %, {best.record}."


def _no_run(plan: Plan, spec: Spec) -> str:
    names = [in_words(each, "en") for each in unproven(plan)]
    return f"No published run on these chips has {', '.join(names)}." if names else ""


def _share(part_s: float, plan: Plan) -> str:
    return f"{percent(part_s / plan.step_time_s)} %"


RULES: Final[dict[str, Callable[[Plan, Spec], str]]] = {
    "tensor parallel groups across nodes": _tensor_groups,
    "experts exchanged beyond a node, or beyond a supernode where there are supernodes": _expert_groups,
    f"at most {FEW_EXPERTS} experts a rank, or {MANY_EXPERTS} and more": _experts_of_a_rank,
    f"more than {LONG_PIPELINE} stages": _stages,
    f"fewer than {FEW_MICRO_BATCHES} micro batches a stage, or more than {percent(LARGE_BUBBLE, 0)} % of bubble": (
        _micro_batches
    ),
    "every layer recomputed": _recomputation,
    "optimizer states on the host": _host,
    f"memory above {percent(FULL_CARD, 0)} % of what there is, or less than {percent(SURE_TO_FIT, 0)} % sure to fit": (
        _memory
    ),
    "an MFU that no measured run of the class reached": _mfu,
    "degrees or features that no published run has": _no_run,
}
"""What is objected to, in words, and the sentence about a plan of which it is true."""
