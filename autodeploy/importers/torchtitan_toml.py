"""Launches of torchtitan and torchtitan-npu: their TOML.

Source: torchtitan v0.2.2, torchtitan/config/job_config.py; torchtitan-npu @306d569f, config/custom_config.py.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from autodeploy.errors import SpecError, UnsupportedError
from autodeploy.importers.bounds import scan_toml
from autodeploy.importers.diagnostics import not_modelled
from autodeploy.importers.flag_effects import NO_EFFECT
from autodeploy.importers.imported import Imported
from autodeploy.importers.key_reader import KeyReader
from autodeploy.importers.marks import plan_id_of, release_of_marks, search_of_marks, take_marks
from autodeploy.importers.rl_common import model_of
from autodeploy.importers.torchtitan_strategy import BATCH, read_strategy
from autodeploy.messages import Message
from autodeploy.specs.presets import load_preset
from autodeploy.specs.torchtitan_models import preset_of_flavor, torchtitan_models
from autodeploy.stack.releases import release_of

if TYPE_CHECKING:
    from pathlib import Path

TARGET: Final = "torchtitan-npu"
KIND: Final = "torchtitan-toml"
SIGNS: Final = frozenset({"tensor_parallel_degree", "data_parallel_shard_degree", "data_parallel_replicate_degree"})
DTYPES: Final = {"bfloat16": "bf16", "float32": "fp32"}
# Of the data classes.
DEFAULTS: Final = {"seq_len": 2048, "local_batch_size": 8}
REASONS: Final = {
    **dict.fromkeys(
        ("job", "profiling", "metrics", "checkpoint", "comm", "validation", "model", "training"), NO_EFFECT
    ),
    **dict.fromkeys(("optimizer", "lr_scheduler", "memory_estimation", "fault_tolerance", "experimental"), NO_EFFECT),
    **dict.fromkeys(("debug", "activation_checkpoint"), NO_EFFECT),
    **dict.fromkeys(("parallelism", "compile", "quantize"), NO_EFFECT),
}
# Models of which no layer is modelled.
UNMODELLED_MODELS: Final = {"deepseek_v4": Message("mechanism.compressed_attention")}
# Converters that change number formats.
EIGHT_BITS: Final = ("float8", "mx", "quant", "hif8")
_SECTION: Final = re.compile(r"^\[parallelism\]\s*$", re.MULTILINE)
MODULES: Final = "training.num_mtp_modules"
# What changes time or memory and is predicted as its default; the values that change nothing.
UNMODELLED: Final[dict[str, Any]] = {
    "compile.enable": False,
    "training.enable_cpu_offload": False,
    MODULES: 0,
    "optimizer.early_step_in_backward": False,
    "parallelism.enable_async_tensor_parallel": False,
    "parallelism.expert_parallel_comm_backend": "standard",
}


def is_toml(text: str, suffix: str) -> bool:
    """Whether a text is TOML, by the suffix of its file or, where it has none, by its sections."""
    return suffix == ".toml" or (not suffix and _SECTION.search(text) is not None)


def load_toml(text: str) -> Mapping[str, Any]:
    """A document of TOML.

    Raises
    ------
    SpecError
        with what is wrong, and where.
    """
    scan_toml(text)
    try:
        return tomllib.loads(text)
    except ValueError as error:  # also a number of thousands of digits
        raise SpecError(
            Message("common.not_of_format", reason=str(error)[:200], format="TOML"),
        ) from None


def is_torchtitan(document: Mapping[str, Any]) -> bool:
    """Whether the document is a configuration of torchtitan."""
    parallel, model = document.get("parallelism"), document.get("model")
    return isinstance(parallel, Mapping) and isinstance(model, Mapping) and bool(SIGNS & parallel.keys())


def import_torchtitan(
    document: Mapping[str, Any],
    text: str = "",
    name: str | None = None,
    base_dir: Path | None = None,
) -> Imported:
    """The spec that a configuration trains.

    Parameters
    ----------
    document : the configuration.
    text : its source, whose comments may name plan and cluster.
    name : a preset; absent, the one of the shape of `model.name` and `model.flavor`.
    base_dir : folder with a `config.json` under the name.

    Raises
    ------
    SpecError
        with the JSON pointer of every key that can't be read.
    UnsupportedError
        for formats of 8 bits, schedules and models of which no layer is modelled.
    """
    reader = KeyReader(document)
    _refuse_formats(reader)
    model = _model(reader, name, base_dir)
    strategy, ranks = read_strategy(reader, model)
    spec: dict[str, Any] = {"model": model, "training": _training(reader, strategy, ranks)}
    take_marks(text, spec, strategy, reader.log)
    search = search_of_marks(text, TARGET)
    if reader.switch("/search/deterministic_training", "debug.deterministic"):
        search["deterministic_training"] = True
    release = release_of_marks(text) or release_of(TARGET, None)
    spec |= {"search": search, "strategy": strategy}
    reader.note_unmodelled(UNMODELLED, but=frozenset({MODULES} if "sparse_attention" in model else ()))
    reasons = {key: REASONS[key.partition(".")[0]] for key in release.keys}
    kept = reader.note_rest(reasons, lambda _: None, Message("importers.unknown_key"))
    return Imported(
        KIND,
        spec,
        reader.log.finish(),
        ranks=ranks,
        target=TARGET,
        kept=kept,
        plan_id=plan_id_of(text),
    )


def _refuse_formats(reader: KeyReader) -> None:
    converters = reader.raw("model.converters") or []
    for each in converters if isinstance(converters, list) else [converters]:
        if str(each).startswith(EIGHT_BITS):
            raise UnsupportedError(
                not_modelled("Ascend 950", str(each)[:40]),
                path="/model/converters",
                hint=Message("importers.give_launch_for_a2_or_a3"),
            )


def _model(reader: KeyReader, name: str | None, base_dir: Path | None) -> dict[str, Any]:
    """The `model` of a spec: of the preset that the name given means, else of the flavor."""
    kind, flavor = str(reader.raw("model.name") or ""), str(reader.raw("model.flavor") or "")
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
    modules = reader.number("/model/num_nextn_predict_layers", MODULES) if preset.predicts else 0
    return {**model, "num_nextn_predict_layers": modules or 0}


def _training(reader: KeyReader, strategy: Mapping[str, Any], ranks: int | None) -> dict[str, Any]:
    """Batch as it is given, else local_batch_size x replicas (distributed over ranks / (tp x cp))."""
    sequence = reader.number("/training/seq_length", "training.seq_len", least=1)
    if sequence is None:
        reader.log.default(
            "/training/seq_length", DEFAULTS["seq_len"], Message("importers.default_of", framework="torchtitan")
        )
    field, path = "/training/global_batch_size", "training.global_batch_size"
    batch = None if reader.raw(path) in (None, -1) else reader.number(field, path, least=1)
    local = reader.raw("training.local_batch_size") or BATCH
    cut = int(strategy["tp"]) * int(strategy["cp"]) * int(strategy.get("pp", 1))
    replicas = 0 if ranks is None else ranks // cut
    if batch is None and ranks is not None:
        batch = local * replicas
        reader.log.default(field, batch, Message("importers.follows_from", what="local_batch_size x dp"))
    elif strategy.get("pp", 1) > 1 and batch is not None and replicas and batch > local * replicas:
        reason = Message("importers.pipeline_fills_once_for_every_local_batch")
        reader.log.unmodelled("/training/global_batch_size", batch, reason)
    elif batch is None:
        reader.log.doubt(field, "open", Message("importers.number_of_ranks_is_open"))
    training: dict[str, Any] = {"seq_length": sequence or DEFAULTS["seq_len"]}
    training |= {} if batch is None else {"global_batch_size": batch}
    for key in ("training.mixed_precision_param", "training.dtype"):
        if reader.raw(key) not in (None, *DTYPES):
            reader.fail(
                key,
                Message("field_fault.is_invalid", value=repr(str(reader.raw(key))[:40])),
                Message("common.one_of", names="bfloat16, float32"),
            )
    if reader.raw("training.dtype") == "bfloat16":
        reader.fail("training.dtype", Message("common.is_not_modelled_yet", what="bfloat16"), "float32")
    training["precision"] = DTYPES[reader.take("/training/precision", "training.mixed_precision_param") or "bfloat16"]
    if reader.switch("/training/routing_imbalance", "debug.moe_force_load_balance"):
        training |= {"routing_imbalance": 1.0, "routing_imbalance_peak": 1.0, "router": "forced"}
    optimizer = reader.take("/training", "optimizer.name") or "AdamW"
    if str(optimizer).lower() != "adamw":
        reader.fail("optimizer.name", Message("common.is_not_modelled_yet", what=str(optimizer)[:40]), "AdamW")
    steps = reader.raw("training.steps")
    if isinstance(steps, int) and steps > 0 and batch is not None:
        training["tokens"] = float(steps * batch * training["seq_length"])
        reader.log.take("/training/steps", "/training/tokens", steps)
    return training
