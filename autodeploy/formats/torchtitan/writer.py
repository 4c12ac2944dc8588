"""A plan as the TOML of torchtitan-npu: `torchrun ... -m torchtitan_npu.entry --job.config_file FILE`.

Tokenizer, weights, data and output are the user's, and given on the command line, which wins over the file.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from autodeploy.formats.common.value_readers import leaves
from autodeploy.formats.megatron.launch import Launch, plain_launch
from autodeploy.formats.megatron.launch_script import head_comments, torchrun
from autodeploy.formats.megatron.memory import recomputed_layers
from autodeploy.formats.megatron.post_training_launch import refuse_bad_keys
from autodeploy.formats.torchtitan import keys
from autodeploy.messages import Message
from autodeploy.specs.artefact import Artefact
from autodeploy.specs.launched import CONVERTERS, ROTARY, SPARSE, TorchtitanModel, torchtitan_model_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from autodeploy.specs.planset import Plan, PlanSet
    from autodeploy.specs.strategy import Strategy


# Documents as TOML 1.0: sections of plain values and lists of them, never glued from unescaped strings.
Value = bool | int | float | str | list[str] | list[int]


def toml_text(document: Mapping[str, Mapping[str, Value]], comments: Iterable[str] = ()) -> str:
    """Sections in the order of the document, under comments."""
    lines = [f"# {' '.join(line.split())}" for line in comments]
    for section, values in document.items():
        lines += ["", f"[{section}]"] if lines else [f"[{section}]"]
        lines += [f"{key} = {_written(value)}" for key, value in values.items()]
    return "\n".join(lines) + "\n"


def _written(value: Value) -> str:
    # A basic string of TOML escapes what JSON does, and DEL.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def export(plan_set: PlanSet, plan: Plan) -> Artefact:
    """The TOML; its comments say how it is started, and what it can't say."""
    launch = plain_launch(plan_set, plan, keys.TARGET)
    document = configuration(launch)
    refuse_bad_keys(launch.arguments.release, dict(leaves(document)))
    name = f"torchtitan_npu_{plan.plan_id}.toml"
    comments = head_comments(plan_set, launch, _start(launch, name))
    return Artefact(toml_text(document, comments), "application/toml", name, tuple(launch.arguments.notes))


def configuration(launch: Launch) -> dict[str, dict[str, Any]]:
    """The sections, in the order of torchtitan's own files."""
    spec, plan, strategy = launch.spec, launch.plan, launch.plan.strategy
    for name in strategy.swap:
        launch.arguments.lacks(f"swap: {name}", "torchtitan-npu")
    model = _model(launch)
    batch = plan.micro_batches * strategy.micro_batch_size * strategy.replicas(launch.ranks)
    told = spec.training.tokens
    if spec.model.sparse_attention is not None:
        # Its README: 146 tokens/s a card at 4,096 tokens, where DeepSeek-V3 has 546.
        launch.arguments.note(Message("exporters.unfused_sparse_attention"))
    launch.arguments.note(Message("exporters.not_given", names="lr", field="--optimizer.lr"))
    moe = spec.model.is_moe
    logic = {
        "job.custom_config_module": "torchtitan_npu.config.custom_config",
        **{keys.NAME: model.name, keys.FLAVOR: model.flavor, keys.CONVERTED: _converters(strategy, model)},
        keys.OPTIMIZER: "AdamW",
        keys.BATCH: batch,
        "training.mixed_precision_reduce": "float32",
        keys.STEPS: None if told is None else -(-int(told) // (batch * spec.training.seq_length)),
        keys.MODULES: spec.model.num_nextn_predict_layers if model.predicts else None,
        # Ranks of context parallelism share parameters beside these (distributed/parallel_dims.py).
        keys.SHARDS: strategy.replicas(launch.ranks) // strategy.dp_replicate,
        keys.RING_OFF: strategy.cp > 1,
        "strategy.pp": 1,  # its plans have one stage
        "strategy.ep": strategy.ep if moe else None,
        "strategy.etp": (strategy.etp or 1 if strategy.ep > 1 else 1) if moe else None,
        **_recomputed(launch),
        "checkpoint.enable": None if plan.save_steps is None else True,
        "checkpoint.interval": plan.save_steps,
        keys.COMPILED: False,
    }
    return keys.TABLE.written(spec, strategy, logic)


def _model(launch: Launch) -> TorchtitanModel:
    model = launch.spec.model
    known_model = torchtitan_model_of(model)
    assert known_model is not None  # else refused as a model that it does not launch
    return known_model


def _converters(strategy: Strategy, model: TorchtitanModel) -> list[str]:
    converters = [SPARSE] if model.predicts else []
    converters += [name for feature, name in CONVERTERS if feature in strategy.features]
    return converters + ([] if "unfused_rotary" in strategy.features else [ROTARY])


def _recomputed(launch: Launch) -> dict[str, Any]:
    """All layers, every n-th one, all by operator, or none. Where the plan recomputes others, the next larger number of
    layers is.
    """
    layers = launch.spec.model.num_hidden_layers
    counts = recomputed_layers(launch.plan.strategy, 1, layers)
    if counts.keys() == {"by_operator"}:
        some = sum(counts["by_operator"])
        if some < layers:
            launch.arguments.note(
                Message("exporters.recomputed_layers_differ", count=some, layers=layers, others=layers)
            )
        return {keys.RECOMPUTE: "selective", keys.EVERY: "op"}
    for name in sorted(counts.keys() - {"full"}):
        launch.arguments.lacks(f"recompute: {name}", "torchtitan-npu")
    whole = sum(counts.get("full", [0]))
    if not whole:
        return {keys.RECOMPUTE: "none"}
    every = layers // whole
    if every < 2:
        if whole < layers:
            launch.arguments.note(
                Message("exporters.recomputed_layers_differ", count=whole, layers=layers, others=layers)
            )
        return {keys.RECOMPUTE: "full"}
    if layers // every != whole:
        launch.arguments.note(
            Message("exporters.recomputed_layers_differ", count=whole, layers=layers, others=layers // every)
        )
    return {keys.RECOMPUTE: "selective", keys.EVERY: str(every)}


def _start(launch: Launch, name: str) -> list[str]:
    return [
        "Start it in the torchtitan-npu directory on every node, with the environment of its "
        "scripts/run_train_multinodes.sh: "
        f"{torchrun(launch, 6300)} -m torchtitan_npu.entry --job.config_file {name} --model.hf_assets_path ASSETS "
        "--training.dataset DATA --training.dataset_path PATH --job.dump_folder OUTPUT"
    ]
