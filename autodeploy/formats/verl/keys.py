"""Keys of verl's configuration, in the order of its own scripts. Source: verl v0.9, verl/trainer/config/."""

from __future__ import annotations

from typing import Final

from autodeploy.formats.common.key_table import Key, KeyTable
from autodeploy.stack.flag_tables import defaults_of

ACTOR, ROLLOUT, REF = (f"actor_rollout_ref.{name}" for name in ("actor", "rollout", "ref"))
MEGATRON, FSDP = f"{ACTOR}.megatron", f"{ACTOR}.fsdp_config"
# Mappings that verl hands on; a key that they don't have yet is added (`++`).
OPEN: Final = (
    f"{MEGATRON}.override_transformer_config.",
    f"{MEGATRON}.override_ddp_config.",
    f"{ACTOR}.optim.override_optimizer_config.",
)
# Keys of `MEGATRON` that say degrees; Megatron's flags have their names, but for those of `FLAGS`.
DEGREES: Final = {
    "tp": "tensor_model_parallel_size",
    "pp": "pipeline_model_parallel_size",
    "vpp": "virtual_pipeline_model_parallel_size",
    "cp": "context_parallel_size",
    "ep": "expert_model_parallel_size",
    "etp": "expert_tensor_parallel_size",
}
# Layers of the stages at the ends, by the keys of the transformer's mapping.
ENDS: Final = ("num_layers_in_first_pipeline_stage", "num_layers_in_last_pipeline_stage")
FLAGS: Final = {
    DEGREES["vpp"]: "--num-virtual-stages-per-pipeline-rank",
    ENDS[0]: "--decoder-first-pipeline-num-layers",
    ENDS[1]: "--decoder-last-pipeline-num-layers",
}
SWITCHES: Final = ("sequence_parallel", "use_distributed_optimizer")
OFFLOADS: Final = {"parameters": "param_offload", "gradients": "grad_offload", "optimizer": "optimizer_offload"}
ULYSSES: Final = "ulysses_sequence_parallel_size"
PROMPTS, MINI_BATCH, KL_LOSS = "data.train_batch_size", f"{ACTOR}.ppo_mini_batch_size", f"{ACTOR}.use_kl_loss"
ESTIMATOR, KL_REWARD, FILTERS = (f"algorithm.{name}" for name in ("adv_estimator", "use_kl_in_reward", "filter_groups"))
# Micro batches of an update: counted, or filled up to a number of tokens.
COUNTED, DYNAMIC, TOKENS = "ppo_micro_batch_size_per_gpu", "use_dynamic_bsz", "ppo_max_token_len_per_gpu"
NODES, EACH, DEVICE = "nnodes", "n_gpus_per_node", "trainer.device"
ENGINE, QUANTIZED, EAGER = (f"{ROLLOUT}.{name}" for name in ("name", "quantization", "enforce_eager"))
LONGEST, COUNTED_SCORES = "max_model_len", "log_prob_micro_batch_size_per_gpu"
BOUND, SYNCED, BATCHES, PARTIAL = (
    f"async_training.{name}"
    for name in ("staleness_threshold", "trigger_parameter_sync_step", "require_batches", "partial_rollout")
)

DATA: Final = KeyTable(
    "verl",
    defaults_of("verl"),
    (
        *map(Key, ("data.train_files", "data.val_files", PROMPTS, "data.gen_batch_size")),
        Key("data.max_prompt_length", "training.rl.prompt_length.max", int),
        Key("data.max_response_length", "training.rl.response_length.max", int),
    ),
)
GENERATION: Final = KeyTable(
    "verl",
    defaults_of("verl"),
    (
        *map(Key, (ENGINE, f"{ROLLOUT}.mode")),
        Key(f"{ROLLOUT}.n", "training.rl.responses_per_prompt", int),
        Key(f"{ROLLOUT}.tensor_model_parallel_size", "strategy.rl.generation.tp", int),
        Key(f"{ROLLOUT}.data_parallel_size", "strategy.rl.generation.dp", int),
        Key(f"{ROLLOUT}.expert_parallel_size", "strategy.rl.generation.ep", int),
        Key(f"{ROLLOUT}.gpu_memory_utilization", "strategy.rl.generation.memory_fraction", float),
        Key(f"{ROLLOUT}.max_num_seqs", "strategy.rl.generation.max_num_seqs", int),
        *map(Key, (f"{ROLLOUT}.{LONGEST}", EAGER, f"{ROLLOUT}.free_cache_engine", QUANTIZED)),
    ),
)
