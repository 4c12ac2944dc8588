"""Launches of MindSpeed-LLM's FSDP2 backend: the YAML of `train_fsdp2.py`, with what a command line puts over it.

Source: Ascend/MindSpeed-LLM @c77308a1, train_fsdp2.py and mindspeed_llm/fsdp2/.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from autodeploy.importers.flag_effects import NO_EFFECT
from autodeploy.importers.fsdp2_model import read_model
from autodeploy.importers.fsdp2_strategy import MUON, read_strategy
from autodeploy.importers.imported import UNNAMED, Imported
from autodeploy.importers.key_reader import KeyReader
from autodeploy.importers.marks import plan_id_of, release_of_marks, search_of_marks, take_marks
from autodeploy.messages import Message
from autodeploy.stack.releases import release_of

if TYPE_CHECKING:
    from pathlib import Path

TARGET: Final = "mindspeed-llm-fsdp2"
KIND: Final = "mindspeed-llm-fsdp2-yaml"
SECTIONS: Final = ("model", "data", "parallel", "training", "optimization")
ENVIRONMENT: Final = "examples/fsdp2/env_config.sh"  # CPU_AFFINITY_CONF=1 among others
SIGNS: Final = frozenset({"fsdp_size", "fsdp_modules", "ep_fsdp_size", "ep_fsdp_modules"})
# What changes time or memory and is predicted as its default; the values that change nothing.
UNMODELLED: Final[dict[str, Any]] = {
    "parallel.num_to_forward_prefetch": 1,
    "parallel.num_to_backward_prefetch": 1,
    "parallel.enable_chunk_batch": False,
    "parallel.fsdp_implementation": "native",
    "data.packing": False,
    "data.neat_packing": False,
    "data.reset_attention_mask": False,
}
# Of the argument classes.
DEFAULTS: Final = {"cutoff_len": 2048, "batch": 8, "accumulation": 1}


def is_fsdp2(document: Mapping[str, Any]) -> bool:
    """Whether the document is a configuration of the FSDP2 backend."""
    parallel = document.get("parallel")
    return isinstance(parallel, Mapping) and bool(SIGNS & parallel.keys())


def import_fsdp2(
    document: Mapping[str, Any],
    text: str = "",
    name: str | None = None,
    otherwise: str = UNNAMED,
    base_dir: Path | None = None,
    ranks: int | None = None,
) -> Imported:
    """The spec that a configuration of the backend trains.

    Parameters
    ----------
    document : the configuration, with what the command line says put over it.
    text : its source, whose comments may name plan, cluster and model.
    name : of the model or a preset; absent, what the path of the weights or the file's name says.
    otherwise : the file's name.
    base_dir : folder that a relative path of the weights is in; its `config.json` has the shape.
    ranks : processes of the launcher, where a script has one; absent, `fsdp_size`.

    Raises
    ------
    SpecError
        with the JSON pointer of every key that can't be read.
    """
    reader = KeyReader(document)
    for path in ("data.dataset", "data.eval_dataset"):
        reader.whole(path)
    model = read_model(reader, text, name, otherwise, base_dir)
    sharded = reader.number("/cluster/num_npus", "parallel.fsdp_size", least=1)
    if ranks is not None and sharded is not None and sharded != ranks:
        reader.log.contradict(
            "/parallel/fsdp_size",
            "/cluster/num_npus",
            sharded,
            Message("importers.says", source="nnodes x nproc_per_node", value=ranks),
        )
    ranks = ranks if ranks is not None else sharded
    strategy = read_strategy(reader, model, ranks)
    if ENVIRONMENT in text:
        strategy["features"] = sorted({*strategy["features"], "host_core_binding"})
    spec: dict[str, Any] = {"model": model, "training": _training(reader, strategy, ranks)}
    take_marks(text, spec, strategy, reader.log)
    search = search_of_marks(text, TARGET)
    if reader.take("/search/deterministic_training", "training.deterministic") is not False:
        search["deterministic_training"] = True
    release = release_of_marks(text) or release_of(TARGET, None)
    spec |= {"search": search, "strategy": strategy}
    reader.note_unmodelled(UNMODELLED)
    reasons = dict.fromkeys(release.keys, NO_EFFECT)
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


def _training(reader: KeyReader, strategy: Mapping[str, Any], ranks: int | None) -> dict[str, Any]:
    """Batch = per_device_train_batch_size x gradient_accumulation_steps x ranks / cp (train/trainer.py, train)."""
    sequence = reader.number("/training/seq_length", "data.cutoff_len", least=1)
    if sequence is None:
        reader.log.default(
            "/training/seq_length",
            DEFAULTS["cutoff_len"],
            Message("importers.default_of", framework="MindSpeed-LLM FSDP2"),
        )
    field = "/training/global_batch_size"
    steps = reader.number(field, "training.gradient_accumulation_steps", least=1) or DEFAULTS["accumulation"]
    training: dict[str, Any] = {"seq_length": sequence or DEFAULTS["cutoff_len"]}
    if ranks is not None:
        training["global_batch_size"] = int(strategy["micro_batch_size"]) * steps * max(1, ranks // int(strategy["cp"]))
    else:
        reader.log.doubt(field, "open", Message("importers.number_of_ranks_is_open"))
    precision = reader.take("/training/precision", "parallel.param_dtype") or "bf16"
    if precision not in ("bf16", "fp16", "fp32"):
        fault = Message("field_fault.is_invalid", value=repr(str(precision)[:40]))
        reader.fail("parallel.param_dtype", fault, Message("common.one_of", names="bf16, fp16, fp32"))
    training["precision"] = precision
    stage = reader.take("/training/kind", "training.stage") or "sft"
    if stage not in ("pt", "sft"):
        reader.fail(
            "training.stage",
            Message("field_fault.is_invalid", value=repr(str(stage)[:40])),
            Message("common.one_of", names="pt, sft"),
        )
    training |= {"kind": "sft"} if stage == "sft" else {}
    if reader.switch("/training/routing_imbalance", "optimization.fix_router"):
        training |= {"routing_imbalance": 1.0, "routing_imbalance_peak": 1.0, "router": "forced"}
    optimizer = reader.take("/training", "training.optimizer") or "adamw"
    if optimizer == MUON:
        reader.fail(
            "training.optimizer",
            Message("common.is_not_modelled_yet", what="Muon"),
            Message("common.one_of", names="adamw, fused_adamw"),
        )
    if optimizer == "adamw":
        reason = Message("importers.predicted_as", what="fused_adamw")
        reader.log.unmodelled("/training/optimizer", optimizer, reason)
    steps_in_all = reader.raw("training.max_steps")
    if isinstance(steps_in_all, int) and steps_in_all > 0 and "global_batch_size" in training:
        training["tokens"] = float(steps_in_all * training["global_batch_size"] * training["seq_length"])
        reader.log.take("/training/max_steps", "/training/tokens", steps_in_all)
    return training
