"""Launches of verl: scripts, or lists of Hydra overrides. Read, never run."""

from __future__ import annotations

import math
import re
from functools import cache
from typing import TYPE_CHECKING, Any

from autodeploy.formats.common.flag_effects import unmodelled_effects
from autodeploy.formats.common.import_result import (
    ImportResult,
    KeptFlag,
    marked_preset,
    plan_id_of,
    release_of_marks,
    search_of_marks,
    take_marks,
)
from autodeploy.formats.common.launch_script import GivenFlag, LaunchScript, refused
from autodeploy.formats.common.value_readers import FlagReader, GivenReader, note_unread
from autodeploy.formats.megatron.post_training_launch import model_of, take_rl_marks, whole_updates
from autodeploy.formats.megatron.strategy import read_strategy
from autodeploy.formats.shell.follow import follow
from autodeploy.formats.shell.values import Run, Value, line_of
from autodeploy.formats.verl import keys
from autodeploy.kit.errors import SpecError, UnsupportedError
from autodeploy.messages import Message
from autodeploy.specs.diagnostics import joined, not_modelled
from autodeploy.specs.text_files import refuse_long_key
from autodeploy.stack.flag_tables import defaults_of
from autodeploy.stack.releases import release_named
from hardware_profiles.shipped_yaml import shipped

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from autodeploy.formats.common.flag_effects import FlagEffect
    from autodeploy.formats.common.key_table import Key
    from autodeploy.formats.common.source import Source
    from autodeploy.formats.shell.follow import ScriptResult


OVERRIDE = re.compile(r"\+{0,2}([A-Za-z_]\w*(?:[.@/][\w]+)*)=(.*)", re.DOTALL)
NO_FIELD = Message("importers.no_field_of_spec")
_NOTHING = frozenset({"null", "none", "~", ""})
_TRUTH = {"true": True, "false": False}


@cache
def override_effects() -> Mapping[str, FlagEffect]:
    """Keys that change what is predicted and are not modelled, by name."""
    return unmodelled_effects("verl_effect", shipped("autodeploy.formats.verl", "verl_effects.yaml"))


class OverrideReader(GivenReader):
    """The overrides of one command."""

    LEAST = 1

    def text(self, name: str, field: str) -> str | None:
        """The value of a key, as it stands there without its quotes; verl's own where it is not given or null.

        Raises SpecError with line and column where its value isn't known.
        """
        told, default = self._told(name, field), defaults_of("verl").get(name)
        if told is not None or default is None:
            return told
        self.log.default(field, default, Message("importers.default_of", framework="verl"))
        return str(default)

    def _told(self, key: str, field: str) -> str | None:
        self._read.add(key)
        flag = self.given.get(key)
        value = "" if flag is None else plain(flag.text)
        if flag is None or value.lower() in _NOTHING:
            return None
        if flag.unknown:
            name = flag.unknown.strip("${}")
            self.fail(
                key,
                Message("importers.no_value_in_script", variable=flag.unknown[:60]),
                Message("importers.set_it", option=f"--set {name[:40]}=VALUE"),
            )
        self.log.take(flag.place, field, value)
        return value

    def whole(self, key: str, field: str, least: int | None = None) -> int:
        """As `number`, of a key that has a default."""
        number = self.number(key, field, least)
        assert number is not None
        return number

    def switch(self, key: str, field: str) -> bool:
        """A truth value; false where verl has none."""
        text = self._told(key, field)
        if text is None:
            return defaults_of("verl").get(key) is True
        if text.lower() not in _TRUTH:
            self.fail(key, Message("field_fault.not_boolean", value=repr(text[:40])))
        return _TRUTH[text.lower()]

    def value(self, key: Key) -> Any:
        """The value of a row of a table."""
        if key.kind is int:
            return self.number(key.path, key.pointer)
        if key.kind is bool:
            return self.switch(key.path, key.pointer) if key.path in self.given else None
        return self.decimal(key.path, key.pointer) if key.kind is float else self.text(key.path, key.pointer)

    def under(self, prefix: str) -> dict[str, GivenFlag]:
        """Keys below a mapping, by what follows the prefix; marked as read."""
        overrides = {key: given for key, given in self.given.items() if key.startswith(prefix)}
        self._read |= overrides.keys()
        return {key.removeprefix(prefix): given for key, given in overrides.items()}

    def note_rest(self, pairs: Mapping[str, object]) -> tuple[KeptFlag, ...]:
        """As `note_unread`; what the release's table has is no unknown key."""
        values = [(KeptFlag(key, plain(each.text), each.line), each.place) for key, each in self.given.items()]
        return note_unread(
            self.log,
            ((given, place, given.value) for given, place in values),
            self._read.__contains__,
            override_effects().get,
            lambda key: NO_FIELD if _is_known(key, pairs) else None,
        )


def _is_known(key: str, pairs: Mapping[str, object]) -> bool:
    """Whether the table has the key, or the mapping that it is put into; how a run is traced is nobody's plan."""
    parts = key.split(".")
    above = (".".join(parts[:end]) for end in range(1, len(parts) + 1))
    return "profiler" in key or any(path in pairs for path in above)


def plain(text: str) -> str:
    """A value without the quotes that Hydra takes away."""
    text = text.strip()
    return text[1:-1] if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"" else text


# The update of a verl launch.
SHARDED = ("fsdp", "fsdp2")


def read_update(
    reader: OverrideReader, model: dict[str, Any], program: str, config: str
) -> tuple[dict[str, Any], FlagReader | None]:
    """The `strategy` of a spec, with `offload` for its part of post-training; and the reader of Megatron's flags.

    Raises UnsupportedError for backends that are not planned.
    """
    engine = reader.text("model_engine", "/strategy/fsdp") or ""
    group = reader.text(f"actor@{keys.ACTOR}", "/strategy/fsdp")  # whose defaults in ppo_trainer.yaml follow the engine
    by_config = group.removesuffix("_actor") if group else "megatron" if "megatron" in config else engine
    by_config = "" if by_config == "dp" else by_config
    backend = reader.text(f"{keys.ACTOR}.strategy", "/strategy/fsdp") or by_config or "fsdp"
    if by_config == "megatron":
        backend = "megatron"
    if backend == "megatron":
        return _megatron(reader, model)
    if backend in SHARDED:
        return _sharded(reader), None
    raise UnsupportedError(
        not_modelled(backend[:40], program[:60]),
        path="/strategy",
        hint=Message("common.one_of", names="megatron, fsdp2"),
    )


def _offload(reader: OverrideReader, section: str, names: Iterable[str]) -> list[str]:
    field = "/strategy/rl/offload"
    return [name for name in names if reader.switch(f"{section}.{keys.OFFLOADS[name]}", field)]


def _sharded(reader: OverrideReader) -> dict[str, Any]:
    cp = max(reader.number(f"{section}.{keys.ULYSSES}", "/strategy/cp") or 1 for section in (keys.FSDP, keys.ACTOR))
    full = reader.switch("actor_rollout_ref.model.enable_gradient_checkpointing", "/strategy/recompute")
    offload = _offload(reader, keys.FSDP, ("optimizer", "parameters"))
    return {
        "fsdp": True,
        "cp": cp,
        **({"cp_algo": "ulysses"} if cp > 1 else {}),
        "micro_batch_size": _micro_batch(reader),
        "recompute": {"granularity": "full" if full else "none"},
        "features": [],
        "offload": [*offload, *(["gradients"] if "parameters" in offload else [])],
    }


def _micro_batch(reader: OverrideReader) -> int:
    return reader.number(f"{keys.ACTOR}.{keys.COUNTED}", "/strategy/micro_batch_size") or 1


def _megatron(reader: OverrideReader, model: dict[str, Any]) -> tuple[dict[str, Any], FlagReader | None]:
    """verl builds the model from its Hugging Face configuration: of the shape only layers and experts are flags."""
    shape: dict[str, Any] = {"--num-layers": model["num_hidden_layers"]}
    if model.get("n_routed_experts"):
        # Its converters' own choices (verl/models/mcore/config_converter.py).
        shape |= {"--num-experts": model["n_routed_experts"], "--moe-token-dispatcher-type": "alltoall"}
        shape |= {"--moe-grouped-gemm": True}
    flags = {flag: _flag(flag, value, 1) for flag, value in shape.items()}
    flags["--micro-batch-size"] = _flag("--micro-batch-size", _micro_batch(reader), 1)
    for name in keys.DEGREES.values():
        if (value := reader.number(f"{keys.MEGATRON}.{name}", "/strategy")) is not None:
            flags[_named(name)] = _flag(_named(name), value, reader.given[f"{keys.MEGATRON}.{name}"].line)
    for name in keys.SWITCHES:
        if reader.switch(f"{keys.MEGATRON}.{name}", "/strategy"):
            flags[_named(name)] = _flag(_named(name), True, 1)
    for prefix in keys.OPEN:
        for name, given in reader.under(prefix).items():
            _take_override(reader, flags, prefix, name, given)
    reader.under(f"{keys.REF}.megatron.")
    inner = FlagReader(LaunchScript("verl", flags))
    strategy, _ = read_strategy(inner)
    if strategy["tp"] == 1:
        strategy["sequence_parallel"] = False
    strategy["offload"] = _offload(reader, keys.MEGATRON, ("optimizer", "gradients", "parameters"))
    return strategy, inner


def _take_override(
    reader: OverrideReader, flags: dict[str, GivenFlag], prefix: str, name: str, given: GivenFlag
) -> None:
    """One key of an open mapping as the flag that says the same; what is false or null is none."""
    value = plain(given.text)
    if value.lower() in {"false", "null", "none"}:
        return
    if given.unknown:
        reader.text(prefix + name, "/strategy")
    flag = _named(name)
    if value.startswith("[") and value.endswith("]"):
        words: Any = [each.strip(" '\"") for each in value[1:-1].split(",")]
    else:
        words = True if value.lower() == "true" else value
    flags[flag] = _flag(flag, words, given.line)


def _named(key: str) -> str:
    """Megatron's flag of a key."""
    return keys.FLAGS.get(key, f"--{key.replace('_', '-')}")


def _flag(name: str, value: Any, line: int) -> GivenFlag:
    words = [] if value is True else value if isinstance(value, list) else [value]
    return GivenFlag(name, tuple(Value((Run(str(word), 0),)) for word in words), line, 1)


SIGN = "actor_rollout_ref."
MODEL_PATH = "actor_rollout_ref.model.path"
# Entry points, by a part of their name: what they are started for.
STREAMED, ONE_STEP = "fully_async", "one_step_off"
OTHER_PROGRAMS = {"main_generation": "inference", "main_eval": "evaluation", "sft_trainer": "SFT"}
GROUPED = {"grpo", "rloo", "grpo_passk", "reinforce_plus_plus_baseline", "gdpo", "gpg", "opo", "rloo_vectorized"}
ENGINES = {"vllm": "vllm", "sglang": "sglang", "trtllm": "trtllm"}
PRECISIONS = {"fp8": "fp8", "ascend": "w8a8"}


def detects(source: Source) -> bool:
    """Whether a script starts verl, or a list is of its overrides."""
    return source.syntax == "script" and (f"{SIGN}actor" in source.text or f"{SIGN}rollout" in source.text)


def reads(source: Source) -> ImportResult:
    """The spec that a launch of verl trains.

    Raises UnsupportedError for other trainings, and backends that are not planned.
    """
    text = source.text
    followed = follow(text, source.variables, source.base_dir)
    program, config, given = _command(followed)
    for part, what in OTHER_PROGRAMS.items():
        if part in program:
            raise refused(what, program[:100])
    reader = OverrideReader(given)
    _refuse_adapters(reader)
    path, place = _model_path(reader)
    model = model_of([source.name or "", path, marked_preset(text) or ""], source.base_dir, reader.log, place)
    strategy, inner = read_update(reader, model, program, config)
    training_ranks = _ranks(reader, "trainer")
    values = keys.GENERATION.of(reader)
    rl, placement, generating = _rl(reader, program, values["training.rl.responses_per_prompt"])
    strategy["rl"] = placement | _layout(reader, strategy, generating, values.section("strategy.rl.generation"))
    strategy["rl"]["pack_tokens"] = _pack_tokens(reader, strategy["cp"])
    spec: dict[str, Any] = {"model": model, "training": {"kind": "rl_post_training", "rl": rl}}
    take_marks(text, spec, strategy, reader.log)
    take_rl_marks(text, rl, reader.log)
    spec |= {"search": search_of_marks(text, "verl"), "strategy": strategy}
    release = release_of_marks(text) or release_named("verl-mindspeed-main")
    kept = (*reader.note_rest(release.keys), *_kept_flags(inner, release.keys))
    for offset, note in followed.notes:
        reader.log.ignore(line_of(followed.source.place(offset)), "", note)
    return ImportResult(
        "verl-script",
        spec,
        joined(reader.log, *([inner.log] if inner is not None else [])),
        ranks=None if training_ranks is None else training_ranks + (generating or 0),
        target="verl",
        kept=kept,
        plan_id=plan_id_of(text),
        generation_ranks=generating,
    )


def _kept_flags(inner: FlagReader | None, pairs: Mapping[str, object]) -> list[KeptFlag]:
    """Keys that were handed on as flags and that nobody knows."""
    if inner is None:
        return []
    names = {key.rpartition(".")[2] for key in pairs if key.startswith(keys.OPEN)}
    return [flag for flag in inner.note_rest() if flag.name.removeprefix("--").replace("-", "_") not in names]


def _command(followed: ScriptResult) -> tuple[str, str, dict[str, GivenFlag]]:
    """Program, configuration and overrides of the command with most of them; a list is one command."""
    best: list[Value] = []
    most = 0
    for _, words in followed.commands:
        count = sum(bool(OVERRIDE.fullmatch(word.text)) for word in words)
        if count > most:
            best, most = words, count
    if most < 3:
        best = [word for _, words in followed.commands for word in words]
    overrides: dict[str, GivenFlag] = {}
    program = config = ""
    for word in best:
        text = word.text
        if text.startswith("--config-name"):
            config = text.partition("=")[2].strip("'\"")
        elif match := OVERRIDE.fullmatch(text):
            refuse_long_key(match[1])
            runs = (Run(match[2], word.offset, word.unknown and match[2]),) if word.unknown in match[2] else ()
            value = Value(runs or (Run(match[2], word.offset),))
            overrides[match[1]] = GivenFlag(match[1], (value,), *followed.source.place(word.offset))
        elif not program and ("verl" in text or text.endswith(".py") or "main_" in text):
            program = text
    if not any(key.startswith(SIGN) for key in overrides):
        raise SpecError(
            Message("common.missing", word="verl.trainer"),
            hint=Message("importers.give_script_with_command"),
        )
    return program or "verl.trainer.main_ppo", config, overrides


def _model_path(reader: OverrideReader) -> tuple[str, str]:
    """The model's path and where it stands; of one below a folder that isn't known its last part."""
    given = reader.under(MODEL_PATH).get("")
    if given is None:
        return "", "the script"
    last = given.text.rstrip("/").rpartition("/")[2]
    return (last if given.unknown and "$" not in last else given.text.strip("'\"")), given.place


def _refuse_adapters(reader: OverrideReader) -> None:
    for key in ("actor_rollout_ref.model.lora_rank", "actor_rollout_ref.model.lora.rank"):
        if reader.whole(key, "/training/kind", least=0):
            raise refused("LoRA", key)
    if reader.text("actor_rollout_ref.model.lora_adapter_path", "/training/kind"):
        raise refused("LoRA", "actor_rollout_ref.model.lora_adapter_path")


def _ranks(reader: OverrideReader, section: str) -> int | None:
    """Ranks of a part of the launch; None where the script leaves them to its environment."""
    pairs = (f"{section}.{keys.NODES}", f"{section}.{keys.EACH}")
    if any(key in reader.given and reader.given[key].unknown for key in pairs):
        for key in pairs:
            reader.under(key)
        return None
    first = reader.number(pairs[0], "/cluster/num_npus")
    second = reader.number(pairs[1], "/cluster/num_npus")
    return None if first is None or second is None else first * second


def _rl(reader: OverrideReader, program: str, responses: int) -> tuple[dict[str, Any], dict[str, Any], int | None]:
    """`training.rl`, where it runs, and the ranks that only generate."""
    field = "/training/rl"
    mini = reader.whole(keys.MINI_BATCH, f"{field}/updates_per_step")
    placement, generating = _placement(reader, program)
    if STREAMED in program:
        synced = reader.whole(keys.SYNCED, f"{field}/prompts_per_step")
        prompts = synced * mini * reader.whole(keys.BATCHES, f"{field}/prompts_per_step")
        reader.under(keys.PROMPTS)
    else:
        prompts = reader.whole(keys.PROMPTS, f"{field}/prompts_per_step")
    in_loss, in_reward = (reader.switch(key, f"{field}/reference_model") for key in (keys.KL_LOSS, keys.KL_REWARD))
    lengths = keys.DATA.of(reader).section("training.rl")
    rl: dict[str, Any] = {
        "algorithm": _algorithm(reader, program),
        "prompts_per_step": prompts,
        "responses_per_prompt": responses,
        **{name: {"max": lengths[f"{name}.max"]} for name in ("prompt_length", "response_length")},
        "updates_per_step": whole_updates(prompts, mini, reader.log, keys.MINI_BATCH),
        "reference_model": in_loss or in_reward,
    }
    for key in ("reward.reward_model.enable", "reward_model.enable"):
        if reader.switch(key, f"{field}/reward"):
            reader.log.unmodelled(key, "true", Message("importers.not_predicted"))
    return rl, placement, generating


def _algorithm(reader: OverrideReader, program: str) -> str:
    field = "/training/rl/algorithm"
    given = reader.text(keys.ESTIMATOR, field)
    if given == "gae":
        return "ppo"
    if "dapo" in program or reader.switch(f"{keys.FILTERS}.enable", field):
        return "dapo"
    if given not in GROUPED:
        reader.log.doubt(field, given, Message("importers.predicted_as", what="grpo"))
    return "grpo"


def _placement(reader: OverrideReader, program: str) -> tuple[dict[str, Any], int | None]:
    """Placement, staleness and partial rollout, and the ranks that only generate."""
    field = "/strategy/rl/staleness"
    mode = reader.text("trainer.v1.trainer_mode", "/strategy/rl/placement") or "sync"
    if STREAMED in program:
        bound = reader.decimal(keys.BOUND, field)
        partial = reader.switch(keys.PARTIAL, "/strategy/rl/partial_rollout")
        generating = _ranks(reader, "rollout")
        if not bound:
            return {"placement": "separate"}, generating
        if not bound.is_integer():
            reader.log.doubt(field, bound, Message("importers.predicted_as", what=math.ceil(bound)))
        return {"placement": "async", "staleness": math.ceil(bound), "partial_rollout": partial}, generating
    if ONE_STEP in program:
        return {"placement": "async", "staleness": 1}, _ranks(reader, "rollout")
    if mode == "separate_async":
        bound = reader.whole("trainer.v1.sampler.max_off_policy_threshold", field, least=0)
        generating = _ranks(reader, keys.ROLLOUT)
        return {"placement": "async", "staleness": bound, "partial_rollout": True}, generating
    if mode != "sync":
        reader.log.unmodelled("trainer.v1.trainer_mode", mode, Message("importers.predicted_as", what="sync"))
    return {"placement": "colocated"}, None


def _layout(
    reader: OverrideReader, strategy: dict[str, Any], generating: int | None, given: dict[str, Any]
) -> dict[str, Any]:
    """Generation, and what leaves for it. given : of it, values of the table."""
    field = "/strategy/rl/generation"
    on_ascend = (reader.text(keys.DEVICE, "/cluster/profile") or "").lower() == "npu"
    written = reader.text(keys.ENGINE, f"{field}/engine") or ""
    if written not in ENGINES:
        raise UnsupportedError(
            Message("common.is_not_modelled_yet", what=written[:40]),
            path=field,
            hint=Message("common.one_of", names="vllm, sglang, trtllm"),
        )
    engine = "vllm-ascend" if on_ascend and written == "vllm" else ENGINES[written]
    quantised = reader.text(keys.QUANTIZED, f"{field}/precision")
    if quantised is not None and quantised not in PRECISIONS:
        reader.log.unmodelled(keys.QUANTIZED, quantised, Message("importers.predicted_as", what="bf16"))
    eager = reader.switch(keys.EAGER, f"{field}/mode")
    generation = given | {
        "precision": PRECISIONS.get(quantised or "", "bf16"),
        "engine": engine,
        "mode": "eager" if eager else "graph",
    }
    offload = strategy.pop("offload")
    if offload and generating is not None:
        reason = Message("importers.not_predicted")
        reader.log.unmodelled("offload", "+".join(offload), reason)
        offload = []
    for ignored in (f"{keys.ROLLOUT}.log_prob_", f"{keys.REF}.log_prob_", f"{keys.ROLLOUT}.{keys.LONGEST}"):
        reader.under(ignored)
    return {"generation": generation} | ({"offload": offload} if offload else {})


def _pack_tokens(reader: OverrideReader, cp: int) -> int | None:
    field = "/strategy/rl/pack_tokens"
    if not reader.switch(f"{keys.ACTOR}.{keys.DYNAMIC}", field):
        return None
    return cp * reader.whole(f"{keys.ACTOR}.{keys.TOKENS}", field)
