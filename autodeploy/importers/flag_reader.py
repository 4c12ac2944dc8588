"""Takes values out of a launch's flags, remembers which were read and says so in the diagnostics."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from autodeploy.errors import SpecError, UnsupportedError
from autodeploy.importers.diagnostics import DiagnosticsLog, not_modelled
from autodeploy.importers.flag_effects import NO_EFFECT, flag_effects
from autodeploy.messages import Message, at_place

if TYPE_CHECKING:
    from collections.abc import Iterable

    from autodeploy.importers.launch_script import GivenFlag, LaunchScript

UNKNOWN = Message("importers.unknown_key")
MAX_NUMBER = 10**12


class FlagReader:
    """The flags of one launch.

    Every method that takes a flag notes the field of the spec that it became, and marks the flag as read.
    """

    def __init__(self, script: LaunchScript) -> None:
        self.script = script
        self.log = DiagnosticsLog()
        self._read: set[str] = set()
        self._ignored: set[str] = set()

    def has(self, flag: str) -> bool:
        """Whether the flag is given; marks it as read."""
        self._read.add(flag)
        return flag in self.script.flags

    def is_told(self, flag: str) -> bool:
        """Whether the flag is given with values that the script knows; says nothing of it."""
        return flag in self.script.flags and not self.script.flags[flag].unknown

    def switch(self, flag: str, field: str) -> bool:
        """A flag without a value that sets a field."""
        is_on = self.has(flag)
        if is_on:
            self.log.take(self.script.flags[flag].place, field, "on")
        return is_on

    def number(self, flag: str, field: str) -> int | None:
        """The whole number after the flag; None where the flag isn't given.

        Raises
        ------
        SpecError
            with line and column where it is no whole number or its value isn't known.
        """
        text = self.text(flag, field)
        if text is None:
            return None
        sign = text.removeprefix("-")
        if not sign.isdigit() or len(sign) > 13 or int(sign) > MAX_NUMBER:
            limits = {"value": repr(text[:40]), "least": -MAX_NUMBER, "most": MAX_NUMBER}
            self.fail(flag, Message("importers.is_not_whole_number_from_to", **limits))
        return int(text)

    def decimal(self, flag: str, field: str) -> float | None:
        """The decimal number after the flag; as `number`."""
        text = self.text(flag, field)
        if text is None:
            return None
        try:
            value = float(text)
        except ValueError:
            self.fail(flag, Message("field_fault.is_no_number", value=repr(text[:40])))
        if not abs(value) <= MAX_NUMBER:
            self.fail(flag, Message("field_fault.is_too_big", value=repr(text[:40])))
        return value

    def text(self, flag: str, field: str) -> str | None:
        """The one value after the flag, as it stands there."""
        if not self.has(flag):
            return None
        given = self.script.flags[flag]
        if given.unknown:
            name = given.unknown.lstrip("$")
            self.fail(
                flag,
                Message("importers.has_no_value_in_script", variable=given.unknown[:60]),
                Message("importers.set_it", option=f"--set {name[:40]}=VALUE"),
            )
        if not given.values:
            self.fail(flag, Message("stack.takes_values", flag=flag, expected="1", found=0))
        self.log.take(given.place, field, given.text)
        return given.text.strip()

    def words(self, flag: str, field: str) -> tuple[str, ...]:
        """All values after the flag, also those joined by commas."""
        text = self.text(flag, field)
        return tuple(text.replace(",", " ").split()) if text is not None else ()

    def fail(self, flag: str, message: str, hint: str = "") -> NoReturn:
        """Refuses the script at the flag's place."""
        given = self.script.flags[flag]
        raise SpecError(
            at_place(Message("common.place", place=flag, message=message), (given.line, given.column)),
            hint=hint,
        )

    def refuse_mechanism(self, flag: str, mechanism: str) -> NoReturn:
        """Refuses a model with a mechanism that is not modelled, at the flag that says so."""
        given = self.script.flags[flag]
        raise UnsupportedError(
            at_place(
                not_modelled(mechanism, flag),
                (given.line, given.column),
            ),
            path="/model",
            hint=Message("importers.plan_model_of_same_size_without_it"),
        )

    def ignore(self, flags: Iterable[str], reason: str) -> None:
        """Flags that are understood and change nothing here."""
        for flag in flags:
            if self.has(flag):
                given = self.script.flags[flag]
                self.log.ignore(given.place, _shown(given), reason)
                self._ignored.add(flag)

    def note_rest(self) -> tuple[GivenFlag, ...]:
        """Says of every flag not read why; returns those of which nobody knows what they do."""
        kept = []
        for name, given in self.script.flags.items():
            effect = flag_effects().get(name)
            has_effect = effect is not None and name not in self._ignored
            without = effect.of_value(given.text) if effect is not None and has_effect else None
            if without is not None:
                self.log.unmodelled(given.place, _shown(given), without)
            if name in self._read or without is not None:
                continue
            if effect is None:
                kept.append(given)
                self.log.ignore(given.place, _shown(given), UNKNOWN)
            else:
                self.log.ignore(given.place, _shown(given), NO_EFFECT if effect.harmless else effect.reason)
        for given in self.script.repeated:
            last = self.script.flags[given.name]
            if given.text != last.text:
                self.log.contradict(
                    given.place,
                    given.name,
                    _shown(given),
                    Message("common.line", line=last.line, message=_shown(last)),
                )
        for variable in self.script.unset:
            self.log.doubt(
                "", f"${variable}", Message("importers.is_set_nowhere_in_script_read_as_empty", name=variable)
            )
        for line, note in self.script.notes:
            self.log.ignore(f"line {line}", "", note)
        return tuple(kept)


def _shown(given: GivenFlag) -> str:
    return given.text or "on"
