"""All launch arguments of a plan for one framework."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from autodeploy.exporters.arguments import LaunchArguments, ShellVariable
from autodeploy.exporters.default_arguments import add_numerics
from autodeploy.exporters.feature_arguments import add_feature, add_features
from autodeploy.exporters.layer_placement import placement
from autodeploy.exporters.memory_arguments import add_recompute, add_swap
from autodeploy.exporters.model_arguments import add_experts, add_model, add_training
from autodeploy.exporters.parallel_arguments import add_dispatch, add_parallel, expert_parallel_flag
from autodeploy.exporters.target_release import refuse_unlaunched, release_of_spec
from autodeploy.exporters.tuning_arguments import add_tuning
from autodeploy.messages import Message
from autodeploy.specs.spec import Spec
from autodeploy.stack.frameworks import UNRESTRICTED

if TYPE_CHECKING:
    from autodeploy.specs.planset import Plan, PlanSet
    from autodeploy.specs.strategy import Strategy


@dataclass(frozen=True, slots=True)
class Launch:
    """A plan as a launch: its spec, arguments and the values of the script's own variables."""

    spec: Spec
    plan: Plan
    arguments: LaunchArguments
    variables: dict[str, int]
    ranks: int


def note_doubts(arguments: LaunchArguments, spec: Spec) -> None:
    """Says what the file that the spec was read from leaves in doubt."""
    for doubt in spec.to_check:
        arguments.note(Message("command.doubt", text=doubt))


def note_other_target(arguments: LaunchArguments, spec: Spec) -> None:
    """Says it where a plan was searched for another framework: what this one lacks changes its time and memory."""
    searched = spec.search.target
    if searched not in {UNRESTRICTED, arguments.target}:
        arguments.note(
            Message("exporters.plan_was_searched_for_without_what_lacks_it", searched=searched, target=arguments.target)
        )


def launch_of(plan_set: PlanSet, plan: Plan, target: str) -> Launch:
    """Every argument block of the plan, in the order a reader expects."""
    return launch_of_spec(Spec.model_validate(plan_set.search.spec), plan, target)


def launch_of_spec(spec: Spec, plan: Plan, target: str) -> Launch:
    """As `launch_of`, for a plan that stands in no PlanSet."""
    arguments = LaunchArguments(release_of_spec(spec, target))
    note_doubts(arguments, spec)
    note_other_target(arguments, spec)
    return filled_launch(arguments, spec, plan)


def filled_launch(arguments: LaunchArguments, spec: Spec, plan: Plan) -> Launch:
    """The launch with every argument of the plan, in the order a reader expects."""
    refuse_unlaunched(spec, arguments.release)
    strategy, placed = plan.strategy, placement(plan, spec.model.num_hidden_layers)
    layers = add_parallel(arguments, spec, plan, placed)
    add_model(arguments, spec, layers)
    mindspeed = arguments.release.has("mindspeed")
    flag_ep = expert_parallel_flag(strategy) if mindspeed else strategy.ep
    add_experts(arguments, spec, flag_ep)
    add_dispatch(arguments, spec, strategy)
    add_training(arguments, spec)
    add_tuning(arguments, spec)
    if strategy.distributed_optimizer:
        arguments.add("OPTIMIZE_ARGS", "--use-distributed-optimizer")
    if strategy.fsdp:
        add_feature(arguments, spec, strategy, "fsdp")
    add_recompute(arguments, strategy, placed, spec.model)
    add_swap(arguments, strategy, placed, spec.model)
    add_features(arguments, spec, strategy)
    add_numerics(arguments, spec)
    variables = {"TP": strategy.tp, "PP": strategy.pp, "CP": strategy.cp}
    variables |= {"EP": flag_ep} if spec.model.is_moe else {}
    batch = spec.training.global_batch_size.value
    batch = plan.micro_batches * strategy.micro_batch_size * strategy.dp if strategy.dp is not None else batch
    variables |= {"MBS": strategy.micro_batch_size, "GBS": batch, "SEQ_LENGTH": spec.training.seq_length}
    if spec.model.norm_layout == "sandwich" and arguments.knows("--post-norm"):
        arguments.add("GPT_ARGS", "--post-norm")
    elif spec.model.norm_layout == "sandwich":
        arguments.unsaid.append("norm_layout")
        arguments.note(Message("exporters.model_s_code_has_to_say", what="norm_layout sandwich"))
    return Launch(spec, plan, arguments, variables, _ranks(strategy, plan))


def plain_launch(plan_set: PlanSet, plan: Plan, target: str) -> Launch:
    """The plan as a launch of a framework that is configured by a file: no flags, notes to be added."""
    spec = Spec.model_validate(plan_set.search.spec)
    arguments = LaunchArguments(release_of_spec(spec, target))
    note_doubts(arguments, spec)
    note_other_target(arguments, spec)
    refuse_unlaunched(spec, arguments.release)
    return Launch(spec, plan, arguments, {}, _ranks(plan.strategy, plan))


def _ranks(strategy: Strategy, plan: Plan) -> int:
    if strategy.dp is None:
        return plan.num_npus_used
    return strategy.tp * strategy.pp * strategy.cp * strategy.dp


__all__ = ["Launch", "ShellVariable", "filled_launch", "launch_of", "launch_of_spec", "plain_launch"]
