"""The model's shape and training run in Megatron-LM's flags; MindSpeed-LLM understands most of them and adds some."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autodeploy.errors import UnsupportedError
from autodeploy.exporters.arguments import LaunchArguments, ShellVariable
from autodeploy.exporters.attention_type_arguments import add_attention_types
from autodeploy.exporters.layer_placement import padded_layer
from autodeploy.exporters.recipe_arguments import (
    add_forced_routing,
    add_recipe,
    add_router,
    add_training_recipe,
    longest_context,
    untold,
)
from autodeploy.messages import Message

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autodeploy.specs.model import ModelSpec
    from autodeploy.specs.spec import Spec


def add_model(arguments: LaunchArguments, spec: Spec, num_layers: int) -> None:
    """GPT_ARGS and, where the model has them, MLA_ARGS and MTP_ARGS. `num_layers` counts padding."""
    model, block = spec.model, "GPT_ARGS"
    add = arguments.add
    add(block, "--use-mcore-models")
    add(block, "--num-layers", num_layers)
    add(block, "--hidden-size", model.hidden_size)
    add(block, "--ffn-hidden-size", feed_forward_width(model))
    add(block, "--num-attention-heads", model.num_attention_heads)
    add(block, "--seq-length", ShellVariable("SEQ_LENGTH"))
    add(block, "--max-position-embeddings", longest_context(model, spec.training.seq_length))
    add(block, "--make-vocab-size-divisible-by", 1)
    add(block, "--vocab-size", model.vocab_size)
    if not model.tie_word_embeddings:
        add(block, "--untie-embeddings-and-output-weights")
    if model.num_nextn_predict_layers:
        add("MTP_ARGS", "--mtp-num-layers", model.num_nextn_predict_layers)
    add_recipe(arguments, model)
    _add_activation(arguments, model)
    grouped = not model.is_mla and model.compressed_attention is None
    if model.is_mla:
        _add_latent_attention(arguments, model)
    elif grouped and model.num_key_value_heads != model.num_attention_heads:
        add(block, "--group-query-attention")
        add(block, "--num-query-groups", model.num_key_value_heads)
    if grouped and model.head_dim * model.num_attention_heads != model.hidden_size:
        add(block, "--kv-channels", model.head_dim)
    if model.qk_norm:
        add(block, "--qk-layernorm")
    _add_windows(arguments, model)
    add_attention_types(arguments, model)
    if names := untold(model):
        arguments.note(Message("exporters.not_given", field="model.recipe", names=", ".join(names)))


def feed_forward_width(model: ModelSpec) -> int:
    """Width of a dense layer; where there is none, of an expert."""
    return model.intermediate_size or model.moe_intermediate_size or model.hidden_size


def _add_activation(arguments: LaunchArguments, model: ModelSpec) -> None:
    if model.hidden_act == "silu":
        arguments.add("GPT_ARGS", "--swiglu")
    elif model.hidden_act == "geglu":
        if arguments.knows("--geglu"):
            arguments.add("GPT_ARGS", "--geglu")
        else:
            arguments.unsaid.append("hidden_act")
            arguments.note(Message("exporters.model_s_code_has_to_say", what="hidden_act geglu"))


def _add_latent_attention(arguments: LaunchArguments, model: ModelSpec) -> None:
    block = "MLA_ARGS"
    arguments.add(block, "--multi-latent-attention")
    if model.q_lora_rank is not None:
        arguments.add(block, "--q-lora-rank", model.q_lora_rank)
    arguments.add(block, "--kv-lora-rank", model.kv_lora_rank or 0)
    arguments.add(block, "--qk-head-dim", model.qk_nope_head_dim or 0)
    arguments.add(block, "--qk-pos-emb-head-dim", model.qk_rope_head_dim or 0)
    arguments.add(block, "--v-head-dim", model.value_head_dim)
    arguments.add(block, "--qk-layernorm")


def _add_windows(arguments: LaunchArguments, model: ModelSpec) -> None:
    window = model.sliding_window
    if window is None or model.compressed_attention is not None:
        return
    windows = [model.attention_window(layer) is not None for layer in range(model.num_hidden_layers)]
    alternating = windows == [layer % 2 == 0 for layer in range(len(windows))]
    if not (all(windows) or alternating):
        arguments.note(Message("exporters.model_s_code_has_to_say", what="layer_types"))
    if arguments.knows("--sliding-window"):
        arguments.add("GPT_ARGS", "--interleave-sliding-window" if alternating else "--sliding-window", window)
        return
    if not arguments.knows("--window-size"):
        arguments.note(Message("exporters.model_s_code_has_to_say", what=f"sliding_window {window}"))
        return
    arguments.add("GPT_ARGS", "--window-size", f"{window - 1},0")
    if alternating:
        arguments.add("GPT_ARGS", "--window-attn-skip-freq", 2)


def add_experts(arguments: LaunchArguments, spec: Spec, ep: int) -> None:
    """MOE_ARGS: experts and router, with EP as its flag says it; how experts are spread is the parallel room's."""
    model, block = spec.model, "MOE_ARGS"
    if not model.is_moe:
        return
    add = arguments.add
    add(block, "--num-experts", model.n_routed_experts or 0)
    add(block, "--moe-router-topk", model.num_experts_per_tok or 0)
    if arguments.knows("--moe-ffn-hidden-size") or model.moe_intermediate_size != feed_forward_width(model):
        add(block, "--moe-ffn-hidden-size", model.moe_intermediate_size or 0)
    if model.shared_expert_width:
        add(block, "--moe-shared-expert-intermediate-size", model.shared_expert_width)
    if model.n_group is not None and model.n_group > 1:
        add(block, "--moe-router-num-groups", model.n_group)
        add(block, "--moe-router-group-topk", model.topk_group or 1)
    if model.capacity_factor is not None:
        add(block, "--moe-expert-capacity-factor", model.capacity_factor)
        add(block, "--moe-pad-expert-input-to-capacity")
    add_router(arguments, model, ep)
    if spec.training.router == "forced":
        add_forced_routing(arguments, ep)
    if not arguments.knows("--first-k-dense-replace"):
        if arguments.knows("--moe-layer-freq") or not all(map(model.is_moe_layer, range(model.num_hidden_layers))):
            add(block, "--moe-layer-freq", _frequency(_pattern(model, arguments.numbers("--noop-layers"))))
        return
    # MindSpeed-LLM: -1 means that every layer has experts.
    dense = padded_layer(model.first_k_dense_replace, arguments.numbers("--noop-layers"))
    add(block, "--first-k-dense-replace", dense or -1)
    add(block, "--moe-layer-freq", 1 if dense else -1)
    if model.mlp_only_layers:
        message = Message("exporters.has_no_flag_in", framework=arguments.release.title, name="mlp_only_layers")
        raise UnsupportedError(message, path="/to", hint=Message("exporters.export_to", names="json"))


def _pattern(model: ModelSpec, noops: Sequence[int]) -> str:
    """Layers with (1) and without (0) experts; a layer that does nothing is as the one before it."""
    pattern = [str(int(model.is_moe_layer(layer))) for layer in range(model.num_hidden_layers)]
    for noop in sorted(noops):
        pattern.insert(noop, pattern[noop - 1])
    return "".join(pattern)


def _frequency(pattern: str) -> str:
    """Megatron's expression for layers with (1) and without (0) experts, such as `([0]*3+[1]*58)`."""
    runs: list[tuple[str, int]] = []
    for kind in pattern:
        if runs and runs[-1][0] == kind:
            runs[-1] = (kind, runs[-1][1] + 1)
        else:
            runs.append((kind, 1))
    return "(" + "+".join(f"[{kind}]*{count}" for kind, count in runs) + ")"


def add_training(arguments: LaunchArguments, spec: Spec) -> None:
    """TRAIN_ARGS: batch, number format and the recipe's variables, which the user sets."""
    block, training = "TRAIN_ARGS", spec.training
    add = arguments.add
    add(block, "--micro-batch-size", ShellVariable("MBS"))
    add(block, "--global-batch-size", ShellVariable("GBS"))
    add(block, "--train-iters", ShellVariable("TRAIN_ITERS"))
    add_training_recipe(arguments, training.told)
    if training.precision in {"bf16", "fp8"}:
        add(block, "--bf16")
    elif training.precision == "fp16":
        add(block, "--fp16")
    if training.precision == "fp8":
        add(block, "--fp8-format", "hybrid")
    if spec.search.deterministic_training:
        add(block, "--npu-deterministic" if arguments.knows("--npu-deterministic") else "--deterministic-mode")
