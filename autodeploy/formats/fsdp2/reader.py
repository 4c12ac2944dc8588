"""Launches of MindSpeed-LLM's FSDP2 backend: the YAML of `train_fsdp2.py`, with what a command line puts over it.

Source: Ascend/MindSpeed-LLM @c77308a1, train_fsdp2.py and mindspeed_llm/fsdp2/.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from autodeploy.formats.common.flag_effects import unmodelled_reason
from autodeploy.formats.common.import_result import (
    UNNAMED,
    ImportResult,
    marked_preset,
    take_marks,
)
from autodeploy.formats.common.key_table import EVENLY_ROUTED, import_result
from autodeploy.formats.common.launch_script import launcher_of
from autodeploy.formats.common.value_readers import KeyReader, pointer_of
from autodeploy.formats.fsdp2 import keys
from autodeploy.formats.megatron.post_training_launch import model_of, preset_named
from autodeploy.formats.shell.follow import follow
from autodeploy.kit.errors import SpecError, UnsupportedError
from autodeploy.messages import Message
from autodeploy.specs.diagnostics import not_modelled
from autodeploy.specs.text_files import load_yaml, read_text
from autodeploy.stack.features import FEATURES
from autodeploy.stack.releases import release_of
from autodeploy.stack.software import unnamed_features

if TYPE_CHECKING:
    from pathlib import Path

    from autodeploy.formats.common.key_table import Values
    from autodeploy.formats.common.source import Source
    from autodeploy.formats.shell.values import Value


# The model of a launch of MindSpeed-LLM's FSDP2 backend.
PATH: Final = "model.model_name_or_path"
# Classes of the backend (models/model_registry.py) of which no layer is modelled.
UNMODELLED_MODEL_KEYS: Final = {
    "mamba3": Message("mechanism.recurrent_layers"),
    "longcat_flash_ngram": Message("importers.n_gram_embeddings"),
    "deepseek_v4": Message("mechanism.compressed_attention"),
}
# How checkpoints of a series are called for short.
SERIES: Final = {
    "qwen3-235b": "qwen3-235b-a22b",
    "qwen3-30b": "qwen3-30b-a3b",
    "qwen3-next": "qwen3-next-80b-a3b",
    "minimax-m2": "minimax-m2",
    "glm52": "glm-5",
    "step-3.5": "step-3.5-flash",
}
_WORDS: Final = re.compile(r"[A-Za-z0-9.]+")
_LENGTH: Final = re.compile(r"\d+k", re.IGNORECASE)
_POINT: Final = re.compile(r"(?<=\d)(?:point|p)(?=\d)")
_STAGES: Final = frozenset({"pretrain", "tune"})


def read_model(reader: KeyReader, text: str, name: str | None, otherwise: str, base_dir: Path | None) -> dict[str, Any]:
    """The `model` of a spec; a doubt where only the series is named.

    Raises UnsupportedError for a class of the backend that is not modelled; SpecError where nothing names a model that
    is known.
    """
    kind = str(reader.take("/model", keys.MODEL_ID) or "")
    if kind in UNMODELLED_MODEL_KEYS:
        raise UnsupportedError(not_modelled(kind, UNMODELLED_MODEL_KEYS[kind]), path="/model/model_id")
    path = str(reader.raw(PATH) or "").rstrip("/")
    path = "" if "$" in path else path
    exact = [name or "", marked_preset(text) or "", path]
    series = [each for each in (_series(path), _series(otherwise)) if preset_named(each)]
    guessed = series[0] if series and not preset_named(*exact) else ""
    model = model_of([*exact, guessed], base_dir, reader.log, "/model/model_name_or_path")
    if guessed:
        reader.log.doubt("/model", guessed, Message("importers.series_without_config"))
    return model


def _series(name: str) -> str:
    """The series and size at the head of a name such as `pretrain_qwen3_1point7b_4k_fsdp2_A2`, as presets write it."""
    words = [word.lower() for word in _WORDS.findall(name.rpartition("/")[2]) if word.lower() not in _STAGES]
    head = []
    for word in words:
        if _LENGTH.fullmatch(word):
            break
        head.append(_POINT.sub(".", word))
    joined = "-".join(head)
    return next((preset for short, preset in SERIES.items() if joined.startswith(short)), joined)


_LAYERS: Final = re.compile(r"model\.layers\.(?:\{\*\}|\{(\d+)-(\d+)\})")


def read_strategy(reader: KeyReader, values: Values, model: Mapping[str, Any], ranks: int | None) -> dict[str, Any]:
    """The `strategy` of a spec. values : of the table. ranks : of the launch, where they are known."""
    moe, own = "n_routed_experts" in model, reader.raw(keys.MODEL_ID) is not None
    strategy: dict[str, Any] = {"micro_batch_size": values["strategy.micro_batch_size"], "tp": 1, "cp": 1}
    strategy |= values.section("strategy")
    strategy |= {"fsdp": True, "distributed_optimizer": True}
    if strategy["cp"] > 1:
        strategy.setdefault("cp_algo", "ulysses")
    strategy |= _experts(reader, strategy.get("ep", 1), ranks) if moe else {}
    features = {
        *unnamed_features(keys.TARGET, None),
        *_switches(reader, values, strategy, moe=moe, own=own),
    }
    strategy["recompute"] = _recompute(reader, int(model["num_hidden_layers"]))
    return strategy | {"features": sorted(features)}


def _experts(reader: KeyReader, ep: int, ranks: int | None) -> dict[str, Any]:
    """Whole experts over ep ranks, sharded over the others: ep x ep_fsdp are all ranks."""
    shards = reader.number("/strategy/ep", keys.EXPERT_RANKS, least=1) or 1
    if ep > 1 and ranks is not None and ep * shards != ranks:
        reason = Message("importers.predicted_as", what=ranks // ep)
        reader.log.contradict("/parallel/ep_fsdp_size", "/strategy/ep", shards, reason)
    if (dispatcher := reader.take("/strategy/moe_dispatcher", keys.DISPATCHER)) == "mc2":
        reason = Message("importers.predicted_as", what="All-to-All")
        reader.log.unmodelled("/parallel/ep_dispatcher", dispatcher, reason)
    return {"ep": ep, "etp": 1, "moe_dispatcher": "alltoall"}


def _switches(reader: KeyReader, values: Values, strategy: Mapping[str, Any], *, moe: bool, own: bool) -> set[str]:
    """Features and facts of the run; the backend's own models alone have its fused operators."""
    switches = values.features() - (set() if own else {"fused_rmsnorm"}) - (set() if own and moe else {"grouped_gemm"})
    reader.switch("/strategy/features", keys.ATTENTION)
    chunk = reader.number("/strategy/features", keys.CHUNK, least=0)
    if chunk and reader.raw(keys.STAGE) == "pt":
        switches.add("chunked_loss")
        planned = int(FEATURES["chunked_loss"].values["chunk_tokens"])
        if chunk != planned:
            reader.log.unmodelled(pointer_of(keys.CHUNK), chunk, Message("importers.predicted_as", what=planned))
    if not own or values["features.unfused_rotary"] is not False:
        switches.add("unfused_rotary")
    if "grouped_gemm" in switches:
        fused = reader.raw(keys.DISPATCHER) == "fused" or strategy["ep"] == 1
        switches |= {"fused_swiglu"} | ({"fused_operators"} if fused else set())
    return switches


def _recompute(reader: KeyReader, layers: int) -> dict[str, Any]:
    """Whole layers by pattern: all of them, or as many as ranges name."""
    patterns = reader.take("/strategy/recompute", keys.RECOMPUTED)
    if not reader.switch("/strategy/recompute", keys.RECOMPUTE):
        return {"granularity": "none"}
    count = 0
    for pattern in patterns if isinstance(patterns, list) else ["model.layers.{*}"]:
        match = _LAYERS.fullmatch(str(pattern))
        if match is None:
            reader.log.unmodelled("/parallel/recompute_modules", pattern, Message("importers.not_predicted"))
        elif match[1] is None:
            count = layers
        else:
            count += max(0, min(int(match[2]), layers - 1) - int(match[1]) + 1)
    if not count:
        return {"granularity": "none"}
    return {"granularity": "full"} | ({"num_layers": min(count, layers)} if count < layers else {})


OPTIMIZERS: Final = ("adamw", "fused_adamw")
KIND: Final = "mindspeed-llm-fsdp2-yaml"
SECTIONS: Final = ("model", "data", "parallel", "training", "optimization")
ENVIRONMENT: Final = "examples/fsdp2/env_config.sh"  # CPU_AFFINITY_CONF=1 among others
SIGNS: Final = frozenset({"fsdp_size", "fsdp_modules", "ep_fsdp_size", "ep_fsdp_modules"})
# What changes time or memory and is predicted as its default; the values that change nothing.
UNMODELLED: Final[dict[str, Any]] = {
    **keys.PREDICTED,
    **dict.fromkeys(("parallel.enable_chunk_batch", *keys.PACKED), False),
    "data.reset_attention_mask": False,
}


def detects(source: Source) -> bool:
    """Whether a document is a configuration of the FSDP2 backend, or a script starts it."""
    if source.syntax == "script":
        return _STARTS.search(source.text) is not None
    parallel = source.document.get("parallel")
    return isinstance(parallel, Mapping) and bool(SIGNS & parallel.keys())


def reads(source: Source) -> ImportResult:
    """The spec that a configuration of the backend trains, or a script with the YAML beside it. As `import_fsdp2`."""
    if source.syntax == "script":
        return _of_script(source)
    return import_fsdp2(source.of_framework, source.text, source.name, source.otherwise, source.base_dir)


def import_fsdp2(
    document: Mapping[str, Any],
    text: str = "",
    name: str | None = None,
    otherwise: str = UNNAMED,
    base_dir: Path | None = None,
    ranks: int | None = None,
) -> ImportResult:
    """The spec that a configuration of the backend trains.

    document : the configuration, with what the command line says put over it.
    text : its source, whose comments may name plan, cluster and model.
    name : of the model or a preset; absent, what the path of the weights or the file's name says.
    otherwise : the file's name.
    base_dir : folder that a relative path of the weights is in; its `config.json` has the shape.
    ranks : processes of the launcher, where a script has one; absent, `fsdp_size`.

    Raises SpecError with the JSON pointer of every key that can't be read.
    """
    reader = KeyReader(document)
    for path in ("data.dataset", "data.eval_dataset"):
        reader.whole(path)
    model = read_model(reader, text, name, otherwise, base_dir)
    sharded = reader.number("/cluster/num_npus", keys.RANKS, least=1)
    if ranks is not None and sharded is not None and sharded != ranks:
        reader.log.contradict(
            "/parallel/fsdp_size",
            "/cluster/num_npus",
            sharded,
            Message("importers.says", source="nnodes x nproc_per_node", value=ranks),
        )
    ranks = ranks if ranks is not None else sharded
    values = keys.TABLE.of(reader, moe="n_routed_experts" in model, cp=1)
    strategy = read_strategy(reader, values, model, ranks)
    if ENVIRONMENT in text:
        strategy["features"] = sorted({*strategy["features"], "host_core_binding"})
    spec = {"model": model, "training": _training(reader, values, strategy, ranks), "strategy": strategy}
    take_marks(text, spec, strategy, reader.log)
    deterministic = reader.take("/search/deterministic_training", keys.DETERMINISTIC) is not False
    reader.note_unmodelled(UNMODELLED)
    return import_result(
        KIND,
        keys.TARGET,
        reader,
        text,
        spec,
        deterministic=deterministic,
        ranks=ranks,
        replica_batch=int(strategy["micro_batch_size"]) * (reader.raw(keys.ACCUMULATED) or 1),
    )


def _training(reader: KeyReader, values: Values, strategy: Mapping[str, Any], ranks: int | None) -> dict[str, Any]:
    """Batch = per_device_train_batch_size x gradient_accumulation_steps x ranks / cp (train/trainer.py, train)."""
    training: dict[str, Any] = {"seq_length": values["training.seq_length"], "precision": "bf16"}
    steps = reader.number("/training/global_batch_size", keys.ACCUMULATED, least=1) or 1
    training |= values.section("training")
    if ranks is not None:
        training["global_batch_size"] = int(strategy["micro_batch_size"]) * steps * max(1, ranks // int(strategy["cp"]))
    if recipe := reader.take("/training/precision", "model.quant_recipe_name"):
        training["precision"] = "fp8"
        reader.log.unmodelled("/model/quant_recipe_name", recipe, Message("importers.predicted_as", what="fp8"))
    stage = reader.take("/training/kind", keys.STAGE) or keys.TABLE.defaults[keys.STAGE]
    if stage not in ("pt", "sft"):
        reader.fail(
            keys.STAGE,
            Message("field_fault.is_invalid", value=repr(str(stage)[:40])),
            Message("common.one_of", names="pt, sft"),
        )
    if stage == "sft":
        training["kind"] = "sft"
        # Samples of tuning stand alone unless packed, and a batch is as long as its longest (data/data_factory.py: lf).
        if not any(reader.raw(path) for path in keys.PACKED):
            training["pads_samples"] = False
            reader.log.unmodelled("/data/packing", "false", unmodelled_reason("--no-pad-to-seq-lengths", "") or "")
    if reader.switch("/training/routing_imbalance", "optimization.fix_router"):
        training |= EVENLY_ROUTED
    optimizer = reader.take("/training", keys.OPTIMIZER) or keys.TABLE.defaults[keys.OPTIMIZER]
    if optimizer not in OPTIMIZERS:
        problem = Message("common.is_not_modelled_yet", what=str(optimizer)[:40])
        reader.fail(keys.OPTIMIZER, problem, Message("common.one_of", names=", ".join(OPTIMIZERS)))
    if optimizer == "adamw":
        reason = Message("importers.predicted_as", what="fused_adamw")
        reader.log.unmodelled(pointer_of(keys.OPTIMIZER), optimizer, reason)
    steps_in_all = reader.raw(keys.MAX_STEPS)
    if isinstance(steps_in_all, int) and steps_in_all > 0 and "global_batch_size" in training:
        training["tokens"] = float(steps_in_all * training["global_batch_size"] * training["seq_length"])
        reader.log.take(pointer_of(keys.MAX_STEPS), "/training/tokens", steps_in_all)
    return training


# Scripts that start MindSpeed-LLM's FSDP2 backend.
PROGRAM: Final = "train_fsdp2.py"
_STARTS: Final = re.compile(r"^[^#\n]*\btrain_fsdp2\.py\b", re.MULTILINE)
_OPTION: Final = re.compile(rf"--((?:{'|'.join(SECTIONS)})\.\w+)(?:=(.*))?", re.DOTALL)
_TRUE, _FALSE = frozenset({"yes", "true", "t", "y", "1"}), frozenset({"no", "false", "f", "n", "0"})


def _of_script(source: Source) -> ImportResult:
    followed = follow(source.text, source.variables, source.base_dir)
    words = next((words for _, words in followed.commands if any(_is_program(word) for word in words)), None)
    if words is None:
        raise SpecError(Message("common.missing", word=PROGRAM), hint=Message("importers.give_script_with_command"))
    at = next(index for index, word in enumerate(words) if _is_program(word))
    named = words[at + 1].text if len(words) > at + 1 and not words[at + 1].text.startswith("--") else ""
    document, written = _file(named, source.otherwise, source.base_dir)
    given = _options(words[at + 1 + bool(named) :])
    merged = {name: dict(value) if isinstance(value, dict) else value for name, value in document.items()}
    for key, values in given.items():
        section, _, field = key.partition(".")
        merged.setdefault(section, {})[field] = _typed(key, values)
    launcher = launcher_of(followed, words[:at])
    on_nodes = launcher["ranks_per_node"] * launcher.get("nodes", 1) if "ranks_per_node" in launcher else None
    text, ranks = written + source.text, launcher.get("ranks", on_nodes)
    return import_fsdp2(merged, text, source.name, source.otherwise, source.base_dir, ranks)


def _is_program(word: Value) -> bool:
    return word.text.rpartition("/")[2] == PROGRAM


def _file(named: str, stem: str, base_dir: Path | None) -> tuple[Mapping[str, Any], str]:
    """The YAML that the script names, else the one of the script's own name, and its text."""
    if not named:
        return {}, ""
    last = named.rpartition("/")[2]
    for name in (last, f"{stem}.yaml") if base_dir is not None and "$" not in last else ():
        path = base_dir / name if base_dir is not None else None
        if path is not None and path.is_file():
            text = read_text(path)
            document = load_yaml(text, boolean_words=True)
            return (document if isinstance(document, dict) else {}), text + "\n"
    raise SpecError(Message("importers.is_not_beside_script", file=named[:200]), path="/parallel")


def _options(words: list[Value]) -> dict[str, list[Value]]:
    """Values of each `--section.key`, the last of each key counts."""
    options: dict[str, list[Value]] = {}
    current: list[Value] | None = None
    for word in words:
        match = _OPTION.fullmatch(word.text)
        if match:
            current = options[match[1]] = []
            if match[2] is not None:
                current.append(word)
        elif word.text.startswith("--"):
            current = None
        elif current is not None:
            current.append(word)
    return options


def _typed(key: str, values: list[Value]) -> Any:
    """Values of the words by the backend's parser; an option alone is true, what isn't known stays as it stands."""
    registered = release_of(keys.TARGET, None).keys.get(key)
    texts = [_text(value) for value in values]
    if registered is not None and registered.nargs == "+":
        return texts
    text = texts[0] if texts else "true"
    if registered is None or any(value.unknown for value in values):
        return text
    if registered.type == "bool" and text.lower() in _TRUE | _FALSE:
        return text.lower() in _TRUE
    try:
        return int(text) if registered.type == "int" else float(text) if registered.type == "float" else text
    except ValueError:
        path = "/" + key.replace(".", "/")
        raise SpecError(
            Message("common.takes_not", name=f"--{key}", kind=Message("field_fault.a_number"), value=repr(text[:40])),
            path=path,
        ) from None


def _text(value: Value) -> str:
    match = _OPTION.fullmatch(value.text)
    return (match[2] or "") if match else value.text
