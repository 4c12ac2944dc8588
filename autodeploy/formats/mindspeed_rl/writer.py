"""A plan of post-training as a configuration of MindSpeed-RL: one YAML, and in its comments the line that starts it.

Its `global_batch_size` counts prompts, `num_npus` dies. `infer_expert_parallel_size` is the data-parallel size of the
engine: experts lie over it times the tensor-parallel size (mindspeed_rl/models/rollout/vllm_engine.py). Training and
generation share their cards, in turn; there is no other placement.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from autodeploy.formats.megatron.arguments import LaunchArguments, ShellVariable
from autodeploy.formats.megatron.launch import filled_launch
from autodeploy.formats.megatron.launch_script import mark, release_lines
from autodeploy.formats.megatron.mindspeed_llm import add_own_arguments
from autodeploy.formats.megatron.post_training_launch import (
    DAPO_CLIP,
    DAPO_DROPS,
    MISSING,
    RlLaunch,
    refuse_bad_keys,
    rl_launch,
    rl_marks,
)
from autodeploy.formats.megatron.recipe_writer import told_variables
from autodeploy.kit.errors import UnsupportedError
from autodeploy.kit.yaml_text import yaml_text
from autodeploy.messages import Message
from autodeploy.specs.artefact import Artefact, provenance_line
from autodeploy.specs.training import BatchSize

if TYPE_CHECKING:
    from collections.abc import Mapping

    from autodeploy.formats.megatron.arguments import Value
    from autodeploy.specs.planset import Plan, PlanSet
    from autodeploy.specs.spec import Spec


# Flags of MindSpeed-LLM as keys of MindSpeed-RL: its MegatronConfig names some of them, and refuses all others.
# Flags that say nothing beside the keys that stand for them.
SAID_OTHERWISE = frozenset({"--vocab-size", "--lr-warmup-iters"})
# What changes the model or its training and has no key: a note.
WITHOUT_KEY = frozenset(
    {
        *("--mtp-num-layers", "--moe-router-pre-softmax", "--rotary-interleaved", "--no-rope-fusion", "--adam-eps"),
        *("--rotary-seq-len-interpolation-factor", "--lr-decay-iters", "--moe-pad-expert-input-to-capacity"),
    }
)
SHARED_WIDTH, SHARED = "--moe-shared-expert-intermediate-size", "--n-shared-experts"
# Blocks that stand under the actor, where the critic of ppo has its own.
OF_THE_ACTOR = ("MODEL_PARALLEL_ARGS", "SCHEDULE_ARGS", "RECOMPUTE_ARGS")
ACTOR_KEYS = frozenset({"micro_batch_size", "lr", "min_lr", "lr_decay_style", "moe_tp_extend_ep"})


class KeyedArguments(LaunchArguments):
    """Arguments of which MegatronConfig has only some."""

    expert_width: int = 0

    def add(self, block: str, flag: str, *values: Value) -> None:
        """Adds a flag that has a key; says so of what changes the model and has none.

        Raises
        ------
        UnsupportedError
            for all other flags without a key.
        """
        if self.knows(flag) or flag not in SAID_OTHERWISE | WITHOUT_KEY | {SHARED_WIDTH}:
            super().add(block, flag, *values)
        elif flag in WITHOUT_KEY:
            self.note(Message("exporters.model_s_code_has_to_say", what=flag))
        elif flag == SHARED_WIDTH and isinstance(values[0], int):
            # One number says how many experts wide the shared one is.
            super().add(block, SHARED, values[0] // self.expert_width)


def sections(arguments: LaunchArguments, variables: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """`megatron_training` and `actor_config`.

    Parameters
    ----------
    variables : values of what scripts keep in variables; what is not among them is asked for at the start.
    """
    common: dict[str, Any] = {}
    actor: dict[str, Any] = {}
    for block, lines in arguments.blocks.items():
        for flag, values in lines:
            name = flag.removeprefix("--").replace("-", "_")
            into = actor if block in OF_THE_ACTOR or name in ACTOR_KEYS else common
            into[name] = _value(arguments, flag, values, variables)
    return common, actor


def _value(arguments: LaunchArguments, flag: str, values: tuple[Value, ...], variables: Mapping[str, Any]) -> Any:
    registered = arguments.release.flags[flag]
    if registered.type == "flag":
        return True
    typed = [_typed(registered.type, value, variables) for value in values]
    return typed if len(typed) > 1 else typed[0]


def _typed(kind: str, value: Value, variables: Mapping[str, Any]) -> Any:
    if isinstance(value, ShellVariable):
        return variables.get(value.name, MISSING)
    if kind in {"int", "float"}:
        number = float(str(value))
        return int(number) if kind == "int" else number
    return value


STAGES = {"grpo": "ray_grpo", "dapo": "ray_dapo"}
REWARD = "acc_for_dapo"  # whose values DAPO filters groups by
KL = 0.001  # its own default of the GRPO examples
DEFAULT_BATCHED_TOKENS = 8192  # of its examples; a prompt that is not cut into chunks has to fit
SPLITS = 2  # a response that is interrupted ends in the next step


def export(plan_set: PlanSet, plan: Plan) -> Artefact:
    """The YAML, with what is asked for at the start as `???`.

    Raises
    ------
    UnsupportedError
        where MindSpeed-RL can't launch the plan, with what stops it.
    """
    launch = rl_launch(plan_set, plan, "mindspeed-rl", KeyedArguments)
    _refuse(launch)
    document = configuration(launch)
    refuse_bad_keys(launch.release, _pairs(document))
    comments = [provenance_line(plan_set, plan)]
    comments += [line.removeprefix("# ") + rl_marks(launch) for line in mark(launch.launch)]
    comments += release_lines(launch.release)
    comments += _start(launch, plan)
    comments += [f"Note: {note}" for note in launch.arguments.notes]
    text = yaml_text(document, comments)
    return Artefact(text, "application/yaml", f"mindspeed_rl_{plan.plan_id}.yaml", tuple(launch.arguments.notes))


def _refuse(launch: RlLaunch) -> None:
    layout, rl = launch.layout, launch.rl
    fault = path = ""
    if layout.placement != "colocated":
        fault, path = f"placement: {layout.placement}", "/strategy/rl/placement"
    elif layout.generation.precision != "bf16":
        fault, path = f"generation.precision: {layout.generation.precision}", "/strategy/rl/generation/precision"
    elif layout.generation.engine not in {"vllm", "vllm-ascend"}:
        fault, path = f"generation.engine: {layout.generation.engine}", "/strategy/rl/generation/engine"
    elif rl.algorithm not in STAGES:
        fault, path = f"algorithm: {rl.algorithm}", "/training/rl/algorithm"
    elif rl.reward != "rule":
        fault, path = f"reward: {rl.reward.name}", "/training/rl/reward"
    elif launch.launch.spec.training.precision != "bf16":
        fault, path = f"precision: {launch.launch.spec.training.precision}", "/training/precision"
    elif launch.has_experts and launch.facts.generation_ep == 1 and launch.facts.generation_dp > 1:
        fault, path = (
            f"generation.dp: {launch.facts.generation_dp} (ep: 1)",
            "/strategy/rl/generation",
        )
    if fault:
        raise UnsupportedError(
            Message("common.cannot_launch_this_plan", release="MindSpeed-RL", reason=fault),
            path=path,
            hint=Message("exporters.export_to", names="verl"),
        )


def configuration(launch: RlLaunch) -> dict[str, Any]:
    """The keys, in the order of MindSpeed-RL's own examples."""
    common, actor = _megatron(launch)
    return {
        "megatron_training": common,
        "actor_config": actor,
        "rl_config": _rl_config(launch),
        "generate_config": _generate_config(launch),
    }


def _megatron(launch: RlLaunch) -> tuple[dict[str, Any], dict[str, Any]]:
    """What Megatron-LM and MindSpeed-LLM read: model and run, and the actor's degrees and memory choices."""
    spec, facts, arguments = _as_prompts(launch), launch.facts, launch.arguments
    assert isinstance(arguments, KeyedArguments)
    arguments.expert_width = spec.model.moe_intermediate_size or 1
    filled = filled_launch(arguments, spec, launch.launch.plan)
    add_own_arguments(filled)
    arguments.add("TRAIN_ARGS", "--distributed-backend", "nccl")
    arguments.add("TRAIN_ARGS", "--no-shared-storage")
    variables = {**filled.variables, "SEQ_LENGTH": facts.prompt_tokens, "GBS": facts.prompts}
    defaults = told_variables(spec.training.told)
    common, actor = sections(arguments, variables | {name: float(value) for name, value in defaults.items()})
    common |= {"stage": STAGES[launch.rl.algorithm], "tokenizer_type": "PretrainedFromHF"}
    common |= {"tokenizer_name_or_path": MISSING, "data_path": MISSING, "split": "100,0,0"}
    common |= {"dataset_additional_keys": ["labels"], "save_interval": 100}
    if facts.packed:
        # Packed sequences attend to themselves alone; stages hand on what is there.
        common |= {"reset_attention_mask": True, "no_pad_to_seq_lengths": True}
    actor |= {"finetune": True, "load": MISSING, "save": MISSING, "no_load_optim": True, "no_load_rng": True}
    return common, actor


def _as_prompts(launch: RlLaunch) -> Spec:
    """The spec as its data loader sees it: sequences and batch are prompts; the rate is constant unless told."""
    spec = launch.launch.spec
    recipe = spec.training.told
    constant = {} if recipe.lr_decay_style is not None else {"lr_decay_style": "constant", "min_lr": 0.0}
    training = spec.training.model_copy(
        update={
            "seq_length": launch.facts.prompt_tokens,
            "global_batch_size": BatchSize(value=launch.facts.prompts),
            "recipe": recipe.model_copy(update=constant),
        }
    )
    return spec.model_copy(update={"training": training})


def _rl_config(launch: RlLaunch) -> dict[str, Any]:
    facts, rl = launch.facts, launch.rl
    config: dict[str, Any] = {
        "use_integrated_worker": True,
        "blocking": True,
        "actor_resource": {"num_npus": facts.training_ranks},
        "n_samples_per_prompt": facts.responses,
        "max_prompt_length": facts.prompt_tokens,
        "mini_batch_size": facts.mini_batch_prompts,
        "adv_estimator": "group_norm",
        "kl_ctrl_type": "fixed",
        "init_kl_coef": KL if rl.reference_model else 0.0,
        "rule_reward": True,
        "log_max_throughput": rl.token_count == "max",
    }
    if facts.packed:
        config |= {"use_remove_padding": True, "use_dynamic_bsz": True}
        names = ("max", "ref_max", "actor_max", "update_max")
        config |= {f"{name}_packing_token_size": facts.pack_tokens for name in names}
    else:
        config |= dict.fromkeys(
            ("actor_forward_micro_batch_size", "ref_forward_micro_batch_size"), facts.micro_batch_size
        )
    if facts.partial_rollout:
        config |= {"partial_rollout_max_split": SPLITS, "guarantee_order": False}
    if rl.algorithm == "dapo":
        config |= {
            "token_level_loss": True,
            "clip_higher_enable": True,
            "clip_ratio_low": DAPO_CLIP[0],
            "clip_ratio_high": DAPO_CLIP[1],
        }
        config |= {"verifier_function": [REWARD], "verifier_weight": [1.0]}
        config |= {"filter_groups_enable": True, "filter_groups_metric": REWARD, "filter_groups_max_batches": -1}
        config |= {"filter_groups_train_batch_size": facts.prompts}
        launch.arguments.note(DAPO_DROPS)
        if rl.reference_model:
            launch.arguments.note(
                Message("exporters.has_no_flag_in", name="reference_model: true", framework="MindSpeed-RL (DAPO)")
            )
    elif not rl.reference_model:
        launch.arguments.note(Message("exporters.mindspeed_rl_computes_reference_s_log_probabilities_in"))
    return config


def _generate_config(launch: RlLaunch) -> dict[str, Any]:
    facts, generation, offload = launch.facts, launch.layout.generation, launch.layout.offload
    spread = launch.has_experts and facts.generation_ep > 1
    waiting = -(-facts.prompts * facts.responses // (facts.generation_ranks // facts.generation_tp))
    config: dict[str, Any] = {
        "offload_train_optimizer": "optimizer" in offload,
        "offload_train_grad": "gradients" in offload,
        "offload_train_param": "parameters" in offload,
        "infer_tensor_parallel_size": facts.generation_tp,
        "infer_pipeline_parallel_size": 1,
        "infer_expert_parallel_size": facts.generation_dp if spread else 1,
        "enable_expert_parallel": spread,
        # Its own default is 1: where the plan leaves it open, all of a rank's responses run at once.
        "max_num_seqs": generation.max_num_seqs or waiting,
        "max_model_len": facts.longest_tokens,
        "max_num_batched_tokens": max(DEFAULT_BATCHED_TOKENS, facts.longest_tokens),
        "dtype": "bfloat16",
    }
    if generation.memory_fraction is not None:
        config["gpu_memory_utilization"] = generation.memory_fraction
    if generation.mode is not None:
        config["enforce_eager"] = generation.mode == "eager"
    config["sampling_config"] = {"logprobs": 1, "max_tokens": facts.response_tokens, "top_p": 1.0, "top_k": -1}
    config["sampling_config"] |= {"min_p": 0.0, "temperature": 1.0, "detokenize": False}
    return config


def _start(launch: RlLaunch, plan: Plan) -> list[str]:
    """How it is started, and what of the environment belongs to it."""
    facts, name = launch.facts, f"mindspeed_rl_{plan.plan_id}"
    spread = launch.has_experts and facts.generation_ep > 1
    engines = facts.generation_dp if spread else 1
    program = f"cli/train_{launch.rl.algorithm}.py"
    given = "megatron_training.tokenizer_name_or_path=DIR megatron_training.data_path=PREFIX actor_config.load=DIR"
    asked = "actor_config.save=DIR megatron_training.train_iters=N actor_config.lr=1e-6"
    eager = launch.layout.generation.mode != "graph"
    return [
        f"For {launch.launch.ranks} ranks, nodes: {facts.nodes}. Copy it into configs/ of MindSpeed-RL.",
        "What is ??? is asked for at the start.",
        f"Before `ray start` on every node: export VLLM_DP_SIZE={engines} TASK_QUEUE_ENABLE={2 if eager else 1}",
        f"python {program} --config-name {name} {given} {asked}",
    ]


def _pairs(document: dict[str, Any]) -> dict[str, Any]:
    """Keys by the table's path: MegatronConfig reads the common section and the actor's as one."""
    pairs: dict[str, Any] = {}
    for section, values in document.items():
        name = "megatron_training" if section == "actor_config" else section
        for key, value in values.items():
            if key == "sampling_config":
                pairs |= {f"{name}.{key}.{inner}": each for inner, each in value.items()}
            else:
                pairs[f"{name}.{key}"] = value
    return pairs
