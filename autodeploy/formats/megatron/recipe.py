"""The recipe of a launch besides the model's shape: one table of fields and flags is read and written.

Where flags are silent Megatron-LM's defaults hold. What the release's parser registers is written, the rest is a note:
MindSpeed-LLM scales rotary positions by flags of its own; Megatron-LM fixes most of the numbers in its code
(`megatron/core/transformer/transformer_config.py`) and normalises the chosen experts' scores, unless it takes the
softmax before it chooses (`megatron/core/transformer/moe/moe_utils.py`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, get_args

from autodeploy.formats.megatron.arguments import LaunchArguments, ShellVariable
from autodeploy.messages import Message
from autodeploy.specs.recipe import LoadBalancing, RopeType, ScoringFunction
from autodeploy.stack.flag_tables import defaults_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from autodeploy.formats.common.value_readers import FlagReader
    from autodeploy.specs.model import ModelSpec
    from autodeploy.specs.recipe import Recipe, RopeScaling, TrainingRecipe

    Table = Mapping[str, tuple[str, ...]]

NOT_CARRIED = Message("importers.not_carried_over")

# Field -> its flags: every one is read; the first is written, of Megatron-LM's own yarn the last. What a launch leaves
# out is the parser's, as the stack has it.
NUMBERS: Table = {
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
ROTARY: Table = {
    "rope_theta": ("--rotary-base",),
    "partial_rotary_factor": ("--rotary-percent", "--partial-rotary-factor"),
}
ROUTER: Table = {
    "routed_scaling_factor": ("--moe-router-topk-scaling-factor", "--routed-scaling-factor"),
    "router_aux_loss_coef": ("--moe-aux-loss-coeff",),
    "device_aux_loss_coef": ("--moe-device-level-aux-loss-coeff",),
    "communication_aux_loss_coef": ("--moe-comm-aux-loss-coeff",),
    "router_z_loss_coef": ("--moe-z-loss-coeff",),
    "router_bias_update_rate": ("--moe-router-bias-update-rate",),
    "router_jitter_noise": ("--moe-input-jitter-eps",),
}
ROUTER_WORDS = {
    "router_balancing": ("--moe-router-load-balancing-type", get_args(LoadBalancing)),
    "scoring_func": ("--moe-router-score-function", get_args(ScoringFunction)),
    "router_dtype": ("--moe-router-dtype", ("fp32", "fp64")),
}
ROUTER_SWITCHES = {"seq_aux": "--seq-aux", "shared_expert_gate": "--shared-expert-gate"}
YARN: Table = {
    "beta_fast": ("--beta-fast", "--rope-scaling-beta-fast", "--yarn-beta-fast"),
    "beta_slow": ("--beta-slow", "--rope-scaling-beta-slow", "--yarn-beta-slow"),
    "mscale": ("--rope-scaling-mscale", "--mscale"),
    "mscale_all_dim": ("--rope-scaling-mscale-all-dim", "--mscale-all-dim"),
}
FACTORS: Table = {
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
LLAMA3: Table = {"low_freq_factor": ("--low-freq-factor",), "high_freq_factor": ("--high-freq-factor",)}
LONGROPE: Table = {"long_mscale": ("--long-mscale",), "short_mscale": ("--short-mscale",)}
LONGROPE_LISTS = {"long_factor": "--long-factor", "short_factor": "--short-factor"}
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


OF_TRAINING: Table = {
    name: (f"--{name.replace('_', '-')}",)
    for name in (
        *("lr", "min_lr", "lr_warmup_fraction", "weight_decay", "clip_grad"),
        *("adam_beta1", "adam_beta2", "adam_eps", "initial_loss_scale"),
    )
}
ITERATIONS = {"lr_decay_iters": "--lr-decay-iters", "lr_warmup_iters": "--lr-warmup-iters", "seed": "--seed"}
DECAYS = ("constant", "linear", "cosine", "inverse-square-root", "WSD")
NO_BIAS, QKV_BIAS, DENSE_BIAS = "--disable-bias-linear", "--add-qkv-bias", "--add-dense-bias"
DECAY_STYLE, NORM = "--lr-decay-style", "--normalization"
GPT, ROPE, EXPERTS, MTP = "GPT_ARGS", "ROPE_ARGS", "MOE_ARGS", "MTP_ARGS"
ASKED_FOR_POSITIONS = "ROTARY_BASE"
ASKED_FOR_BALANCING = "ROUTER_BALANCING"

# What a parser takes where nobody told it, by the field's name: named in a note.
SILENT = ("rms_norm_eps", "initializer_range")
DROPOUTS = ("attention_dropout", "hidden_dropout")
# Rows without a place of their own in a script: a new one is written with them.
MULTIPLIERS = tuple(name for name in NUMBERS if name not in {*SILENT, *DROPOUTS, "mtp_loss_scaling_factor"})
CHOICE = ("routed_scaling_factor", "router_aux_loss_coef", "router_bias_update_rate")
UNUSUAL_LOSSES = tuple(name for name in ROUTER if name not in CHOICE)
SILENT_ROUTER = ("scoring_func", "router_aux_loss_coef")
# Casts input and weight of a router again in the backward pass; --moe-router-dtype keeps both (MindSpeed-LLM @c77308a1
# core/transformer/moe/router.py, topk_router_gating_func): 66 MB a layer and micro batch of DeepSeek-V3 under TP2.
GATING_IN_FP32 = "--router-gating-in-fp32"
FORCED_ROUTING = ("--fix-router", "--moe-router-force-load-balancing")
CHOOSES_AFTER_SOFTMAX = frozenset({"group_limited_greedy", "softmax_topk", "pai_megatron_aux_loss"})


# Flags read.
def read_training_recipe(reader: FlagReader) -> dict[str, Any]:
    """The `recipe` of the training: optimizer and learning rate, as far as the script itself knows them."""
    where = "/training/recipe"
    recipe: dict[str, Any] = dict(_decimals(reader, OF_TRAINING, where))
    for field, flag in ITERATIONS.items():
        if reader.is_told(flag):
            recipe[field] = reader.number(flag, f"{where}/{field}")
    if reader.is_told(DECAY_STYLE) and reader.script.flags[DECAY_STYLE].text in DECAYS:
        recipe["lr_decay_style"] = reader.text(DECAY_STYLE, f"{where}/lr_decay_style")
    return recipe


def read_recipe(reader: FlagReader, model: dict[str, Any]) -> dict[str, Any]:
    """The `recipe` of the model that the flags describe."""
    recipe: dict[str, Any] = _with_defaults(reader, NUMBERS, _decimals(reader, NUMBERS))
    norm = _choice(reader, "normalization", NORM, ("LayerNorm", "RMSNorm"))
    recipe["normalization"] = norm or defaults_of("Megatron")[NORM]
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


def _with_defaults(reader: FlagReader, table: Table, given: dict[str, float]) -> dict[str, float]:
    """The numbers with the parser's own where no flag says them, neither here nor in the environment."""
    for field, flags in table.items():
        default = defaults_of("Megatron").get(flags[0])
        if default is not None and field not in given and not _is_open(reader, flags):
            given[field] = float(reader.assume(_path(field), default))
    return given


def _is_open(reader: FlagReader, flags: tuple[str, ...]) -> bool:
    """Whether a flag is given with a value that only its environment knows."""
    return any(flag in reader.script.flags and not reader.is_told(flag) for flag in flags)


def _decimals(reader: FlagReader, table: Table, where: str = "/model/recipe") -> dict[str, float]:
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
    if not reader.has(NO_BIAS):
        reader.has(QKV_BIAS)
        reader.has(DENSE_BIAS)
        reader.assume(_path("mlp_bias"), True)
        return {"attention_bias": True, "attention_out_bias": True, "mlp_bias": True}
    reader.switch(NO_BIAS, _path("mlp_bias"))
    qkv = reader.switch(QKV_BIAS, _path("attention_bias"))
    out = reader.switch(DENSE_BIAS, _path("attention_out_bias"))
    return {"attention_bias": qkv, "mlp_bias": False} | ({"attention_out_bias": True} if out else {})


def _rotary(reader: FlagReader) -> dict[str, Any]:
    positive = {key: value for key, value in _decimals(reader, ROTARY).items() if value > 0}
    fields: dict[str, Any] = dict(_with_defaults(reader, ROTARY, positive))
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
    factor, latent = factors.get("factor") or defaults_of("Megatron")[FACTORS["factor"][0]], factors.get("latent")
    linear, dynamic = factors.get("linear"), factors.get("dynamic")
    if kind is not None:
        scaling = {"rope_type": kind} | ({} if kind == "longrope" else {"factor": factor})
        return scaling | _original(reader) | _details(reader, kind)
    if reader.switch("--use-rope-scaling", _path("rope_scaling")):
        return {"rope_type": "llama3", "factor": factor, **MEGATRON_LLAMA3}
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
        return dict(_decimals(reader, LLAMA3))
    if kind != "longrope":
        return {}
    details: dict[str, Any] = dict(_decimals(reader, LONGROPE))
    for field, flag in LONGROPE_LISTS.items():
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
    for field, (flag, choices) in ROUTER_WORDS.items():
        if (word := _choice(reader, field, flag, choices)) is not None:
            router[field] = word
        elif flag in defaults_of("Megatron") and flag not in reader.script.flags:
            router[field] = reader.text(flag, _path(field))
    if "router_dtype" not in router and reader.switch(GATING_IN_FP32, _path("router_dtype")):
        router["router_dtype"] = "fp32"
    if reader.switch("--moe-router-enable-expert-bias", _path("topk_method")):
        router["topk_method"] = "noaux_tc"
    if reader.switch("--norm-topk-prob", _path("norm_topk_prob")):
        router["norm_topk_prob"] = True
        reader.has("--moe-router-pre-softmax")
    elif reader.switch("--moe-router-pre-softmax", _path("norm_topk_prob")):
        router["norm_topk_prob"] = False
    for field, flag in ROUTER_SWITCHES.items():
        if reader.switch(flag, _path(field)):
            router[field] = True
    return router


# Fields written.
def as_number(value: float) -> str:
    """A number with all its digits, whole ones without a point."""
    return str(int(value)) if float(value).is_integer() and abs(value) < 1e15 else repr(float(value))


def longest_context(model: ModelSpec, seq_length: int) -> int:
    """`--max-position-embeddings`: rows of a learned table, or the context that scaled positions reach."""
    recipe, least = model.recipe_or_default, max(model.learned_position_embeddings, seq_length)
    scaling = recipe.rope_scaling
    if (
        scaling is not None
        and scaling.rope_type == "yarn"
        and not model.attention.own_positions
        and scaling.factor is not None
    ):
        # MindSpeed-LLM takes the factor from these two numbers.
        return max(least, int(scaling.factor * (scaling.original_max_position_embeddings or 0)))
    return max(least, recipe.max_position_embeddings or 0)


def add_recipe(arguments: LaunchArguments, model: ModelSpec) -> None:
    """Positions, norms, biases and first weights; the router is `add_router`'s."""
    recipe = model.recipe_or_default
    if model.learned_position_embeddings:
        arguments.add(GPT, "--position-embedding-type", "learned_absolute")
    elif model.alibi:
        arguments.add(GPT, "--position-embedding-type", "alibi")
    elif not model.attention.types:  # which say their own
        _add_positions(arguments, model, recipe)
    normalization = recipe.normalization or ("LayerNorm" if model.learned_position_embeddings else "RMSNorm")
    arguments.add(GPT, NORM, normalization)
    _add_fields(arguments, GPT, NUMBERS, recipe, SILENT)
    _add_biases(arguments, model, recipe)
    for name in DROPOUTS:
        arguments.add(GPT, *NUMBERS[name], as_number(getattr(recipe, name) or 0))
    _add_fields(arguments, GPT, NUMBERS, recipe, MULTIPLIERS)
    if model.num_nextn_predict_layers:
        _add_fields(arguments, MTP, NUMBERS, recipe, ("mtp_loss_scaling_factor",))
    for words in recipe.more_flags or ():
        if not arguments.has(words[0]):
            _add_known(arguments, GPT, *words)


def _add_known(arguments: LaunchArguments, block: str, flag: str, *values: str | int) -> bool:
    """Adds the flag where the release registers it with these values, and says so where it doesn't."""
    if arguments.knows(flag, *map(str, values)):
        arguments.add(block, flag, *values)
        return True
    arguments.leaves_to_code(" ".join((flag, *map(str, values))))
    return False


def _add_fields(
    arguments: LaunchArguments, block: str, table: Table, said: Any, fields: Iterable[str] | None = None, name: int = 0
) -> None:
    """Flags of the numbers that are given of a table's fields, of all unless some are named; see `_add_known`."""
    for field in table if fields is None else fields:
        if (value := getattr(said, field)) is not None:
            _add_known(arguments, block, table[field][name], as_number(value))


def _add_positions(arguments: LaunchArguments, model: ModelSpec, recipe: Recipe) -> None:
    arguments.add(GPT, "--position-embedding-type", "rope")
    if recipe.rope_theta is None:
        arguments.add(GPT, "--rotary-base", ShellVariable(ASKED_FOR_POSITIONS))
    else:
        arguments.add(GPT, "--rotary-base", round(recipe.rope_theta))
        if not recipe.rope_theta.is_integer():
            arguments.leaves_to_code(f"rope_theta {recipe.rope_theta}")
    partial = recipe.partial_rotary_factor not in {None, 1.0} and not model.attention.own_positions
    if partial:
        _add_fields(arguments, GPT, ROTARY, recipe, ("partial_rotary_factor",))
    if recipe.rope_interleave and not model.attention.own_positions:
        if partial and arguments.knows("--use-glm-rope"):
            arguments.add(GPT, "--use-glm-rope")
        else:
            arguments.add(GPT, "--rotary-interleaved")
        arguments.add(GPT, "--no-rope-fusion")
    if recipe.rope_scaling is not None:
        _add_scaling(arguments, model, recipe.rope_scaling)


def _add_scaling(arguments: LaunchArguments, model: ModelSpec, scaling: RopeScaling) -> None:
    kind, factor = scaling.rope_type, scaling.factor or 1.0
    if arguments.knows("--rope-scaling-type", kind):
        _add_named_scaling(arguments, scaling)
    elif kind == "llama3":
        if arguments.has("--use-rope-scaling") or _add_known(arguments, ROPE, "--use-rope-scaling"):
            arguments.add(ROPE, *FACTORS["factor"], as_number(factor))
            _note_fixed(arguments, scaling, MEGATRON_LLAMA3)
    elif kind == "yarn" and (model.attention.own_positions or arguments.knows("--position-embedding-type", "yarn")):
        _add_megatron_yarn(arguments, model, scaling)
    elif kind == "linear" and factor.is_integer():
        arguments.add(ROPE, *FACTORS["linear"], int(factor))
    elif kind == "dynamic" and arguments.knows(*FACTORS["dynamic"]):
        arguments.add(ROPE, *FACTORS["dynamic"], as_number(factor))
    else:
        arguments.leaves_to_code(f"rope_type {kind}")


def _add_named_scaling(arguments: LaunchArguments, scaling: RopeScaling) -> None:
    """MindSpeed-LLM's own flags (`mindspeed_llm/features_manager/common/rotary.py`)."""
    arguments.add(ROPE, "--rope-scaling-type", scaling.rope_type)
    if scaling.rope_type != "longrope":
        _add_fields(arguments, ROPE, FACTORS, scaling, ("factor",))
    _add_fields(arguments, ROPE, {**YARN, **LLAMA3, **LONGROPE}, scaling)
    if scaling.freqs_type is not None:
        arguments.add(ROPE, "--longrope-freqs-type", scaling.freqs_type)
    for field, flag in LONGROPE_LISTS.items():
        if factors := getattr(scaling, field):
            arguments.add(ROPE, flag, ",".join(map(as_number, factors)))
    if scaling.original_max_position_embeddings is not None:
        arguments.add(ROPE, ORIGINAL[scaling.rope_type == "llama3"], scaling.original_max_position_embeddings)


def _add_megatron_yarn(arguments: LaunchArguments, model: ModelSpec, scaling: RopeScaling) -> None:
    """Megatron-LM's yarn: in latent attention always, else as a kind of position embedding where there is one."""
    if not model.attention.own_positions:
        arguments.drop("--position-embedding-type")
        arguments.add(GPT, "--position-embedding-type", "yarn")
        if scaling.original_max_position_embeddings is not None:
            arguments.add(ROPE, ORIGINAL[-1], scaling.original_max_position_embeddings)
        _add_fields(arguments, ROPE, YARN, scaling, ("beta_fast", "beta_slow"), -1)
    else:
        _note_fixed(arguments, scaling, MEGATRON_YARN)
    if scaling.factor is not None:
        _add_known(arguments, ROPE, FACTORS["latent"][0], as_number(scaling.factor))
    _add_fields(arguments, ROPE, YARN, scaling, ("mscale", "mscale_all_dim"), -1)


def _note_fixed(arguments: LaunchArguments, scaling: RopeScaling, fixed: dict[str, float]) -> None:
    for name, value in fixed.items():
        told = getattr(scaling, name)
        if told is not None and told != value:
            arguments.leaves_to_code(f"{name} {as_number(told)}")


def _add_biases(arguments: LaunchArguments, model: ModelSpec, recipe: Recipe) -> None:
    """One flag disables all biases of linear layers; those of the attention can come back."""
    everywhere = bool(model.learned_position_embeddings) if recipe.mlp_bias is None else recipe.mlp_bias
    if everywhere:
        if recipe.attention_bias is False:
            arguments.leaves_to_code("attention_bias: false")
        return
    arguments.add(GPT, NO_BIAS)
    if recipe.attention_bias:
        arguments.add(GPT, QKV_BIAS)
    if recipe.attention_out_bias:
        _add_known(arguments, GPT, DENSE_BIAS)


def add_router(arguments: LaunchArguments, model: ModelSpec, ep: int) -> None:
    """Scores, losses and balancing of the router; `ep` as the flag says it."""
    recipe, add = model.recipe_or_default, arguments.add
    balancing = balancing_of(arguments, model, ep)
    add(EXPERTS, ROUTER_WORDS["router_balancing"][0], balancing or ShellVariable(ASKED_FOR_BALANCING))
    if recipe.scoring_func is not None:
        _add_known(arguments, EXPERTS, ROUTER_WORDS["scoring_func"][0], recipe.scoring_func)
    if recipe.has_expert_bias:
        add(EXPERTS, "--moe-router-enable-expert-bias")
        _add_fields(arguments, EXPERTS, ROUTER, recipe, ("router_bias_update_rate",))
    _add_fields(arguments, EXPERTS, ROUTER, recipe, ("routed_scaling_factor",))
    _add_normalisation(arguments, model, balancing)
    _add_fields(arguments, EXPERTS, ROUTER, recipe, ("router_aux_loss_coef",))
    if recipe.seq_aux and arguments.knows(ROUTER_SWITCHES["seq_aux"]):
        add(EXPERTS, ROUTER_SWITCHES["seq_aux"])
    _add_fields(arguments, EXPERTS, ROUTER, recipe, (name for name in UNUSUAL_LOSSES if getattr(recipe, name)))
    if recipe.router_dtype == "fp32" and arguments.knows(GATING_IN_FP32):
        add(EXPERTS, GATING_IN_FP32)
    elif recipe.router_dtype is not None:
        _add_known(arguments, EXPERTS, ROUTER_WORDS["router_dtype"][0], recipe.router_dtype)
    if recipe.shared_expert_gate:
        _add_known(arguments, EXPERTS, ROUTER_SWITCHES["shared_expert_gate"])
    _note_groups(arguments, model, balancing)


def add_forced_routing(arguments: LaunchArguments, ep: int) -> None:
    """Tokens are dealt evenly whatever the router says: for measuring, as the spec's `training.router` asks."""
    flags = [flag for flag in FORCED_ROUTING if arguments.knows(flag)]
    if flags and ep > 1:  # MindSpeed refuses it without an exchange: moe_fix_router.py
        arguments.add(EXPERTS, flags[0])
        arguments.note(Message("exporters.even_routing", flag=flags[0]))
    elif ep > 1:
        arguments.note(Message("exporters.cannot_force_even_routing", framework=arguments.release.title))


def balancing_of(arguments: LaunchArguments, model: ModelSpec, ep: int) -> str | None:
    """`--moe-router-load-balancing-type` of the recipe; None where nobody told enough."""
    recipe, flag = model.recipe_or_default, ROUTER_WORDS["router_balancing"][0]
    if recipe.router_balancing is not None:
        if arguments.knows(flag, recipe.router_balancing):
            return recipe.router_balancing
        arguments.leaves_to_code(f"{flag} {recipe.router_balancing}")
    if recipe.topk_method == "group_limited_greedy" and arguments.knows(flag, "group_limited_greedy"):
        # Its validator: mindspeed_llm/features_manager/moe/moe_router.py.
        fits = model.topk_group is not None and model.topk_group < ep and model.capacity_factor is None
        if fits and recipe.routed_scaling_factor is not None:
            return "group_limited_greedy"
    coefficient = recipe.router_aux_loss_coef
    if coefficient is None:
        return "none" if recipe.has_expert_bias else None
    if coefficient == 0:
        return "none"
    if recipe.seq_aux:
        # MindSpeed-LLM's --seq-aux adds the loss to a router without one.
        return "none" if arguments.knows(ROUTER_SWITCHES["seq_aux"]) else "seq_aux_loss"
    return "aux_loss"


def _add_normalisation(arguments: LaunchArguments, model: ModelSpec, balancing: str | None) -> None:
    """Whether the chosen experts' scores add up to one: under Megatron-LM's own choice they do without a flag."""
    recipe = model.recipe_or_default
    softmax = recipe.scoring_func in {None, "softmax"}
    before = balancing in CHOOSES_AFTER_SOFTMAX
    if recipe.norm_topk_prob:
        scaled = recipe.routed_scaling_factor not in {None, 1.0} or model.capacity_factor is not None
        undone = scaled and balancing in {"aux_loss", None}  # it would divide by what was scaled or dropped
        if arguments.knows("--norm-topk-prob") and not undone:
            arguments.add(EXPERTS, "--norm-topk-prob")
    elif recipe.norm_topk_prob is False and not softmax and (model.num_experts_per_tok or 1) > 1:
        arguments.leaves_to_code(f"norm_topk_prob: false ({recipe.scoring_func})")
    if softmax and not before and (recipe.norm_topk_prob is False or model.num_experts_per_tok == 1):
        arguments.add(EXPERTS, "--moe-router-pre-softmax")


def _note_groups(arguments: LaunchArguments, model: ModelSpec, balancing: str | None) -> None:
    groups, reach = model.n_group, model.topk_group
    if groups is None or reach is None or groups == 1:
        return
    if reach == groups:
        arguments.leaves_to_code(f"n_group {groups}")
    elif model.recipe_or_default.topk_method == "group_limited_greedy" and balancing != "group_limited_greedy":
        arguments.leaves_to_code("topk_method: group_limited_greedy")


# -- the training --------------------------------------------------------------------------------------------

RATES = ("lr", "min_lr", "lr_warmup_fraction")
USUAL = {"weight_decay": 0.1, "clip_grad": 1.0, "adam_beta1": 0.9, "adam_beta2": 0.95}


def add_training_recipe(arguments: LaunchArguments, recipe: TrainingRecipe) -> None:
    """TRAIN_ARGS: optimizer and learning rate; what the script asks for keeps its variable."""
    block, add = "TRAIN_ARGS", arguments.add
    add(block, *OF_TRAINING["lr"], ShellVariable("LR"))
    add(block, *OF_TRAINING["min_lr"], ShellVariable("MIN_LR"))
    add(block, DECAY_STYLE, recipe.lr_decay_style or "cosine")
    if recipe.lr_warmup_fraction is not None and recipe.lr_warmup_iters is None:
        add(block, *OF_TRAINING["lr_warmup_fraction"], as_number(recipe.lr_warmup_fraction))
    else:
        add(block, ITERATIONS["lr_warmup_iters"], ShellVariable("WARMUP_ITERS"))
    if recipe.lr_decay_iters is not None:
        add(block, ITERATIONS["lr_decay_iters"], recipe.lr_decay_iters)
    usual = [name for name in USUAL if getattr(recipe, name) is None]
    for name, value in USUAL.items():
        given = getattr(recipe, name)
        add(block, *OF_TRAINING[name], as_number(value if given is None else given))
    for name in OF_TRAINING:
        if name not in {*RATES, *USUAL} and (extra := getattr(recipe, name)) is not None:
            add(block, *OF_TRAINING[name], as_number(extra))
    if recipe.seed is not None:
        add(block, ITERATIONS["seed"], recipe.seed)
    if usual:
        arguments.note(Message("exporters.not_given", field="training.recipe", names=", ".join(usual)))


def told_variables(recipe: TrainingRecipe) -> dict[str, str]:
    """Values of the script's variables that the recipe knows, by name."""
    values = {"LR": recipe.lr, "MIN_LR": recipe.min_lr, "WARMUP_ITERS": recipe.lr_warmup_iters}
    return {name: as_number(value) for name, value in values.items() if value is not None}


def untold(model: ModelSpec) -> list[str]:
    """Fields of the recipe that nobody gave, where the parser's own value is taken."""
    names = SILENT + (SILENT_ROUTER if model.is_moe else ())
    return [name for name in names if getattr(model.recipe_or_default, name) is None]
