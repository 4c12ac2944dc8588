"""What of a model and its training a release launches: the one place that searches, estimates and exports ask."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from autodeploy.specs.attention import HCA, INDEXED
from autodeploy.specs.torchtitan_models import torchtitan_model_of
from autodeploy.stack.features import FEATURES
from autodeploy.stack.frameworks import FRAMEWORKS
from autodeploy.stack.training import trains

if TYPE_CHECKING:
    from collections.abc import Callable

    from autodeploy.specs.model import ModelSpec
    from autodeploy.specs.training import TrainingSpec
    from autodeploy.stack.releases import Release


# Models that MindSpeed-LLM's FSDP2 backend has classes of its own for, by what their names begin with.
# Other models are transformers' (MindSpeed-LLM models/model_registry.py).
MODEL_IDS: Final = (
    ("qwen3-next", "qwen3_next"),
    ("qwen3", "qwen3"),
    ("gpt-oss", "gpt_oss"),
    ("minimax-m2", "minimax_m27"),
    ("step-3.5", "step35"),
    ("glm-5", "glm52"),
)
OF_EXPERTS: Final = {"qwen3": "qwen3_moe"}


def model_id_of(model: ModelSpec) -> str | None:
    """The backend's own class for a model; None where it runs transformers'."""
    name = model.name.lower()
    model_id = next((id_ for start, id_ in MODEL_IDS if name.startswith(start)), None)
    return OF_EXPERTS.get(model_id, model_id) if model_id and model.is_moe else model_id


# How a framework that has a list of models knows them.
_LISTED: Final[dict[str, Callable[[ModelSpec], bool]]] = {
    "classes": lambda model: not model.is_moe or model_id_of(model) is not None,
    "flavors": lambda model: torchtitan_model_of(model) is not None,
}
# What the kernels of residual streams are compiled for. Source: MindSpeed-LLM @c77308a1 mhc_feature.py, validate_args.
FUSED_STREAMS: Final = (4, 20)
# Flags of parts that not every release has; the other parts no release has.
_FLAGS: Final = {
    "compressed_attention": ("--kv-compress", "--o-groups", "--use-fused-mhc"),
    "hyper_connections": ("--kv-compress", "--o-groups", "--use-fused-mhc"),
    "linear_attention": ("--full-attention-interval",),
    "attention_output_gate": ("--full-attention-interval",),
    "sparse_attention": ("--enable-dsa-indexer",),
    "shortcut_moe": ("--num-zero-experts",),
    "n_zero_experts": ("--num-zero-experts",),
}


def unlaunched(model: ModelSpec, training: TrainingSpec, release: Release | None) -> str:
    """The first field of a spec that a release has no launch of, with its value; empty where it launches all."""
    if release is None:
        return ""
    if training.kind == "dpo" and model.compressed_attention is not None:  # sft_trainer.py alone joins the streams
        return f"training.kind {training.kind}"
    for field in ("kind", "precision") if not FRAMEWORKS[release.framework].post_trains else ():
        if not trains(release, getattr(training, field)):
            return f"training.{field} {getattr(training, field)}"
    for tuning in training.tunings:
        if not trains(release, tuning.name):
            return tuning.path[1:].replace("/", ".")
    if (own := FEATURES.get(training.optimizer)) is not None and own.variant(release) is None:
        return f"training.optimizer {training.optimizer}"
    part = _part(model, release)
    return part and f"model.{part}"


def _part(model: ModelSpec, release: Release) -> str:
    """The first part of a model that a release's own code does not have; where keys name a model, that is its own."""
    framework = FRAMEWORKS[release.framework]
    if framework.configured_by == "keys":
        return ""
    if framework.models:
        return "" if _LISTED[framework.models](model) else "name"
    if release.registers("--first-k-dense-replace") and model.is_moe and model.mlp_only_layers:
        return "mlp_only_layers"
    special = special_parts(model)
    for part in special:
        if part not in _FLAGS or not all(map(release.registers, _FLAGS[part])):
            return part
    return _not_as_built(model, release) if special else ""


def _not_as_built(model: ModelSpec, release: Release) -> str:
    """The first part that MindSpeed-LLM has in another form alone."""
    compressed, streams, sparse = model.compressed_attention, model.hyper_connections, model.sparse_attention
    if compressed is not None:
        if compressed.csa_rate != INDEXED or (HCA in (model.layer_types or ()) and compressed.hca_rate == INDEXED):
            return "compressed_attention.hca_rate"
        if streams is not None and (streams.hc_mult, streams.hc_sinkhorn_iters) != FUSED_STREAMS:
            return "hyper_connections.hc_mult"
        return ""
    if streams is not None:
        return "hyper_connections"
    if model.shortcut_moe or model.n_zero_experts:
        return "" if model.shortcut_moe and model.attention.own_positions else "n_zero_experts"
    if sparse is not None:
        shared = sparse.index_topk_freq > 1 and not release.registers("--index-topk-freq")
        return "sparse_attention.index_topk_freq" if shared else ""
    # Its only linear layers are those of Qwen3-Next, whose full attention is gated.
    return "" if full_interval(model) is not None and model.attention_output_gate else "linear_attention"


def special_parts(model: ModelSpec) -> tuple[str, ...]:
    """What the model's layers have that no Megatron-LM has flags for: fields, and a type of layers."""
    types, linear = model.layer_types or (), model.linear_attention
    present_types = {
        "chunked_attention": "chunked_attention" in types,
        "linear_attention": linear is not None,
        "sparse_attention": model.sparse_attention is not None,
        "attention_output_gate": model.attention_output_gate,
        "attention_head_gate": model.attention_head_gate,
        "compressed_attention": model.compressed_attention is not None,
        "hyper_connections": model.hyper_connections is not None,
        "sliding_attention_heads": model.sliding_attention_heads is not None,
        "shortcut_moe": model.shortcut_moe,
        "n_zero_experts": model.n_zero_experts > 0,
    }
    return tuple(name for name, present in present_types.items() if present)


def full_interval(model: ModelSpec) -> int | None:
    """Every how many layers one has full attention, where the others are gated delta nets; None for other models."""
    linear, types = model.linear_attention, model.layer_types or ()
    if linear is None or linear.kind != "gated_delta_net" or "full_attention" not in types:
        return None
    interval = types.index("full_attention") + 1
    pattern = ("linear_attention",) * (interval - 1) + ("full_attention",)
    return interval if types == tuple(pattern[layer % interval] for layer in range(len(types))) else None
