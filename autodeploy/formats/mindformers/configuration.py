"""Training configurations of MindFormers (YAML): parallel, recompute, swap and model keys.

Names of both generations are read: those of the mcore models and the older ones beside them
(`mindformers/parallel_core/transformer_config_utils.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from autodeploy.formats.common.flag_effects import key_effect
from autodeploy.formats.common.import_result import ImportResult, plan_id_of, take_marks
from autodeploy.formats.common.key_table import EVENLY_ROUTED
from autodeploy.formats.common.launch_script import DPO, platform_keys, refused
from autodeploy.formats.common.value_readers import KeyReader, leaves, pointer_of
from autodeploy.formats.megatron.launch import Launch, plain_launch
from autodeploy.formats.megatron.launch_script import head_comments
from autodeploy.formats.megatron.layers import Placement, placement
from autodeploy.formats.megatron.memory import by_stage, recomputed_layers
from autodeploy.formats.mindformers.model import CONFIG, DTYPES, model_config, read_model
from autodeploy.kit.errors import SpecError, UnsupportedError
from autodeploy.kit.yaml_text import yaml_text
from autodeploy.messages import Message
from autodeploy.specs.artefact import Artefact
from autodeploy.specs.diagnostics import NO_EFFECT
from autodeploy.specs.model import MAX_LAYERS
from autodeploy.stack.features import FEATURES
from autodeploy.stack.flag_tables import defaults_of
from autodeploy.stack.schedules import variant_of

if TYPE_CHECKING:
    from autodeploy.formats.common.source import Source
    from autodeploy.specs.planset import Plan, PlanSet
    from autodeploy.specs.strategy import Strategy


OFFSET = f"{CONFIG}.offset"
CP_ALGORITHMS = {"colossalai_cp": "ring", "ulysses_cp": "ulysses", "hybrid_cp": "hybrid"}
DISPATCHERS = {
    "alltoall": "alltoall",
    "alltoall_deredundency": "hierarchical",
    "alltoall_zero_redundancy": "hierarchical",
}
DEGREES = {
    "tp": "parallel_config.model_parallel",
    "pp": "parallel_config.pipeline_stage",
    "cp": "parallel_config.context_parallel",
}


def read_strategy(reader: KeyReader, model: dict[str, Any]) -> tuple[dict[str, Any], dict[str, int]]:
    """The `strategy` of a spec, and `dp`, which follows from the cluster there."""
    strategy: dict[str, Any] = {}
    for name, path in DEGREES.items():
        strategy[name] = reader.number(f"/strategy/{name}", path, least=1) or 1
    dp = reader.number("/strategy/dp", "parallel_config.data_parallel", least=1) or 1
    strategy["micro_batch_size"] = reader.number("/strategy/micro_batch_size", "runner_config.batch_size", least=1) or 1
    strategy["sequence_parallel"] = reader.switch("/strategy/sequence_parallel", "parallel_config.use_seq_parallel")
    strategy["distributed_optimizer"] = reader.switch(
        "/strategy/distributed_optimizer", "parallel.enable_parallel_optimizer"
    )
    if strategy["cp"] > 1:
        strategy |= _context(reader)
    features: set[str] = set()
    if "n_routed_experts" in model:
        strategy |= _experts(reader, strategy["tp"])
        features |= {"hierarchical_a2a"} if strategy["moe_dispatcher"] == "hierarchical" else set()
    features |= _features(reader, with_experts="n_routed_experts" in model)
    chunks = _schedule(reader, strategy, model["num_hidden_layers"])
    strategy["recompute"] = _read_recompute(reader, chunks)
    strategy["swap"] = _read_swap(reader)
    return strategy | {"features": sorted(features)}, {"dp": dp}


def _features(reader: KeyReader, *, with_experts: bool) -> set[str]:
    """Features whose key is on; keys of experts (`moe_...` first) mean nothing without them."""
    features = set()
    for name, feature in FEATURES.items():
        for keys in (variant.keys for variant in feature.launch if variant.keys):
            of_experts = keys[0].removeprefix(f"{CONFIG}.").startswith("moe_")
            if (with_experts or not of_experts) and reader.switch("/strategy/features", *keys):
                features.add(name)
    return features


def _context(reader: KeyReader) -> dict[str, Any]:
    path = "parallel_config.context_parallel_algo"
    given = reader.take("/strategy/cp_algo", path) or defaults_of("MindFormers")[path]
    if given not in CP_ALGORITHMS:
        reader.fail(path, Message("field_fault.is_invalid", value=repr(str(given)[:40])), ", ".join(CP_ALGORITHMS))
    degree = reader.number("/strategy/ulysses_degree", "parallel_config.ulysses_degree_in_cp", least=1)
    fields: dict[str, Any] = {"cp_algo": CP_ALGORITHMS[given]}
    return fields | ({"ulysses_degree": degree} if degree and fields["cp_algo"] == "hybrid" else {})


def _experts(reader: KeyReader, tp: int) -> dict[str, Any]:
    """mcore models spread experts over data and tensor ranks; older ones keep them tensor parallel, unless
    `ep_extend_tp` lets a tensor-parallel group hold whole experts of its own: ep tp ranks, each expert on one.

    Source: MindFormers modules/transformer/moe.py and research/telechat2/telechat_transformer.py @f52743ca.
    """
    fields: dict[str, Any] = {"ep": reader.number("/strategy/ep", "parallel_config.expert_parallel", least=1) or 1}
    etp = reader.number("/strategy/etp", "moe_config.expert_model_parallel", least=1)
    if etp is None:
        legacy = reader.raw("use_legacy") is not False and reader.raw("moe_config") is not None
        extended = reader.switch("/strategy/ep", "moe_config.ep_extend_tp") and legacy
        if extended:
            fields["ep"] *= tp
        etp, reason = (
            (1, Message("importers.follows_from", what="ep_extend_tp"))
            if extended
            else (tp, Message("importers.follows_from", what="tp"))
        )
        if not legacy:
            etp, reason = 1, Message("importers.default_of", framework="MindFormers")
        reader.log.default("/strategy/etp", etp, reason)
    path = f"{CONFIG}.moe_token_dispatcher_type"
    given = reader.take("/strategy/moe_dispatcher", path) or defaults_of("MindFormers")[path]
    if given not in DISPATCHERS:
        reader.fail(path, Message("field_fault.is_invalid", value=repr(str(given)[:40])), ", ".join(DISPATCHERS))
    dispatcher = DISPATCHERS[given]
    exchange = reader.take("/strategy/moe_dispatcher", "parallel.enable_alltoall")
    reader.raw(f"{CONFIG}.npu_nums_per_device")
    if exchange is False and dispatcher == "alltoall":
        dispatcher = "allgather"
    return fields | {"etp": etp, "moe_dispatcher": dispatcher}


def _schedule(reader: KeyReader, strategy: dict[str, Any], layers: int) -> list[list[int]]:
    """Sets schedule, virtual stages and layers of each stage; returns layers by chunk, `[vpp][pp]`."""
    pp = strategy["pp"]
    scheduler = reader.take("/strategy/schedule", "parallel.pipeline_config.pipeline_scheduler")
    interleaves = reader.raw("parallel.pipeline_config.pipeline_interleave") is True
    turns = reader.number("/strategy/vpp", f"{CONFIG}.pp_interleave_num", least=1) or 1
    if not interleaves or pp == 1:
        turns = 1
    if turns * pp > MAX_LAYERS:
        reader.fail(f"{CONFIG}.pp_interleave_num", Message("common.exceeds", one=f"{turns} x {pp}", other=MAX_LAYERS))
    dual = scheduler == "zero_bubble_v" and pp > 1
    if dual and turns != 2:
        reader.fail(
            f"{CONFIG}.pp_interleave_num",
            Message("common.needs_it", what="zero_bubble_v"),
            "pp_interleave_num: 2",
        )
    if scheduler not in {None, "1f1b", "zero_bubble_v"}:
        path = "/parallel/pipeline_config/pipeline_scheduler"
        reader.log.contradict(
            path,
            "/strategy/schedule",
            scheduler,
            Message("specs.read_as_nearest", name=scheduler, word="1f1b"),
        )
    if dual:
        nearest = Message("specs.read_as_nearest", name=scheduler, word="dualpipev")
        reader.log.default("/strategy/schedule", "dualpipev", nearest)
    chunks = _chunks(reader, layers, pp, turns)
    strategy["vpp"] = 1 if dual else turns
    strategy["schedule"] = "dualpipev" if dual else "interleaved" if turns > 1 else "1f1b"
    if len({count for row in chunks for count in row}) > 1:
        rows = [[row[stage] for row in chunks] for stage in range(pp)]
        strategy["layers_per_stage"] = rows if turns > 1 else [row[0] for row in rows]
    return chunks


def _chunks(reader: KeyReader, layers: int, pp: int, turns: int) -> list[list[int]]:
    """layers // (pp * turns) + offset, row by row."""
    offset = reader.take("/strategy/layers_per_stage", OFFSET)
    average, rest = divmod(layers, pp * turns)
    if offset is None or offset == 0:
        if rest:
            reader.fail(
                OFFSET,
                Message("importers.uneven_layers", layers=layers, count=pp * turns),
                "offset=[1,0,...,0]",
            )
        return [[average] * pp for _ in range(turns)]
    rows = offset if isinstance(offset, list) and offset and isinstance(offset[0], list) else [offset]
    shaped = len(rows) == turns and all(isinstance(row, list) and len(row) == pp for row in rows)
    if not shaped or not all(type(value) is int and abs(value) <= layers for row in rows for value in row):
        reader.fail(OFFSET, Message("importers.rows_expected", rows=turns, columns=pp))
    chunks = [[average + value for value in row] for row in rows]
    total = sum(map(sum, chunks))
    if total != layers:
        extra = total - layers
        if extra == (reader.raw(f"{CONFIG}.mtp_depth") or 0) and chunks[-1][-1] >= extra:
            chunks[-1][-1] -= extra  # older models count multi-token prediction among the layers
        else:
            reader.fail(OFFSET, Message("importers.placed_layers_differ", placed=total, layers=layers))
    if min(map(min, chunks)) < 0:
        reader.fail(OFFSET, Message("field_fault.is_too_small", value=min(map(min, chunks))))
    return chunks


def _per_stage(reader: KeyReader, path: str, chunks: list[list[int]]) -> list[int] | None:
    """`true`, a number of layers for every stage, one a stage, or one a virtual stage; None where it is off."""
    given = reader.take("/strategy/recompute", path)
    pp = len(chunks[0])
    stages = [sum(row[stage] for row in chunks) for stage in range(pp)]
    if given is None or given is False or given == 0:
        return None
    if given is True:
        return stages
    rows = given if isinstance(given, list) and given and isinstance(given[0], list) else [given]
    if isinstance(given, int):
        rows = [[given] * pp]
    if not all(isinstance(row, list) and len(row) == pp for row in rows) or len(rows) not in {1, len(chunks)}:
        reader.fail(path, Message("importers.rows_expected", rows=len(chunks), columns=pp))
    bad = [value for row in rows for value in row if not (isinstance(value, int) and 0 <= value <= MAX_LAYERS)]
    if bad:
        limits = {"value": repr(bad[0])[:40], "least": 0, "most": MAX_LAYERS}
        reader.fail(path, Message("importers.not_whole_number", **limits))
    total = [sum(int(row[stage]) for row in rows) for stage in range(pp)]
    return [min(count, most) for count, most in zip(total, stages, strict=True)]


def _read_recompute(reader: KeyReader, chunks: list[list[int]]) -> dict[str, Any]:
    full = _per_stage(reader, "recompute_config.recompute", chunks)
    path = "recompute_config.select_recompute"
    selective = None
    if isinstance(reader.raw(path), dict):
        reader.log.unmodelled("/" + path.replace(".", "/"), reader.raw(path), Message("importers.not_predicted"))
        reader.whole(path)
    else:
        selective = _per_stage(reader, path, chunks)
    counts = {name: layers for name, layers in (("full", full), ("activation", selective)) if layers and any(layers)}
    if not counts:
        return {"granularity": "none"}
    modules = [name for name in counts if name != "full"]
    rows = [
        {name: layers[stage] for name, layers in counts.items() if layers[stage]} for stage in range(len(chunks[0]))
    ]
    return {"granularity": "selective" if modules else "full", "modules": modules, "per_stage": rows}


def _read_swap(reader: KeyReader) -> list[str]:
    if not reader.switch("/strategy/swap", "swap_config.swap"):
        return []
    reader.raw("swap_config.default_prefetch")
    operators = reader.take("/strategy/swap", "swap_config.op_swap")
    entries = operators if isinstance(operators, list) else []
    names = [str(entry.get("op_name", "")) for entry in entries if isinstance(entry, dict)]
    return ["attention"] if any("attention" in name for name in names) else []


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


def detects(source: Source) -> bool:
    """Whether the document is a configuration of MindFormers."""
    model = source.document.get("model")
    of_model = isinstance(model, Mapping) and isinstance(model.get("model_config"), Mapping)
    return of_model or isinstance(source.document.get("parallel_config"), Mapping)


def reads(source: Source) -> ImportResult:
    """The spec that a MindFormers configuration trains. A model without a name has the trainer's, else the file's.

    Raises SpecError with the JSON pointer of every key that can't be read.
    """
    document, text = source.of_framework, source.text
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
    model = read_model(reader, source.name, source.otherwise)
    strategy, degrees = read_strategy(reader, model)
    training = _training(reader, strategy, degrees["dp"])
    spec: dict[str, Any] = {"model": model, "training": training}
    take_marks(text, spec, strategy, reader.log)
    spec |= {"search": {"target": "mindformers"}, "strategy": strategy}
    ranks = degrees["dp"] * strategy["tp"] * strategy["pp"] * strategy["cp"]
    reader.log.take(
        "/parallel_config", "/cluster/num_npus", ranks, Message("importers.follows_from", what="tp x pp x cp x dp")
    )
    kept = reader.note_rest(REASONS, key_effect)
    return ImportResult(
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
    kinds, path = {word: ours for ours, word in DTYPES.items()}, f"{CONFIG}.compute_dtype"
    dtype = reader.take("/training/precision", path)
    if dtype is None:
        dtype, reason = defaults_of("MindFormers")[path], Message("importers.default_of", framework="MindFormers")
        reader.log.default("/training/precision", kinds[dtype], reason)
    elif str(dtype) not in kinds:
        reader.fail(path, Message("common.is_not_modelled_yet", what=repr(str(dtype)[:40])), ", ".join(kinds))
    training = {"seq_length": sequence, "global_batch_size": batch, "precision": kinds[str(dtype)]}
    if reader.switch("/training/routing_imbalance", "model.model_config.moe_router_force_expert_balance"):
        training |= EVENLY_ROUTED
    return training


# A plan as the keys of a MindFormers configuration.
CP_KEYS = {algorithm: key for key, algorithm in CP_ALGORITHMS.items()}
SWAPPED_OPERATORS = {"attention": r".*\.flash_attention"}


def export(plan_set: PlanSet, plan: Plan) -> Artefact:
    """The YAML; what MindFormers can't say is in its comments."""
    launch = plain_launch(plan_set, plan, "mindformers")
    document = configuration(launch)
    unknown = sorted(
        {path for path, _ in leaves(document)} - launch.arguments.release.keys.keys() - platform_keys().keys()
    )
    if unknown:
        raise UnsupportedError(Message("common.unknown_key", name=unknown[0]), path="/to")
    start = [f"For {launch.ranks} ranks; merge it into a configuration with data set, optimizer and callbacks, as"]
    start += ["configs/general/llm_pretrain_dense_template.yaml, without its pretrained_model_dir."]
    if plan.save_steps is not None:
        start += [f"The run is planned with a checkpoint every {plan.save_steps} steps: save_checkpoint_steps."]
    text = yaml_text(document, head_comments(plan_set, launch, start))
    return Artefact(text, "application/yaml", f"mindformers_{plan.plan_id}.yaml", tuple(launch.arguments.notes))


def configuration(launch: Launch) -> dict[str, Any]:
    """The keys, in MindFormers' own order.

    Raises UnsupportedError for a schedule that MindFormers does not have.
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
        config["context_parallel_algo"] = CP_KEYS[strategy.cp_algo or "ring"]
        if strategy.cp_algo == "hybrid" and strategy.ulysses_degree is not None:
            config["ulysses_degree_in_cp"] = strategy.ulysses_degree
    if launch.spec.model.is_moe:
        config["expert_parallel"] = strategy.ep
        if strategy.etp not in {None, 1}:
            launch.arguments.lacks(f"etp: {strategy.etp}", "MindFormers")
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
            launch.arguments.lacks(f"recompute: {name}", "MindFormers")
    return {
        "recompute": _layers_list(counts.get("full"), placed),
        "select_recompute": _layers_list(counts.get("activation"), placed),
        "parallel_optimizer_comm_recompute": False,
        "mp_comm_recompute": "full" in counts,
    }


def _counts(strategy: Strategy, placed: Placement) -> dict[str, list[int]]:
    """Choice -> layers of each stage."""
    most = [placed.layers_of_stage(stage) for stage in range(strategy.pp)]
    chosen = recomputed_layers(strategy, strategy.pp, max(most))
    return {name: [min(pair) for pair in zip(given, most, strict=True)] for name, given in chosen.items()}


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
            launch.arguments.lacks(f"swap: {name}", "MindFormers")
    return {"swap": True, "default_prefetch": 1, "op_swap": operators} if operators else {}


def _note_rest(launch: Launch) -> None:
    strategy = launch.plan.strategy
    for flag in ("swap_optimizer", "reuse_fp32_param", "fsdp"):
        if getattr(strategy, flag):
            launch.arguments.lacks(flag, "MindFormers")
    if strategy.moe_dispatcher == "alltoall_seq":
        launch.arguments.note(
            Message("exporters.has_no_dispatcher", framework="MindFormers", name=strategy.moe_dispatcher)
        )
