"""A plan of post-training as a bash script that starts verl with Hydra overrides.

On the same cards in turn (colocated): `verl.trainer.main_ppo`. On cards of their own: `one_step_off_policy` where
generation is one step ahead and responses are finished, else `fully_async_policy`, whose `staleness_threshold` is the
plan's bound: (1 + threshold) steps of samples are in flight (fully_async_rollouter.py); at 0 every step is waited for.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from autodeploy.formats.megatron.arguments import add_features
from autodeploy.formats.megatron.launch_script import DRY_RUN, environment_block, release_check, script_head
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
from autodeploy.formats.verl import keys
from autodeploy.kit.errors import UnsupportedError
from autodeploy.messages import Message
from autodeploy.specs.artefact import Artefact
from autodeploy.specs.rl_facts import on_nodes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from autodeploy.formats.megatron.arguments import LaunchArguments, Value
    from autodeploy.specs.planset import Plan, PlanSet
    from autodeploy.specs.strategy import Strategy
    from autodeploy.stack.releases import Release


# Arguments whose field in Megatron-LM's classes has another name (megatron/training/arguments.py, `dest`).
FIELDS = {"microbatch_group_size_per_virtual_pipeline_stage": "microbatch_group_size_per_vp_stage"}


@dataclass(slots=True)
class Overrides:
    """Keys with their values, in named arrays of the script."""

    arrays: dict[str, dict[str, Any]] = field(default_factory=dict)

    def add(self, array: str, prefix: str, **values: Any) -> None:
        """Adds keys under a prefix; what is None is left to verl's default."""
        self.put(array, {f"{prefix}.{name}" if prefix else name: value for name, value in values.items()})

    def put(self, array: str, values: Mapping[str, Any]) -> None:
        """The same of keys by their whole path."""
        self.arrays.setdefault(array, {}).update({key: each for key, each in values.items() if each is not None})

    def pairs(self) -> dict[str, Any]:
        """All keys with their values."""
        return {name: value for array in self.arrays.values() for name, value in array.items()}

    def text(self) -> str:
        """Bash arrays, an override a line."""
        return "\n".join(
            f"{name}=(\n" + "".join(f"    {_line(key, value)}\n" for key, value in pairs.items()) + ")\n"
            for name, pairs in self.arrays.items()
            if pairs
        )


def _line(key: str, value: Any) -> str:
    plus = "++" if key.startswith(keys.OPEN) else ""
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
    for prefix in keys.OPEN:
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
START = "# Start it in the verl directory on the first node of a running Ray cluster.\n"


def export(plan_set: PlanSet, plan: Plan) -> Artefact:
    """The script, to be started on the first node of a running Ray cluster.

    Raises UnsupportedError where verl can't launch the plan, with what stops it.
    """
    launch = rl_launch(plan_set, plan, "verl")
    _refuse(launch)
    overrides = _overrides(launch)
    beside = "" if launch.layout.placement == "colocated" else f", {launch.facts.generation_ranks} of them generate"
    refuse_bad_keys(launch.release, overrides.pairs())
    text = "\n".join(
        [
            script_head(plan_set, launch.launch, START, beside=beside, more_marks=rl_marks(launch)),
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
    spec, strategy = launch.launch.spec, launch.launch.plan.strategy
    data = {
        **{"data.train_files": "${TRAIN_FILE}", "data.val_files": "${VAL_FILE}"},
        keys.PROMPTS: 0 if _is_streamed(launch) else facts.prompts,
        "data.gen_batch_size": 1 if _is_streamed(launch) else None,
        "training.rl.prompt_length.max": facts.prompt_tokens,
        "training.rl.response_length.max": facts.response_tokens,
    }
    overrides.put("DATA_ARGS", keys.DATA.pairs(spec, strategy, data))
    overrides.add("MODEL_ARGS", "actor_rollout_ref.model", path="${MODEL_PATH}", use_remove_padding=True)
    if launch.layout.placement != "colocated":
        overrides.add("MODEL_ARGS", "actor_rollout_ref", hybrid_engine=False)
    overrides.put("ALGORITHM_ARGS", {keys.ESTIMATOR: ADVANTAGES[rl.algorithm], keys.KL_REWARD: False})
    if rl.algorithm == "dapo":
        overrides.add("ALGORITHM_ARGS", keys.FILTERS, enable=True, metric="acc")
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
    overrides.put(
        array,
        {
            f"{keys.ACTOR}.strategy": "fsdp2" if strategy.fsdp else "megatron",
            keys.MINI_BATCH: facts.mini_batch_prompts,
            **_batching(launch, keys.ACTOR),
            keys.KL_LOSS: rl.reference_model,
        },
    )
    if rl.algorithm == "dapo":
        overrides.add(
            array, keys.ACTOR, clip_ratio_low=DAPO_CLIP[0], clip_ratio_high=DAPO_CLIP[1], loss_agg_mode="token-mean"
        )
    overrides.add(array, f"{keys.ACTOR}.optim", lr="${LR}")
    if strategy.fsdp:
        _add_sharded(overrides, launch)
    else:
        _add_megatron(overrides, launch)


def _batching(launch: RlLaunch, part: str) -> dict[str, Any]:
    """Micro batches, filled up to a number of tokens of each context-parallel rank (engine/utils.py:111) or counted."""
    facts = launch.facts
    if facts.packed:
        return {f"{part}.{keys.DYNAMIC}": True, f"{part}.{keys.TOKENS}": -(-facts.pack_tokens // facts.cp)}
    return {f"{part}.{keys.DYNAMIC}": False, f"{part}.{keys.COUNTED}": facts.micro_batch_size}


def _add_sharded(overrides: Overrides, launch: RlLaunch) -> None:
    offload = launch.layout.offload
    pairs = {keys.OFFLOADS[name]: name in offload for name in ("parameters", "optimizer")}
    overrides.add("ACTOR_ARGS", keys.FSDP, **pairs, fsdp_size=-1, **{keys.ULYSSES: launch.facts.cp})
    if "gradients" in offload:
        launch.arguments.lacks("offload: gradients", "verl (FSDP2)")


def _add_megatron(overrides: Overrides, launch: RlLaunch) -> None:
    arguments, spec, plan = launch.arguments, launch.launch.spec, launch.launch.plan
    strategy, offload, array = plan.strategy, launch.layout.offload, "ACTOR_ARGS"
    shards_sequence = strategy.tp > 1 and strategy.sequence_parallel is not False
    pairs = {
        **_degrees(strategy, moe=spec.model.is_moe),
        **dict(zip(keys.SWITCHES, (shards_sequence, strategy.distributed_optimizer), strict=True)),
        **{key: name in offload for name, key in keys.OFFLOADS.items()},
    }
    overrides.add(array, keys.MEGATRON, **pairs)
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


def _degrees(strategy: Strategy, *, moe: bool) -> dict[str, int | None]:
    """Degrees of the layers by verl's keys; None where its default is meant."""
    degrees: dict[str, int | None] = {name: getattr(strategy, name) for name in keys.DEGREES}
    degrees["vpp"] = strategy.vpp if strategy.vpp > 1 else None
    degrees |= {"etp": expert_tensor_parallel(strategy)} if moe else {"ep": None, "etp": None}
    return {keys.DEGREES[name]: degree for name, degree in degrees.items()}


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
    section = f"{keys.MEGATRON}.override_transformer_config"
    first, *middle, last = placed.chunks[0]
    if len(placed.chunks) == 1 and len(set(middle)) <= 1:
        overrides.add("ACTOR_ARGS", section, **dict(zip(keys.ENDS, (first, last), strict=True)))
        return
    overrides.add("ACTOR_ARGS", section, pipeline_model_parallel_layout=layout_string(placed, 0))


def _add_rollout(overrides: Overrides, launch: RlLaunch) -> None:
    facts, generation, colocated = launch.facts, launch.layout.generation, launch.layout.placement == "colocated"
    array = "ROLLOUT_ARGS"
    logic = {
        keys.ENGINE: ENGINES[generation.engine],
        f"{keys.ROLLOUT}.mode": "async",
        # Dense ranks are replicas of their own, whatever stands here.
        **({} if launch.has_experts else dict.fromkeys(("strategy.rl.generation.dp", "strategy.rl.generation.ep"), 1)),
        f"{keys.ROLLOUT}.{keys.LONGEST}": facts.longest_tokens,
        keys.EAGER: None if generation.mode is None else generation.mode == "eager",
        f"{keys.ROLLOUT}.free_cache_engine": True if colocated else None,
        keys.QUANTIZED: QUANTIZATION.get(generation.precision),
    }
    overrides.put(array, keys.GENERATION.pairs(launch.launch.spec, launch.launch.plan.strategy, logic))
    if not facts.packed:
        overrides.put(array, {f"{keys.ROLLOUT}.{keys.COUNTED_SCORES}": facts.micro_batch_size})
    if not colocated and launch.vendor == "huawei":
        overrides.add(array, f"{keys.ROLLOUT}.checkpoint_engine", backend="hccl")
    if generation.precision in {"int8", "w8a8"}:
        launch.arguments.note(Message("exporters.quantised_weights"))


def _add_other_models(overrides: Overrides, launch: RlLaunch) -> None:
    """Reference, critic and reward model; the reference has the actor's degrees by verl's own defaults."""
    facts, rl, strategy = launch.facts, launch.rl, launch.launch.plan.strategy
    if rl.reference_model and not facts.packed:
        overrides.put("REF_ARGS", {f"{keys.REF}.{keys.COUNTED_SCORES}": facts.micro_batch_size})
    if rl.algorithm == "ppo":
        path = "${MODEL_PATH}" if rl.critic in (None, "same") else "${CRITIC_PATH}"
        backend = "fsdp2" if strategy.fsdp else "megatron"
        overrides.put("CRITIC_ARGS", {"critic.strategy": backend, **_batching(launch, "critic")})
        overrides.add("CRITIC_ARGS", "critic.model", path=path)
        if not strategy.fsdp:
            degrees = _degrees(strategy, moe=launch.has_experts)
            own = {keys.DEGREES[name]: degrees[keys.DEGREES[name]] for name in ("tp", "pp", "cp", "ep")}
            overrides.add("CRITIC_ARGS", "critic.megatron", **own)
    if rl.reward != "rule":
        engine = ENGINES[launch.layout.generation.engine]
        overrides.add("REWARD_ARGS", "reward.reward_model", enable=True, model_path="${REWARD_MODEL_PATH}")
        overrides.add("REWARD_ARGS", "reward.reward_model.rollout", name=engine, tensor_model_parallel_size=facts.tp)
        launch.arguments.note(Message("exporters.reward_model_engine"))


def _add_trainer(overrides: Overrides, launch: RlLaunch) -> None:
    facts, layout, array = launch.facts, launch.layout, "TRAINER_ARGS"
    nodes, each = on_nodes(facts.training_ranks, facts.ranks_per_node)
    overrides.put(
        array,
        {
            f"trainer.{keys.NODES}": nodes,
            f"trainer.{keys.EACH}": each,
            keys.DEVICE: "npu" if launch.vendor == "huawei" else "cuda",
            **{"trainer.balance_batch": True, "trainer.val_before_train": False, "trainer.logger": ["console"]},
            **{"trainer.default_local_dir": "${CKPT_SAVE_DIR}", "trainer.save_freq": "${SAVE_FREQ}"},
        },
    )
    if layout.placement == "colocated":
        return
    nodes, each = on_nodes(facts.generation_ranks, facts.ranks_per_node)
    overrides.add(array, "rollout", **{keys.NODES: nodes, keys.EACH: each})
    if _is_streamed(launch):
        overrides.add(array, "rollout", total_rollout_steps="${TOTAL_ROLLOUT_STEPS}")
        streamed = {keys.BOUND: float(layout.staleness), keys.SYNCED: launch.rl.updates_per_step, keys.BATCHES: 1}
        overrides.put(array, {**streamed, keys.PARTIAL: layout.partial_rollout})


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
