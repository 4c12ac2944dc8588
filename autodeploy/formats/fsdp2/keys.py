"""Keys of MindSpeed-LLM's FSDP2 backend, in its own order.

Source: Ascend/MindSpeed-LLM @c77308a1, mindspeed_llm/fsdp2/.
"""

from __future__ import annotations

from typing import Any, Final

from autodeploy.formats.common.key_table import Key, KeyTable
from autodeploy.stack.flag_tables import defaults_of

TARGET: Final = "mindspeed-llm-fsdp2"
# What changes time or memory and is written and predicted with the value that changes nothing.
PREDICTED: Final[dict[str, Any]] = {
    "parallel.num_to_forward_prefetch": 1,
    "parallel.num_to_backward_prefetch": 1,
    "parallel.fsdp_implementation": "native",
}
MODEL_ID, STAGE, OPTIMIZER, MAX_STEPS = "model.model_id", "training.stage", "training.optimizer", "training.max_steps"
PACKED: Final = ("data.packing", "data.neat_packing")
RANKS, EXPERT_RANKS = "parallel.fsdp_size", "parallel.ep_fsdp_size"
DISPATCHER, RECOMPUTE, RECOMPUTED = "parallel.ep_dispatcher", "parallel.recompute", "parallel.recompute_modules"
ACCUMULATED, DETERMINISTIC = "training.gradient_accumulation_steps", "training.deterministic"
ATTENTION, CHUNK = "optimization.use_flash_attn", "optimization.chunk_loss_size"

CP_ALGORITHMS: Final = {"ulysses": ("ulysses",), "ring": ("ring", "kvallgather")}

TABLE: Final = KeyTable(
    "MindSpeed-LLM FSDP2",
    defaults_of("MindSpeed-LLM FSDP2"),
    (
        *map(Key, (MODEL_ID, "model.train_from_scratch", "model.init_model_with_meta_device")),
        Key("data.cutoff_len", "training.seq_length", int),
        *map(Key, ("data.data_manager_type", *PACKED, RANKS, "parallel.fsdp_modules", "parallel.fsdp_implementation")),
        Key("parallel.reshard_after_forward", "features.keep_gathered", {True: (False,), False: (True,)}),
        *map(Key, ("parallel.num_to_forward_prefetch", "parallel.num_to_backward_prefetch")),
        Key("parallel.param_dtype", "training.precision", {name: (name,) for name in ("bf16", "fp16", "fp32")}),
        Key("parallel.reduce_dtype", "features.bf16_gradients", {True: ("bf16", "fp16"), False: ("fp32",)}),
        Key("parallel.tp_size", "strategy.tp", int),
        Key("parallel.cp_size", "strategy.cp", int),
        Key("parallel.cp_type", "strategy.cp_algo", CP_ALGORITHMS, "cp > 1"),
        Key("parallel.ep_size", "strategy.ep", int, "moe"),
        *map(Key, (EXPERT_RANKS, "parallel.ep_modules", "parallel.ep_fsdp_modules", DISPATCHER, RECOMPUTE, RECOMPUTED)),
        *map(Key, (STAGE, OPTIMIZER)),
        Key("training.per_device_train_batch_size", "strategy.micro_batch_size", int),
        *map(Key, (ACCUMULATED, DETERMINISTIC, "training.log_throughput", MAX_STEPS, "training.save_steps")),
        Key(ATTENTION),
        Key("optimization.use_fused_rmsnorm", "features.fused_rmsnorm", bool),
        Key("optimization.use_fused_rotary_pos_emb", "features.unfused_rotary", {True: (False,), False: (True,)}),
        Key(CHUNK),
        Key("optimization.moe_grouped_gemm", "features.grouped_gemm", bool),
    ),
)
