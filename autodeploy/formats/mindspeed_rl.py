"""A plan of post-training as a configuration of MindSpeed-RL: one YAML, and in its comments the line that starts it.

Its `global_batch_size` counts prompts, `num_npus` dies. `infer_expert_parallel_size` is the data-parallel size of the
engine: experts lie over it times the tensor-parallel size (mindspeed_rl/models/rollout/vllm_engine.py). Training and
generation share their cards, in turn; there is no other placement.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from autodeploy.formats.common.import_result import (
    ImportResult,
    plan_id_of,
    search_of_marks,
    take_marks,
)
from autodeploy.formats.common.key_table import Key, KeyTable
from autodeploy.formats.common.launch_script import DPO, refused
from autodeploy.formats.common.value_readers import FlagReader, KeyReader
from autodeploy.formats.megatron.arguments import LaunchArguments, ShellVariable
from autodeploy.formats.megatron.launch import filled_launch
from autodeploy.formats.megatron.launch_script import add_own_arguments, head_comments
from autodeploy.formats.megatron.model import read_model
from autodeploy.formats.megatron.post_training_launch import (
    DAPO_CLIP,
    DAPO_DROPS,
    MISSING,
    RlLaunch,
    lines_of_keys,
    model_of,
    refuse_bad_keys,
    rl_launch,
    rl_marks,
    script_of,
    take_rl_marks,
    whole_updates,
)
from autodeploy.formats.megatron.recipe import told_variables
from autodeploy.formats.megatron.strategy import read_gradient_sums, read_strategy
from autodeploy.kit.errors import SpecError, UnsupportedError
from autodeploy.kit.yaml_text import yaml_text
from autodeploy.messages import Message
from autodeploy.specs.artefact import Artefact
from autodeploy.specs.diagnostics import joined
from autodeploy.specs.training import BatchSize
from autodeploy.stack.flag_tables import defaults_of
from autodeploy.stack.releases import release_of

if TYPE_CHECKING:
    from pathlib import Path

    from autodeploy.formats.common.flag_effects import FlagEffect
    from autodeploy.formats.common.key_table import Values
    from autodeploy.formats.common.source import Source
    from autodeploy.formats.megatron.arguments import Value
    from autodeploy.specs.planset import Plan, PlanSet
    from autodeploy.specs.spec import Spec


TARGET = "mindspeed-rl"
SECTIONS = ("rl_config", "generate_config")
MEGATRON, ACTOR = "megatron_training", "actor_config"
STAGES = {"ray_grpo": "grpo", "ray_dapo": "dapo", "ray_ppo": "ppo"}
PACKED, COUNTED, UNPADDED, PACK_TOKENS = (
    f"rl_config.{name}"
    for name in ("use_dynamic_bsz", "log_max_throughput", "use_remove_padding", "max_packing_token_size")
)
SPREAD, MEMORY, EAGER = (
    f"generate_config.{name}" for name in ("enable_expert_parallel", "gpu_memory_utilization", "enforce_eager")
)
OFFLOADS = {
    "optimizer": "generate_config.offload_train_optimizer",
    "gradients": "generate_config.offload_train_grad",
    "parameters": "generate_config.offload_train_param",
}
# Keys of the configuration classes with their defaults (rl_config.py, generate_config.py).
TABLE = KeyTable(
    "MindSpeed-RL",
    defaults_of("MindSpeed-RL"),
    (
        Key("rl_config.actor_resource.num_npus", "cluster.num_npus", int),
        Key("rl_config.n_samples_per_prompt", "training.rl.responses_per_prompt", int),
        Key("rl_config.mini_batch_size", "training.rl.updates_per_step", int),
        Key("rl_config.max_prompt_length", "training.rl.prompt_length.max", int),
        Key("rl_config.partial_rollout_max_split", "strategy.rl.partial_rollout", int),
        Key("generate_config.infer_tensor_parallel_size", "strategy.rl.generation.tp", int),
        Key("generate_config.infer_expert_parallel_size", "strategy.rl.generation.dp", int),
        Key("generate_config.max_num_seqs", "strategy.rl.generation.max_num_seqs", int),
        Key("generate_config.sampling_config.max_tokens", "training.rl.response_length.max", int),
    ),
)
REASONS = {
    "rl_config": Message("importers.no_field_of_spec"),
    "generate_config": Message("importers.no_field_of_spec"),
    "critic_config": Message("importers.predicted_as", what="actor_config"),
    "defaults": Message("importers.no_field_of_spec"),
}
# Of rl_config and generate_config: what changes time or memory, and what it does without.
UNMODELLED = {
    "rl_config.multi_turn_enable": Message("importers.predicted_as", what="false"),
    "rl_config.share_backbone": Message("importers.predicted_as", what="false"),
    "rl_config.critic_resource.num_npus": Message("importers.not_predicted"),
    "rl_config.reference_resource.num_npus": Message("importers.not_predicted"),
    "rl_config.reward_resource.num_npus": Message("importers.not_predicted"),
}

OF_PACKS = ("--reset-attention-mask", "--reset-position-ids", "--no-pad-to-seq-lengths", "--variable-seq-lengths")


def detects(source: Source) -> bool:
    """Whether the document is a configuration of MindSpeed-RL."""
    return isinstance(source.document.get(MEGATRON), Mapping)


def reads(source: Source) -> ImportResult:
    """The spec that a MindSpeed-RL configuration trains; `model/NAME.yaml` beside it may have the model's shape.

    Raises SpecError with the key that can't be read.
    """
    document, text, name = source.of_framework, source.text, source.name
    sections = {name: {} if document.get(name) is None else document[name] for name in (MEGATRON, ACTOR, *SECTIONS)}
    for section, content in sections.items():
        if not isinstance(content, Mapping):
            raise SpecError(Message("field_fault.is_no_mapping", value=repr(content)[:40]), path=f"/{section}")
    keys = {**sections[MEGATRON], **sections[ACTOR]}
    stage = keys.get("stage")
    if not isinstance(stage, str) or stage not in STAGES:
        raise refused(
            DPO if "dpo" in str(stage) else "fine-tuning", f"stage {str(stage)[:40]}", path=f"/{MEGATRON}/stage"
        )
    if keys.get("lora_target_modules") or keys.get("lora_r"):
        raise refused("LoRA", "lora_r", path=f"/{ACTOR}/lora_r")
    reader = KeyReader({section: document[section] for section in document if section not in (MEGATRON, ACTOR)})
    values = TABLE.of(reader)
    ranks = values["cluster.num_npus"]
    shape, preset = _shape(keys, source.base_dir, name, reader)
    flags = FlagReader(script_of("train_rl.py", _hashable({**shape, **keys}), lines_of_keys(text), ranks))
    strategy, layers = read_strategy(flags)
    model = preset or read_model(flags, layers, name, source.otherwise)
    strategy["features"] = sorted({*strategy["features"], *read_gradient_sums(flags, strategy, adapted=True)})
    prompts = flags.number("--global-batch-size", "/training/rl/prompts_per_step")
    if prompts is None or prompts < 1:
        raise SpecError(Message("common.is_required", name="global_batch_size"), path=f"/{MEGATRON}/global_batch_size")
    rl = _rl(reader, values, STAGES[stage], prompts)
    strategy["rl"] = _layout(reader, values, is_moe=bool(model.get("n_routed_experts")))
    flags.ignore(("--stage", "--seq-length", "--bf16", "--train-iters"), Message("importers.no_field_of_spec"))
    flags.ignore(OF_PACKS, Message("importers.predicted_as", what="sequence_length_histogram"))
    spec: dict[str, Any] = {"model": model, "training": {"kind": "rl_post_training", "rl": rl}}
    take_marks(text, spec, strategy, flags.log)
    take_rl_marks(text, rl, reader.log)
    spec |= {"search": search_of_marks(text, TARGET), "strategy": strategy}
    kept = (*flags.note_rest(), *reader.note_rest(REASONS, _effect))
    return ImportResult(
        "mindspeed-rl-yaml",
        spec,
        joined(flags.log, reader.log),
        ranks=ranks,
        target=TARGET,
        kept=kept,
        plan_id=plan_id_of(text),
    )


def _shape(
    keys: dict[str, Any], base_dir: Path | None, name: str | None, reader: KeyReader
) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """Keys of the model's file, or the model of a preset where that file is not there."""
    called = keys.pop("model", None)
    if called is None or "hidden_size" in keys:
        return {}, None
    path = None if base_dir is None else base_dir / "model" / f"{called}.yaml"
    if path is not None and str(called).replace("_", "").replace(".", "").isalnum() and path.is_file():
        from autodeploy.specs.text_files import read_document

        document = read_document(path)
        if isinstance(document, Mapping) and isinstance(document.get(called), Mapping):
            reader.log.take(f"/{MEGATRON}/model", "/model", called)
            return dict(document[called]), None
    names = [name or "", str(called), str(keys.get("tokenizer_name_or_path", ""))]
    model = model_of(names, None, reader.log, f"/{MEGATRON}/model")
    shape = {"num_layers": model["num_hidden_layers"]}
    if model.get("n_routed_experts"):
        shape |= {"num_experts": model["n_routed_experts"], "moe_token_dispatcher_type": "alltoall_seq"}
        shape |= {"moe_grouped_gemm": True, "moe_permutation_async_comm": True}
    return shape, model


def _hashable(keys: Mapping[str, Any]) -> dict[str, Any]:
    """Only values that an argument can have."""
    return {str(key): value for key, value in keys.items() if isinstance(value, str | int | float | bool | list)}


def _rl(reader: KeyReader, values: Values, algorithm: str, prompts: int) -> dict[str, Any]:
    place = "/training/rl"
    fields = ("responses_per_prompt", "updates_per_step", "response_length.max", "prompt_length.max")
    responses, mini_batch, tokens, prompt = (values[f"training.rl.{field}"] for field in fields)
    logged = reader.take(f"{place}/token_count", COUNTED)
    return {
        "algorithm": algorithm,
        "prompts_per_step": prompts,
        "responses_per_prompt": responses,
        "prompt_length": {"max": prompt},
        "response_length": {"max": tokens},
        "updates_per_step": whole_updates(prompts, mini_batch, reader.log, "/rl_config/mini_batch_size"),
        # grpo_trainer_hybrid.py computes it whatever the coefficient; dapo_trainer_hybrid.py never.
        "reference_model": algorithm != "dapo",
        "token_count": "mean" if logged is False else "max",
    }


def _layout(reader: KeyReader, values: Values, *, is_moe: bool) -> dict[str, Any]:
    place = "/strategy/rl"
    tp, dp = (values[f"strategy.rl.generation.{axis}"] for axis in ("tp", "dp"))
    spread = reader.switch(f"{place}/generation/ep", SPREAD) and is_moe
    eager = reader.take(f"{place}/generation/mode", EAGER)
    graph = reader.switch(f"{place}/generation/mode", "generate_config.torchair_graph")
    memory = reader.take(f"{place}/generation/memory_fraction", MEMORY)
    offload = [name for name, path in OFFLOADS.items() if reader.switch(f"{place}/offload", path)]
    split = values["strategy.rl.partial_rollout"]
    return {
        "placement": "colocated",
        "generation": {
            **{"tp": tp, "dp": dp if spread else 1, "ep": tp * dp if spread else 1, "engine": "vllm-ascend"},
            "mode": "eager" if eager is not False and not graph else "graph",
            "memory_fraction": TABLE.defaults[MEMORY] if memory is None else memory,
            "max_num_seqs": values["strategy.rl.generation.max_num_seqs"],
        },
        "partial_rollout": split > 1,
        "offload": offload,
        "pack_tokens": _pack_tokens(reader),
    }


def _pack_tokens(reader: KeyReader) -> Any:
    field = "/strategy/rl/pack_tokens"
    reader.raw(UNPADDED)
    if not reader.switch(field, PACKED):
        return None
    given = reader.number(field, "rl_config.update_max_packing_token_size", PACK_TOKENS, least=1)
    return given or TABLE.defaults[PACK_TOKENS]


def _effect(path: str) -> FlagEffect | None:
    from autodeploy.formats.common.flag_effects import FlagEffect

    if path in UNMODELLED:
        return FlagEffect("unmodelled", UNMODELLED[path], ("false", "none"))
    keys = release_of(TARGET, None).keys
    return FlagEffect("no_effect", Message("importers.no_field_of_spec")) if path in keys else None


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

        Raises UnsupportedError for all other flags without a key.
        """
        if self.knows(flag) or flag not in SAID_OTHERWISE | WITHOUT_KEY | {SHARED_WIDTH}:
            super().add(block, flag, *values)
        elif flag in WITHOUT_KEY:
            self.leaves_to_code(flag)
        elif flag == SHARED_WIDTH and isinstance(values[0], int):
            # One number says how many experts wide the shared one is.
            super().add(block, SHARED, values[0] // self.expert_width)


def sections(arguments: LaunchArguments, variables: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """`megatron_training` and `actor_config`.

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


WRITTEN_STAGES = {"grpo": "ray_grpo", "dapo": "ray_dapo"}
REWARD = "acc_for_dapo"  # whose values DAPO filters groups by
KL = 0.001  # its own default of the GRPO examples
DEFAULT_BATCHED_TOKENS = 8192  # of its examples; a prompt that is not cut into chunks has to fit
SPLITS = 2  # a response that is interrupted ends in the next step


def export(plan_set: PlanSet, plan: Plan) -> Artefact:
    """The YAML, with what is asked for at the start as `???`.

    Raises UnsupportedError where MindSpeed-RL can't launch the plan, with what stops it.
    """
    launch = rl_launch(plan_set, plan, "mindspeed-rl", KeyedArguments)
    _refuse(launch)
    document = configuration(launch)
    refuse_bad_keys(launch.release, _pairs(document))
    comments = head_comments(plan_set, launch.launch, _start(launch, plan), more_marks=rl_marks(launch))
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
    elif rl.algorithm not in WRITTEN_STAGES:
        fault, path = f"algorithm: {rl.algorithm}", "/training/rl/algorithm"
    elif rl.reward != "rule":
        fault, path = f"reward: {rl.reward.name}", "/training/rl/reward"
    elif launch.launch.spec.training.precision != "bf16":
        fault, path = f"precision: {launch.launch.spec.training.precision}", "/training/precision"
    elif launch.has_experts and launch.facts.generation_ep == 1 and launch.facts.generation_dp > 1:
        fault, path = (f"generation.dp: {launch.facts.generation_dp} (ep: 1)", "/strategy/rl/generation")
    if fault:
        raise UnsupportedError(
            Message("common.cannot_launch_this_plan", release="MindSpeed-RL", reason=fault),
            path=path,
            hint=Message("exporters.export_to", names="verl"),
        )


def configuration(launch: RlLaunch) -> dict[str, Any]:
    """The keys, in the order of MindSpeed-RL's own examples: sections, then what is of a plan."""
    common, actor = _megatron(launch)
    facts, generation = launch.facts, launch.layout.generation
    waiting = -(-facts.prompts * facts.responses // (facts.generation_ranks // facts.generation_tp))
    logic = {
        "cluster.num_npus": facts.training_ranks,
        "training.rl.updates_per_step": facts.mini_batch_prompts,
        "training.rl.prompt_length.max": facts.prompt_tokens,
        "training.rl.response_length.max": facts.response_tokens,
        "strategy.rl.partial_rollout": SPLITS if facts.partial_rollout else None,
        "strategy.rl.generation.dp": facts.generation_dp if _is_spread(launch) else 1,
        # Its own default is 1: where the plan leaves it open, all of a rank's responses run at once.
        "strategy.rl.generation.max_num_seqs": generation.max_num_seqs or waiting,
        **_rl_config(launch),
        **_generate_config(launch),
    }
    own = TABLE.written(launch.launch.spec, launch.launch.plan.strategy, logic)
    return {"megatron_training": common, "actor_config": actor, **own}


def _is_spread(launch: RlLaunch) -> bool:
    """Whether experts lie over the replicas of an engine."""
    return launch.has_experts and launch.facts.generation_ep > 1


def _megatron(launch: RlLaunch) -> tuple[dict[str, Any], dict[str, Any]]:
    """Settings that Megatron-LM and MindSpeed-LLM read: model and run, and the actor's degrees and memory choices."""
    spec, facts, arguments = _as_prompts(launch), launch.facts, launch.arguments
    assert isinstance(arguments, KeyedArguments)
    arguments.expert_width = spec.model.moe_intermediate_size or 1
    filled = filled_launch(arguments, spec, launch.launch.plan)
    add_own_arguments(filled)
    arguments.add("TRAIN_ARGS", "--distributed-backend", "nccl")
    arguments.add("TRAIN_ARGS", "--no-shared-storage")
    variables = {**filled.variables, "SEQ_LENGTH": facts.prompt_tokens, "GBS": facts.prompts}
    defaults = told_variables(spec.training.recipe_or_default)
    common, actor = sections(arguments, variables | {name: float(value) for name, value in defaults.items()})
    common |= {"stage": WRITTEN_STAGES[launch.rl.algorithm], "tokenizer_type": "PretrainedFromHF"}
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
    recipe = spec.training.recipe_or_default
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
        **{"use_integrated_worker": True, "blocking": True, "adv_estimator": "group_norm", "kl_ctrl_type": "fixed"},
        **{"init_kl_coef": KL if rl.reference_model else 0.0, "rule_reward": True},
    }
    if facts.packed:
        names = ("ref_max", "actor_max", "update_max")
        config |= {f"{name}_packing_token_size": facts.pack_tokens for name in names}
    else:
        config |= dict.fromkeys(
            ("actor_forward_micro_batch_size", "ref_forward_micro_batch_size"), facts.micro_batch_size
        )
    if facts.partial_rollout:
        config["guarantee_order"] = False
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
            launch.arguments.lacks("reference_model: true", "MindSpeed-RL (DAPO)")
    elif not rl.reference_model:
        launch.arguments.note(Message("exporters.reference_always_computed"))
    packed = {UNPADDED: True, PACKED: True, PACK_TOKENS: facts.pack_tokens} if facts.packed else {}
    return {f"rl_config.{name}": value for name, value in config.items()} | packed | {COUNTED: rl.token_count == "max"}


def _generate_config(launch: RlLaunch) -> dict[str, Any]:
    facts, generation, offload = launch.facts, launch.layout.generation, launch.layout.offload
    config: dict[str, Any] = {
        "infer_pipeline_parallel_size": 1,
        "max_model_len": facts.longest_tokens,
        "max_num_batched_tokens": max(DEFAULT_BATCHED_TOKENS, facts.longest_tokens),
        "dtype": "bfloat16",
    }
    sampling = {"logprobs": 1, "top_p": 1.0, "top_k": -1, "min_p": 0.0, "temperature": 1.0, "detokenize": False}
    config |= {f"sampling_config.{name}": value for name, value in sampling.items()}
    return {
        **{path: name in offload for name, path in OFFLOADS.items()},
        SPREAD: _is_spread(launch),
        MEMORY: generation.memory_fraction,
        EAGER: None if generation.mode is None else generation.mode == "eager",
        **{f"generate_config.{name}": value for name, value in config.items()},
    }


def _start(launch: RlLaunch, plan: Plan) -> list[str]:
    """Start of the launch, and the environment that belongs to it."""
    facts, name = launch.facts, f"mindspeed_rl_{plan.plan_id}"
    engines = facts.generation_dp if _is_spread(launch) else 1
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
        name = MEGATRON if section == ACTOR else section
        sampling = values.get("sampling_config", {})
        pairs |= {f"{name}.{key}": value for key, value in values.items() if key != "sampling_config"}
        pairs |= {f"{name}.sampling_config.{key}": value for key, value in sampling.items()}
    return pairs
