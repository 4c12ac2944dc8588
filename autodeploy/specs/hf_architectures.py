"""Architectures of Hugging Face `config.json` files: names of their sizes, and sizes that their code fixes.

A key that is looked up under several names is taken from the first that the file has. `fixed` holds what no key says
because the architecture's code does it, such as the query and key norms of Qwen3; `recipe` likewise, of what only the
launch has to say.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from autodeploy.messages import Message
from autodeploy.specs.attention import COMPRESSED
from autodeploy.specs.diagnostics import NO_EFFECT

KEYS: dict[str, tuple[str, ...]] = {
    "hidden_size": ("hidden_size", "n_embd", "d_model"),
    "num_hidden_layers": ("num_hidden_layers", "num_layers", "n_layer", "n_layers"),
    "num_attention_heads": ("num_attention_heads", "n_head", "n_heads", "num_heads"),
    "num_key_value_heads": ("num_key_value_heads", "num_kv_heads", "num_attention_groups"),
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
    "num_nextn_predict_layers": (
        "num_nextn_predict_layers",
        "num_mtp_layers",
        "mtp_num_layers",
        "mtp_num_hidden_layers",
    ),
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
    refused: str = ""  # what all of its models have, be it by defaults of its class, and is not modelled
    reads: frozenset[str] = frozenset()  # mechanisms by their key, which others refuse
    defaults: dict[str, Any] = field(default_factory=dict)  # of keys that its files leave out
    full_every: int = 0  # layers, of which the last sees everything and the others have a window

    @property
    def layer_kinds(self) -> frozenset[Any]:
        """Kinds of layers that its files may name beside those of every architecture."""
        linear = {"linear_attention"} if "linear_num_value_heads" in self.reads else set()
        if "compress_ratios" in self.reads:
            return COMPRESSED
        return frozenset(linear | ({"chunked_attention"} if "attention_chunk_size" in self.reads else set()))

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
# Its class gives layers with a window eight key heads, and the others four.
MIMO_V2 = Architecture(refused=Message("mechanism.layers_of_several_shapes"))
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
# transformers modeling_qwen3_next.py, modeling_qwen3_5.py: full attention has norms on heads and a gate beside queries.
QWEN3_NEXT = Architecture(
    fixed={"qk_norm": True},
    recipe={"shared_expert_gate": True},
    reads=frozenset({"linear_num_value_heads", "full_attention_interval"}),
)
DSA = Architecture(recipe={"rope_theta": 10_000}, out_bias=True, reads=frozenset({"index_topk"}))
GLM_DSA = Architecture(recipe={"scoring_func": "sigmoid", "topk_method": "noaux_tc"}, reads=frozenset({"index_topk"}))
KIMI_LINEAR = Architecture(
    recipe={"scoring_func": "sigmoid", "topk_method": "noaux_tc"}, reads=frozenset({"linear_attn_config"})
)
# transformers modeling_llama4.py: intermediate_size is of an expert and of the one shared expert.
LLAMA4 = Architecture(
    keys={"intermediate_size": ("intermediate_size_mlp",), "moe_intermediate_size": ("intermediate_size",)},
    fixed={"n_shared_experts": 1},
    reads=frozenset({"attention_chunk_size"}),
)
# modeling_step3p5.py; the modules that predict further tokens are no layers of its kinds (hf_attention.py).
STEP35 = Architecture(
    keys={"shared_expert_intermediate_size": ("share_expert_dim", "share_expert_dims"), "num_nextn_predict_layers": ()},
    fixed={"qk_norm": True, "n_shared_experts": 1},
    recipe={"norm_topk_prob": True, "scoring_func": "sigmoid"},
    reads=frozenset({"attention_other_setting", "moe_layers_enum"}),
)
# transformers modular_longcat_flash.py: num_hidden_layers counts the halves of layers; the modules that predict further
# tokens are dense, and no layers of its kind (arXiv 2509.01322, section 2.3).
LONGCAT_FLASH = Architecture(
    keys={
        "num_hidden_layers": ("num_layers",),
        "intermediate_size": ("ffn_hidden_size", "intermediate_size"),
        "moe_intermediate_size": ("expert_ffn_hidden_size", "moe_intermediate_size"),
        "num_nextn_predict_layers": (),
    },
    fixed={"shortcut_moe": True},
    recipe={
        "rope_interleave": True,
        "scoring_func": "softmax",
        "topk_method": "noaux_tc",
        "norm_topk_prob": False,
        "router_balancing": "softmax_topk",
        "router_dtype": "fp32",
        "more_flags": (("--enable-mla-scale-q-lora",), ("--enable-mla-scale-kv-lora",)),
    },
    reads=frozenset({"zero_expert_num"}),
)
# transformers modeling_deepseek_v4.py.
DEEPSEEK_V4 = Architecture(
    keys={"q_lora_rank": ("q_lora_rank",)},
    recipe={
        "rope_theta": 10_000,
        "scoring_func": "sqrtsoftplus",
        "topk_method": "noaux_tc",
        "norm_topk_prob": True,
        "more_flags": (("--swiglu-limit", "10"),),
    },
    reads=frozenset({"compress_ratios", "hc_mult", "index_topk"}),
)
MINIMAX_M2 = Architecture(recipe={"norm_topk_prob": True, "topk_method": "noaux_tc"})
HUNYUAN = Architecture(tied_by_default=True)
# transformers modeling_gemma2.py, modeling_gemma3.py, with the defaults of their configurations.
GEMMA2 = Architecture(fixed={"norm_layout": "sandwich"}, tied_by_default=True, full_every=2)
GEMMA3 = Architecture(
    fixed={"norm_layout": "sandwich", "qk_norm": True},
    tied_by_default=True,
    full_every=6,
    defaults={
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "vocab_size": 262_208,
        "hidden_act": "gelu_pytorch_tanh",
    },
)
OLMO2 = Architecture(fixed={"qk_norm": True})
SEED = Architecture(recipe={"attention_bias": True})
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
    "DeepseekV32ForCausalLM": DSA,
    "DeepseekV4ForCausalLM": DEEPSEEK_V4,
    "GlmMoeDsaForCausalLM": GLM_DSA,
    "Glm4MoeLiteForCausalLM": GLM4_MOE,
    "Glm4vMoeForConditionalGeneration": GLM4_MOE,
    "Qwen3NextForCausalLM": QWEN3_NEXT,
    "Qwen3_5ForCausalLM": QWEN3_NEXT,
    "Qwen3_5MoeForCausalLM": QWEN3_NEXT,
    "Qwen3_5ForConditionalGeneration": QWEN3_NEXT,
    "Qwen3_5MoeForConditionalGeneration": QWEN3_NEXT,
    "Qwen3VLForConditionalGeneration": QWEN3,
    "Qwen3VLMoeForConditionalGeneration": QWEN3,
    "KimiK25ForConditionalGeneration": LLAMA,
    "KimiLinearForCausalLM": KIMI_LINEAR,
    "Llama4ForCausalLM": LLAMA4,
    "Llama4ForConditionalGeneration": LLAMA4,
    "LongcatFlashForCausalLM": LONGCAT_FLASH,
    "MiniMaxM2ForCausalLM": MINIMAX_M2,
    "Step3p5ForCausalLM": STEP35,
    "HunYuanDenseV1ForCausalLM": HUNYUAN,
    "HunYuanMoEV1ForCausalLM": HUNYUAN,
    "Gemma2ForCausalLM": GEMMA2,
    "Gemma3ForCausalLM": GEMMA3,
    "Gemma3ForConditionalGeneration": GEMMA3,
    "Olmo2ForCausalLM": OLMO2,
    "Olmo3ForCausalLM": OLMO2,
    "SeedOssForCausalLM": SEED,
    "Phi3ForCausalLM": PLAIN,
    "SmolLM3ForCausalLM": PLAIN,
    "Dots1ForCausalLM": QWEN3,
    "MiMoForCausalLM": QWEN2,
    "MiMoV2FlashForCausalLM": MIMO_V2,
    "Mistral3ForConditionalGeneration": PLAIN,
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
    "deepseek_v32": "DeepseekV32ForCausalLM",
    "deepseek_v4": "DeepseekV4ForCausalLM",
    "glm_moe_dsa": "GlmMoeDsaForCausalLM",
    "glm4_moe_lite": "Glm4MoeLiteForCausalLM",
    "glm4v_moe_text": "Glm4MoeForCausalLM",
    "qwen3_next": "Qwen3NextForCausalLM",
    "qwen3_5_text": "Qwen3_5ForCausalLM",
    "qwen3_5_moe_text": "Qwen3_5MoeForCausalLM",
    "qwen3_vl_text": "Qwen3ForCausalLM",
    "qwen3_vl_moe_text": "Qwen3MoeForCausalLM",
    "kimi_linear": "KimiLinearForCausalLM",
    "llama4_text": "Llama4ForCausalLM",
    "longcat_flash": "LongcatFlashForCausalLM",
    "mimo_v2_flash": "MiMoV2FlashForCausalLM",
    "minimax_m2": "MiniMaxM2ForCausalLM",
    "step3p5": "Step3p5ForCausalLM",
    "hunyuan_v1_dense": "HunYuanDenseV1ForCausalLM",
    "hunyuan_v1_moe": "HunYuanMoEV1ForCausalLM",
    "gemma2": "Gemma2ForCausalLM",
    "gemma3_text": "Gemma3ForCausalLM",
    "olmo2": "Olmo2ForCausalLM",
    "olmo3": "Olmo3ForCausalLM",
    "seed_oss": "SeedOssForCausalLM",
    "phi3": "Phi3ForCausalLM",
    "smollm3": "SmolLM3ForCausalLM",
    "dots1": "Dots1ForCausalLM",
}

# Mechanisms that change time and memory and are not modelled: refused by name, never ignored.
NOT_MODELLED: dict[str, str] = {
    "ngram_vocab_size_ratio": Message("importers.n_gram_embeddings"),
    "linear_attn_config": Message("mechanism.linear_attention"),
    "linear_num_value_heads": Message("mechanism.linear_attention"),
    "full_attention_interval": Message("mechanism.linear_attention"),
    "index_topk": Message("mechanism.sparse_attention"),
    "mamba_d_state": Message("mechanism.recurrent_layers"),
    "attention_hidden_size": Message("mechanism.recurrent_layers"),  # RWKV's
    "rescale_every": Message("mechanism.recurrent_layers"),
    "ssm_cfg": Message("mechanism.recurrent_layers"),
    "attn_layer_period": Message("mechanism.recurrent_layers"),
    "hybrid_override_pattern": Message("mechanism.recurrent_layers"),
    "swa_num_attention_heads": Message("mechanism.layers_of_several_shapes"),
    "swa_num_key_value_heads": Message("mechanism.layers_of_several_shapes"),
    "layers_block_type": Message("mechanism.recurrent_layers"),
    "ssm_state_size": Message("mechanism.recurrent_layers"),
    "mamba_num_heads": Message("mechanism.recurrent_layers"),
    "mamba_d_ssm": Message("mechanism.recurrent_layers"),
    "block_types": Message("mechanism.recurrent_layers"),
    "lru_width": Message("mechanism.recurrent_layers"),
    "share_q_dim": Message("mechanism.low_rank_queries"),
    "attention_chunk_size": Message("mechanism.chunked_attention"),
    "is_encoder_decoder": Message("mechanism.encoder"),
    "compress_ratios": Message("mechanism.compressed_attention"),
    "hc_mult": Message("mechanism.hyper_connections"),
    "zero_expert_num": "n_zero_experts",
    "attn_res_block_size": Message("mechanism.attention_residuals"),
    "routed_expert_hidden_size": Message("mechanism.latent_experts"),
    "moe_latent_size": Message("mechanism.latent_experts"),
    "use_cla": Message("mechanism.shared_keys_and_values"),
    "num_kv_shared_layers": Message("mechanism.shared_keys_and_values"),
    "attention_other_setting": Message("mechanism.layers_of_several_shapes"),
    "global_head_dim": Message("mechanism.layers_of_several_shapes"),
    "num_global_key_value_heads": Message("mechanism.layers_of_several_shapes"),
    "sparse_attention_config": Message("mechanism.block_sparse_attention"),
    "layer_group_size": Message("mechanism.linear_attention"),
    "hidden_size_per_layer_input": Message("mechanism.embeddings_per_layer"),
    "loop_num": Message("mechanism.looped_layers"),
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

CHECK = Message("importers.unknown_key")

_WITHOUT_EFFECT = (
    "apply_query_key_layer_scaling",
    "apply_residual_connection_post_layernorm",
    "attention_softmax_in_fp32",
    "attn_logit_softcapping",
    "attn_scale",
    "attn_temperature_tuning",
    "cache_implementation",
    "final_logit_softcapping",
    "floor_scale",
    "for_llm_compressor",
    "indexer_rope_interleave",
    "mamba_ssm_dtype",
    "attention_method",
    "mla_scale_kv_lora",
    "mla_scale_q_lora",
    "mla_use_nope",
    "router_bias",
    "mtp_use_dedicated_embeddings",
    "query_pre_attn_scalar",
    "use_bidirectional_attention",
    "_attn_implementation_autoset",
    "auto_map",
    "bias_dropout_fusion",
    "hc_eps",
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
    "swiglu_limits",
    "swiglu_limits_shared",
    "use_rope_layers",
    "yarn_only_types",
    "moe_router_activation",
    "moe_router_scaling_factor",
    "need_fp32_gate",
    "norm_expert_weight",
    "partial_rotary_factors",
    "use_moe_router_bias",
    "zero_centered",
    "task_specific_params",
    "transformers_version",
    "use_cache",
)

IGNORED: dict[str, str] = {
    **dict.fromkeys(_WITHOUT_EFFECT, NO_EFFECT),
    **dict.fromkeys(("torch_dtype", "dtype"), Message("importers.follows_from", what="training.precision")),
    "expert_dtype": Message("importers.follows_from", what="training.precision"),
    "quantization_config": Message("importers.follows_from", what="training.precision"),
    "param_sink_number": Message("importers.not_predicted"),
    "param_sink_with_value": Message("importers.not_predicted"),
    **dict.fromkeys(("no_rope_layers", "no_rope_layer_interval"), NO_EFFECT),
    **dict.fromkeys(("use_mtp", "num_mtp_modules", "mtp_transformer_layers"), Message("importers.not_predicted")),
    "vision_config": Message("importers.not_predicted"),
    "audio_config": Message("importers.not_predicted"),
}
