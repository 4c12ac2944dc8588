"""Training configurations of MindFormers (YAML): parallel, recompute, swap and model keys.

Names of both generations are read: those of the mcore models and the older ones beside them
(`mindformers/parallel_core/transformer_config_utils.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from autodeploy.errors import SpecError
from autodeploy.importers.flag_effects import NO_EFFECT
from autodeploy.importers.imported import UNNAMED, Imported
from autodeploy.importers.key_effects import key_effect
from autodeploy.importers.key_reader import KeyReader, pointer_of
from autodeploy.importers.marks import plan_id_of, take_marks
from autodeploy.importers.mindformers_model import read_model
from autodeploy.importers.mindformers_strategy import read_strategy
from autodeploy.importers.other_trainings import DPO, refused
from autodeploy.messages import Message

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
