"""A plan as the keys of a MindFormers configuration: parallel, recompute, swap, model, run.

Data set, optimizer and callbacks are the user's: the keys are merged into a configuration that has them, whose other
keys of a model would stay beside them. A chunk has
`layers // (pp * vpp) + offset` layers; recompute lists count layers of each stage (MindFormers' `LayerSetting`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from autodeploy.errors import UnsupportedError
from autodeploy.exporters.artefact import Artefact, provenance_line
from autodeploy.exporters.launch_arguments import Launch, plain_launch
from autodeploy.exporters.launch_script import mark
from autodeploy.exporters.layer_placement import Placement, placement
from autodeploy.exporters.memory_arguments import by_stage
from autodeploy.exporters.mindformers_model import model_config
from autodeploy.exporters.release_check import release_lines
from autodeploy.exporters.settings_table import platform_keys
from autodeploy.messages import Message
from autodeploy.stack.schedules import variant_of
from autodeploy.yaml_text import yaml_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from autodeploy.specs.planset import Plan, PlanSet
    from autodeploy.specs.strategy import Strategy

CP_ALGORITHMS = {"ring": "colossalai_cp", "ulysses": "ulysses_cp", "hybrid": "hybrid_cp"}
SWAPPED_OPERATORS = {"attention": r".*\.flash_attention"}


def export(plan_set: PlanSet, plan: Plan) -> Artefact:
    """The YAML; what MindFormers can't say is in its comments."""
    launch = plain_launch(plan_set, plan, "mindformers")
    document = configuration(launch)
    unknown = sorted(set(_paths(document)) - launch.arguments.release.keys.keys() - platform_keys().keys())
    if unknown:
        raise UnsupportedError(Message("common.unknown_key", name=unknown[0]), path="/to")
    comments = [provenance_line(plan_set, plan), *(line.removeprefix("# ") for line in mark(launch))]
    comments += release_lines(launch.arguments.release)
    comments += [f"For {launch.ranks} ranks; merge it into a configuration with data set, optimizer and callbacks, as"]
    comments += ["configs/general/llm_pretrain_dense_template.yaml, without its pretrained_model_dir."]
    if plan.save_steps is not None:
        comments += [f"The run is planned with a checkpoint every {plan.save_steps} steps: save_checkpoint_steps."]
    comments += [f"Note: {note}" for note in launch.arguments.notes]
    text = yaml_text(document, comments)
    return Artefact(text, "application/yaml", f"mindformers_{plan.plan_id}.yaml", tuple(launch.arguments.notes))


def configuration(launch: Launch) -> dict[str, Any]:
    """The keys, in MindFormers' own order.

    Raises
    ------
    UnsupportedError
        for a schedule that MindFormers does not have.
    """
    spec, strategy, plan = launch.spec, launch.plan.strategy, launch.plan
    placed = placement(plan, spec.model.num_hidden_layers)
    document: dict[str, Any] = {
        "use_legacy": False,
        "run_mode": "train",
        "use_parallel": True,
        "runner_config": {"batch_size": strategy.micro_batch_size, "gradient_accumulation_steps": 1},
        "parallel_config": _parallel_config(launch),
        "micro_batch_interleave_num": 1,
        "parallel": _parallel(launch),
        "recompute_config": _recompute(launch, placed),
    }
    if strategy.pp == 1:
        document["runner_config"]["gradient_accumulation_steps"] = plan.micro_batches
    if swap := _swap(launch):
        document["swap_config"] = swap
    document["context"] = {"max_device_memory": f"{int(plan.memory_limit_gib)}GB"}
    document["model"] = {"model_config": model_config(launch) | _placement(placed, spec.model.num_hidden_layers)}
    _note_rest(launch)
    return document


def _parallel_config(launch: Launch) -> dict[str, Any]:
    strategy = launch.plan.strategy
    config: dict[str, Any] = {
        "data_parallel": strategy.replicas(launch.ranks),
        "model_parallel": strategy.tp,
        "pipeline_stage": strategy.pp,
        "context_parallel": strategy.cp,
        "micro_batch_num": launch.plan.micro_batches if strategy.pp > 1 else 1,
        "use_seq_parallel": strategy.tp > 1 and strategy.sequence_parallel is not False,
    }
    if strategy.cp > 1:
        config["context_parallel_algo"] = CP_ALGORITHMS[strategy.cp_algo or "ring"]
        if strategy.cp_algo == "hybrid" and strategy.ulysses_degree is not None:
            config["ulysses_degree_in_cp"] = strategy.ulysses_degree
    if launch.spec.model.is_moe:
        config["expert_parallel"] = strategy.ep
        if strategy.etp not in {None, 1}:
            launch.arguments.note(
                Message("exporters.has_no_flag_in", name=f"etp: {strategy.etp}", framework="MindFormers")
            )
    return config


def _parallel(launch: Launch) -> dict[str, Any]:
    strategy = launch.plan.strategy
    if variant_of(strategy.schedule, launch.arguments.release) is None:
        raise UnsupportedError(
            Message("exporters.cannot_launch_axis", value=strategy.schedule, target="MindFormers", axis="schedule"),
            path="/strategy/schedule",
            hint="search.target: mindformers",
        )
    config: dict[str, Any] = {
        "enable_alltoall": strategy.moe_dispatcher != "allgather",
        "enable_parallel_optimizer": strategy.distributed_optimizer,
    }
    if strategy.vpp > 1:
        config["pipeline_config"] = {"pipeline_interleave": True, "pipeline_scheduler": "1f1b"}
    return config


def _placement(placed: Placement, layers: int) -> dict[str, Any]:
    turns, stages = len(placed.chunks), len(placed.chunks[0])
    average = layers // (turns * stages)
    offsets = [[count - average for count in row] for row in placed.chunks]
    flat: Any = offsets[0] if turns == 1 else offsets
    config: dict[str, Any] = {"offset": 0 if not any(map(any, offsets)) else flat}
    return config | ({"pp_interleave_num": turns} if turns > 1 else {})


def _recompute(launch: Launch, placed: Placement) -> dict[str, Any]:
    """Whole layers and activation functions have lists; other modules have no key of their own."""
    counts = _counts(launch.plan.strategy, placed)
    for name in counts:
        if name not in {"full", "activation"}:
            launch.arguments.note(
                Message("exporters.has_no_flag_in", name=f"recompute: {name}", framework="MindFormers")
            )
    return {
        "recompute": _layers_list(counts.get("full"), placed),
        "select_recompute": _layers_list(counts.get("activation"), placed),
        "parallel_optimizer_comm_recompute": False,
        "mp_comm_recompute": "full" in counts,
    }


def _counts(strategy: Strategy, placed: Placement) -> dict[str, list[int]]:
    """Choice -> layers of each stage."""
    recompute, stages = strategy.recompute, range(strategy.pp)
    if recompute.granularity == "none":
        return {}
    if recompute.per_stage is not None:
        return {name: counts for name, counts in by_stage(recompute.per_stage).items() if any(counts)}
    most = [placed.layers_of_stage(stage) for stage in stages]
    given = recompute.num_layers_per_stage or [
        most[stage] if recompute.num_layers is None else recompute.num_layers for stage in stages
    ]
    layers = [min(count, top) for count, top in zip(given, most, strict=True)]
    names = ("full",) if recompute.granularity == "full" else recompute.modules
    return dict.fromkeys(names, layers) if any(layers) else {}


def _layers_list(counts: list[int] | None, placed: Placement) -> bool | list[int] | list[list[int]]:
    """`false`, `true` for all layers, or layers of each stage; of virtual stages the first ones take them first."""
    if not counts:
        return False
    if all(count == placed.layers_of_stage(stage) for stage, count in enumerate(counts)):
        return True
    left, rows = list(counts), []
    for chunk in placed.chunks:
        row = [min(count, layers) for count, layers in zip(left, chunk, strict=True)]
        left = [count - taken for count, taken in zip(left, row, strict=True)]
        rows.append(row)
    return rows[0] if len(rows) == 1 else rows


def _swap(launch: Launch) -> dict[str, Any]:
    strategy = launch.plan.strategy
    names = dict.fromkeys([*strategy.swap, *by_stage(strategy.swap_per_stage or ())])
    operators = [
        {"op_name": SWAPPED_OPERATORS[name], "backward_prefetch": 1, "layers": True}
        for name in names
        if name in SWAPPED_OPERATORS
    ]
    for name in names:
        if name not in SWAPPED_OPERATORS:
            launch.arguments.note(Message("exporters.has_no_flag_in", name=f"swap: {name}", framework="MindFormers"))
    return {"swap": True, "default_prefetch": 1, "op_swap": operators} if operators else {}


def _note_rest(launch: Launch) -> None:
    strategy = launch.plan.strategy
    for flag in ("swap_optimizer", "reuse_fp32_param", "fsdp"):
        if getattr(strategy, flag):
            launch.arguments.note(Message("exporters.has_no_flag_in", name=flag, framework="MindFormers"))
    if strategy.moe_dispatcher == "alltoall_seq":
        launch.arguments.note(
            Message("exporters.has_no_dispatcher", framework="MindFormers", name=strategy.moe_dispatcher)
        )


def _paths(document: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    for key, value in document.items():
        if isinstance(value, dict):
            yield from _paths(value, f"{prefix}{key}.")
        else:
            yield prefix + key
