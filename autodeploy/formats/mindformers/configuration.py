"""Training configurations of MindFormers (YAML): parallel, recompute, swap and model keys.

Names of both generations are read: those of the mcore models and the older ones beside them
(`mindformers/parallel_core/transformer_config_utils.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from autodeploy.formats.common.export_comments import plan_id_of, take_marks
from autodeploy.formats.common.flag_effects import key_effect
from autodeploy.formats.common.import_result import UNNAMED, Imported
from autodeploy.formats.common.other_trainings import DPO, refused
from autodeploy.formats.common.settings_table import platform_keys
from autodeploy.formats.common.value_readers import KeyReader, pointer_of
from autodeploy.formats.megatron.launch import Launch, plain_launch
from autodeploy.formats.megatron.launch_script import mark, release_lines
from autodeploy.formats.megatron.layers import Placement, placement
from autodeploy.formats.megatron.memory import by_stage
from autodeploy.formats.mindformers.model import model_config, read_model
from autodeploy.formats.mindformers.strategy import read_strategy
from autodeploy.kit.errors import SpecError, UnsupportedError
from autodeploy.kit.yaml_text import yaml_text
from autodeploy.messages import Message
from autodeploy.specs.artefact import Artefact, provenance_line
from autodeploy.specs.diagnostics import NO_EFFECT
from autodeploy.stack.schedules import variant_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from autodeploy.specs.planset import Plan, PlanSet
    from autodeploy.specs.strategy import Strategy


REASONS = {
    **dict.fromkeys(("optimizer", "lr_schedule", "runner_wrapper", "seed", "processor", "metric", "infer"), NO_EFFECT),
    **dict.fromkeys(("train_dataset", "train_dataset_task", "eval_dataset", "eval_dataset_task"), NO_EFFECT),
    **dict.fromkeys(("callbacks", "eval_callbacks", "output_dir", "load_checkpoint", "load_ckpt_format"), NO_EFFECT),
    **dict.fromkeys(("auto_trans_ckpt", "resume_training", "only_save_strategy", "save_ckpt_format"), NO_EFFECT),
    **dict.fromkeys(("src_strategy_path_or_dir", "trainer", "run_mode", "use_parallel", "remote_save_url"), NO_EFFECT),
    **dict.fromkeys(("profile", "profile_start_step", "profile_stop_step", "init_start_profile"), NO_EFFECT),
    **dict.fromkeys(("profile_communication", "profile_memory", "auto_tune", "filepath_prefix", "context"), NO_EFFECT),
    "parallel.dataset_strategy": Message("importers.follows_from", what="tp x pp x cp x dp"),
}


def is_mindformers(document: Mapping[str, Any]) -> bool:
    """Whether the document is a configuration of MindFormers."""
    return isinstance(document.get("parallel_config"), Mapping) or (
        isinstance(document.get("model"), Mapping) and isinstance(document["model"].get("model_config"), Mapping)
    )


def import_mindformers(
    document: Mapping[str, Any], text: str = "", name: str | None = None, otherwise: str = UNNAMED
) -> Imported:
    """The spec that a MindFormers configuration trains.

    Parameters
    ----------
    document : the configuration, aliases resolved.
    text : its source, whose comments may name plan and cluster.
    name : the model's name; absent, the trainer's.
    otherwise : the name of a model that has none of these.

    Raises
    ------
    SpecError
        with the JSON pointer of every key that can't be read.
    """
    reader = KeyReader(document)
    _refuse_adapters(reader)
    if reader.raw("run_mode") not in (None, "train", "finetune"):
        raise SpecError(
            Message("importers.trains_nothing", what=f"run_mode {document['run_mode']!r}"),
            path="/run_mode",
            hint="run_mode: train",
        )
    if document.get("run_mode") == "finetune":
        reader.log.unmodelled("/run_mode", "finetune", Message("importers.predicted_as", what="train"))
    model = read_model(reader, name, otherwise)
    strategy, degrees = read_strategy(reader, model)
    training = _training(reader, strategy, degrees["dp"])
    spec: dict[str, Any] = {"model": model, "training": training}
    take_marks(text, spec, strategy, reader.log)
    spec |= {"search": {"target": "mindformers"}, "strategy": strategy}
    ranks = degrees["dp"] * strategy["tp"] * strategy["pp"] * strategy["cp"]
    reader.log.take(
        "/parallel_config", "/cluster/num_npus", ranks, Message("importers.follows_from", what="tp x pp x cp x dp")
    )
    kept = reader.note_rest(REASONS, key_effect, Message("importers.unknown_key"))
    return Imported(
        "mindformers-yaml",
        spec,
        reader.log.finish(),
        ranks=ranks,
        target="mindformers",
        kept=kept,
        plan_id=plan_id_of(text),
    )


def _refuse_adapters(reader: KeyReader) -> None:
    """Refuses trainings of a few added parameters, and those on preferences, by name."""
    for path in ("model.model_config.pet_config", "model.pet_config", "pet_config"):
        adapters = reader.raw(path)
        if isinstance(adapters, Mapping) and adapters:
            kind = str(adapters.get("pet_type", "LoRA"))[:40]
            raise refused("LoRA" if "lora" in kind.lower() else kind, "pet_config", path=pointer_of(path))
    for path in ("model.model_config.rl_config", "rl_config"):
        if reader.raw(path):
            raise refused(DPO, "rl_config", path=pointer_of(path))


def _training(reader: KeyReader, strategy: dict[str, Any], dp: int) -> dict[str, Any]:
    """Batch = batch_size x data_parallel x micro batches x interleaving (`mindformers/trainer/base_trainer.py`)."""
    data = "train_dataset.data_loader.config.seq_length"
    sequence = reader.number("/training/seq_length", "model.model_config.seq_length", data, least=1)
    if sequence is None:
        reader.fail(
            "model.model_config.seq_length", Message("common.is_required", name="seq_length"), "seq_length: 4096"
        )
    field = "/training/global_batch_size"
    factors = [strategy["micro_batch_size"], dp]
    if strategy["pp"] > 1:
        factors.append(reader.number(field, "parallel_config.micro_batch_num", least=1) or 1)
    else:
        factors.append(reader.number(field, "runner_config.gradient_accumulation_steps", least=1) or 1)
        reader.raw("parallel_config.micro_batch_num")
    factors.append(reader.number(field, "micro_batch_interleave_num", least=1) or 1)
    batch = 1
    for factor in factors:
        batch *= factor
    kinds = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}
    dtype = reader.take("/training/precision", "model.model_config.compute_dtype")
    if dtype is None:
        reader.log.default("/training/precision", "bf16", Message("importers.default_of", framework="MindFormers"))
    elif dtype not in kinds:
        reader.fail(
            "model.model_config.compute_dtype",
            Message("common.is_not_modelled_yet", what=repr(str(dtype)[:40])),
            ", ".join(kinds),
        )
    training = {"seq_length": sequence, "global_batch_size": batch, "precision": kinds.get(str(dtype), "bf16")}
    if reader.switch("/training/routing_imbalance", "model.model_config.moe_router_force_expert_balance"):
        training |= {"routing_imbalance": 1.0, "routing_imbalance_peak": 1.0, "router": "forced"}
    return training


# A plan as the keys of a MindFormers configuration.
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
