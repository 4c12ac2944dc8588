"""The checkpoints of a run: the format that its launch saves, and bytes that saving and loading one move."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from autodeploy.costs.training_run.priors import conditions
from autodeploy.kit.errors import SpecError
from autodeploy.messages import Message
from autodeploy.specs.plan_details import CheckpointChange
from autodeploy.specs.training_run import RunSpec
from autodeploy.specs.tuning import trained_and_frozen
from autodeploy.stack.checkpoints import (
    CheckpointFormat,
    checkpoint_format,
    checkpoint_formats,
    conversion_commands,
)
from cost_models.goodput import WEIGHT_BYTES, checkpoint_bytes, checkpoint_read_bytes
from cost_models.hbm import FULL, GIB, OptimizerFormat
from cost_models.optimizers import OPTIMIZERS
from cost_models.schedule import schedule

if TYPE_CHECKING:
    from autodeploy.specs.planset import Plan
    from autodeploy.specs.spec import Spec


def format_of(
    spec: Spec, vendor: str | None, *, sharded: bool = False, copied: bool = False
) -> CheckpointFormat | None:
    """The format that a launch of the spec's target saves; None where nothing is known of it.

    sharded, copied : as of `checkpoint_format`.

    Raises SpecError where the release doesn't save what `run` asks for.
    """
    release, run = spec.search.release(vendor), spec.run or RunSpec()
    if release is None:
        return None
    beside = run.checkpoint == "asynchronous"
    return checkpoint_format(release, run.checkpoint_format, asynchronous=beside, sharded=sharded, copied=copied)


def refuse_unsaved(spec: Spec, vendor: str | None) -> None:
    """Raises where the launch target doesn't save the checkpoints that the spec's run asks for.

    Raises SpecError with the field and what the release saves.
    """
    if spec.run is not None:
        given = () if spec.strategy is None else spec.strategy.features
        asked = spec.search.features.get("high_availability") == "on"
        format_of(spec, vendor, copied=asked or "high_availability" in given)


def saved_bytes(spec: Spec, plan: Plan) -> float:
    """Bytes of one checkpoint of a plan: `cost_models.goodput.checkpoint_bytes`.

    Beside adapters, the frozen model's weights are saved too, without states. Source: MindSpeed-LLM
    training/checkpointing.py, which leaves them out only under --lora-ckpt-filter.
    """
    optimizer = OptimizerFormat.of(frozenset(plan.strategy.features))
    trained, frozen = trained_and_frozen(spec.model, spec.training)
    ends = spec.model.embedding_params + spec.model.head_params
    of_adam = ends * (OPTIMIZERS[spec.training.optimizer].matrix_s is not None)
    states = checkpoint_bytes(trained, optimizer=optimizer) + (FULL.moments - optimizer.moments) * of_adam
    return float(WEIGHT_BYTES * frozen + states)


def read_bytes(spec: Spec, plan: Plan) -> float:
    """Bytes that all ranks of a plan read to continue: each its weights, and the optimizer's states once."""
    strategy = plan.strategy
    ranks = strategy.tp * strategy.cp * (strategy.dp or 1)
    weights_on_ranks = GIB * ranks * sum(stage.memory_gib.weights for stage in plan.stages)
    weights = WEIGHT_BYTES * spec.model.total_params(include_mtp=True)
    return float(checkpoint_read_bytes(saved_bytes(spec, plan), weights, weights_on_ranks))


# What a checkpoint of one plan is to another.
@dataclass(frozen=True, slots=True)
class Launched:
    """A plan, the spec that it is for and the vendor of its chips; None where that is not known."""

    spec: Spec
    plan: Plan
    vendor: str | None = None


def checkpoint_change(before: Launched, after: Launched) -> CheckpointChange:
    """Change of a checkpoint of `before` where `after` continues.

    Notes
    -----
    What is loaded into which layout is data (`stack/checkpoints.yaml`). States of optimizers in other formats are not
    read into each other. Loading reads what `training_run.checkpoints.read_bytes` says, without the states where these
    are left behind; a conversion reads and writes the weights once for each of its commands before.
    """
    how, reason, name, commands = _judged(before, after)
    ids = {"before": before.plan.plan_id, "after": after.plan.plan_id, "how": how, "reason": reason, "format": name}
    if how in {"impossible", "unknown"}:
        return CheckpointChange.model_validate(ids)
    moved = read_bytes(after.spec, after.plan)
    weights = WEIGHT_BYTES * after.spec.model.total_params(include_mtp=True)
    if how.startswith("weights"):
        moved += weights - saved_bytes(after.spec, after.plan) + 2.0 * weights * len(commands)
    rate = conditions(after.spec.run or RunSpec(), after.plan.num_npus_used).storage_bytes_per_s
    return CheckpointChange.model_validate(
        ids | {"moved_gb": moved / 1e9, "seconds": moved / rate, "commands": commands}
    )


def _judged(before: Launched, after: Launched) -> tuple[str, str, str, tuple[str, ...]]:
    """Kind of the change, its reason, the format, and the commands of a conversion."""
    if _shape(before.spec) != _shape(after.spec):
        return "impossible", Message("training_run.models_differ"), "", ()
    release = after.spec.search.release(after.vendor)
    old = before.spec.search.release(before.vendor)
    fsdp = before.plan.strategy.fsdp, after.plan.strategy.fsdp
    try:
        saved = format_of(before.spec, before.vendor, sharded=fsdp[0])
    except SpecError as error:
        return "impossible", error.errors[0].message, "", ()
    if release is None or old is None or saved is None:
        return "unknown", Message("training_run.not_known"), "", ()
    if release.framework != old.framework:
        return ("unknown", Message("training_run.not_known"), saved.name, ())
    if fsdp != (saved.sharded, saved.sharded):
        return "unknown", Message("training_run.not_known"), saved.name, ()
    strategy = after.plan.strategy
    commands = conversion_commands(release, tp=strategy.tp, pp=strategy.pp, ep=strategy.ep, etp=strategy.etp or 1)
    loadable = next((each for each in checkpoint_formats(release) if each.name == saved.name), None)
    if loadable is None:
        return (
            "impossible",
            Message("training_run.loads_no_checkpoints", release=release.title, format=saved.name),
            saved.name,
            (),
        )
    same, alike = _layout(before.plan) == _layout(after.plan), _optimizer(before.plan) == _optimizer(after.plan)
    if not same and loadable.weights != "any":
        if not commands:
            return "impossible", Message("training_run.same_layout"), saved.name, ()
        return ("weights_converted", Message("training_run.same_layout"), saved.name, commands)
    if not alike:
        return ("weights_resharded", Message("training_run.state_formats_differ"), saved.name, ())
    if same:
        return "loaded", Message("training_run.replicas_may_differ"), saved.name, ()
    if loadable.optimizer != "any":
        reason = Message("training_run.states_bound_to_layout")
        return "weights_resharded", reason, saved.name, ()
    return "resharded", Message("training_run.any_layout"), saved.name, ()


def _shape(spec: Spec) -> dict[str, Any]:
    return spec.model.model_dump(exclude={"name"})


def _layout(plan: Plan) -> tuple[Any, ...]:
    """Contents of ranks, whatever the number of replicas."""
    strategy = plan.strategy
    layers = tuple(stage.layers for stage in plan.stages)
    return (
        strategy.tp,
        strategy.pp,
        strategy.vpp,
        strategy.ep,
        strategy.etp,
        schedule(strategy.schedule).folded,
        layers,
    )


def _optimizer(plan: Plan) -> tuple[OptimizerFormat, bool]:
    """The format of the states, but not of gradients and weights, which no checkpoint has."""
    state = OptimizerFormat.of(frozenset(plan.strategy.features))
    return OptimizerFormat(master=state.master, moments=state.moments), plan.strategy.distributed_optimizer
