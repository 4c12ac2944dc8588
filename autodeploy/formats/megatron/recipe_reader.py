"""The recipe of a launch's flags besides the model's shape, with Megatron-LM's defaults where they are silent."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, get_args

from autodeploy.messages import Message
from autodeploy.specs.recipe import LoadBalancing, RopeType, ScoringFunction

if TYPE_CHECKING:
    from autodeploy.formats.common.value_readers import FlagReader

NOT_CARRIED = Message("importers.not_carried_over")
DEFAULT = Message("importers.default_of", framework="Megatron")

NUMBERS: dict[str, tuple[str, ...]] = {
    "rms_norm_eps": ("--norm-epsilon",),
    "initializer_range": ("--init-method-std",),
    "attention_dropout": ("--attention-dropout",),
    "hidden_dropout": ("--hidden-dropout",),
    "embedding_multiplier": ("--embedding-multiplier-scale",),
    "logits_multiplier": ("--output-multiplier-scale",),
    "final_logit_softcapping": ("--output-logit-softcapping",),
    "attn_logit_softcapping": ("--attn-logit-softcapping",),
    "query_pre_attn_scalar": ("--query-pre-attn-scalar",),
    "mtp_loss_scaling_factor": ("--mtp-loss-scaling-factor",),
}
DEFAULTS: dict[str, float] = {
    "rms_norm_eps": 1e-5,
    "initializer_range": 0.02,
    "attention_dropout": 0.1,
    "hidden_dropout": 0.1,
}
ROTARY: dict[str, tuple[str, ...]] = {
    "rope_theta": ("--rotary-base",),
    "partial_rotary_factor": ("--rotary-percent", "--partial-rotary-factor"),
}
ROUTER: dict[str, tuple[str, ...]] = {
    "routed_scaling_factor": ("--moe-router-topk-scaling-factor", "--routed-scaling-factor"),
    "router_aux_loss_coef": ("--moe-aux-loss-coeff",),
    "device_aux_loss_coef": ("--moe-device-level-aux-loss-coeff",),
    "communication_aux_loss_coef": ("--moe-comm-aux-loss-coeff",),
    "router_z_loss_coef": ("--moe-z-loss-coeff",),
    "router_bias_update_rate": ("--moe-router-bias-update-rate",),
    "router_jitter_noise": ("--moe-input-jitter-eps",),
}
YARN: dict[str, tuple[str, ...]] = {
    "beta_fast": ("--beta-fast", "--rope-scaling-beta-fast", "--yarn-beta-fast"),
    "beta_slow": ("--beta-slow", "--rope-scaling-beta-slow", "--yarn-beta-slow"),
    "mscale": ("--rope-scaling-mscale", "--mscale"),
    "mscale_all_dim": ("--rope-scaling-mscale-all-dim", "--mscale-all-dim"),
}
FACTORS: dict[str, tuple[str, ...]] = {
    "factor": ("--rope-scaling-factor",),
    "latent": ("--rotary-scaling-factor",),
    "linear": ("--rotary-seq-len-interpolation-factor",),
    "dynamic": ("--dynamic-factor",),
}
ORIGINAL = (
    "--rope-scaling-original-max-position-embeddings",
    "--original-max-position-embeddings",
    "--yarn-original-max-position-embeddings",
)
LLAMA3 = {"low_freq_factor": "--low-freq-factor", "high_freq_factor": "--high-freq-factor"}
# What Megatron's own llama3 scaling and its latent attention's yarn take where no flag says it.
MEGATRON_LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
MEGATRON_YARN = {"beta_fast": 32.0, "beta_slow": 1.0, "original_max_position_embeddings": 4096}
# Flags of a model that no field carries: they travel as they stand. True: a value follows.
MORE_FLAGS: dict[str, bool] = {
    **dict.fromkeys(("--add-rmsnorm-offset", "--input-embeds-norm", "--add-output-layer-bias"), False),
    **dict.fromkeys(("--input-layernorm-in-fp32", "--rmsnorm-weight-in-fp32", "--init-norm-weight-in-fp32"), False),
    **dict.fromkeys(("--enable-mla-scale-q-lora", "--enable-mla-scale-kv-lora", "--apply-layernorm-1p"), False),
    **dict.fromkeys(("--topk-softmax-in-fp32", "--moe-revert-type-after-topk", "--input-jitter"), False),
    **dict.fromkeys(("--no-enable-linear-qkv", "--fp32-residual-connection", "--no-post-layer-norm"), False),
    **dict.fromkeys(("--scale-emb", "--dim-model-base", "--scale-depth", "--fc-type"), True),
    **dict.fromkeys(("--shared-expert-gate-output-dimension", "--embedding-init-method-std", "--swiglu-limit"), True),
}


OF_TRAINING: dict[str, tuple[str, ...]] = {
    "lr": ("--lr",),
    "min_lr": ("--min-lr",),
    "lr_warmup_fraction": ("--lr-warmup-fraction",),
    "weight_decay": ("--weight-decay",),
    "clip_grad": ("--clip-grad",),
    "adam_beta1": ("--adam-beta1",),
    "adam_beta2": ("--adam-beta2",),
    "adam_eps": ("--adam-eps",),
    "initial_loss_scale": ("--initial-loss-scale",),
}
ITERATIONS = {"lr_decay_iters": "--lr-decay-iters", "lr_warmup_iters": "--lr-warmup-iters", "seed": "--seed"}
DECAYS = ("constant", "linear", "cosine", "inverse-square-root", "WSD")


def read_training_recipe(reader: FlagReader) -> dict[str, Any]:
    """The `recipe` of the training: optimizer and learning rate, as far as the script itself knows them."""
    where = "/training/recipe"
    recipe: dict[str, Any] = dict(_decimals(reader, OF_TRAINING, where))
    for field, flag in ITERATIONS.items():
        if reader.is_told(flag):
            recipe[field] = reader.number(flag, f"{where}/{field}")
    if reader.is_told("--lr-decay-style") and reader.script.flags["--lr-decay-style"].text in DECAYS:
        recipe["lr_decay_style"] = reader.text("--lr-decay-style", f"{where}/lr_decay_style")
    return recipe


def read_recipe(reader: FlagReader, model: dict[str, Any]) -> dict[str, Any]:
    """The `recipe` of the model that the flags describe."""
    recipe: dict[str, Any] = dict(_decimals(reader, NUMBERS))
    for field, value in DEFAULTS.items():
        if field not in recipe and not _is_open(reader, NUMBERS[field]):
            recipe[field] = value
            reader.log.default(_path(field), value, DEFAULT)
    recipe["normalization"] = "LayerNorm"
    if (norm := _choice(reader, "normalization", "--normalization", ("LayerNorm", "RMSNorm"))) is not None:
        recipe["normalization"] = norm
    recipe |= _biases(reader)
    if not (model.get("learned_position_embeddings") or model.get("alibi")):
        recipe |= _rotary(reader)
    if model.get("n_routed_experts"):
        recipe |= _router(reader)
    words = reader.words("--spec", _path("layer_spec")) if reader.is_told("--spec") else ()
    if words:
        recipe["layer_spec"] = " ".join(words)
    further = [_more(reader, flag, valued) for flag, valued in MORE_FLAGS.items() if reader.is_told(flag)]
    return recipe | ({"more_flags": further} if further else {})


def _path(field: str) -> str:
    return f"/model/recipe/{field}"


def _is_open(reader: FlagReader, flags: tuple[str, ...]) -> bool:
    """Whether a flag is given with a value that only its environment knows."""
    return any(flag in reader.script.flags and not reader.is_told(flag) for flag in flags)


def _decimals(reader: FlagReader, table: dict[str, tuple[str, ...]], where: str = "/model/recipe") -> dict[str, float]:
    values: dict[str, float] = {}
    for field, flags in table.items():
        for flag in flags:
            if not reader.is_told(flag):
                continue
            value = reader.decimal(flag, f"{where}/{field}")
            if value is not None:
                values.setdefault(field, value)
    return values


def _choice(reader: FlagReader, field: str, flag: str, choices: tuple[str, ...]) -> str | None:
    """The value after the flag if it is one of the choices; another is told, not carried."""
    if not reader.is_told(flag):
        return None
    given = reader.script.flags[flag]
    if given.text not in choices:
        reader.has(flag)
        reader.log.unmodelled(given.place, given.text, NOT_CARRIED)
        return None
    return reader.text(flag, _path(field))


def _more(reader: FlagReader, flag: str, valued: bool) -> tuple[str, ...]:
    if not valued:
        reader.switch(flag, _path("more_flags"))
        return (flag,)
    return (flag, reader.text(flag, _path("more_flags")) or "")


def _biases(reader: FlagReader) -> dict[str, Any]:
    """Biases of the projections: all of them, unless they are disabled and then added one by one."""
    if not reader.has("--disable-bias-linear"):
        reader.has("--add-qkv-bias")
        reader.has("--add-dense-bias")
        reader.log.default(_path("mlp_bias"), True, Message("importers.default_of", framework="Megatron"))
        return {"attention_bias": True, "attention_out_bias": True, "mlp_bias": True}
    reader.switch("--disable-bias-linear", _path("mlp_bias"))
    qkv = reader.switch("--add-qkv-bias", _path("attention_bias"))
    out = reader.switch("--add-dense-bias", _path("attention_out_bias"))
    return {"attention_bias": qkv, "mlp_bias": False} | ({"attention_out_bias": True} if out else {})


def _rotary(reader: FlagReader) -> dict[str, Any]:
    fields: dict[str, Any] = {key: value for key, value in _decimals(reader, ROTARY).items() if value > 0}
    if "rope_theta" not in fields and not _is_open(reader, ROTARY["rope_theta"]):
        fields["rope_theta"] = 10_000.0
        reader.log.default(_path("rope_theta"), 10_000, DEFAULT)
    if reader.is_told("--max-position-embeddings"):
        fields["max_position_embeddings"] = reader.number("--max-position-embeddings", _path("max_position_embeddings"))
    for flag in ("--rotary-interleaved", "--use-glm-rope"):
        if reader.switch(flag, _path("rope_interleave")):
            fields["rope_interleave"] = True
    scaling = _scaling(reader)
    return fields | ({"rope_scaling": scaling} if scaling else {})


def _scaling(reader: FlagReader) -> dict[str, Any] | None:
    """Scaling of rotary positions, by the flags of any of the frameworks."""
    kind = _choice(reader, "rope_scaling", "--rope-scaling-type", get_args(RopeType))
    factors = _decimals(reader, FACTORS)
    factor, latent = factors.get("factor"), factors.get("latent")
    linear, dynamic = factors.get("linear"), factors.get("dynamic")
    if kind is not None:
        scaling = {"rope_type": kind} | ({} if kind == "longrope" else {"factor": factor or 8.0})
        return scaling | _original(reader) | _details(reader, kind)
    if reader.switch("--use-rope-scaling", _path("rope_scaling")):
        return {"rope_type": "llama3", "factor": factor or 8.0, **MEGATRON_LLAMA3}
    if latent is not None and latent > 1:
        return {"rope_type": "yarn", "factor": latent, **MEGATRON_YARN} | _original(reader) | _details(reader, "yarn")
    if linear is not None and linear > 1:
        return {"rope_type": "linear", "factor": linear}
    if dynamic is not None and dynamic > 1:
        return {"rope_type": "dynamic", "factor": dynamic}
    _decimals(reader, YARN)
    return None


def _original(reader: FlagReader) -> dict[str, int]:
    field = "original_max_position_embeddings"
    return {name: int(value) for name, value in _decimals(reader, {field: ORIGINAL}).items() if value >= 1}


def _details(reader: FlagReader, kind: str) -> dict[str, Any]:
    if kind == "yarn":
        return dict(_decimals(reader, YARN))
    if kind == "llama3":
        return _decimals(reader, {field: (flag,) for field, flag in LLAMA3.items()})
    if kind != "longrope":
        return {}
    details: dict[str, Any] = _decimals(
        reader, {"long_mscale": ("--long-mscale",), "short_mscale": ("--short-mscale",)}
    )
    for field, flag in (("long_factor", "--long-factor"), ("short_factor", "--short-factor")):
        if reader.is_told(flag):
            details[field] = [
                _number(reader, flag, word) for word in reader.words(flag, _path(f"rope_scaling/{field}"))
            ]
    if (applied := _choice(reader, "rope_scaling/freqs_type", "--longrope-freqs-type", ("mul", "outer"))) is not None:
        details["freqs_type"] = applied
    return details


def _number(reader: FlagReader, flag: str, word: str) -> float:
    try:
        return float(word)
    except ValueError:
        reader.fail(flag, Message("field_fault.is_no_number", value=repr(word[:40])))


def _router(reader: FlagReader) -> dict[str, Any]:
    router: dict[str, Any] = dict(_decimals(reader, ROUTER))
    balancing = _choice(reader, "router_balancing", "--moe-router-load-balancing-type", get_args(LoadBalancing))
    if balancing is not None:
        router["router_balancing"] = balancing
    elif "--moe-router-load-balancing-type" not in reader.script.flags:
        router["router_balancing"] = "aux_loss"
        reader.log.default(_path("router_balancing"), "aux_loss", DEFAULT)
    scores = _choice(reader, "scoring_func", "--moe-router-score-function", get_args(ScoringFunction))
    if scores is not None:
        router["scoring_func"] = scores
    dtype = _choice(reader, "router_dtype", "--moe-router-dtype", ("fp32", "fp64"))
    if dtype is not None:
        router["router_dtype"] = dtype
    elif reader.switch("--router-gating-in-fp32", _path("router_dtype")):
        router["router_dtype"] = "fp32"
    if reader.switch("--moe-router-enable-expert-bias", _path("topk_method")):
        router["topk_method"] = "noaux_tc"
    if reader.switch("--norm-topk-prob", _path("norm_topk_prob")):
        router["norm_topk_prob"] = True
        reader.has("--moe-router-pre-softmax")
    elif reader.switch("--moe-router-pre-softmax", _path("norm_topk_prob")):
        router["norm_topk_prob"] = False
    for flag, field in (("--seq-aux", "seq_aux"), ("--shared-expert-gate", "shared_expert_gate")):
        if reader.switch(flag, _path(field)):
            router[field] = True
    return router
