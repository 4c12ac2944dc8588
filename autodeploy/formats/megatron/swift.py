"""Launches of ms-swift's Megatron trainer, `megatron sft`, spelled in Megatron-LM's own flags.

The words are Megatron's with `_` for `-` and a value behind each switch; the model is a name, whose shape the trainer
takes from its config.json.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any

from autodeploy.formats.common.launch_script import refused
from autodeploy.formats.megatron.tuning import UNPADDED
from autodeploy.formats.shell.values import Run, Value
from autodeploy.kit.errors import SpecError
from autodeploy.messages import Message, at_place
from autodeploy.stack.flag_tables import FLAG
from autodeploy.stack.releases import releases
from hardware_profiles.shipped_yaml import shipped

if TYPE_CHECKING:
    from collections.abc import Mapping

    from autodeploy.formats.common.launch_script import GivenFlag, LaunchScript
    from autodeploy.stack.releases import Release

PROGRAM = "megatron"
_TRUE, _FALSE = frozenset({"true", "1", "yes"}), frozenset({"false", "0", "no", "none"})
# Words of the model's own shape, that its rules are judged by.
_SHAPE = {
    "--num-layers": "num_hidden_layers",
    "--hidden-size": "hidden_size",
    "--num-attention-heads": "num_attention_heads",
    "--ffn-hidden-size": "intermediate_size",
    "--num-query-groups": "num_key_value_heads",
    "--num-experts": "n_routed_experts",
    "--moe-router-topk": "num_experts_per_tok",
}


@cache
def _words() -> dict[str, Any]:
    words: dict[str, Any] = shipped("autodeploy.formats.megatron", "swift.yaml")
    return words | {"idle": frozenset(words["idle"].split())}


def is_swift(script: LaunchScript) -> bool:
    """Whether a launch is one of ms-swift's trainer."""
    return script.program.partition(" ")[0] == PROGRAM


def model_named(script: LaunchScript) -> GivenFlag:
    """The flag that names the model: by its checkpoint in Megatron's format where release 3 names no other.

    Raises SpecError where there is none, or as `spelled`: no model has to be looked for of what is not read.
    """
    _stage(script)
    named = next((flag for word in ("model", "load", "mcore_model") if (flag := _given(script).get(word))), None)
    if named is None:
        raise SpecError(Message("common.is_required", name="--model"), path="/model")
    return named


def spelled(script: LaunchScript, model: Mapping[str, Any]) -> LaunchScript:
    """The launch in Megatron-LM's flags, those of the model's shape among them.

    Raises UnsupportedError for what ms-swift trains with this program besides: rewards, teachers, classifiers.
    """
    given, stage = _given(script), _stage(script)
    words, experts = _words(), bool(model.get("n_routed_experts"))
    if not _dropped(given):
        given |= {"tuner_type": given.pop("train_type")} if "train_type" in given else {}
    tuner = given["tuner_type"].text if "tuner_type" in given else "full"
    if tuner not in {"full", "lora"}:
        raise refused(tuner[:40], given["tuner_type"].name, given["tuner_type"].at)
    defaults = (
        words["defaults"] | (words["experts"] if experts else {}) | (words["adapters"] if tuner == "lora" else {})
    )
    if "fp16" in given:
        del defaults["bf16"]
    if "recompute_granularity" in given:
        del defaults["recompute_modules"]
    at = model_named(script)
    flags = {name: _flag(at, name, str(model[field])) for name, field in _SHAPE.items() if model.get(field)}
    most = model.get("recipe", {}).get("max_position_embeddings")
    positions = most or (given.get("max_length") or at).text
    flags["--max-position-embeddings"] = _flag(at, "--max-position-embeddings", str(positions))
    if most and not {"max_length", "packing_length"} & given.keys():
        flags["--seq-length"] = _flag(at, "--seq-length", str(most))  # base_args.py: the model's own maximum
    if "--num-query-groups" in flags:
        flags["--group-query-attention"] = _flag(at, "--group-query-attention")
    for word, flag in ({name: _flag(at, f"--{name}", str(value)) for name, value in defaults.items()} | given).items():
        flags |= {each.name: each for each in _spelled(word, flag)}
    if stage:
        flags["--stage"] = _flag(at, "--stage", stage)
        if "--neat-pack" not in flags:  # rows end with their samples, `padding_free` or not
            flags[UNPADDED] = _flag(at, UNPADDED)
    if tuner == "lora":
        flags["--lora-fusion"] = _flag(at, "--lora-fusion")
    before = tuple(each for flag in script.repeated for each in _spelled(_word(flag), flag) if each.name in flags)
    return replace(script, program="", flags=flags, repeated=before, is_spelled=True, launcher=_launcher(script))


def _word(flag: GivenFlag) -> str:
    return flag.name.removeprefix("--").replace("-", "_")


def _given(script: LaunchScript) -> dict[str, GivenFlag]:
    return {_word(flag): flag for flag in script.flags.values()}


def is_longest_of_model(script: LaunchScript) -> bool:
    """Whether a spelled launch says no length: it has the place of the model's name, as the model's positions have."""
    flags = script.flags
    return script.is_spelled and flags["--seq-length"].at == flags["--max-position-embeddings"].at


def _dropped(given: Mapping[str, GivenFlag]) -> bool:
    """Whether a launch's `train_type` is dropped: release 4.1 knows only `tuner_type`, and is told to drop the unknown.

    References
    ----------
    modelscope/ms-swift v4.0.3 swift/megatron/arguments/megatron_args.py:311, gone in v4.1.0; swift/pipelines/base.py.
    """
    told = given.get("ignore_args_error")
    return "train_type" in given and told is not None and told.text.lower() in _TRUE


def _stage(script: LaunchScript) -> str:
    task, given = script.program.partition(" ")[2], _given(script)
    kind = given.get("rlhf_type")
    if task == "rlhf" and (kind is None or kind.text != "dpo"):
        raise refused("RL" if kind is None else kind.text[:40], "rlhf_type", None if kind is None else kind.at)
    if (other := given.get("task_type")) is not None and other.text != "causal_lm":
        raise refused(other.text[:40], other.name, other.at)
    for word in ("quant_method", "quant_bits"):
        if word in given:
            raise refused("QLoRA", given[word].name, given[word].at)
    return "" if task == "pt" else "dpo" if task == "rlhf" else "sft"


def _spelled(word: str, flag: GivenFlag) -> list[GivenFlag]:
    """The flags of Megatron that a word becomes; none of one that changes nothing."""
    words, value = _words(), flag.text.lower()
    if word in {"tuner_type", "model", "rlhf_type", "task_type"} or word in words["idle"]:
        return []
    if word == "target_modules":
        return [replace(flag, name="--lora-target-modules", values=_targets(flag))]
    if word == "packing":
        return [replace(flag, name="--neat-pack", values=())] if value in _TRUE else []
    if word in words["switched_off"]:
        return [replace(flag, name=words["switched_off"][word], values=())] if value in _FALSE else []
    if word == "recompute_granularity" and value == "none":
        return []
    name = words["spelled"].get(word, f"--{word.replace('_', '-')}")
    if name not in _switches(releases()):
        return [replace(flag, name=name)]
    return [] if value in _FALSE else [replace(flag, name=name, values=())]


@cache
def _switches(of_releases: tuple[Release, ...]) -> frozenset[str]:
    """Flags that take no value in any of the releases' parsers."""
    flags = [flag for release in of_releases for flag in release.flags.values()]
    return frozenset({flag.name for flag in flags if flag.type == FLAG} - {f.name for f in flags if f.type != FLAG})


def _targets(flag: GivenFlag) -> tuple[Value, ...]:
    named = _words()["targets"]
    unknown = [word for word in flag.text.split() if word not in named]
    if unknown:
        message = Message("common.is_not_modelled_yet", what=unknown[0][:40])
        raise SpecError(at_place(message, flag.at), path="/training/lora/target_modules", hint=", ".join(named))
    texts = dict.fromkeys(each for word in flag.text.split() for each in named[word].split())
    return tuple(Value((Run(text, 0),)) for text in texts)


def _launcher(script: LaunchScript) -> dict[str, int]:
    """Processes as the trainer's own launcher reads them: NPROC_PER_NODE and NNODES, of its environment."""
    counts, said = {}, {**script.variables, **script.given}
    for name, key in (("NPROC_PER_NODE", "ranks_per_node"), ("NNODES", "nodes")):
        text = said.get(name, "")
        if text.isdigit() and int(text[:7]) > 0:
            counts[key] = int(text[:7])
    if "NNODES" in said and "nodes" not in counts:
        counts.pop("ranks_per_node", None)
    return counts


def _flag(at: GivenFlag, name: str, *values: str) -> GivenFlag:
    return replace(at, name=name, values=tuple(Value((Run(value, 0),)) for value in values))
