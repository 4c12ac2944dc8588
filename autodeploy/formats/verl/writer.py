"""A plan of post-training as a bash script that starts verl with Hydra overrides.

On the same cards in turn (colocated): `verl.trainer.main_ppo`. On cards of their own: `one_step_off_policy` where
generation is one step ahead and responses are finished, else `fully_async_policy`, whose `staleness_threshold` is the
plan's bound: (1 + threshold) steps of samples are in flight (fully_async_rollouter.py); at 0 every step is waited for.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from autodeploy.formats.megatron.arguments import add_features
from autodeploy.formats.megatron.launch_script import DRY_RUN, environment_block, mark, release_check, release_lines
from autodeploy.formats.megatron.layers import Placement, layout_string, placement
from autodeploy.formats.megatron.memory import add_recompute, add_swap
from autodeploy.formats.megatron.post_training_launch import (
    DAPO_CLIP,
    DAPO_DROPS,
    RlLaunch,
    refuse_bad_keys,
    rl_launch,
    rl_marks,
)
from autodeploy.formats.megatron.strategy import add_dispatch, add_schedule, expert_tensor_parallel
from autodeploy.kit.errors import UnsupportedError
from autodeploy.messages import Message
from autodeploy.specs.artefact import Artefact, provenance_line
from autodeploy.specs.rl_facts import on_nodes

if TYPE_CHECKING:
    from autodeploy.formats.megatron.arguments import LaunchArguments, Value
    from autodeploy.specs.planset import Plan, PlanSet
    from autodeploy.specs.strategy import Strategy
    from autodeploy.stack.releases import Release


# Overrides of verl's configuration, and how flags of Megatron-LM and MindSpeed become some of them.
ACTOR = "actor_rollout_ref.actor"
MEGATRON = f"{ACTOR}.megatron"
# Mappings that verl hands on; a key that they don't have yet is added (`++`).
OPEN = (
    f"{MEGATRON}.override_transformer_config.",
    f"{MEGATRON}.override_ddp_config.",
    f"{ACTOR}.optim.override_optimizer_config.",
)
# Arguments whose field in Megatron-LM's classes has another name (megatron/training/arguments.py, `dest`).
FIELDS = {"microbatch_group_size_per_virtual_pipeline_stage": "microbatch_group_size_per_vp_stage"}


@dataclass(slots=True)
class Overrides:
    """Keys with their values, in named arrays of the script."""

    arrays: dict[str, dict[str, Any]] = field(default_factory=dict)

    def add(self, array: str, prefix: str, **values: Any) -> None:
        """Adds keys under a prefix; what is None is left to verl's default."""
        given = {f"{prefix}.{name}" if prefix else name: value for name, value in values.items() if value is not None}
        self.arrays.setdefault(array, {}).update(given)

    def pairs(self) -> dict[str, Any]:
        """All keys with their values."""
        return {name: value for array in self.arrays.values() for name, value in array.items()}

    def text(self) -> str:
        """Bash arrays, an override a line."""
        return "\n".join(
            f"{name}=(\n" + "".join(f"    {_line(key, value)}\n" for key, value in keys.items()) + ")\n"
            for name, keys in self.arrays.items()
            if keys
        )


def _line(key: str, value: Any) -> str:
    plus = "++" if key.startswith(OPEN) else ""
    if isinstance(value, str) and "$" in value:
        return f'{plus}{key}="{value}"'
    if isinstance(value, bool):
        return f"{plus}{key}={value}"
    if isinstance(value, list):
        return f"'{plus}{key}=[{','.join(map(str, value))}]'"
    text = f"{value:g}" if isinstance(value, float) else str(value)
    return (
        f"{plus}{key}={text}"
        if text.replace(".", "").replace("-", "").replace("_", "").isalnum()
        else f"'{plus}{key}=\"{text}\"'"
    )


def handed_on(arguments: LaunchArguments) -> dict[str, Any]:
    """The arguments as keys of the mappings that verl hands on; `--no-x` is x: false."""
    places = _places(arguments.release)
    handed: dict[str, Any] = {}
    for flag, values in (line for lines in arguments.blocks.values() for line in lines):
        argument = flag.removeprefix("--").replace("-", "_")
        name = FIELDS.get(argument, argument)
        if name in places:
            handed[places[name]] = _value(arguments.release, flag, values)
        else:
            handed[places[name.removeprefix("no_")]] = False
    return handed


def _places(release: Release) -> dict[str, str]:
    """Last part -> path of every key of the open mappings, the transformer's first."""
    places: dict[str, str] = {}
    for prefix in OPEN:
        for name in release.keys:
            if name.startswith(prefix):
                places.setdefault(name.removeprefix(prefix), name)
    return places


def _value(release: Release, flag: str, values: tuple[Value, ...]) -> Any:
    registered = release.flags[flag]
    if registered.type == "flag":
        return True
    typed = [_typed(registered.type, value) for value in values]
    return typed if registered.nargs else typed[0]


def _typed(kind: str, value: Value) -> Any:
    if kind == "int":
        return int(str(value))
    return float(str(value)) if kind == "float" else value


ROLLOUT = "actor_rollout_ref.rollout"
REF = "actor_rollout_ref.ref"
ENGINES = {"vllm": "vllm", "vllm-ascend": "vllm", "sglang": "sglang", "trtllm": "trtllm"}
# What vllm_async_server.py (_apply_quantization) takes; its weights stay in bf16 otherwise.
QUANTIZATION = {"fp8": "fp8", "int8": "ascend", "w8a8": "ascend"}
ADVANTAGES = {"grpo": "grpo", "dapo": "grpo", "ppo": "gae"}
REQUIRED = (
    ("MODEL_PATH", "directory of the Hugging Face model"),
    ("TRAIN_FILE", "parquet file of prompts"),
    ("CKPT_SAVE_DIR", "directory for checkpoints"),
    ("LR", "learning rate of the actor"),
)
SHELL = "text/x-shellscript"


def export(plan_set: PlanSet, plan: Plan) -> Artefact:
    """The script, to be started on the first node of a running Ray cluster.

    Raises UnsupportedError where verl can't launch the plan, with what stops it.
    """
    launch = rl_launch(plan_set, plan, "verl")
    _refuse(launch)
    overrides = _overrides(launch)
    refuse_bad_keys(launch.release, overrides.pairs())
    text = "\n".join(
        [
            _head(plan_set, launch),
            environment_block(launch.launch),
            _required(launch),
            release_check(launch.release),
            overrides.text(),
            _command(launch, list(overrides.arrays)),
        ]
    )
    return Artefact(text, SHELL, f"verl_{plan.plan_id}.sh", tuple(launch.arguments.notes))


def _refuse(launch: RlLaunch) -> None:
    """Refuses what verl has no key for."""
    strategy, layout = launch.launch.plan.strategy, launch.layout
    fault = path = ""
    if layout.partial_rollout and (layout.placement == "colocated" or not layout.staleness):
        fault, path = Message("common.it_needs_field", name="placement: async, staleness: 1"), "partial_rollout"
    elif strategy.fsdp and max(strategy.tp, strategy.pp, strategy.ep) > 1:
        fault, path = Message("common.it_needs_field", name="tp: 1, pp: 1, ep: 1"), "../fsdp"
    elif strategy.fsdp and strategy.cp > 1 and strategy.cp_algo != "ulysses":
        fault, path = Message("common.it_needs_field", name="cp_algo: ulysses"), "../cp_algo"
    elif launch.layout.generation.engine == "vllm-ascend" and launch.vendor != "huawei":
        fault, path = f"generation.engine: vllm-ascend ({launch.vendor})", "generation/engine"
    if fault:
        where = f"/strategy/{path.removeprefix('../')}" if path.startswith("../") else f"/strategy/rl/{path}"
        raise UnsupportedError(Message("common.cannot_launch_this_plan", release="verl", reason=fault), path=where)


def _overrides(launch: RlLaunch) -> Overrides:
    overrides, facts, rl = Overrides(), launch.facts, launch.rl
    overrides.add(
        "DATA_ARGS",
        "data",
        train_files="${TRAIN_FILE}",
        val_files="${VAL_FILE}",
        train_batch_size=0 if _is_streamed(launch) else facts.prompts,
        gen_batch_size=1 if _is_streamed(launch) else None,
        max_prompt_length=facts.prompt_tokens,
        max_response_length=facts.response_tokens,
    )
    overrides.add("MODEL_ARGS", "actor_rollout_ref.model", path="${MODEL_PATH}", use_remove_padding=True)
    if launch.layout.placement != "colocated":
        overrides.add("MODEL_ARGS", "actor_rollout_ref", hybrid_engine=False)
    overrides.add("ALGORITHM_ARGS", "algorithm", adv_estimator=ADVANTAGES[rl.algorithm], use_kl_in_reward=False)
    if rl.algorithm == "dapo":
        overrides.add("ALGORITHM_ARGS", "algorithm.filter_groups", enable=True, metric="acc")
        launch.arguments.note(DAPO_DROPS)
    _add_actor(overrides, launch)
    _add_rollout(overrides, launch)
    _add_other_models(overrides, launch)
    _add_trainer(overrides, launch)
    return overrides


def _is_streamed(launch: RlLaunch) -> bool:
    """Whether it is started as fully asynchronous: its trainer takes batches as they come."""
    layout = launch.layout
    one_step = layout.placement == "async" and layout.staleness == 1 and not layout.partial_rollout
    return layout.placement != "colocated" and not one_step


def _add_actor(overrides: Overrides, launch: RlLaunch) -> None:
    facts, rl, strategy = launch.facts, launch.rl, launch.launch.plan.strategy
    array = "ACTOR_ARGS"
    overrides.add(
        array,
        ACTOR,
        strategy="fsdp2" if strategy.fsdp else "megatron",
        ppo_mini_batch_size=facts.mini_batch_prompts,
        **_batching(launch, "ppo_micro_batch_size_per_gpu", "use_dynamic_bsz", "ppo_max_token_len_per_gpu"),
        use_kl_loss=rl.reference_model,
    )
    if rl.algorithm == "dapo":
        overrides.add(
            array, ACTOR, clip_ratio_low=DAPO_CLIP[0], clip_ratio_high=DAPO_CLIP[1], loss_agg_mode="token-mean"
        )
    overrides.add(array, f"{ACTOR}.optim", lr="${LR}")
    if strategy.fsdp:
        _add_sharded(overrides, launch)
    else:
        _add_megatron(overrides, launch)


def _batching(launch: RlLaunch, counted: str, dynamic: str, tokens: str) -> dict[str, Any]:
    """Micro batches, filled up to a number of tokens of each context-parallel rank (engine/utils.py:111) or counted."""
    facts = launch.facts
    if facts.packed:
        return {dynamic: True, tokens: -(-facts.pack_tokens // facts.cp)}
    return {dynamic: False, counted: facts.micro_batch_size}


def _add_sharded(overrides: Overrides, launch: RlLaunch) -> None:
    offload = launch.layout.offload
    overrides.add(
        "ACTOR_ARGS",
        f"{ACTOR}.fsdp_config",
        param_offload="parameters" in offload,
        optimizer_offload="optimizer" in offload,
        fsdp_size=-1,
        ulysses_sequence_parallel_size=launch.facts.cp,
    )
    if "gradients" in offload:
        launch.arguments.note(Message("exporters.has_no_flag_in", name="offload: gradients", framework="verl (FSDP2)"))


def _add_megatron(overrides: Overrides, launch: RlLaunch) -> None:
    arguments, spec, plan = launch.arguments, launch.launch.spec, launch.launch.plan
    strategy, offload, array = plan.strategy, launch.layout.offload, "ACTOR_ARGS"
    overrides.add(
        array,
        MEGATRON,
        tensor_model_parallel_size=strategy.tp,
        pipeline_model_parallel_size=strategy.pp,
        virtual_pipeline_model_parallel_size=strategy.vpp if strategy.vpp > 1 else None,
        context_parallel_size=strategy.cp,
        expert_model_parallel_size=strategy.ep if spec.model.is_moe else None,
        expert_tensor_parallel_size=expert_tensor_parallel(strategy) if spec.model.is_moe else None,
        sequence_parallel=strategy.tp > 1 and strategy.sequence_parallel is not False,
        use_distributed_optimizer=strategy.distributed_optimizer,
        param_offload="parameters" in offload,
        grad_offload="gradients" in offload,
        optimizer_offload="optimizer" in offload,
    )
    placed = placement(plan, spec.model.num_hidden_layers)
    add_schedule(arguments, strategy, plan.micro_batches)
    _add_layers(overrides, placed)
    if spec.model.is_moe:
        if arguments.release.has("mindspeed"):
            _add_dispatcher(arguments, strategy)
        else:
            add_dispatch(arguments, spec, strategy)
    add_recompute(arguments, strategy, placed, spec.model)
    add_swap(arguments, strategy, placed, spec.model)
    # An expert tensor-parallel size of 1 says the same as tp-extend-ep.
    own = tuple(name for name in strategy.features if name != "tp_extend_ep")
    add_features(arguments, spec, strategy.model_copy(update={"features": own}))
    overrides.arrays[array].update(handed_on(arguments))
    if spec.model.num_nextn_predict_layers:
        arguments.note(Message("exporters.verl_mtp_off"))


def _add_dispatcher(arguments: LaunchArguments, strategy: Strategy) -> None:
    """Dispatch of tokens to their experts: MindSpeed core_r0.16.0 has no dispatchers of its own."""
    dispatcher = strategy.moe_dispatcher or "alltoall"
    if dispatcher not in {"alltoall", "allgather"}:
        arguments.note(Message("exporters.has_no_dispatcher", framework="Megatron-LM", name=dispatcher))
        dispatcher = "alltoall"
    arguments.add("MOE_ARGS", "--moe-token-dispatcher-type", dispatcher)


def _add_layers(overrides: Overrides, placed: Placement) -> None:
    """Layers of the stages: even without a key, other ends by their numbers, all else as a layout."""
    if placed.is_even or len(placed.chunks[0]) == 1:
        return
    section = f"{MEGATRON}.override_transformer_config"
    first, *middle, last = placed.chunks[0]
    if len(placed.chunks) == 1 and len(set(middle)) <= 1:
        overrides.add(
            "ACTOR_ARGS", section, num_layers_in_first_pipeline_stage=first, num_layers_in_last_pipeline_stage=last
        )
        return
    overrides.add("ACTOR_ARGS", section, pipeline_model_parallel_layout=layout_string(placed, 0))


def _add_rollout(overrides: Overrides, launch: RlLaunch) -> None:
    facts, generation, colocated = launch.facts, launch.layout.generation, launch.layout.placement == "colocated"
    array = "ROLLOUT_ARGS"
    overrides.add(
        array,
        ROLLOUT,
        name=ENGINES[generation.engine],
        mode="async",
        n=facts.responses,
        tensor_model_parallel_size=generation.tp,
        # Dense ranks are replicas of their own, whatever stands here.
        data_parallel_size=generation.dp if launch.has_experts else 1,
        expert_parallel_size=generation.ep if launch.has_experts else 1,
        gpu_memory_utilization=generation.memory_fraction,
        max_num_seqs=generation.max_num_seqs,
        max_model_len=facts.longest_tokens,
        enforce_eager=None if generation.mode is None else generation.mode == "eager",
        free_cache_engine=True if colocated else None,
        quantization=QUANTIZATION.get(generation.precision),
    )
    if not facts.packed:
        overrides.add(array, ROLLOUT, log_prob_micro_batch_size_per_gpu=facts.micro_batch_size)
    if not colocated and launch.vendor == "huawei":
        overrides.add(array, f"{ROLLOUT}.checkpoint_engine", backend="hccl")
    if generation.precision in {"int8", "w8a8"}:
        launch.arguments.note(Message("exporters.quantised_weights"))


def _add_other_models(overrides: Overrides, launch: RlLaunch) -> None:
    """Reference, critic and reward model; the reference has the actor's degrees by verl's own defaults."""
    facts, rl, strategy = launch.facts, launch.rl, launch.launch.plan.strategy
    if rl.reference_model and not facts.packed:
        overrides.add("REF_ARGS", REF, log_prob_micro_batch_size_per_gpu=facts.micro_batch_size)
    if rl.algorithm == "ppo":
        batching = _batching(launch, "ppo_micro_batch_size_per_gpu", "use_dynamic_bsz", "ppo_max_token_len_per_gpu")
        path = "${MODEL_PATH}" if rl.critic in (None, "same") else "${CRITIC_PATH}"
        overrides.add("CRITIC_ARGS", "critic", strategy="fsdp2" if strategy.fsdp else "megatron", **batching)
        overrides.add("CRITIC_ARGS", "critic.model", path=path)
        if not strategy.fsdp:
            overrides.add(
                "CRITIC_ARGS",
                "critic.megatron",
                tensor_model_parallel_size=strategy.tp,
                pipeline_model_parallel_size=strategy.pp,
                context_parallel_size=strategy.cp,
                expert_model_parallel_size=strategy.ep if launch.has_experts else None,
            )
    if rl.reward != "rule":
        engine = ENGINES[launch.layout.generation.engine]
        overrides.add("REWARD_ARGS", "reward.reward_model", enable=True, model_path="${REWARD_MODEL_PATH}")
        overrides.add("REWARD_ARGS", "reward.reward_model.rollout", name=engine, tensor_model_parallel_size=facts.tp)
        launch.arguments.note(Message("exporters.reward_model_engine"))


def _add_trainer(overrides: Overrides, launch: RlLaunch) -> None:
    facts, layout, array = launch.facts, launch.layout, "TRAINER_ARGS"
    nodes, each = on_nodes(facts.training_ranks, facts.ranks_per_node)
    overrides.add(
        array,
        "trainer",
        nnodes=nodes,
        n_gpus_per_node=each,
        device="npu" if launch.vendor == "huawei" else "cuda",
        balance_batch=True,
        val_before_train=False,
        logger=["console"],
        default_local_dir="${CKPT_SAVE_DIR}",
        save_freq="${SAVE_FREQ}",
    )
    if layout.placement == "colocated":
        return
    nodes, each = on_nodes(facts.generation_ranks, facts.ranks_per_node)
    overrides.add(array, "rollout", nnodes=nodes, n_gpus_per_node=each)
    if _is_streamed(launch):
        overrides.add(array, "rollout", total_rollout_steps="${TOTAL_ROLLOUT_STEPS}")
        overrides.add(
            array,
            "async_training",
            staleness_threshold=float(layout.staleness),
            trigger_parameter_sync_step=launch.rl.updates_per_step,
            require_batches=1,
            partial_rollout=layout.partial_rollout,
        )


def _asked_for(launch: RlLaunch) -> list[tuple[str, str]]:
    asked = list(REQUIRED)
    if _is_streamed(launch):
        asked.append(("TOTAL_ROLLOUT_STEPS", "prompts to generate for in the whole run"))
    if launch.rl.algorithm == "ppo" and launch.rl.critic not in (None, "same"):
        asked.append(("CRITIC_PATH", "directory of the critic's Hugging Face model"))
    if launch.rl.reward != "rule":
        asked.append(("REWARD_MODEL_PATH", "directory of the reward model"))
    lr = launch.launch.spec.training.recipe_or_default.lr
    return asked if lr is None else [each for each in asked if each[0] != "LR"]


def _required(launch: RlLaunch) -> str:
    lines = [f': "${{{name}:?set {name}: {meaning}}}"\n' for name, meaning in _asked_for(launch)]
    lr = launch.launch.spec.training.recipe_or_default.lr
    lines += [f'LR="${{LR:-{lr!r}}}"\n'] if lr is not None else []
    lines += ['VAL_FILE="${VAL_FILE:-${TRAIN_FILE}}"\n', 'SAVE_FREQ="${SAVE_FREQ:--1}"\n']
    return "# Set these before the start.\n" + "".join(lines)


def _head(plan_set: PlanSet, launch: RlLaunch) -> str:
    spec, plan, facts = launch.launch.spec, launch.launch.plan, launch.facts
    notes = "".join(f"# Note: {note}\n" for note in launch.arguments.notes)
    marked = "".join(f"{line}{rl_marks(launch)}\n" for line in mark(launch.launch))
    released = "".join(f"# {line}\n" for line in release_lines(launch.release))
    beside = "" if launch.layout.placement == "colocated" else f", {facts.generation_ranks} of them generate"
    return (
        "#!/usr/bin/env bash\n"
        f"# {provenance_line(plan_set, plan)}\n"
        f"# {' '.join(spec.model.name.split())} on {plan.num_npus_used} cards ({launch.launch.ranks} ranks{beside}), "
        f"predicted step {plan.step_time_s:.4g} s, peak memory {plan.peak_memory_gib:.1f} of "
        f"{plan.memory_limit_gib:.1f} GiB\n"
        f"{released}{marked}# Start it in the verl directory on the first node of a running Ray cluster.\n"
        f"{notes}set -euo pipefail\n"
    )


def _command(launch: RlLaunch, arrays: list[str]) -> str:
    fsdp = launch.launch.plan.strategy.fsdp
    if launch.layout.placement == "colocated":
        module, name = "verl.trainer.main_ppo", "ppo"
    elif _is_streamed(launch):
        module, name = "verl.experimental.fully_async_policy.fully_async_main", "fully_async_ppo"
    else:
        module, name = "verl.experimental.one_step_off_policy.main_ppo", "one_step_off_ppo"
    config = f"{name}_trainer" if fsdp else f"{name}_megatron_trainer"
    lines = "".join(f'    "${{{each}[@]}}" \\\n' for each in arrays)
    start = f"{DRY_RUN}${{DRY_RUN:+shown}} python3 -m {module} --config-path=config"
    return f'{start} --config-name={config}.yaml \\\n{lines}    "$@"\n'
