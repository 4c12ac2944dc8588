"""How the architectures of Hugging Face `config.json` files name their sizes, and what their code fixes.

A key that is looked up under several names is taken from the first that the file has. `fixed` holds what no key says
because the architecture's code does it, such as the query and key norms of Qwen3.
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
    "n_routed_experts": ("n_routed_experts", "num_routed_experts", "num_experts", "num_local_experts"),
    "num_experts_per_tok": ("num_experts_per_tok", "num_experts_per_token", "experts_per_token"),
    "moe_intermediate_size": ("moe_intermediate_size",),
    "n_shared_experts": ("n_shared_experts", "num_shared_experts"),
    "shared_expert_intermediate_size": ("shared_expert_intermediate_size",),
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
    gated: bool = True
    tied_by_default: bool = False
    known: bool = True

    def names(self, field: str) -> tuple[str, ...]:
        """The keys under which this architecture may hold the field, in order of precedence."""
        return self.keys.get(field, KEYS[field])


LLAMA = Architecture()
QWEN3 = Architecture(fixed={"qk_norm": True})
SANDWICH = Architecture(fixed={"norm_layout": "sandwich"})
CHATGLM = Architecture(
    keys={
        "num_key_value_heads": ("multi_query_group_num",),
        "vocab_size": ("padded_vocab_size", "vocab_size"),
        "intermediate_size": ("ffn_hidden_size", "intermediate_size"),
    }
)
GPT2 = Architecture(keys={"learned_position_embeddings": ("n_positions",)}, gated=False, tied_by_default=True)
UNKNOWN = Architecture(known=False)

ARCHITECTURES: dict[str, Architecture] = {
    "LlamaForCausalLM": LLAMA,
    "MistralForCausalLM": LLAMA,
    "MixtralForCausalLM": LLAMA,
    "Qwen2ForCausalLM": LLAMA,
    "Qwen2MoeForCausalLM": LLAMA,
    "Qwen3ForCausalLM": QWEN3,
    "Qwen3MoeForCausalLM": QWEN3,
    "DeepseekV2ForCausalLM": LLAMA,
    "DeepseekV3ForCausalLM": LLAMA,
    "KimiK2ForCausalLM": LLAMA,
    "GlmForCausalLM": LLAMA,
    "Glm4ForCausalLM": SANDWICH,
    "Glm4MoeForCausalLM": LLAMA,
    "ChatGLMModel": CHATGLM,
    "ChatGLMForConditionalGeneration": CHATGLM,
    "GptOssForCausalLM": LLAMA,
    "PanguEmbeddedForCausalLM": LLAMA,
    "PanguUltraForCausalLM": SANDWICH,
    "PanguUltraMoEForCausalLM": SANDWICH,
    "PanguProMoEForCausalLM": LLAMA,
    "PanguProMoEV2ForCausalLM": LLAMA,
    "GPT2LMHeadModel": GPT2,
}

MODEL_TYPES: dict[str, str] = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "mixtral": "MixtralForCausalLM",
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
    "attention_chunk_size": "chunked attention",
    "is_encoder_decoder": "an encoder",
}

NO_EFFECT = "no effect on time or memory of a step"
CHECK = "unknown key: check that it does not change the model's shape"

_WITHOUT_EFFECT = (
    "apply_query_key_layer_scaling",
    "apply_residual_connection_post_layernorm",
    "attention_dropout",
    "attention_softmax_in_fp32",
    "_attn_implementation_autoset",
    "attn_pdrop",
    "auto_map",
    "aux_loss_alpha",
    "bias_dropout_fusion",
    "bos_token_id",
    "embd_pdrop",
    "eos_token_id",
    "ep_size",
    "fp32_residual_connection",
    "hidden_dropout",
    "initial_context_length",
    "initializer_range",
    "layer_norm_eps",
    "layer_norm_epsilon",
    "layernorm_epsilon",
    "max_position_embeddings",
    "moe_router_dtype",
    "n_ctx",
    "norm_topk_prob",
    "original_rope",
    "output_router_logits",
    "pad_token_id",
    "partial_rotary_factor",
    "post_layer_norm",
    "pretraining_tp",
    "qk_head_dim",
    "resid_pdrop",
    "rms_norm_eps",
    "rmsnorm",
    "rope_interleave",
    "rope_parameters",
    "rope_percent",
    "rope_ratio",
    "rope_scaling",
    "rope_theta",
    "rotary_pct",
    "routed_scaling_factor",
    "router_aux_loss_coef",
    "router_jitter_noise",
    "scoring_func",
    "seq_aux",
    "seq_length",
    "summary_activation",
    "summary_first_dropout",
    "summary_proj_to_labels",
    "summary_type",
    "summary_use_proj",
    "swiglu_limit",
    "task_specific_params",
    "topk_method",
    "transformers_version",
    "use_cache",
)

IGNORED: dict[str, str] = {
    **dict.fromkeys(_WITHOUT_EFFECT, NO_EFFECT),
    **dict.fromkeys(("torch_dtype", "dtype"), "training.precision says it"),
    **dict.fromkeys(
        ("attention_bias", "mlp_bias", "bias", "add_bias_linear", "add_qkv_bias"), "biases are not counted"
    ),
    "quantization_config": "the checkpoint's format; training.precision says what is trained in",
    "router_enable_expert_bias": "biases are not counted",
    "param_sink_number": "learned sink tokens are not counted",
    "param_sink_with_value": "learned sink tokens are not counted",
    "vision_config": "only the language model is planned",
    "audio_config": "only the language model is planned",
}
