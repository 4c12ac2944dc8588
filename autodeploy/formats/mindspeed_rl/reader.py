"""Configurations of MindSpeed-RL: the YAML that its `cli/train_*.py` start with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from autodeploy.formats.common.export_comments import plan_id_of, search_of_marks, take_marks
from autodeploy.formats.common.import_result import UNNAMED, Imported, KeptFlag
from autodeploy.formats.common.other_trainings import DPO, refused
from autodeploy.formats.common.value_readers import FlagReader, KeyReader
from autodeploy.formats.megatron.model import read_model
from autodeploy.formats.megatron.post_training_launch import (
    lines_of_keys,
    model_of,
    script_of,
    take_rl_marks,
    whole_updates,
)
from autodeploy.formats.megatron.strategy_reader import read_gradient_sums, read_strategy
from autodeploy.kit.errors import SpecError
from autodeploy.messages import Message
from autodeploy.specs.diagnostics import joined
from autodeploy.stack.releases import release_of

if TYPE_CHECKING:
    from pathlib import Path

    from autodeploy.formats.common.flag_effects import FlagEffect

TARGET = "mindspeed-rl"
SECTIONS = ("rl_config", "generate_config")
MEGATRON, ACTOR = "megatron_training", "actor_config"
STAGES = {"ray_grpo": "grpo", "ray_dapo": "dapo", "ray_ppo": "ppo"}
# Defaults of the configuration classes (rl_config.py, generate_config.py).
DEFAULTS = {
    "rl_config.n_samples_per_prompt": 1,
    "rl_config.mini_batch_size": 1,
    "rl_config.max_prompt_length": 512,
    "rl_config.partial_rollout_max_split": 1,
    "rl_config.max_packing_token_size": 4096,
    "generate_config.infer_tensor_parallel_size": 8,
    "generate_config.infer_expert_parallel_size": 1,
    "generate_config.max_num_seqs": 1,
    "generate_config.sampling_config.max_tokens": 128,
}
DEFAULT_MEMORY_FRACTION = 0.5
REASONS = {
    "rl_config": Message("importers.no_field_of_spec"),
    "generate_config": Message("importers.no_field_of_spec"),
    "critic_config": Message("importers.predicted_as", what="actor_config"),
    "defaults": Message("importers.no_field_of_spec"),
}
# Of rl_config and generate_config: what changes time or memory, and what it does without.
UNMODELLED = {
    "rl_config.multi_turn_enable": Message("importers.predicted_as", what="false"),
    "rl_config.share_backbone": Message("importers.predicted_as", what="false"),
    "rl_config.critic_resource.num_npus": Message("importers.not_predicted"),
    "rl_config.reference_resource.num_npus": Message("importers.not_predicted"),
    "rl_config.reward_resource.num_npus": Message("importers.not_predicted"),
}

OF_PACKS = ("--reset-attention-mask", "--reset-position-ids", "--no-pad-to-seq-lengths", "--variable-seq-lengths")


def is_mindspeed_rl(document: Mapping[str, Any]) -> bool:
    """Whether the document is a configuration of MindSpeed-RL."""
    return isinstance(document.get(MEGATRON), Mapping)


def import_mindspeed_rl(
    document: Mapping[str, Any],
    text: str,
    name: str | None = None,
    otherwise: str = UNNAMED,
    base_dir: Path | None = None,
) -> Imported:
    """The spec that a MindSpeed-RL configuration trains.

    Parameters
    ----------
    name : of the model, or of a preset where the model is in another file.
    base_dir : folder of the file, whose `model/NAME.yaml` has the shape.

    Raises
    ------
    SpecError
        with the key that can't be read.
    """
    sections = {name: {} if document.get(name) is None else document[name] for name in (MEGATRON, ACTOR, *SECTIONS)}
    for section, content in sections.items():
        if not isinstance(content, Mapping):
            raise SpecError(Message("field_fault.is_no_mapping", value=repr(content)[:40]), path=f"/{section}")
    keys = {**sections[MEGATRON], **sections[ACTOR]}
    stage = keys.get("stage")
    if stage not in STAGES:
        raise refused(
            DPO if "dpo" in str(stage) else "fine-tuning", f"stage {str(stage)[:40]}", path=f"/{MEGATRON}/stage"
        )
    if keys.get("lora_target_modules") or keys.get("lora_r"):
        raise refused("LoRA", "lora_r", path=f"/{ACTOR}/lora_r")
    reader = KeyReader({section: document[section] for section in document if section not in (MEGATRON, ACTOR)})
    ranks = reader.number("/cluster/num_npus", "rl_config.actor_resource.num_npus", least=1)
    shape, preset = _shape(keys, base_dir, name, reader)
    flags = FlagReader(script_of("train_rl.py", _hashable({**shape, **keys}), lines_of_keys(text), ranks))
    strategy, layers = read_strategy(flags)
    model = preset or read_model(flags, layers, name, otherwise)
    strategy["features"] = sorted({*strategy["features"], *read_gradient_sums(flags, strategy, adapted=True)})
    prompts = flags.number("--global-batch-size", "/training/rl/prompts_per_step")
    if prompts is None or prompts < 1:
        raise SpecError(Message("common.is_required", name="global_batch_size"), path=f"/{MEGATRON}/global_batch_size")
    rl = _rl(reader, STAGES[stage], prompts)
    strategy["rl"] = _layout(reader, is_moe=bool(model.get("n_routed_experts")))
    flags.ignore(("--stage", "--seq-length", "--bf16", "--train-iters"), Message("importers.no_field_of_spec"))
    flags.ignore(OF_PACKS, Message("importers.predicted_as", what="sequence_length_histogram"))
    spec: dict[str, Any] = {"model": model, "training": {"kind": "rl_post_training", "rl": rl}}
    take_marks(text, spec, strategy, flags.log)
    take_rl_marks(text, rl, reader.log)
    spec |= {"search": search_of_marks(text, TARGET), "strategy": strategy}
    kept = [KeptFlag(flag.name, flag.text, flag.line) for flag in flags.note_rest()]
    kept += reader.note_rest(REASONS, _effect, Message("importers.unknown_key"))
    return Imported(
        "mindspeed-rl-yaml",
        spec,
        joined(flags.log, reader.log),
        ranks=ranks,
        target=TARGET,
        kept=tuple(kept),
        plan_id=plan_id_of(text),
    )


def _shape(
    keys: dict[str, Any], base_dir: Path | None, name: str | None, reader: KeyReader
) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """Keys of the model's file, or the model of a preset where that file is not there."""
    called = keys.pop("model", None)
    if called is None or "hidden_size" in keys:
        return {}, None
    path = None if base_dir is None else base_dir / "model" / f"{called}.yaml"
    if path is not None and str(called).replace("_", "").replace(".", "").isalnum() and path.is_file():
        from autodeploy.specs.text_files import read_document

        document = read_document(path)
        if isinstance(document, Mapping) and isinstance(document.get(called), Mapping):
            reader.log.take(f"/{MEGATRON}/model", "/model", called)
            return dict(document[called]), None
    names = [name or "", str(called), str(keys.get("tokenizer_name_or_path", ""))]
    model = model_of(names, None, reader.log, f"/{MEGATRON}/model")
    shape = {"num_layers": model["num_hidden_layers"]}
    if model.get("n_routed_experts"):
        shape |= {"num_experts": model["n_routed_experts"], "moe_token_dispatcher_type": "alltoall_seq"}
        shape |= {"moe_grouped_gemm": True, "moe_permutation_async_comm": True}
    return shape, model


def _hashable(keys: Mapping[str, Any]) -> dict[str, Any]:
    """Only values that an argument can have."""
    return {str(key): value for key, value in keys.items() if isinstance(value, str | int | float | bool | list)}


def _whole(reader: KeyReader, field: str, path: str, least: int = 1) -> int:
    number = reader.number(field, path, least=least)
    if number is None:
        number = DEFAULTS[path]
        reader.log.default(field, number, Message("importers.default_of", framework="MindSpeed-RL"))
    return number


def _rl(reader: KeyReader, algorithm: str, prompts: int) -> dict[str, Any]:
    place = "/training/rl"
    responses = _whole(reader, f"{place}/responses_per_prompt", "rl_config.n_samples_per_prompt")
    mini_batch = _whole(reader, f"{place}/updates_per_step", "rl_config.mini_batch_size")
    tokens = _whole(reader, f"{place}/response_length/max", "generate_config.sampling_config.max_tokens")
    prompt = _whole(reader, f"{place}/prompt_length/max", "rl_config.max_prompt_length")
    logged = reader.take(f"{place}/token_count", "rl_config.log_max_throughput")
    return {
        "algorithm": algorithm,
        "prompts_per_step": prompts,
        "responses_per_prompt": responses,
        "prompt_length": {"max": prompt},
        "response_length": {"max": tokens},
        "updates_per_step": whole_updates(prompts, mini_batch, reader.log, "/rl_config/mini_batch_size"),
        # grpo_trainer_hybrid.py computes it whatever the coefficient; dapo_trainer_hybrid.py never.
        "reference_model": algorithm != "dapo",
        "token_count": "mean" if logged is False else "max",
    }


def _layout(reader: KeyReader, *, is_moe: bool) -> dict[str, Any]:
    place = "/strategy/rl"
    tp = _whole(reader, f"{place}/generation/tp", "generate_config.infer_tensor_parallel_size")
    dp = _whole(reader, f"{place}/generation/dp", "generate_config.infer_expert_parallel_size")
    spread = reader.switch(f"{place}/generation/ep", "generate_config.enable_expert_parallel") and is_moe
    eager = reader.take(f"{place}/generation/mode", "generate_config.enforce_eager")
    graph = reader.switch(f"{place}/generation/mode", "generate_config.torchair_graph")
    memory = reader.take(f"{place}/generation/memory_fraction", "generate_config.gpu_memory_utilization")
    offload = {
        "optimizer": reader.switch(f"{place}/offload", "generate_config.offload_train_optimizer"),
        "gradients": reader.switch(f"{place}/offload", "generate_config.offload_train_grad"),
        "parameters": reader.switch(f"{place}/offload", "generate_config.offload_train_param"),
    }
    split = _whole(reader, f"{place}/partial_rollout", "rl_config.partial_rollout_max_split")
    return {
        "placement": "colocated",
        "generation": {
            **{"tp": tp, "dp": dp if spread else 1, "ep": tp * dp if spread else 1, "engine": "vllm-ascend"},
            "mode": "eager" if eager is not False and not graph else "graph",
            "memory_fraction": DEFAULT_MEMORY_FRACTION if memory is None else memory,
            "max_num_seqs": _whole(reader, f"{place}/generation/max_num_seqs", "generate_config.max_num_seqs"),
        },
        "partial_rollout": split > 1,
        "offload": [name for name, leaves in offload.items() if leaves],
        "pack_tokens": _pack_tokens(reader),
    }


def _pack_tokens(reader: KeyReader) -> int | None:
    field = "/strategy/rl/pack_tokens"
    reader.raw("rl_config.use_remove_padding")
    if not reader.switch(field, "rl_config.use_dynamic_bsz"):
        return None
    names = ("update_max_packing_token_size", "max_packing_token_size")
    tokens = reader.number(field, *(f"rl_config.{name}" for name in names), least=1)
    return tokens or DEFAULTS["rl_config.max_packing_token_size"]


def _effect(path: str) -> FlagEffect | None:
    from autodeploy.formats.common.flag_effects import FlagEffect

    if path in UNMODELLED:
        return FlagEffect("unmodelled", UNMODELLED[path], ("false", "none"))
    keys = release_of(TARGET, None).keys
    return FlagEffect("no_effect", Message("importers.no_field_of_spec")) if path in keys else None
