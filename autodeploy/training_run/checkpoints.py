"""The checkpoints of a run: the format that its launch saves, and bytes that saving and loading one move."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autodeploy.specs.lora import adapter_params
from autodeploy.specs.run import RunSpec
from autodeploy.stack.checkpoints import CheckpointFormat, checkpoint_format, refuse_beside_copies
from cost_models.goodput import WEIGHT_BYTES, checkpoint_bytes, checkpoint_read_bytes
from cost_models.hbm import FULL, GIB, OptimizerFormat

if TYPE_CHECKING:
    from autodeploy.specs.planset import Plan
    from autodeploy.specs.spec import Spec


def format_of(spec: Spec, vendor: str | None, *, sharded: bool = False) -> CheckpointFormat | None:
    """The format that a launch of the spec's target saves; None where nothing is known of it.

    Raises
    ------
    SpecError
        where the release doesn't save what `run` asks for.
    """
    release, run = spec.search.release(vendor), spec.run or RunSpec()
    if release is None:
        return None
    beside = run.checkpoint == "asynchronous"
    return checkpoint_format(release, run.checkpoint_format, asynchronous=beside, sharded=sharded)


def refuse_unsaved(spec: Spec, vendor: str | None) -> None:
    """Raises where the launch target doesn't save the checkpoints that the spec's run asks for.

    Raises
    ------
    SpecError
        with the field and what the release saves.
    """
    if spec.run is None:
        return
    saved = format_of(spec, vendor)
    given = () if spec.strategy is None else spec.strategy.features
    if spec.search.features.get("high_availability") == "on" or "high_availability" in given:
        refuse_beside_copies(saved, is_format_asked=spec.run.checkpoint_format is not None)


def saved_bytes(spec: Spec, plan: Plan) -> float:
    """Bytes of one checkpoint of a plan: `cost_models.goodput.checkpoint_bytes`.

    Beside adapters, the frozen model's weights are saved too, without states. Source: MindSpeed-LLM
    training/checkpointing.py, which leaves them out only under --lora-ckpt-filter.
    """
    optimizer = OptimizerFormat.of(frozenset(plan.strategy.features))
    params, lora = spec.model.total_params(include_mtp=True), spec.training.lora
    if lora is None:
        of_adam = spec.model.embedding_params + spec.model.head_params if spec.training.optimizer == "muon" else 0
        return float(checkpoint_bytes(params, optimizer=optimizer) + (FULL.moments - optimizer.moments) * of_adam)
    trained = adapter_params(spec.model, lora.rank, lora.target_modules)
    return float(WEIGHT_BYTES * params + checkpoint_bytes(trained, optimizer=optimizer))


def read_bytes(spec: Spec, plan: Plan) -> float:
    """Bytes that all ranks of a plan read to continue: each its weights, and the optimizer's states once."""
    strategy = plan.strategy
    ranks = strategy.tp * strategy.cp * (strategy.dp or 1)
    weights_on_ranks = GIB * ranks * sum(stage.memory_gib.weights for stage in plan.stages)
    weights = WEIGHT_BYTES * spec.model.total_params(include_mtp=True)
    return float(checkpoint_read_bytes(saved_bytes(spec, plan), weights, weights_on_ranks))
