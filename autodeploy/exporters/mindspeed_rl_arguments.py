"""Flags of MindSpeed-LLM as keys of MindSpeed-RL: its MegatronConfig names some of them, and refuses all others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from autodeploy.exporters.arguments import LaunchArguments, ShellVariable
from autodeploy.exporters.rl_launch import MISSING
from autodeploy.messages import Message

if TYPE_CHECKING:
    from collections.abc import Mapping

    from autodeploy.exporters.arguments import Value

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
