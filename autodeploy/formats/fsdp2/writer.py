"""A plan as the YAML of MindSpeed-LLM's FSDP2 backend, `train_fsdp2.py FILE`: sections of its argument classes.

Weights, data and output are the user's, and given on the command line, which wins over the file.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from autodeploy.formats.common.value_readers import leaves
from autodeploy.formats.fsdp2 import keys
from autodeploy.formats.megatron.launch import Launch, plain_launch
from autodeploy.formats.megatron.launch_script import head_comments, torchrun
from autodeploy.formats.megatron.memory import recomputed_layers
from autodeploy.formats.megatron.post_training_launch import refuse_bad_keys
from autodeploy.kit.yaml_text import yaml_text
from autodeploy.messages import Message
from autodeploy.specs.artefact import Artefact
from autodeploy.specs.launched import model_id_of
from autodeploy.specs.presets import preset_of
from autodeploy.specs.strategy import ChoiceKey
from autodeploy.stack.features import FEATURES

if TYPE_CHECKING:
    from autodeploy.specs.planset import Plan, PlanSet

WHOLE_LOSS = (None, "gpt_oss", "step35", "glm52")  # whose forward takes no loss_ctx
LAYERS, EXPERTS = "model.layers.{*}", "model.layers.{*}.mlp.experts"
UNITS = (LAYERS, "model.embed_tokens", "lm_head")


def export(plan_set: PlanSet, plan: Plan) -> Artefact:
    """The YAML; its comments say how it is started, and what it can't say."""
    launch = plain_launch(plan_set, plan, keys.TARGET)
    document = configuration(launch)
    refuse_bad_keys(launch.arguments.release, dict(leaves(document)))
    preset = preset_of(launch.spec.model)
    name = f"mindspeed_llm_fsdp2_{plan.plan_id}.yaml"
    more_marks = f" preset={preset}" if preset else ""
    comments = head_comments(plan_set, launch, _start(launch, name), more_marks=more_marks)
    return Artefact(yaml_text(document, comments), "application/yaml", name, tuple(launch.arguments.notes))


def configuration(launch: Launch) -> dict[str, Any]:
    """The sections, in the backend's own order."""
    spec, plan, strategy = launch.spec, launch.plan, launch.plan.strategy
    for name in strategy.swap:
        launch.arguments.lacks(f"swap: {name}", keys.TABLE.framework)
    launch.arguments.note(Message("exporters.not_given", names="lr", field="--training.lr"))
    told = spec.training.tokens
    batch = plan.micro_batches * strategy.micro_batch_size * strategy.replicas(launch.ranks)
    training = {
        keys.STAGE: "sft" if spec.training.kind == "sft" else "pt",
        keys.OPTIMIZER: "adamw" if "unfused_optimizer" in strategy.features else "fused_adamw",
        keys.ACCUMULATED: plan.micro_batches,
        keys.DETERMINISTIC: spec.search.deterministic_training,
        "training.log_throughput": True,
        keys.MAX_STEPS: None if told is None else -(-int(told) // (batch * spec.training.seq_length)),
        "training.save_steps": plan.save_steps,
    }
    model = {
        keys.MODEL_ID: _model_id(launch),
        "model.train_from_scratch": True,
        "model.init_model_with_meta_device": True,
    }
    more = {**model, **_data(launch), **_parallel(launch), **training, **_optimization(launch)}
    return keys.TABLE.written(spec, strategy, more)


def _data(launch: Launch) -> dict[str, Any]:
    """Samples of a data manager for each stage; those of documents with told lengths are packed."""
    training = launch.spec.training
    if training.kind != "sft":
        return {"data.data_manager_type": "mg"}
    launch.arguments.note(Message("exporters.not_given", names="template", field="--data.template"))
    packed = dict.fromkeys(keys.PACKED, True) if training.sequence_length_histogram is not None else {}
    return {"data.data_manager_type": "lf"} | packed


def _model_id(launch: Launch) -> str | None:
    model_id = model_id_of(launch.spec.model)
    if model_id is None:
        launch.arguments.note(Message("exporters.no_backend_model"))
    return model_id


def _parallel(launch: Launch) -> dict[str, Any]:
    strategy, recomputed = launch.plan.strategy, _recomputed(launch)
    pairs: dict[str, Any] = {
        keys.RANKS: launch.ranks,
        "parallel.fsdp_modules": list(UNITS),
        **keys.PREDICTED,
        "strategy.tp": None,
        "strategy.cp_algo": strategy.cp_algo or "ulysses",
        "strategy.ep": None,
        keys.RECOMPUTE: bool(recomputed),
        keys.RECOMPUTED: recomputed or [LAYERS],
    }
    if launch.spec.model.is_moe:
        pairs |= {
            "strategy.ep": strategy.ep,
            keys.EXPERT_RANKS: launch.ranks // strategy.ep if strategy.ep > 1 else 1,
            "parallel.ep_modules": [EXPERTS],
            "parallel.ep_fsdp_modules": [EXPERTS],
            keys.DISPATCHER: "fused" if "fused_operators" in strategy.features else "eager",
        }
    return pairs


def _recomputed(launch: Launch) -> list[str]:
    """Patterns of the layers that are recomputed whole: the first ones of each class, as the plan counts them."""
    strategy, model = launch.plan.strategy, launch.spec.model
    layers = model.num_hidden_layers
    counts = recomputed_layers(strategy, 1, layers)
    for name in sorted(counts.keys() - {"full"}):
        launch.arguments.lacks(f"recompute: {name}", keys.TABLE.framework)
    whole = counts.get("full", [0])[0]
    if whole in {0, layers}:
        return [LAYERS] if whole else []
    per_stage = strategy.recompute.per_stage or ({"full": whole},)
    first = {"dense": 0, "moe": model.first_k_dense_replace if model.is_moe else 0}
    modules = []
    for text, count in per_stage[0].items():
        start = first.get(ChoiceKey.of(text).layer_class or "dense", 0)
        modules += [f"model.layers.{{{start}-{start + count - 1}}}"] if count else []
    return modules


def _optimization(launch: Launch) -> dict[str, Any]:
    features, moe = launch.plan.strategy.features, launch.spec.model.is_moe
    pairs: dict[str, Any] = {keys.ATTENTION: "flash_attention" in features}
    if "chunked_loss" in features:
        if model_id_of(launch.spec.model) in WHOLE_LOSS:
            launch.arguments.note(Message("exporters.no_chunked_loss"))
        else:
            pairs[keys.CHUNK] = int(FEATURES["chunked_loss"].values["chunk_tokens"])
    return pairs | ({} if moe else {"features.grouped_gemm": None})


def _start(launch: Launch, name: str) -> list[str]:
    return [
        "Start it in the MindSpeed-LLM directory on every node, after `source examples/fsdp2/env_config.sh`: "
        f"{torchrun(launch, 6000)} train_fsdp2.py {name} --model.model_name_or_path MODEL_DIR --data.dataset DATA "
        "--training.output_dir OUTPUT"
    ]
