"""Launches of torchtitan and torchtitan-npu: their TOML.

Source: torchtitan v0.2.2, torchtitan/config/job_config.py; torchtitan-npu @306d569f, config/custom_config.py.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from autodeploy.formats.common.import_result import take_marks
from autodeploy.formats.common.key_table import EVENLY_ROUTED, Values, import_result
from autodeploy.formats.common.value_readers import KeyReader, pointer_of
from autodeploy.formats.megatron.post_training_launch import model_of
from autodeploy.formats.torchtitan import keys
from autodeploy.kit.errors import SpecError, UnsupportedError
from autodeploy.messages import Message
from autodeploy.specs.diagnostics import not_modelled
from autodeploy.specs.launched import CONVERTERS, ROTARY, SPARSE, preset_of_flavor, torchtitan_models
from autodeploy.specs.presets import load_preset
from autodeploy.stack.software import unnamed_features

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from autodeploy.formats.common.import_result import ImportResult
    from autodeploy.formats.common.source import Source

# The pipeline of a launch of torchtitan.
P: Final = "parallelism.pipeline_parallel_"
# Schedule -> ours, and the chunks of a stage where the file does not say them.
SCHEDULES: Final = {"1F1B": ("1f1b", 1), "Interleaved1F1B": ("interleaved", 2)}
# Models whose ModelSpec has a pipelining_fn (torchtitan v0.2.2 models/*/__init__.py).
WITHOUT_STAGES: Final = frozenset({"qwen3"})
_LAYER = re.compile(r"layers\.\d+")


def read_stages(reader: KeyReader, stages: int, layers: int) -> dict[str, Any]:
    """Fields of a strategy with `stages` stages.

    Raises SpecError where the file's stages can't hold the layers; UnsupportedError for schedules that are not
    modelled, and models without a pipeline.
    """
    if stages == 1:
        return {"pp": 1}
    model = str(reader.raw(keys.NAME) or "")
    if model in WITHOUT_STAGES:
        message = Message("exporters.cannot_launch_axis", target=f"torchtitan {model}", axis="pp", value=stages)
        raise UnsupportedError(message, path=_pointer("degree"), hint="pipeline_parallel_degree=1")
    name = str(reader.take("/strategy/schedule", f"{P}schedule") or keys.TABLE.defaults[f"{P}schedule"])
    if name not in SCHEDULES:
        raise UnsupportedError(
            Message("common.is_not_modelled_yet", what=name[:40]),
            path=_pointer("schedule"),
            hint=" or ".join(SCHEDULES),
        )
    schedule, chunks = SCHEDULES[name]
    named = [f"{P}{end}_stage_less_layers" for end in ("first", "last")]
    said = {key: reader.number("/strategy/layers_per_stage", key) for key in named}
    first, last = (keys.TABLE.defaults[key] if number is None else number for key, number in said.items())
    ends = (first, last)
    counts = _named(reader)
    if counts is None:
        each = reader.number("/strategy/layers_per_stage", f"{P}layers_per_stage", least=1)
        virtual = stages * chunks if each is None else -(-(layers + sum(ends)) // each)
        counts = spread(virtual, layers, ends)
    if len(counts) % stages or sum(counts) != layers or min(counts) < 0:
        raise SpecError(
            Message(
                "importers.parts_are_no_pipeline", parts=len(counts), held=sum(counts), stages=stages, layers=layers
            ),
            path=_pointer("layers_per_stage"),
        )
    vpp = len(counts) // stages
    if (vpp == 1) != (schedule == "1f1b"):
        raise SpecError(Message("importers.schedule_part_count", name=name, count=vpp), path=_pointer("schedule"))
    placed = [[counts[chunk * stages + stage] for chunk in range(vpp)] for stage in range(stages)]
    return {"pp": stages, "vpp": vpp, "schedule": schedule, "layers_per_stage": placed}


def spread(parts: int, layers: int, ends: tuple[int, int]) -> list[int]:
    """Layers of each part: even, where the embedding counts as `ends[0]` layers and norm with head as `ends[1]`.

    Source: torchtitan v0.2.2, distributed/pipeline_parallel.py, generate_llm_fqn_per_model_part.
    """
    each, more = divmod(layers + sum(ends), parts)
    counts = [each + (part < more) for part in range(parts)]
    counts[0] -= ends[0]
    counts[-1] -= ends[1]
    return counts


def _named(reader: KeyReader) -> list[int] | None:
    """Layers of each part whose modules are named; None where the file names none."""
    given: Any = reader.take("/strategy/layers_per_stage", "parallelism.module_fqns_per_model_part")
    if not given:
        return None
    parts: Sequence[Any] = given if isinstance(given, list) else []
    return [sum(bool(_LAYER.fullmatch(str(each))) for each in part) for part in parts if isinstance(part, list)]


def _pointer(key: str) -> str:
    return f"/parallelism/pipeline_parallel_{key}"


LEFT_OUT: Final = {"pp": 1, "dp_replicate": 1, "swap_optimizer": False}  # what a spec does not say
# Converters that are predicted as what they are, or change neither time nor memory of what is predicted.
KNOWN_CONVERTERS: Final = frozenset(
    {*(name for _, name in CONVERTERS), ROTARY, SPARSE, "npu_expert_parallel", "npu_fusion_attention"}
)


def read_strategy(reader: KeyReader, values: Values, model: Mapping[str, Any]) -> tuple[dict[str, Any], int | None]:
    """The `strategy` of a spec, and the ranks of the launch where the file says them. values : of the table.

    Raises SpecError where stages can't hold the layers; UnsupportedError for schedules that are not modelled.
    """
    moe, layers = "n_routed_experts" in model, int(model["num_hidden_layers"])
    strategy: dict[str, Any] = {axis: values[f"strategy.{axis}"] or 1 for axis in ("tp", "pp", "cp")}
    pp, copies = strategy.pop("pp"), values["strategy.dp_replicate"] or 1
    shards = None if reader.raw(keys.SHARDS) in (None, -1) else reader.number("/cluster/num_npus", keys.SHARDS, least=1)
    stages = read_stages(reader, pp, layers)
    strategy |= {
        **(stages if pp > 1 else {}),
        "micro_batch_size": _micro_batch(reader, values["strategy.micro_batch_size"], pp),
        **{"fsdp": True, "distributed_optimizer": True, "sequence_parallel": strategy["tp"] > 1},
    }
    if strategy["cp"] > 1:
        strategy["cp_algo"] = _context(reader, sparse="sparse_attention" in model)
    if moe:  # experts over ep ranks, whole or cut as the attention is, sharded over the others
        strategy |= {axis: values[f"strategy.{axis}"] or 1 for axis in ("ep", "etp")} | {"moe_dispatcher": "alltoall"}
    given = values.section("strategy")
    strategy = {
        name: value for name, value in given.items() if name not in LEFT_OUT or value != LEFT_OUT[name]
    } | strategy
    features = {*unnamed_features(keys.TARGET, None), *_switches(reader, moe=moe), *values.features("keep_gathered")}
    features |= {"hsdp"} if copies > 1 else set()
    dense = not moe and "kv_lora_rank" not in model
    strategy["recompute"] = _recompute(reader, layers, by_operator=dense)
    ranks = None if shards is None else shards * copies * strategy["tp"] * strategy["cp"] * pp
    return strategy | {"features": sorted(features)}, ranks


def _micro_batch(reader: KeyReader, batch: int, stages: int) -> int:
    """Sequences of a micro batch: what a rank takes at once, under a pipeline a part of it."""
    if stages == 1:
        return batch
    key = f"{P}microbatch_size"
    size: int = reader.number("/strategy/micro_batch_size", key, least=1) or keys.TABLE.defaults[key]
    if batch % size:
        reader.fail(
            keys.LOCAL_BATCH,
            Message("common.does_not_divide", part=f"pipeline_parallel_microbatch_size {size}", whole=batch),
        )
    return size


def _context(reader: KeyReader, *, sparse: bool) -> str:
    if reader.switch("/strategy/cp_algo", keys.RING_OFF):
        if sparse:
            reader.log.unmodelled(pointer_of(keys.RING_OFF), True, Message("importers.predicted_as", what="ulysses"))
        return "ulysses"
    method = reader.raw(keys.ROTATED) or keys.TABLE.defaults[keys.ROTATED]
    reader.log.unmodelled(pointer_of(keys.ROTATED), method, Message("importers.predicted_as", what="ring"))
    return "ring"


def _converters(given: Any) -> set[str]:
    """Names of the model's converters, of a list or of one; none where none is given."""
    return {str(each) for each in (given if isinstance(given, list) else [given])} if given else set()


def _switches(reader: KeyReader, *, moe: bool) -> set[str]:
    """Features and facts of the run."""
    converters = _converters(reader.take("/strategy/features", keys.CONVERTED))
    for name in sorted(converters - KNOWN_CONVERTERS):
        told = Message("importers.predicted_as", what="fp8") if name.startswith(EIGHT_BITS) else ""
        reader.log.unmodelled("/model/converters", name, told or Message("importers.not_predicted"))
    switches = {feature for feature, name in CONVERTERS if name in converters}
    switches -= set() if moe else {"grouped_gemm", "fused_operators"}
    switches |= {"fused_swiglu"} if "grouped_gemm" in switches else set()
    return switches | (set() if ROTARY in converters else {"unfused_rotary"})


def _recompute(reader: KeyReader, layers: int, *, by_operator: bool) -> dict[str, Any]:
    """All layers, every n-th one, or by operator.

    by_operator : whether the model's layers are those that this is modelled of (`autodeploy.costs.workload.operators`).
    """
    mode = reader.take("/strategy/recompute", keys.RECOMPUTE) or keys.TABLE.defaults[keys.RECOMPUTE]
    option = str(reader.take("/strategy/recompute", keys.EVERY) or keys.TABLE.defaults[keys.EVERY])
    if mode == "full":
        return {"granularity": "full"}
    if mode == "selective" and option.isdigit() and 0 < int(option[:9]) <= layers:
        every = int(option[:9])
        return {"granularity": "full"} | ({"num_layers": layers // every} if every > 1 else {})
    if mode == "selective" and option == "op":
        if by_operator:
            return {"granularity": "selective", "modules": ["by_operator"]}
        reason = Message("importers.predicted_as", what="norm, activation")
        reader.log.unmodelled(pointer_of(keys.EVERY), option, reason)
        return {"granularity": "selective", "modules": ["norm", "activation"]}
    if mode == "memory_budget":
        reader.log.unmodelled(pointer_of(keys.RECOMPUTE), mode, Message("importers.predicted_as", what="none"))
    return {"granularity": "none"}


KIND: Final = "torchtitan-toml"
SIGNS: Final = frozenset({"tensor_parallel_degree", "data_parallel_shard_degree", "data_parallel_replicate_degree"})
DTYPES: Final = ("bfloat16", "float32")
# Models of which no layer is modelled.
UNMODELLED_MODELS: Final = {"deepseek_v4": Message("mechanism.compressed_attention")}
# Converters that change number formats.
EIGHT_BITS: Final = ("float8", "mx", "quant", "hif8")
# What changes time or memory and is predicted as its default; the values that change nothing.
UNMODELLED: Final[dict[str, Any]] = {
    keys.COMPILED: False,
    "training.enable_cpu_offload": False,
    keys.MODULES: 0,
    "optimizer.early_step_in_backward": False,
    "parallelism.enable_async_tensor_parallel": False,
    "parallelism.expert_parallel_comm_backend": "standard",
}


def detects(source: Source) -> bool:
    """Whether the document is a configuration of torchtitan."""
    parallel, model = source.document.get("parallelism"), source.document.get("model")
    is_titan = isinstance(parallel, Mapping) and isinstance(model, Mapping) and bool(SIGNS & parallel.keys())
    return is_titan and source.syntax == "toml"


def reads(source: Source) -> ImportResult:
    """The spec that a configuration trains: of the preset that is named, else of `model.name` and `model.flavor`.

    Raises SpecError with the JSON pointer of every key that can't be read; UnsupportedError for formats of 8 bits,
    schedules and models of which no layer is modelled.
    """
    reader = KeyReader(source.document)
    model = _model(reader, source.name, source.base_dir)
    values = keys.TABLE.of(reader, moe="n_routed_experts" in model)
    strategy, ranks = read_strategy(reader, values, model)
    training = _training(reader, values, strategy, ranks)
    spec = {"model": model, "training": training, "strategy": strategy}
    take_marks(source.text, spec, strategy, reader.log)
    deterministic = values["search.deterministic_training"] is True
    reader.note_unmodelled(UNMODELLED, but=frozenset({keys.MODULES} if "sparse_attention" in model else ()))
    return import_result(
        KIND,
        keys.TARGET,
        reader,
        source.text,
        spec,
        deterministic=deterministic,
        ranks=ranks,
        replica_batch=0 if "global_batch_size" in training else values["strategy.micro_batch_size"],
    )


def _model(reader: KeyReader, name: str | None, base_dir: Path | None) -> dict[str, Any]:
    """The `model` of a spec: of the preset that the name given means, else of the flavor."""
    kind, flavor = str(reader.raw(keys.NAME) or ""), str(reader.raw(keys.FLAVOR) or "")
    if name:
        return model_of([name], base_dir, reader.log, "/model/name")
    if kind in UNMODELLED_MODELS:
        raise UnsupportedError(not_modelled(kind, UNMODELLED_MODELS[kind]), path="/model/name")
    preset = preset_of_flavor(kind, flavor)
    if preset is None:
        flavors = ", ".join(f"{each.name} {each.flavor}" for each in torchtitan_models())
        message = Message("importers.no_preset_for", names=f"{kind[:40]} {flavor[:40]}")
        raise UnsupportedError(message, path="/model/flavor", hint=Message("common.one_of", names=flavors))
    reader.log.take("/model/flavor", "/model", preset.preset)
    model = load_preset(preset.preset).model_dump(mode="json", exclude_unset=True)
    modules = reader.number("/model/num_nextn_predict_layers", keys.MODULES) if preset.predicts else 0
    return {**model, "num_nextn_predict_layers": modules or 0}


def _training(reader: KeyReader, values: Values, strategy: Mapping[str, Any], ranks: int | None) -> dict[str, Any]:
    """Batch as it is given, else local_batch_size x replicas (distributed over ranks / (tp x cp))."""
    sequence, local = values["training.seq_length"], values["strategy.micro_batch_size"]
    field = "/training/global_batch_size"
    batch = None if reader.raw(keys.BATCH) in (None, -1) else reader.number(field, keys.BATCH, least=1)
    cut = int(strategy["tp"]) * int(strategy["cp"]) * int(strategy.get("pp", 1))
    replicas = 0 if ranks is None else ranks // cut
    if batch is None and ranks is not None:
        batch = local * replicas
        reader.log.default(field, batch, Message("importers.follows_from", what="local_batch_size x dp"))
    elif strategy.get("pp", 1) > 1 and batch is not None and replicas and batch > local * replicas:
        reason = Message("importers.pipeline_fills_per_batch")
        reader.log.unmodelled(pointer_of(keys.BATCH), batch, reason)
    training: dict[str, Any] = {"precision": "bf16", **values.section("training")}
    training |= {} if batch is None else {"global_batch_size": batch}
    if (dtype := reader.raw("training.dtype")) not in (None, *DTYPES):
        fault = Message("field_fault.is_invalid", value=repr(str(dtype)[:40]))
        reader.fail("training.dtype", fault, Message("common.one_of", names=", ".join(DTYPES)))
    if dtype == "bfloat16":
        reader.fail("training.dtype", Message("common.is_not_modelled_yet", what="bfloat16"), "float32")
    if any(name.startswith(EIGHT_BITS) for name in _converters(reader.raw(keys.CONVERTED))):
        training["precision"] = "fp8"
    if reader.switch("/training/routing_imbalance", "debug.moe_force_load_balance"):
        training |= EVENLY_ROUTED
    optimizer = reader.take("/training", keys.OPTIMIZER) or keys.TABLE.defaults[keys.OPTIMIZER]
    if str(optimizer).lower() != "adamw":
        reader.fail(keys.OPTIMIZER, Message("common.is_not_modelled_yet", what=str(optimizer)[:40]), "AdamW")
    steps = reader.raw(keys.STEPS)
    if isinstance(steps, int) and steps > 0 and batch is not None:
        training["tokens"] = float(steps * batch * sequence)
        reader.log.take(pointer_of(keys.STEPS), "/training/tokens", steps)
    return training
