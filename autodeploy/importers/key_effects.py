"""What every key of a MindFormers configuration does to a prediction: read, without effect, or not modelled."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING

from autodeploy.importers.flag_effects import NO_EFFECT, FlagEffect
from autodeploy.messages import Message
from hardware_profiles.shipped_yaml import load_shipped_yaml

if TYPE_CHECKING:
    from collections.abc import Mapping

SECTIONS = frozenset(
    {
        *("model", "moe_config", "parallel", "parallel_config", "recompute_config", "swap_config"),
        *("runner_config", "monitor_config", "stable_rank_config"),
    }
)


@cache
def key_effects() -> Mapping[str, FlagEffect]:
    """Every key whose effect is known, by its last part, or by its path where that alone is meant."""
    text = files("autodeploy.importers").joinpath("key_effects.yaml").read_text(encoding="utf-8")
    document = load_shipped_yaml(text)
    effects: dict[str, FlagEffect] = {}
    for name, group in document["no_effect"].items():
        reason = Message.of_record(f"effect.{name}", group["reason"])
        effects |= {key: FlagEffect("no_effect", reason) for key in group["keys"].split()}
    effects |= {key: FlagEffect("read", NO_EFFECT) for key in document["read"]["all"]["keys"].split()}
    for name, group in document["unmodelled"].items():
        reason = Message.of_record(f"unmodelled.{name}", group["reason"])
        for word in group["keys"].split():
            key, _, harmless = word.partition("=")
            effects[key] = FlagEffect("unmodelled", reason, tuple(harmless.split(",")) if harmless else ())
    return effects


def key_effect(path: str) -> FlagEffect | None:
    """The effect of the key at a dotted path; None where nobody knows it."""
    section, dot, _ = path.partition(".")
    effects = key_effects()
    if path in effects:
        return effects[path]
    effect = effects.get(path.rpartition(".")[2])
    if effect is not None and effect.kind == "unmodelled":
        return effect
    return effect if not dot or section in SECTIONS else None
