"""Keys of torchtitan and torchtitan-npu, in the order of torchtitan's own files.

Source: torchtitan v0.2.2, torchtitan/config/job_config.py; torchtitan-npu @306d569f, config/custom_config.py.
"""

from __future__ import annotations

from typing import Final

from autodeploy.formats.common.key_table import Key, KeyTable
from autodeploy.stack.flag_tables import defaults_of

TARGET: Final = "torchtitan-npu"
NAME, FLAVOR, CONVERTED = "model.name", "model.flavor", "model.converters"
OPTIMIZER, LOCAL_BATCH, BATCH = "optimizer.name", "training.local_batch_size", "training.global_batch_size"
STEPS, MODULES = "training.steps", "training.num_mtp_modules"
SHARDS, RING_OFF = "parallelism.data_parallel_shard_degree", "parallelism.enable_custom_context_parallel"
RECOMPUTE, EVERY = "activation_checkpoint.mode", "activation_checkpoint.selective_ac_option"
COMPILED, ROTATED = "compile.enable", "parallelism.context_parallel_rotate_method"

TABLE: Final = KeyTable(
    "torchtitan",
    defaults_of("torchtitan"),
    (
        *map(Key, ("job.custom_config_module", NAME, FLAVOR, CONVERTED, OPTIMIZER)),
        Key(
            "optimizer.implementation",
            "features.unfused_optimizer",
            {True: ("foreach", "for-loop"), False: ("fused",)},
        ),
        Key("optimizer.swap_optimizer", "strategy.swap_optimizer", bool),
        Key(LOCAL_BATCH, "strategy.micro_batch_size", int),
        Key(BATCH),
        Key("training.seq_len", "training.seq_length", int),
        Key("training.mixed_precision_param", "training.precision", {"bf16": ("bfloat16",), "fp32": ("float32",)}),
        *map(Key, ("training.mixed_precision_reduce", STEPS, MODULES)),
        Key("parallelism.data_parallel_replicate_degree", "strategy.dp_replicate", int),
        Key(SHARDS),
        Key(
            "parallelism.fsdp_reshard_after_forward",
            "features.keep_gathered",
            {True: ("never",), False: ("always",)},
        ),
        Key("parallelism.tensor_parallel_degree", "strategy.tp", int),
        Key("parallelism.pipeline_parallel_degree", "strategy.pp", int),
        Key("parallelism.context_parallel_degree", "strategy.cp", int),
        Key(RING_OFF),
        Key("parallelism.expert_parallel_degree", "strategy.ep", int, "moe"),
        Key("parallelism.expert_tensor_parallel_degree", "strategy.etp", int, "moe"),
        *map(Key, (RECOMPUTE, EVERY, "checkpoint.enable", "checkpoint.interval", COMPILED)),
        Key("debug.deterministic", "search.deterministic_training", bool),
    ),
)
