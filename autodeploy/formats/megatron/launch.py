"""All launch arguments of a plan for one framework."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from autodeploy.formats.common.flag_effects import refuse_unlaunched, release_of_spec
from autodeploy.formats.megatron.arguments import LaunchArguments, ShellVariable, add_feature, add_features, shell_value
from autodeploy.formats.megatron.layers import placement
from autodeploy.formats.megatron.memory import BLOCK as RECOMPUTE
from autodeploy.formats.megatron.memory import add_recompute, add_swap
from autodeploy.formats.megatron.model import add_experts, add_model, add_training
from autodeploy.formats.megatron.strategy import (
    CHUNK_LAYERS,
    PLACEMENT_FLAGS,
    add_dispatch,
    add_parallel,
    expert_parallel_flag,
)
from autodeploy.formats.megatron.tuning import add_tuning
from autodeploy.messages import Message
from autodeploy.specs.spec import spec_of
from autodeploy.specs.training_run import RunSpec
from autodeploy.stack.checkpoints import checkpoint_format, checkpoint_formats
from autodeploy.stack.frameworks import FRAMEWORKS, UNRESTRICTED

if TYPE_CHECKING:
    from collections.abc import Mapping

    from autodeploy.specs.planset import Plan, PlanSet
    from autodeploy.specs.spec import Spec
    from autodeploy.specs.strategy import Strategy


# Defaults that a plan rests on, written out.
OPERATORS, OUTPUT, OPTIMIZE = "OPERATOR_ARGS", "OUTPUT_ARGS", "OPTIMIZE_ARGS"
# With these the gradients are kept in another number format.
OWN_GRADIENTS = ("--o2-gradient", "--quant-grads", "--grad-reduce-in-bf16")
NO_MASK = "--no-create-attention-mask-in-dataloader"


def add_numerics(arguments: LaunchArguments, spec: Spec) -> None:
    """Computation of a layer and its mask, and the format in which gradients add up."""
    local = arguments.release.has("mindspeed") and spec.training.precision != "fp8"
    arguments.add("GPT_ARGS", "--transformer-impl", "local" if local else "transformer_engine")
    if arguments.release.has("mindspeed"):
        arguments.add(OPERATORS, "--no-masked-softmax-fusion")
        arguments.add(OPERATORS, "--attention-softmax-in-fp32")
    formats = {} if spec.software is None else spec.software.overrides
    summed = spec.training.precision in {"bf16", "fp8"} or formats.get("formats.gradients") == "fp32"
    if summed and not any(map(arguments.has, OWN_GRADIENTS)):
        arguments.add(OPTIMIZE, "--accumulate-allreduce-grads-in-fp32")
    if arguments.knows(NO_MASK) and not arguments.release.has("mindspeed-llm"):
        arguments.add("DATA_ARGS", NO_MASK)


def add_checkpoints(arguments: LaunchArguments, spec: Spec) -> None:
    """The format of checkpoints, and whether they are written beside training."""
    run = spec.run or RunSpec()
    sharded = arguments.has("--use-megatron-fsdp") or arguments.has("--use-custom-fsdp")
    named = {each.name for each in checkpoint_formats(arguments.release)}
    custom = arguments.has("--use-custom-fsdp") and "torch_dist" in named
    asked = "torch_dist" if custom else run.checkpoint_format
    beside = run.checkpoint == "asynchronous"
    copied = arguments.has("--enable-high-availability") and (run.checkpoint_format is not None or beside)
    saved = checkpoint_format(arguments.release, asked, asynchronous=beside, sharded=sharded, copied=copied)
    assert saved is not None  # of every release that a script is written for
    if saved.sharded:
        arguments.add(OUTPUT, "--ckpt-format", saved.name)  # Megatron-LM takes no other
        if beside:
            key = "stack.no_asynchronous_format"
            arguments.note(Message(key, release=arguments.release.title, format=saved.name))
        return
    if arguments.knows("--ckpt-format"):
        arguments.add(OUTPUT, "--ckpt-format", saved.name)
    elif saved.name == "torch_dist" and (beside or asked):
        arguments.add(OUTPUT, "--use-dist-ckpt")
    if beside:
        arguments.add(OUTPUT, "--async-save")
        if not arguments.release.has("mindspeed"):
            arguments.add(OUTPUT, "--use-persistent-ckpt-worker")  # without it the newer one saves in between


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
        arguments.note(Message("exporters.other_target", searched=searched, target=arguments.target))


def launch_of(plan_set: PlanSet, plan: Plan, target: str) -> Launch:
    """Every argument block of the plan, in the order a reader expects."""
    return launch_of_spec(spec_of(plan_set.search), plan, target)


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
        arguments.leaves_to_code("norm_layout sandwich")
    return Launch(spec, plan, arguments, variables, _ranks(strategy, plan))


def plain_launch(plan_set: PlanSet, plan: Plan, target: str) -> Launch:
    """The plan as a launch of a framework that is configured by a file: no flags, notes to be added."""
    spec = spec_of(plan_set.search)
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


# What an author of a launch script adds to it and takes out of it, to turn one plan of a spec into another.
# Ways to say which layers are where: they exclude each other, and the number of layers counts those that do nothing.
PLACEMENT = frozenset(PLACEMENT_FLAGS) | {
    CHUNK_LAYERS,
    "--num-virtual-stages-per-pipeline-rank",
}


class FlagChanges(NamedTuple):
    """Flags with their values to be written, and names of flags to be taken out."""

    add: tuple[str, ...] = ()
    drop: tuple[str, ...] = ()


def flag_changes(spec: Spec, before: Plan, after: Plan, written: Mapping[str, str] | None = None) -> FlagChanges:
    """By which flags two plans of the spec differ; none where its framework takes no flags.

    written : flags of the author's script with their values: what it has already is not added, and what it does not
        have is not taken out. None: the script is as an export of `before` would be.
    """
    target = spec.search.target
    if FRAMEWORKS[target].configured_by != "flags":
        return FlagChanges()
    first, second = (launch_of_spec(spec, plan, target) for plan in (before, after))
    old, new = _flags(first), _flags(second)
    # Each of these flags says what the others mean (layers of a chunk or of a stage): where one differs, all are told.
    together = _of_block(second, RECOMPUTE) if _of_block(first, RECOMPUTE) != _of_block(second, RECOMPUTE) else {}
    add = {flag: values for flag, values in new.items() if old.get(flag) != values or flag in together}
    drop = [flag for flag in old if flag not in new]
    if written is not None:
        if PLACEMENT & {*add, *drop}:
            add |= {flag: values for flag, values in new.items() if flag in PLACEMENT}
            drop += [flag for flag in written if flag in PLACEMENT and flag not in new and flag not in drop]
        add = {flag: values for flag, values in add.items() if written.get(flag) != " ".join(values)}
        drop = [flag for flag in drop if flag in written]
    return FlagChanges(add=tuple(" ".join([flag, *values]) for flag, values in add.items()), drop=tuple(drop))


def _flags(launch: Launch) -> dict[str, tuple[str, ...]]:
    """Every flag with its values, those of the script's own variables written out."""
    return {flag: values for block in launch.arguments.blocks for flag, values in _of_block(launch, block).items()}


def _of_block(launch: Launch, block: str) -> dict[str, tuple[str, ...]]:
    return {
        flag: tuple(
            str(launch.variables[value.name])
            if isinstance(value, ShellVariable) and value.name in launch.variables
            else shell_value(value)
            for value in values
        )
        for flag, values in launch.arguments.blocks.get(block, [])
    }
