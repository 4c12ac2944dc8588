"""What every flag that a release registers does to a prediction: read, refused, without effect, or not modelled."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Literal

from autodeploy.messages import Message
from hardware_profiles.shipped_yaml import load_shipped_yaml

if TYPE_CHECKING:
    from collections.abc import Mapping

Kind = Literal["read", "refused", "no_effect", "unmodelled"]
KINDS: dict[str, Kind] = {"read": "read", "refused": "refused"}
NO_EFFECT = Message("importers.no_effect_on_time_or_memory_of_step")
_STAR = "*"


@dataclass(frozen=True, slots=True)
class FlagEffect:
    """What a flag does, why, and the values with which one that is not modelled changes nothing."""

    kind: Kind
    reason: str = NO_EFFECT
    harmless: tuple[str, ...] = ()

    def of_value(self, value: str) -> str | None:
        """What a prediction does without the flag at this value; None where it changes nothing that is predicted."""
        if self.kind != "unmodelled":
            return None
        text = value.strip().strip("\"'").lower()
        return None if any(_is(text, harmless) for harmless in self.harmless) else self.reason


def _is(text: str, harmless: str) -> bool:
    return text.startswith(harmless[:-1]) if harmless.endswith(_STAR) else text == harmless


@cache
def flag_effects() -> Mapping[str, FlagEffect]:
    """Every flag whose effect is known, by name."""
    effects: dict[str, FlagEffect] = {}
    for name, group in _read("flag_effects.yaml").items():
        kind = KINDS.get(name, "no_effect")
        effects |= {flag: FlagEffect(kind, _reason("effect", name, group)) for flag in group["flags"].split()}
    for name, group in _read("unmodelled_flags.yaml").items():
        reason = _reason("unmodelled", name, group)
        for word in group["flags"].split():
            flag, _, harmless = word.partition("=")
            effects[flag] = FlagEffect("unmodelled", reason, tuple(harmless.split(",")) if harmless else ())
    return effects


def _reason(section: str, name: str, group: Mapping[str, str]) -> str:
    return Message.of_record(f"{section}.{name}", group["reason"]) if "reason" in group else NO_EFFECT


def _read(name: str) -> dict[str, dict[str, str]]:
    text = files("autodeploy.importers").joinpath(name).read_text(encoding="utf-8")
    document: dict[str, dict[str, str]] = load_shipped_yaml(text)
    return document
