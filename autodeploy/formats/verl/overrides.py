"""Hydra overrides of a command (`a.b=4`, `+a.b=4`, `++a.b=4`): values with their places, and which were read."""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, NoReturn

from ruamel.yaml import YAML

from autodeploy.formats.common.flag_effects import FlagEffect
from autodeploy.formats.common.import_result import KeptFlag
from autodeploy.kit.errors import SpecError
from autodeploy.messages import Message, at_place
from autodeploy.specs.diagnostics import DiagnosticsLog

if TYPE_CHECKING:
    from collections.abc import Mapping

    from autodeploy.formats.common.launch_script import GivenFlag

OVERRIDE = re.compile(r"\+{0,2}([A-Za-z_]\w*(?:[.@/][\w]+)*)=(.*)", re.DOTALL)
MAX_NUMBER = 10**12
NO_FIELD = Message("importers.no_field_of_spec")
_NOTHING = frozenset({"null", "none", "~", ""})
_TRUTH = {"true": True, "false": False}


@cache
def override_effects() -> Mapping[str, FlagEffect]:
    """Keys that change what is predicted and are not modelled, by name."""
    text = files("autodeploy.formats.verl").joinpath("verl_effects.yaml").read_text(encoding="utf-8")
    effects = {}
    for name, group in YAML(typ="safe", pure=True).load(text).items():
        reason = Message.of_record(f"verl_effect.{name}", group["reason"])
        for word in group["keys"].split():
            key, _, harmless = word.partition("=")
            effects[key] = FlagEffect("unmodelled", reason, tuple(harmless.split(",")) if harmless else ())
    return effects


class OverrideReader:
    """The overrides of one command; every method notes the field that a key became, and marks it as read."""

    def __init__(self, given: Mapping[str, GivenFlag]) -> None:
        self.given = given
        self.log = DiagnosticsLog()
        self._read: set[str] = set()

    def text(self, key: str, field: str, default: str | None = None) -> str | None:
        """The value of a key, as it stands there without its quotes; `default` where it is not given or null.

        Raises
        ------
        SpecError
            with line and column where its value isn't known.
        """
        self._read.add(key)
        flag = self.given.get(key)
        value = "" if flag is None else plain(flag.text)
        if flag is None or value.lower() in _NOTHING:
            if default is not None:
                self.log.default(field, default, Message("importers.default_of", framework="verl"))
            return default
        if flag.unknown:
            name = flag.unknown.strip("${}")
            self.fail(
                key,
                Message("importers.has_no_value_in_script", variable=flag.unknown[:60]),
                Message("importers.set_it", option=f"--set {name[:40]}=VALUE"),
            )
        self.log.take(flag.place, field, value)
        return value

    def number(self, key: str, field: str, default: int | None = None, least: int = 1) -> int | None:
        """A whole number from `least` on.

        Raises
        ------
        SpecError
            with line and column where it is none.
        """
        text = self.text(key, field, None if default is None else str(default))
        if text is None:
            return None
        if not text.removeprefix("-").isdigit() or len(text) > 13 or not least <= int(text) <= MAX_NUMBER:
            limits = {"value": repr(text[:40]), "least": least, "most": MAX_NUMBER}
            self.fail(key, Message("importers.is_not_whole_number_from_to", **limits))
        return int(text)

    def whole(self, key: str, field: str, default: int, least: int = 1) -> int:
        """As `number`, of a key that has a default."""
        number = self.number(key, field, default, least)
        return default if number is None else number

    def decimal(self, key: str, field: str, default: float) -> float:
        """A number."""
        text = self.text(key, field, f"{default:g}")
        try:
            value = float(text or default)
        except ValueError:
            self.fail(key, Message("field_fault.is_no_number", value=repr((text or "")[:40])))
        if not abs(value) <= MAX_NUMBER:
            self.fail(key, Message("field_fault.is_too_big", value=repr((text or "")[:40])))
        return value

    def switch(self, key: str, field: str, *, default: bool) -> bool:
        """A truth value."""
        text = self.text(key, field)
        if text is None:
            return default
        if text.lower() not in _TRUTH:
            self.fail(key, Message("field_fault.is_neither_true_nor_false", value=repr(text[:40])))
        return _TRUTH[text.lower()]

    def fail(self, key: str, message: str, hint: str = "") -> NoReturn:
        """Refuses the script at the key's place."""
        given = self.given[key]
        raise SpecError(at_place(Message("common.place", place=key, message=message), given.at), hint=hint)

    def under(self, prefix: str) -> dict[str, GivenFlag]:
        """Keys below a mapping, by what follows the prefix; marked as read."""
        overrides = {key: given for key, given in self.given.items() if key.startswith(prefix)}
        self._read |= overrides.keys()
        return {key.removeprefix(prefix): given for key, given in overrides.items()}

    def note_rest(self, keys: Mapping[str, object]) -> tuple[KeptFlag, ...]:
        """Says of every key not read why; returns those that are not in the release's table."""
        kept = []
        for key, given in self.given.items():
            effect, value = override_effects().get(key), plain(given.text)
            without = effect.of_value(value) if effect is not None else None
            if without is not None:
                self.log.unmodelled(given.place, value, without)
            elif key not in self._read:
                exists = _is_known(key, keys)
                if not exists:
                    kept.append(KeptFlag(key, value, given.line))
                self.log.ignore(given.place, value, NO_FIELD if exists else Message("importers.unknown_key"))
        return tuple(kept)


def _is_known(key: str, keys: Mapping[str, object]) -> bool:
    """Whether the table has the key, or the mapping that it is put into; how a run is traced is nobody's plan."""
    parts = key.split(".")
    above = (".".join(parts[:end]) for end in range(1, len(parts) + 1))
    return "profiler" in key or any(path in keys for path in above)


def plain(text: str) -> str:
    """A value without the quotes that Hydra takes away."""
    text = text.strip()
    return text[1:-1] if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"" else text
