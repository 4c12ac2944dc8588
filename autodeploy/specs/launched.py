"""Networks, models and trainings that a release launches: the one place that searches, estimates and exports ask."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from autodeploy.specs.attention import ATTENTION_KINDS, HCA, INDEXED
from autodeploy.specs.presets import load_preset
from autodeploy.stack.expression import evaluate
from autodeploy.stack.features import FEATURES, LaunchFlag, Variant
from autodeploy.stack.frameworks import FRAMEWORKS
from hardware_profiles.shipped_yaml import shipped

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from autodeploy.specs.model import ModelSpec
    from autodeploy.specs.training import TrainingSpec
    from autodeploy.stack.releases import Release


@dataclass(frozen=True, slots=True)
class Network:
    """A network by the names that MindFormers builds it by.

    experts : key of the number of routed experts. of : what a model must be, as an expression.
    fixed : fields of a model that the network's code sets.
    """

    model_type: str
    architectures: str
    experts: str
    of: str
    fixed: Mapping[str, Any] = field(default_factory=dict)


@cache
def networks() -> tuple[Network, ...]:
    """Every network, as the table has them."""
    table = shipped("autodeploy.specs", "mindformers_networks.yaml")
    return tuple(Network(**row | {"of": f"({table['every']}) and {row['of']}"}) for row in table["networks"])


def network_of(model: ModelSpec) -> Network | None:
    """The network that computes the model; None where MindFormers trains none."""
    recipe = model.recipe_or_default
    values = {
        "pre_norm": model.norm_layout == "pre",
        "rotates_whole_heads": model.rotates
        and (model.attention.own_positions or recipe.partial_rotary_factor in {None, 1.0}),
        **{kind.name: kind is model.attention for kind in ATTENTION_KINDS},
        "moe": model.is_moe,
        "qk_norm": model.qk_norm,
        "tied": model.tie_word_embeddings,
        "predicts": model.num_nextn_predict_layers > 0,
        "dense_layers": bool(model.is_moe and (model.first_k_dense_replace or model.mlp_only_layers)),
    }
    return next((each for each in networks() if evaluate(each.of, values)), None)


# Converters of fused operators, by the feature that each is; the order of the public configurations.
CONVERTERS: Final = (("fused_rmsnorm", "npu_rms_norm"), ("fused_operators", "npu_permute"), ("grouped_gemm", "npu_gmm"))
ROTARY: Final = "npu_rope"
SPARSE: Final = "npu_dsa"
# What a name and a flavor leave to other keys.
_OPEN = {"name", "recipe", "num_nextn_predict_layers"}


@dataclass(frozen=True, slots=True)
class TorchtitanModel:
    """One model.

    preset : of the same shape. name, flavor : `model.name`, `model.flavor`. predicts : it takes `num_mtp_modules`.
    """

    preset: str
    name: str
    flavor: str
    predicts: bool = False


@cache
def torchtitan_models() -> tuple[TorchtitanModel, ...]:
    """All of them, the one that public configurations use before others of its shape."""
    return tuple(TorchtitanModel(**row) for row in shipped("autodeploy.specs", "torchtitan_models.yaml"))


def torchtitan_model_of(model: ModelSpec) -> TorchtitanModel | None:
    """The one of the model's shape; None where there is none."""
    shape = model.model_dump(exclude=_OPEN)
    for each in torchtitan_models():
        if load_preset(each.preset).model_dump(exclude=_OPEN) == shape:
            return each
    return None


def preset_of_flavor(name: str, flavor: str) -> TorchtitanModel | None:
    """The model of that name and flavor; None where no preset has its shape."""
    return next((each for each in torchtitan_models() if (each.name, each.flavor) == (name, flavor)), None)


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
_SPECIAL: Final = (
    *(kind.field for kind in ATTENTION_KINDS if not kind.plain),
    *("sparse_attention", "attention_output_gate", "attention_head_gate", "hyper_connections"),
    *("sliding_attention_heads", "shortcut_moe", "n_zero_experts"),
)


# Kinds of training and number formats by the flags that ask for them; of a configuration file that has no key for one,
# where the framework's source takes it. Source: MindSpeed-LLM @c77308a1 fsdp2/utils/arguments.py; torchtitan v0.2.2
# config/job_config.py; mindformers @f52743ca, whose compute_dtype knows no 8-bit format.
def _by(component: str, flag: str = "", *values: str, unless: tuple[str, ...] = ()) -> Variant:
    return Variant(component, flags=(LaunchFlag(flag, values=values),) if flag else (), unless=unless)


_FILES: Final = (_by("mindspeed-llm-fsdp2"), _by("torchtitan-npu"), _by("mindformers"))
_ALL: Final = (_by("megatron"), *_FILES)
WAYS: Final[dict[str, tuple[Variant, ...]]] = {
    "pretrain": _ALL,
    "sft": (
        _by("mindspeed-llm", "--stage", "sft"),
        _by("megatron", "--sft", unless=("mindspeed",)),
        _by("mindspeed-llm-fsdp2"),
    ),
    "dpo": (_by("mindspeed-llm", "--stage", "dpo"),),
    "lora": (_by("mindspeed-llm", "--lora-target-modules"),),
    "bf16": _ALL,
    "fp32": _ALL,
    "fp16": (_by("megatron", "--fp16"), _by("mindspeed-llm-fsdp2"), _by("mindformers")),
    "fp8": (_by("megatron", "--fp8-format", "hybrid"),),
}


def trains(release: Release, name: str) -> bool:
    """Whether a release launches a kind of training, adapters (`lora`) or a number format."""
    return any(each.fits(release) for each in WAYS[name])


def unlaunched(model: ModelSpec, training: TrainingSpec, release: Release | None) -> str:
    """The first field of a spec that a release has no launch of, with its value; empty where it launches all."""
    if release is None:
        return ""
    if training.has_reference and model.attention.types:  # sft_trainer.py alone joins the streams
        return f"training.kind {training.kind}"
    for name in ("kind", "precision") if not FRAMEWORKS[release.framework].post_trains else ():
        if not trains(release, getattr(training, name)):
            return f"training.{name} {getattr(training, name)}"
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
    """Parts of the model's layers that no Megatron-LM has flags for: fields, and a type of layers."""
    chunked = ("chunked_attention",) if "chunked_attention" in (model.layer_types or ()) else ()
    return (*chunked, *(name for name in _SPECIAL if getattr(model, name)))


def full_interval(model: ModelSpec) -> int | None:
    """Every how many layers one has full attention, where the others are gated delta nets; None for other models."""
    linear, types = model.linear_attention, model.layer_types or ()
    if linear is None or linear.kind != "gated_delta_net" or "full_attention" not in types:
        return None
    interval = types.index("full_attention") + 1
    pattern = ("linear_attention",) * (interval - 1) + ("full_attention",)
    return interval if types == tuple(pattern[layer % interval] for layer in range(len(types))) else None
