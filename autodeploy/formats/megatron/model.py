"""The model that a launch's flags describe. Defaults are Megatron-LM's (`megatron/training/arguments.py`)."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from autodeploy.formats.megatron.arguments import LaunchArguments, ShellVariable
from autodeploy.formats.megatron.attention import (
    SHORTCUT_SPEC,
    add_attention_types,
    is_compressed,
    read_attention_types,
    read_compressed,
    read_positions,
)
from autodeploy.formats.megatron.known_models import model_name, read_vocabulary
from autodeploy.formats.megatron.layers import noop_numbers, noops_before, padded_layer
from autodeploy.formats.megatron.recipe import (
    add_forced_routing,
    add_recipe,
    add_router,
    add_training_recipe,
    longest_context,
    read_recipe,
    untold,
)
from autodeploy.kit.errors import SpecError, UnsupportedError
from autodeploy.messages import Message
from autodeploy.specs.attention import ATTENTION_KINDS
from autodeploy.specs.model import MAX_LAYERS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autodeploy.formats.common.value_readers import FlagReader
    from autodeploy.specs.attention import AttentionKind
    from autodeploy.specs.model import ModelSpec
    from autodeploy.specs.spec import Spec


SIZES = {
    "--hidden-size": "hidden_size",
    "--num-attention-heads": "num_attention_heads",
}
CAPACITY, PADDED = "--moe-expert-capacity-factor", "--moe-pad-expert-input-to-capacity"
NOT_MODELLED = {
    "--hybrid-layer-pattern": Message("mechanism.other_layers"),
    "--hybrid-override-pattern": Message("mechanism.other_layers"),
    "--mamba-num-heads": Message("mechanism.recurrent_layers"),
    "--mamba-state-dim": Message("mechanism.recurrent_layers"),
    "--enable-mhc-connections": Message("mechanism.hyper_connections"),
    "--experimental-attention-variant": Message("mechanism.other_attention"),
    "--linear-attention-freq": Message("mechanism.linear_attention"),
    "--heterogeneous-layers-config-path": Message("mechanism.layers_of_several_shapes"),
    "--heterogeneous-layers-config-encoded-json": Message("mechanism.layers_of_several_shapes"),
    "--indexer-qk-quant-scheme": Message("mechanism.quantised_indexer"),
    "--is-hybrid-model": Message("mechanism.other_layers"),
    "--mtp-hybrid-override-pattern": Message("mechanism.other_layers"),
    "--moe-latent-size": Message("mechanism.latent_experts"),
    "--attention-output-gate": Message("mechanism.output_gate"),
    "--encoder-num-layers": Message("mechanism.encoder"),
    "--language-model-type": Message("mechanism.media_encoder"),
    "--vision-root": Message("mechanism.media_encoder"),  # FlagScale's, as the next
    "--disable-vision-class-token": Message("mechanism.media_encoder"),
}
# --gelu-tanh is gated: mindspeed_llm/core/transformer/mlp.py sets gated_linear_unit with it.
GATED = (("--swiglu", "silu"), ("--geglu", "geglu"), ("--quick-geglu", "geglu"), ("--gelu-tanh", "geglu"))
HALF, EIGHT_BITS = {"bf16": "--bf16", "fp16": "--fp16"}, "--fp8-format"
DETERMINISTIC = ("--npu-deterministic", "--deterministic-mode", "--use-deter-comp")
_RUNS = re.compile(r"\[([01](?:,[01])*)\](?:\*(\d{1,4}))?")


def read_model(reader: FlagReader, layers: int, name: str | None, otherwise: str) -> dict[str, Any]:
    """The `model` of a spec, with `layers` layers without padding."""
    for flag, mechanism in NOT_MODELLED.items():
        if reader.has(flag):
            reader.refuse_mechanism(flag, mechanism)
    model: dict[str, Any] = {"num_hidden_layers": layers}
    for flag, field in SIZES.items():
        model[field] = _required(reader, flag, f"/model/{field}")
    model["hidden_act"] = _activation(reader)
    compressed = is_compressed(reader)
    model |= _attention(reader, model)
    if compressed:
        model = read_compressed(reader, model, layers)
    else:
        model |= read_attention_types(reader, layers)
    model |= _ends(reader)
    ffn = reader.number("--ffn-hidden-size", "/model/intermediate_size")
    if ffn is None:
        wide = 4 * model["hidden_size"]
        ffn = int(wide * 2 / 3 / 64) * 64 if model["hidden_act"] == "silu" else wide
        reader.assume("/model/intermediate_size", ffn)
    model |= _experts(reader, layers, ffn)
    if (mtp := reader.number("--mtp-num-layers", "/model/num_nextn_predict_layers")) is not None:
        model["num_nextn_predict_layers"] = mtp
    model["vocab_size"] = read_vocabulary(reader, model, otherwise)
    model["recipe"] = read_recipe(reader, model) | (read_positions(reader) if compressed else {})
    return {"name": name or model_name(reader, model, otherwise), **model}


def _required(reader: FlagReader, flag: str, field: str) -> int:
    number = reader.number(flag, field)
    if number is None:
        raise SpecError(Message("common.is_required", name=flag), path=field)
    if number < 1:
        reader.fail(flag, Message("field_fault.is_too_small", value=number))
    return number


def _activation(reader: FlagReader) -> str:
    for flag, name in GATED:
        if reader.switch(flag, "/model/hidden_act"):
            return name
    return str(reader.assume("/model/hidden_act", "gelu"))


def _attention(reader: FlagReader, model: dict[str, Any]) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    grouped = reader.switch("--group-query-attention", "/model/num_key_value_heads")
    groups = reader.number("--num-query-groups", "/model/num_key_value_heads")
    channels = reader.number("--kv-channels", "/model/head_dim")
    norm = reader.has("--qk-layernorm")
    asked = [k for k in ATTENTION_KINDS if any([reader.switch(flag, f"/model/{k.field}") for flag in k.switches])]
    if asked:
        for field, flags, usual in asked[0].sizes:
            values = [v for flag in flags if (v := reader.number(flag, f"/model/{field}")) is not None]
            if values or usual is not None:
                fields[field] = values[-1] if values else usual
            if not values and usual is not None:
                reader.assume(f"/model/{field}", usual)
    else:
        if groups is not None and (grouped or groups == model["num_attention_heads"]):
            fields["num_key_value_heads"] = groups
        elif groups is not None:
            given, lacking = reader.script.flags["--num-query-groups"], "--group-query-attention"
            reason = Message("common.needs", one=given.name, other=lacking)
            reader.log.contradict(given.place, "/model/num_key_value_heads", groups, reason)
        if channels is not None:
            fields["head_dim"] = channels
        if norm:
            fields["qk_norm"] = reader.switch("--qk-layernorm", "/model/qk_norm")
    if reader.switch("--post-norm", "/model/norm_layout") or reader.switch("--sandwich-norm", "/model/norm_layout"):
        fields["norm_layout"] = "sandwich"
    return fields | _windows(reader)


def _windows(reader: FlagReader) -> dict[str, Any]:
    alternating = reader.number("--interleave-sliding-window", "/model/sliding_window")
    if alternating is not None:
        return {"sliding_window": alternating, "layer_types": "alternating sliding and full attention"}
    window = reader.number("--sliding-window", "/model/sliding_window")
    if (size := reader.text("--window-size", "/model/sliding_window")) is not None:
        left = size.strip("()\"' ").partition(",")[0]
        if not left.removeprefix("-").isdigit() or len(left) > 9:
            reader.fail("--window-size", Message("field_fault.is_invalid", value=repr(size[:40])), "1024,0")
        window = int(left) + 1
    if window is None or window < 1:
        return {}
    if reader.number("--window-attn-skip-freq", "/model/layer_types") == 2:
        return {"sliding_window": window, "layer_types": "alternating sliding and full attention"}
    return {"sliding_window": window}


def _ends(reader: FlagReader) -> dict[str, Any]:
    """Embedding, head and positions."""
    untied = reader.switch("--untie-embeddings-and-output-weights", "/model/tie_word_embeddings")
    if not untied:
        reader.assume("/model/tie_word_embeddings", True)
    rotary = reader.has("--use-rotary-position-embeddings")
    kind = reader.text("--position-embedding-type", "/model/learned_position_embeddings")
    absent = reader.has("--no-position-embedding")
    fields: dict[str, Any] = {"tie_word_embeddings": not untied}
    if (kind or "learned_absolute") == "learned_absolute" and not rotary and not absent:
        rows = reader.number("--max-position-embeddings", "/model/learned_position_embeddings")
        fields |= {} if rows is None else {"learned_position_embeddings": rows}
    return fields | ({"alibi": True} if kind == "alibi" else {})


def _experts(reader: FlagReader, layers: int, ffn: int) -> dict[str, Any]:
    experts = reader.number("--num-experts", "/model/n_routed_experts")
    if not experts:
        return {"intermediate_size": ffn}
    width = reader.number("--moe-ffn-hidden-size", "/model/moe_intermediate_size") or reader.number(
        "--moe-intermediate-size", "/model/moe_intermediate_size"
    )
    if width is None:
        width = reader.assume("/model/moe_intermediate_size", ffn)
    topk = reader.number("--moe-router-topk", "/model/num_experts_per_tok")
    fields: dict[str, Any] = {"n_routed_experts": experts, "num_experts_per_tok": topk, "moe_intermediate_size": width}
    if zero := reader.number("--num-zero-experts", "/model/n_zero_experts"):
        fields["n_zero_experts"] = zero
    if reader.is_told("--spec") and SHORTCUT_SPEC in reader.script.flags["--spec"].text:
        fields |= {"shortcut_moe": True, "intermediate_size": ffn}
        reader.log.take(reader.script.flags["--spec"].place, "/model/shortcut_moe", True)
    shared = reader.number("--moe-shared-expert-intermediate-size", "/model/shared_expert_intermediate_size")
    count = reader.number("--n-shared-experts", "/model/n_shared_experts")
    if shared:
        whole = width and shared % width == 0
        fields["n_shared_experts"] = count or (shared // width if whole else 1)
        if fields["n_shared_experts"] * width != shared:
            fields["shared_expert_intermediate_size"] = shared
    elif count:
        fields["n_shared_experts"] = count
    groups = _first(reader, ("--moe-router-num-groups", "--n-group"), "/model/n_group")
    reached = _first(reader, ("--moe-router-group-topk", "--topk-group"), "/model/topk_group")
    if groups and reached:
        fields |= {"n_group": groups, "topk_group": reached}
    # Without padding the tokens above the capacity are dropped, and the others are no more: a feature of the strategy.
    if reader.has(PADDED):
        capacity = reader.decimal(CAPACITY, "/model/capacity_factor")
        if capacity is not None and capacity > 0:
            fields["capacity_factor"] = capacity
    dense = _dense_layers(reader, layers)
    lead = next((i for i, layer in enumerate(dense) if i != layer), len(dense))
    fields |= {"first_k_dense_replace": lead, "mlp_only_layers": dense[lead:]}
    if dense:
        fields["intermediate_size"] = ffn
    return fields


def _first(reader: FlagReader, flags: tuple[str, ...], field: str) -> int | None:
    """The number after the first of the flags that is given; the later ones are older names of the same."""
    numbers = [reader.number(flag, field) for flag in flags]
    return next((number for number in numbers if number is not None), None)


def _dense_layers(reader: FlagReader, layers: int) -> list[int]:
    """Layers without experts. -1 is MindSpeed-LLM's word for none; a pattern is one number a layer."""
    first = reader.number("--first-k-dense-replace", "/model/first_k_dense_replace") or 0
    first -= noops_before(reader, first)  # it counts padding
    text = reader.text("--moe-layer-freq", "/model/mlp_only_layers") or "1"
    plain = text.strip("\"' ").replace(" ", "")
    if plain.removeprefix("-").isdigit() and len(plain) <= 6:
        every = max(1, int(plain))
        return [i for i in range(layers) if i < first or i % every]
    body = plain.removeprefix("(").removesuffix(")")
    pattern: list[int] = []
    for part in re.split(r"\+(?=\[)", body):
        match = _RUNS.fullmatch(part)
        if match is None or len(pattern) > MAX_LAYERS:
            reader.fail("--moe-layer-freq", Message("field_fault.is_invalid", value=repr(text[:40])), "([0]*3+[1]*58)")
        pattern += [int(flag) for flag in match[1].split(",")] * int(match[2] or 1)
    noops = noop_numbers(reader)
    pattern = [kind for number, kind in enumerate(pattern) if number not in noops]  # it counts padding, too
    return [i for i in range(layers) if i < first or not (pattern[i] if i < len(pattern) else 1)]


# The model's shape and training run in Megatron-LM's flags; MindSpeed-LLM understands most of them and adds some.
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
    own = model.attention
    _add_sizes(arguments, model, own)
    if own.own_keys and model.num_key_value_heads != model.num_attention_heads:
        add(block, "--group-query-attention")
        add(block, "--num-query-groups", model.num_key_value_heads)
    if own.own_keys and model.head_dim * model.num_attention_heads != model.hidden_size:
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
            arguments.leaves_to_code("hidden_act geglu")


def _add_sizes(arguments: LaunchArguments, model: ModelSpec, kind: AttentionKind) -> None:
    block = f"{kind.name.upper()}_ARGS"
    for switch in kind.switches[:1]:
        arguments.add(block, switch)
        for field, flags, _ in kind.sizes:
            if (value := getattr(model, field)) is not None:
                arguments.add(block, flags[0], value)
        arguments.add(block, "--qk-layernorm")


def _add_windows(arguments: LaunchArguments, model: ModelSpec) -> None:
    window = model.sliding_window
    if window is None or model.attention.types:
        return
    windows = [model.attention_window(layer) is not None for layer in range(model.num_hidden_layers)]
    alternating = windows == [layer % 2 == 0 for layer in range(len(windows))]
    if not (all(windows) or alternating):
        arguments.leaves_to_code("layer_types")
    if arguments.knows("--sliding-window"):
        arguments.add("GPT_ARGS", "--interleave-sliding-window" if alternating else "--sliding-window", window)
        return
    if not arguments.knows("--window-size"):
        arguments.leaves_to_code(f"sliding_window {window}")
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
    add_training_recipe(arguments, training.recipe_or_default)
    if (half := "bf16" if training.precision == "fp8" else training.precision) in HALF:
        add(block, HALF[half])
    if training.precision == "fp8":
        add(block, EIGHT_BITS, "hybrid")
    if spec.search.deterministic_training:
        add(block, DETERMINISTIC[0] if arguments.knows(DETERMINISTIC[0]) else DETERMINISTIC[1])
