"""How the architectures of Hugging Face `config.json` files name their sizes, and what their code fixes.

A key that is looked up under several names is taken from the first that the file has. `fixed` holds what no key says
because the architecture's code does it, such as the query and key norms of Qwen3; `recipe` likewise, of what only the
launch has to say.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

KEYS: dict[str, tuple[str, ...]] = {
    "hidden_size": ("hidden_size", "n_embd", "d_model"),
    "num_hidden_layers": ("num_hidden_layers", "num_layers", "n_layer", "n_layers"),
    "num_attention_heads": ("num_attention_heads", "n_head", "n_heads", "num_heads"),
    "num_key_value_heads": ("num_key_value_heads", "num_kv_heads"),
    "head_dim": ("head_dim", "kv_channels"),
    "vocab_size": ("vocab_size", "padded_vocab_size"),
    "intermediate_size": ("intermediate_size", "ffn_hidden_size", "n_inner"),
    "hidden_act": ("hidden_act", "hidden_activation", "activation_function"),
    "tie_word_embeddings": ("tie_word_embeddings",),
    "q_lora_rank": ("q_lora_rank", "attention_q_lora_dim"),
    "kv_lora_rank": ("kv_lora_rank", "attention_kv_lora_dim"),
    "qk_nope_head_dim": ("qk_nope_head_dim", "attention_qk_dim", "qk_nope_dim"),
    "qk_rope_head_dim": ("qk_rope_head_dim", "attention_qk_rope_dim", "qk_rope_dim"),
    "v_head_dim": ("v_head_dim", "attention_v_dim", "v_channels"),
    "n_routed_experts": (
        "n_routed_experts",
        "num_routed_experts",
        "num_experts",
        "num_local_experts",
        "moe_num_experts",
    ),
    "num_experts_per_tok": (
        "num_experts_per_tok",
        "num_experts_per_token",
        "experts_per_token",
        "moe_k",
        "moe_topk",
        "moe_top_k",
    ),
    "moe_intermediate_size": ("moe_intermediate_size",),
    "n_shared_experts": ("n_shared_experts", "num_shared_experts", "num_shared_expert", "moe_num_shared_experts"),
    "shared_expert_intermediate_size": (
        "shared_expert_intermediate_size",
        "moe_shared_expert_intermediate_size",
        "shared_intermediate_size",
    ),
    "first_k_dense_replace": ("first_k_dense_replace", "num_dense_layers"),
    "n_group": ("n_group", "num_expert_group"),
    "topk_group": ("topk_group",),
    "num_nextn_predict_layers": ("num_nextn_predict_layers", "num_mtp_layers", "mtp_num_layers"),
    "learned_position_embeddings": (),
}


@dataclass(frozen=True, slots=True)
class Architecture:
    """One family of `architectures` values. `keys` replaces the names of some fields."""

    keys: dict[str, tuple[str, ...]] = field(default_factory=dict)
    fixed: dict[str, Any] = field(default_factory=dict)
    recipe: dict[str, Any] = field(default_factory=dict)
    out_bias: bool = False  # attention_bias is of the output projection too
    gated: bool = True
    halves_intermediate: bool = False  # the key counts gate and up together
    tied_by_default: bool = False
    known: bool = True

    def names(self, field: str) -> tuple[str, ...]:
        """The keys under which this architecture may hold the field, in order of precedence."""
        return self.keys.get(field, KEYS[field])


LLAMA = Architecture(recipe={"rope_theta": 10_000}, out_bias=True)
MIXTRAL = Architecture(recipe={"norm_topk_prob": True})
QWEN2 = Architecture(recipe={"attention_bias": True})
QWEN2_MOE = Architecture(recipe={"attention_bias": True, "shared_expert_gate": True})
QWEN3 = Architecture(fixed={"qk_norm": True}, out_bias=True)
GLM = Architecture(recipe={"rope_interleave": True})
GLM4_MOE = Architecture(recipe={"scoring_func": "sigmoid", "topk_method": "noaux_tc"})
GPT_OSS = Architecture(recipe={"norm_topk_prob": True, "mlp_bias": True}, out_bias=True)
PLAIN = Architecture()
BIASED = Architecture(out_bias=True)
SANDWICH = Architecture(fixed={"norm_layout": "sandwich"})
PANGU_ULTRA_MOE = Architecture(fixed={"norm_layout": "sandwich"}, recipe={"scoring_func": "sigmoid"})
GLM4 = Architecture(fixed={"norm_layout": "sandwich"}, recipe={"rope_interleave": True})
CHATGLM = Architecture(
    keys={
        "num_key_value_heads": ("multi_query_group_num",),
        "vocab_size": ("padded_vocab_size", "vocab_size"),
        "intermediate_size": ("ffn_hidden_size", "intermediate_size"),
    },
    recipe={"rope_interleave": True, "partial_rotary_factor": 0.5},
)
GPT2 = Architecture(
    keys={"learned_position_embeddings": ("n_positions",)},
    recipe={"normalization": "LayerNorm", "attention_bias": True, "attention_out_bias": True, "mlp_bias": True},
    gated=False,
    tied_by_default=True,
)
# modeling_qwen.py: w1 and w2 are intermediate_size // 2 wide; c_attn has biases.
QWEN = Architecture(recipe={"attention_bias": True}, halves_intermediate=True)
ERNIE = Architecture(recipe={"norm_topk_prob": True, "rope_interleave": True}, tied_by_default=True)
UNKNOWN = Architecture(known=False)

ARCHITECTURES: dict[str, Architecture] = {
    "LlamaForCausalLM": LLAMA,
    "MistralForCausalLM": PLAIN,
    "MixtralForCausalLM": MIXTRAL,
    "QWenLMHeadModel": QWEN,
    "Ernie4_5ForCausalLM": ERNIE,
    "Ernie4_5_ForCausalLM": ERNIE,
    "Ernie4_5_MoeForCausalLM": ERNIE,
    "Qwen2ForCausalLM": QWEN2,
    "Qwen2MoeForCausalLM": QWEN2_MOE,
    "Qwen3ForCausalLM": QWEN3,
    "Qwen3MoeForCausalLM": QWEN3,
    "DeepseekV2ForCausalLM": LLAMA,
    "DeepseekV3ForCausalLM": LLAMA,
    "KimiK2ForCausalLM": LLAMA,
    "GlmForCausalLM": GLM,
    "Glm4ForCausalLM": GLM4,
    "Glm4MoeForCausalLM": GLM4_MOE,
    "ChatGLMModel": CHATGLM,
    "ChatGLMForConditionalGeneration": CHATGLM,
    "GptOssForCausalLM": GPT_OSS,
    "PanguEmbeddedForCausalLM": BIASED,
    "PanguUltraForCausalLM": SANDWICH,
    "PanguUltraMoEForCausalLM": PANGU_ULTRA_MOE,
    "PanguProMoEForCausalLM": PLAIN,
    "PanguProMoEV2ForCausalLM": PLAIN,
    "GPT2LMHeadModel": GPT2,
}

MODEL_TYPES: dict[str, str] = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "mixtral": "MixtralForCausalLM",
    "qwen": "QWenLMHeadModel",
    "ernie4_5": "Ernie4_5ForCausalLM",
    "ernie4_5_moe": "Ernie4_5_MoeForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen2_moe": "Qwen2MoeForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "qwen3_moe": "Qwen3MoeForCausalLM",
    "deepseek_v2": "DeepseekV2ForCausalLM",
    "deepseek_v3": "DeepseekV3ForCausalLM",
    "kimi_k2": "KimiK2ForCausalLM",
    "glm": "GlmForCausalLM",
    "glm4": "Glm4ForCausalLM",
    "glm4_moe": "Glm4MoeForCausalLM",
    "chatglm": "ChatGLMModel",
    "gpt_oss": "GptOssForCausalLM",
    "pangu_ultra_moe": "PanguUltraMoEForCausalLM",
    "panguembedded": "PanguEmbeddedForCausalLM",
    "pangupromoe": "PanguProMoEForCausalLM",
    "gpt2": "GPT2LMHeadModel",
}

# Mechanisms that change time and memory and are not modelled: refused by name, never ignored.
NOT_MODELLED: dict[str, str] = {
    "linear_attn_config": "linear attention layers",
    "linear_num_value_heads": "linear attention layers",
    "full_attention_interval": "linear attention layers",
    "index_topk": "sparse attention with an indexer",
    "mamba_d_state": "state space layers",
    "ssm_cfg": "state space layers",
    "attn_layer_period": "state space layers",
    "hybrid_override_pattern": "state space layers",
    "hybrid_layer_pattern": "state space layers",
    "layers_block_type": "state space layers",
    "ssm_state_size": "state space layers",
    "mamba_num_heads": "state space layers",
    "mamba_d_ssm": "state space layers",
    "block_types": "recurrent layers",
    "lru_width": "recurrent layers",
    "share_q_dim": "attention with a query of low rank and one shared key (MFA)",
    "attention_chunk_size": "chunked attention",
    "is_encoder_decoder": "an encoder",
}

# Layers by their kind: of these, each value but the attention that is modelled.
LAYER_KINDS: dict[str, frozenset[Any]] = {
    "layer_types": frozenset({"full_attention", "sliding_attention"}),
    "attn_type_list": frozenset({1, "attention", "full_attention"}),  # MiniMax: 0 is lightning (linear) attention
}
# In an unknown architecture a key with one of these words may stand for layers that are not modelled; a key with one
# of the others beside it says nothing of the shape.
TELLING = ("moe", "expert", "mamba", "ssm", "linear", "recurrent", "conv", "hybrid")
HARMLESS = ("router", "loss", "bias", "dtype", "dropout", "jitter", "noise", "init", "fusion", "impl", "backend")

NO_EFFECT = "no effect on time or memory of a step"
CHECK = "unknown key: check that it does not change the model's shape"

_WITHOUT_EFFECT = (
    "apply_query_key_layer_scaling",
    "apply_residual_connection_post_layernorm",
    "attention_softmax_in_fp32",
    "_attn_implementation_autoset",
    "auto_map",
    "bias_dropout_fusion",
    "bos_token_id",
    "embd_pdrop",
    "eos_token_id",
    "ep_size",
    "fp32_residual_connection",
    "initial_context_length",
    "n_ctx",
    "original_rope",
    "output_router_logits",
    "pad_token_id",
    "post_layer_norm",
    "pretraining_tp",
    "qk_head_dim",
    "rmsnorm",
    "summary_activation",
    "summary_first_dropout",
    "summary_proj_to_labels",
    "summary_type",
    "summary_use_proj",
    "swiglu_limit",
    "task_specific_params",
    "transformers_version",
    "use_cache",
)

IGNORED: dict[str, str] = {
    **dict.fromkeys(_WITHOUT_EFFECT, NO_EFFECT),
    **dict.fromkeys(("torch_dtype", "dtype"), "training.precision says it"),
    "quantization_config": "the checkpoint's format; training.precision says what is trained in",
    "param_sink_number": "learned sink tokens are not counted",
    "param_sink_with_value": "learned sink tokens are not counted",
    "vision_config": "only the language model is planned",
    "audio_config": "only the language model is planned",
}
