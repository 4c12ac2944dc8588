"""The recipe of a model in flags: what the release's parser registers is written, the rest is a note.

MindSpeed-LLM scales rotary positions by flags of its own; Megatron-LM fixes most of the numbers in its code
(`megatron/core/transformer/transformer_config.py`) and normalises the chosen experts' scores, unless it takes the
softmax before it chooses (`megatron/core/transformer/moe/moe_utils.py`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from autodeploy.formats.megatron.arguments import LaunchArguments, ShellVariable
from autodeploy.messages import Message

if TYPE_CHECKING:
    from autodeploy.specs.model import ModelSpec
    from autodeploy.specs.recipe import Recipe, RopeScaling, TrainingRecipe

GPT, ROPE, EXPERTS, MTP = "GPT_ARGS", "ROPE_ARGS", "MOE_ARGS", "MTP_ARGS"
ASKED_FOR_POSITIONS = "ROTARY_BASE"
ASKED_FOR_BALANCING = "ROUTER_BALANCING"

# Fixed in Megatron-LM: of its llama3 scaling, and of yarn in its latent attention.
LLAMA3_FIXED = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
YARN_FIXED = {"beta_fast": 32.0, "beta_slow": 1.0, "original_max_position_embeddings": 4096}
# What a parser takes where nobody told it, by the field's name: named in a note.
SILENT = ("rms_norm_eps", "initializer_range")
SILENT_ROUTER = ("scoring_func", "router_aux_loss_coef")
# Casts input and weight of a router again in the backward pass; --moe-router-dtype keeps both (MindSpeed-LLM @c77308a1
# core/transformer/moe/router.py, topk_router_gating_func): 66 MB a layer and micro batch of DeepSeek-V3 under TP2.
GATING_IN_FP32 = "--router-gating-in-fp32"
FORCED_ROUTING = ("--fix-router", "--moe-router-force-load-balancing")
CHOOSES_AFTER_SOFTMAX = frozenset({"group_limited_greedy", "softmax_topk", "pai_megatron_aux_loss"})


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
    arguments.add(GPT, "--normalization", normalization)
    _add_number(arguments, GPT, "--norm-epsilon", recipe.rms_norm_eps)
    _add_number(arguments, GPT, "--init-method-std", recipe.initializer_range)
    _add_biases(arguments, model, recipe)
    arguments.add(GPT, "--attention-dropout", as_number(recipe.attention_dropout or 0))
    arguments.add(GPT, "--hidden-dropout", as_number(recipe.hidden_dropout or 0))
    for flag, value in (
        ("--embedding-multiplier-scale", recipe.embedding_multiplier),
        ("--output-multiplier-scale", recipe.logits_multiplier),
        ("--output-logit-softcapping", recipe.final_logit_softcapping),
        ("--attn-logit-softcapping", recipe.attn_logit_softcapping),
        ("--query-pre-attn-scalar", recipe.query_pre_attn_scalar),
    ):
        _add_number(arguments, GPT, flag, value)
    if model.num_nextn_predict_layers:
        _add_number(arguments, MTP, "--mtp-loss-scaling-factor", recipe.mtp_loss_scaling_factor)
    for words in recipe.more_flags or ():
        if not arguments.has(words[0]):
            _add_known(arguments, GPT, *words)


def _add_known(arguments: LaunchArguments, block: str, flag: str, *values: str | int) -> bool:
    """Adds the flag where the release registers it with these values, and says so where it doesn't."""
    if arguments.knows(flag, *map(str, values)):
        arguments.add(block, flag, *values)
        return True
    arguments.note(Message("exporters.set_in_model_code", what=" ".join((flag, *map(str, values)))))
    return False


def _add_number(arguments: LaunchArguments, block: str, flag: str, value: float | None) -> None:
    if value is not None:
        _add_known(arguments, block, flag, as_number(value))


# -- positions -----------------------------------------------------------------------------------------------


def _add_positions(arguments: LaunchArguments, model: ModelSpec, recipe: Recipe) -> None:
    arguments.add(GPT, "--position-embedding-type", "rope")
    if recipe.rope_theta is None:
        arguments.add(GPT, "--rotary-base", ShellVariable(ASKED_FOR_POSITIONS))
    else:
        arguments.add(GPT, "--rotary-base", round(recipe.rope_theta))
        if not recipe.rope_theta.is_integer():
            arguments.note(Message("exporters.set_in_model_code", what=f"rope_theta {recipe.rope_theta}"))
    partial = recipe.partial_rotary_factor not in {None, 1.0} and not model.attention.own_positions
    if partial:
        _add_number(arguments, GPT, "--rotary-percent", recipe.partial_rotary_factor)
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
            arguments.add(ROPE, "--rope-scaling-factor", as_number(factor))
            _note_fixed(arguments, scaling, LLAMA3_FIXED)
    elif kind == "yarn" and (model.attention.own_positions or arguments.knows("--position-embedding-type", "yarn")):
        _add_megatron_yarn(arguments, model, scaling)
    elif kind == "linear" and factor.is_integer():
        arguments.add(ROPE, "--rotary-seq-len-interpolation-factor", int(factor))
    elif kind == "dynamic" and arguments.knows("--dynamic-factor"):
        arguments.add(ROPE, "--dynamic-factor", as_number(factor))
    else:
        arguments.note(Message("exporters.set_in_model_code", what=f"rope_type {kind}"))


def _add_named_scaling(arguments: LaunchArguments, scaling: RopeScaling) -> None:
    """MindSpeed-LLM's own flags (`mindspeed_llm/features_manager/common/rotary.py`)."""
    arguments.add(ROPE, "--rope-scaling-type", scaling.rope_type)
    if scaling.rope_type != "longrope":
        _add_number(arguments, ROPE, "--rope-scaling-factor", scaling.factor)
    for flag, value in (
        ("--beta-fast", scaling.beta_fast),
        ("--beta-slow", scaling.beta_slow),
        ("--rope-scaling-mscale", scaling.mscale),
        ("--rope-scaling-mscale-all-dim", scaling.mscale_all_dim),
        ("--low-freq-factor", scaling.low_freq_factor),
        ("--high-freq-factor", scaling.high_freq_factor),
        ("--long-mscale", scaling.long_mscale),
        ("--short-mscale", scaling.short_mscale),
    ):
        _add_number(arguments, ROPE, flag, value)
    if scaling.freqs_type is not None:
        arguments.add(ROPE, "--longrope-freqs-type", scaling.freqs_type)
    for flag, factors in (("--long-factor", scaling.long_factor), ("--short-factor", scaling.short_factor)):
        if factors:
            arguments.add(ROPE, flag, ",".join(map(as_number, factors)))
    flag = "--original-max-position-embeddings"
    flag = flag if scaling.rope_type == "llama3" else "--rope-scaling-original-max-position-embeddings"
    if scaling.original_max_position_embeddings is not None:
        arguments.add(ROPE, flag, scaling.original_max_position_embeddings)


def _add_megatron_yarn(arguments: LaunchArguments, model: ModelSpec, scaling: RopeScaling) -> None:
    """Megatron-LM's yarn: in latent attention always, else as a kind of position embedding where there is one."""
    if not model.attention.own_positions:
        arguments.drop("--position-embedding-type")
        arguments.add(GPT, "--position-embedding-type", "yarn")
        if scaling.original_max_position_embeddings is not None:
            original = scaling.original_max_position_embeddings
            arguments.add(ROPE, "--yarn-original-max-position-embeddings", original)
        _add_number(arguments, ROPE, "--yarn-beta-fast", scaling.beta_fast)
        _add_number(arguments, ROPE, "--yarn-beta-slow", scaling.beta_slow)
    else:
        _note_fixed(arguments, scaling, YARN_FIXED)
    _add_number(arguments, ROPE, "--rotary-scaling-factor", scaling.factor)
    _add_number(arguments, ROPE, "--mscale", scaling.mscale)
    _add_number(arguments, ROPE, "--mscale-all-dim", scaling.mscale_all_dim)


def _note_fixed(arguments: LaunchArguments, scaling: RopeScaling, fixed: dict[str, float]) -> None:
    for name, value in fixed.items():
        told = getattr(scaling, name)
        if told is not None and told != value:
            arguments.note(Message("exporters.set_in_model_code", what=f"{name} {as_number(told)}"))


# -- biases --------------------------------------------------------------------------------------------------


def _add_biases(arguments: LaunchArguments, model: ModelSpec, recipe: Recipe) -> None:
    """One flag disables all biases of linear layers; those of the attention can come back."""
    everywhere = bool(model.learned_position_embeddings) if recipe.mlp_bias is None else recipe.mlp_bias
    if everywhere:
        if recipe.attention_bias is False:
            arguments.note(Message("exporters.set_in_model_code", what="attention_bias: false"))
        return
    arguments.add(GPT, "--disable-bias-linear")
    if recipe.attention_bias:
        arguments.add(GPT, "--add-qkv-bias")
    if recipe.attention_out_bias:
        _add_known(arguments, GPT, "--add-dense-bias")


# -- the router ----------------------------------------------------------------------------------------------


def add_router(arguments: LaunchArguments, model: ModelSpec, ep: int) -> None:
    """Scores, losses and balancing of the router; `ep` as the flag says it."""
    recipe, add = model.recipe_or_default, arguments.add
    balancing = balancing_of(arguments, model, ep)
    add(EXPERTS, "--moe-router-load-balancing-type", balancing or ShellVariable(ASKED_FOR_BALANCING))
    if recipe.scoring_func is not None:
        _add_known(arguments, EXPERTS, "--moe-router-score-function", recipe.scoring_func)
    if recipe.has_expert_bias:
        add(EXPERTS, "--moe-router-enable-expert-bias")
        _add_number(arguments, EXPERTS, "--moe-router-bias-update-rate", recipe.router_bias_update_rate)
    _add_number(arguments, EXPERTS, "--moe-router-topk-scaling-factor", recipe.routed_scaling_factor)
    _add_normalisation(arguments, model, balancing)
    _add_number(arguments, EXPERTS, "--moe-aux-loss-coeff", recipe.router_aux_loss_coef)
    if recipe.seq_aux and arguments.knows("--seq-aux"):
        add(EXPERTS, "--seq-aux")
    for flag, value in (
        ("--moe-device-level-aux-loss-coeff", recipe.device_aux_loss_coef),
        ("--moe-comm-aux-loss-coeff", recipe.communication_aux_loss_coef),
        ("--moe-z-loss-coeff", recipe.router_z_loss_coef),
        ("--moe-input-jitter-eps", recipe.router_jitter_noise),
    ):
        if value:
            _add_number(arguments, EXPERTS, flag, value)
    if recipe.router_dtype == "fp32" and arguments.knows(GATING_IN_FP32):
        add(EXPERTS, GATING_IN_FP32)
    elif recipe.router_dtype is not None:
        _add_known(arguments, EXPERTS, "--moe-router-dtype", recipe.router_dtype)
    if recipe.shared_expert_gate:
        _add_known(arguments, EXPERTS, "--shared-expert-gate")
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
    recipe, flag = model.recipe_or_default, "--moe-router-load-balancing-type"
    if recipe.router_balancing is not None:
        if arguments.knows(flag, recipe.router_balancing):
            return recipe.router_balancing
        arguments.note(Message("exporters.set_in_model_code", what=f"{flag} {recipe.router_balancing}"))
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
        return "none" if arguments.knows("--seq-aux") else "seq_aux_loss"
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
        arguments.note(Message("exporters.set_in_model_code", what=f"norm_topk_prob: false ({recipe.scoring_func})"))
    if softmax and not before and (recipe.norm_topk_prob is False or model.num_experts_per_tok == 1):
        arguments.add(EXPERTS, "--moe-router-pre-softmax")


def _note_groups(arguments: LaunchArguments, model: ModelSpec, balancing: str | None) -> None:
    groups, reach = model.n_group, model.topk_group
    if groups is None or reach is None or groups == 1:
        return
    if reach == groups:
        arguments.note(Message("exporters.set_in_model_code", what=f"n_group {groups}"))
    elif model.recipe_or_default.topk_method == "group_limited_greedy" and balancing != "group_limited_greedy":
        arguments.note(Message("exporters.set_in_model_code", what="topk_method: group_limited_greedy"))


# -- the training --------------------------------------------------------------------------------------------

USUAL = {"weight_decay": 0.1, "clip_grad": 1.0, "adam_beta1": 0.9, "adam_beta2": 0.95}


def add_training_recipe(arguments: LaunchArguments, recipe: TrainingRecipe) -> None:
    """TRAIN_ARGS: optimizer and learning rate; what the script asks for keeps its variable."""
    block, add = "TRAIN_ARGS", arguments.add
    add(block, "--lr", ShellVariable("LR"))
    add(block, "--min-lr", ShellVariable("MIN_LR"))
    add(block, "--lr-decay-style", recipe.lr_decay_style or "cosine")
    if recipe.lr_warmup_fraction is not None and recipe.lr_warmup_iters is None:
        add(block, "--lr-warmup-fraction", as_number(recipe.lr_warmup_fraction))
    else:
        add(block, "--lr-warmup-iters", ShellVariable("WARMUP_ITERS"))
    if recipe.lr_decay_iters is not None:
        add(block, "--lr-decay-iters", recipe.lr_decay_iters)
    usual = [name for name in USUAL if getattr(recipe, name) is None]
    for name, value in USUAL.items():
        given = getattr(recipe, name)
        add(block, f"--{name.replace('_', '-')}", as_number(value if given is None else given))
    for flag, extra in (("--adam-eps", recipe.adam_eps), ("--initial-loss-scale", recipe.initial_loss_scale)):
        if extra is not None:
            add(block, flag, as_number(extra))
    if recipe.seed is not None:
        add(block, "--seed", recipe.seed)
    if usual:
        arguments.note(Message("exporters.not_given", field="training.recipe", names=", ".join(usual)))


def told_variables(recipe: TrainingRecipe) -> dict[str, str]:
    """Values of the script's variables that the recipe knows, by name."""
    values = {"LR": recipe.lr, "MIN_LR": recipe.min_lr, "WARMUP_ITERS": recipe.lr_warmup_iters}
    return {name: as_number(value) for name, value in values.items() if value is not None}


# -- what nobody told ----------------------------------------------------------------------------------------


def untold(model: ModelSpec) -> list[str]:
    """Fields of the recipe that nobody gave, where the parser's own value is taken."""
    names = SILENT + (SILENT_ROUTER if model.is_moe else ())
    return [name for name in names if getattr(model.recipe_or_default, name) is None]
