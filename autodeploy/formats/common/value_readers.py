"""Takes values out of a launch's flags, remembers which were read and says so in the diagnostics."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, NoReturn

from autodeploy.formats.common.flag_effects import flag_effects
from autodeploy.formats.common.import_result import KeptFlag
from autodeploy.kit.errors import SpecError, UnsupportedError
from autodeploy.messages import Message, at_place
from autodeploy.specs.diagnostics import NO_EFFECT, DiagnosticsLog, not_modelled, shown
from autodeploy.stack.flag_tables import FLOAT, INT, defaults_of
from autodeploy.stack.releases import releases

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from autodeploy.formats.common.flag_effects import FlagEffect
    from autodeploy.formats.common.key_table import Key
    from autodeploy.formats.common.launch_script import GivenFlag, LaunchScript


UNKNOWN = Message("importers.unknown_key")
MAX_NUMBER = 10**12
SHOWN_MISSING = 8  # variables that a hint names


@cache
def _counted() -> frozenset[str]:
    """Flags that are a number, or one of a few words, in the parser of any release."""
    flags = (flag for release in releases() for flag in release.flags.values())
    return frozenset(flag.name for flag in flags if flag.type in {INT, FLOAT} or flag.choices)


def note_unread(
    log: DiagnosticsLog,
    values: Iterable[tuple[KeptFlag, str, Any]],
    is_read: Callable[[str], bool],
    effect_of: Callable[[str], FlagEffect | None],
    reason_of: Callable[[str], str | None] = lambda _: None,
) -> tuple[KeptFlag, ...]:
    """Says of every value that is not read why, and of any that changes what is predicted without it.

    values : each with its place and as it is shown. reason_of : why it is idle, before its effect is asked.
    Returns those of which nobody knows what they do.
    """
    kept = []
    for given, place, told in values:
        effect = effect_of(given.name)
        without = effect.of_value(given.value) if effect is not None else None
        if without is not None:
            log.unmodelled(place, told, without)
        elif not is_read(given.name):
            reason = reason_of(given.name)
            if reason is None and effect is not None:
                reason = NO_EFFECT if effect.harmless else effect.reason
            if reason is None:
                kept.append(given)
            log.ignore(place, told, reason or UNKNOWN)
    return tuple(kept)


class GivenReader(ABC):
    """Values that a command gives by name. Every method notes the field that one became, and marks it as read."""

    LEAST = -MAX_NUMBER

    def __init__(self, given: Mapping[str, GivenFlag]) -> None:
        self.given = given
        self.log = DiagnosticsLog()
        self._read: set[str] = set()

    @abstractmethod
    def text(self, name: str, field: str) -> str | None:
        """The one value, as it stands there; None where there is none."""

    def decimal(self, name: str, field: str) -> float | None:
        """The decimal number; None where there is none.

        Raises SpecError with line and column where it is no number.
        """
        text = self.text(name, field)
        if text is None:
            return None
        try:
            value = float(text)
        except ValueError:
            self.fail(name, Message("field_fault.is_no_number", value=repr(text[:40])))
        if not abs(value) <= MAX_NUMBER:
            self.fail(name, Message("field_fault.is_too_big", value=repr(text[:40])))
        return value

    def number(self, name: str, field: str, least: int | None = None) -> int | None:
        """The whole number, from `least` or else `LEAST` on; None where there is none.

        Raises SpecError with line and column where it is no whole number or its value isn't known.
        """
        text, least = self.text(name, field), self.LEAST if least is None else least
        if text is None:
            return None
        if re.fullmatch(r"-?\d+(?:_\d+)+", text):
            text = text.replace("_", "")  # as Python's int() reads it
        sign = text.removeprefix("-")
        if not sign.isdigit() or len(sign) > 13 or not least <= int(text) <= MAX_NUMBER:
            limits = {"value": repr(text[:40]), "least": least, "most": MAX_NUMBER}
            self.fail(name, Message("importers.not_whole_number", **limits))
        return int(text)

    def fail(self, name: str, message: str, hint: str = "") -> NoReturn:
        """Refuses the command at the place of a name."""
        given = self.given[name]
        raise SpecError(at_place(Message("common.place", place=name, message=message), given.at), hint=hint)


class FlagReader(GivenReader):
    """The flags of one launch."""

    def __init__(self, script: LaunchScript) -> None:
        super().__init__(script.flags)
        self.script = script
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

    def text(self, name: str, field: str) -> str | None:
        """The one value after the flag, as it stands there, else what Megatron-LM takes; None where that has none."""
        if not self.has(name):
            default = defaults_of("Megatron").get(name)
            return None if default is None else str(self.assume(field, default))
        given = self.given[name]
        if given.unknown:
            self.fail(
                name,
                Message("importers.no_value_in_script", variable=given.unknown[:60]),
                Message("importers.set_it", option=" ".join(f"--set {each}" for each in self._missing(given))),
            )
        if not given.values:
            self.fail(name, Message("stack.takes_values", flag=name, expected="1", found=0))
        self.log.take(given.place, field, given.text)
        return given.text.strip()

    def _missing(self, given: GivenFlag) -> list[str]:
        """Variables without a value of this flag, and of all others that are a number or a word of a list.

        Where arguments of the script are among them, all of these, on which the variables that it sets itself may rest.
        """
        script = self.script
        numbers = (each for each in script.flags.values() if each.unknown and each.name in _counted())
        names = dict.fromkeys(each.unknown.lstrip("$").strip("{}") for each in (given, *numbers))
        places = dict.fromkeys(filter(str.isdigit, names), "VALUE")
        if places:
            places |= {number: name for name, number in script.assigned.items() if number not in {"", *script.given}}
        rest = [name for name in names if re.fullmatch(r"\w{1,40}", name) and name not in places]
        rest = [name for name in rest if not (places and name in script.assigned)][:SHOWN_MISSING]
        told = [f"{place}={places[place]}" for place in sorted(places, key=int)] + [f"{name}=VALUE" for name in rest]
        return told or ["NAME=VALUE"]

    def assume(self, field: str, value: Any, framework: str = "Megatron") -> Any:
        """A value that the framework takes where no flag says one, noted as its default."""
        self.log.default(field, value, Message("importers.default_of", framework=framework))
        return value

    def words(self, flag: str, field: str) -> tuple[str, ...]:
        """All values after the flag, also those joined by commas."""
        text = self.text(flag, field)
        return tuple(text.replace(",", " ").split()) if text is not None else ()

    def refuse_mechanism(self, flag: str, mechanism: str) -> NoReturn:
        """Refuses a model with a mechanism that is not modelled, at the flag that says so."""
        given = self.script.flags[flag]
        raise UnsupportedError(
            at_place(not_modelled(mechanism, flag), given.at), path="/model", hint=Message("importers.plan_without_it")
        )

    def ignore(self, flags: Iterable[str], reason: str) -> None:
        """Flags that are understood and change nothing here."""
        for flag in flags:
            if self.has(flag):
                given = self.script.flags[flag]
                self.log.ignore(given.place, _shown(given), reason)
                self._ignored.add(flag)

    def note_rest(self) -> tuple[KeptFlag, ...]:
        """As `note_unread`, with what else there is to say of the script."""
        values = ((KeptFlag(each.name, each.text, each.line), each.place, _shown(each)) for each in self.given.values())
        effects = {name: effect for name, effect in flag_effects().items() if name not in self._ignored}
        kept = note_unread(self.log, values, self._read.__contains__, effects.get)
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
            self.log.doubt("", f"${variable}", Message("importers.unset_variable", name=variable))
        for place, note in self.script.notes:
            self.log.ignore(place, "", note)
        return kept


def _shown(given: GivenFlag) -> str:
    return given.text or "on"


# Takes values out of a nested mapping by dotted path, remembers which were read and says so in the diagnostics.
MAX_WHOLE_NUMBER = 10**9


class KeyReader:
    """The keys of one document. Every method that takes a value notes the field of the spec that it became."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        self.document = document
        self.log = DiagnosticsLog()
        self._read: set[str] = set()
        self._whole: list[str] = []

    def raw(self, path: str) -> Any:
        """The value at the path, marked as read; None where there is none."""
        self._read.add(path)
        value: Any = self.document
        for part in path.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
        return value

    def take(self, field: str, *paths: str) -> Any:
        """The value under the first of the names that the file has; the others are compared with it."""
        value, source = None, ""
        for path in paths:
            raw = self.raw(path)
            if raw is None:
                continue
            if not source:
                value, source = raw, path
                self.log.take(pointer_of(path), field, raw)
            elif raw != value:
                self.log.contradict(
                    pointer_of(path), field, raw, Message("importers.says", source=source, value=shown(value))
                )
        return value

    def number(self, field: str, *paths: str, least: int = 0) -> int | None:
        """A whole number from `least` on; None where the file has none.

        Raises SpecError with the JSON pointer of a value that is none.
        """
        number = self.take(field, *paths)
        if number is None:
            return None
        if isinstance(number, float) and number.is_integer():
            number = int(number)
        if isinstance(number, bool) or not isinstance(number, int) or not least <= number <= MAX_WHOLE_NUMBER:
            path = next(path for path in paths if self.raw(path) is not None)
            self.fail(
                path,
                Message("importers.not_whole_number", value=shown(number), least=least, most=MAX_WHOLE_NUMBER),
            )
        return number

    def switch(self, field: str, *paths: str) -> bool:
        """A truth value; absent is false."""
        return self.take(field, *paths) is True

    def value(self, key: Key) -> Any:
        """The value of a row of a table."""
        if key.kind is int:
            return self.number(key.pointer, key.path, least=1)
        given = self.take(key.pointer, key.path)
        return given is True if key.kind is bool and given is not None else given

    def fail(self, path: str, message: str, hint: str = "") -> NoReturn:
        """Refuses the document at the path."""
        raise SpecError(message, path=pointer_of(path), hint=hint)

    def whole(self, path: str) -> None:
        """Marks everything under the path as read."""
        self._whole.append(path + ".")

    def note_unmodelled(self, predicted: Mapping[str, Any], *, but: frozenset[str] = frozenset()) -> None:
        """Says of every key that has another value than the one that is predicted what is predicted instead.

        predicted : path -> the value that changes nothing. but : paths that are predicted as they are.
        """
        for path, harmless in predicted.items():
            value = self.raw(path)
            if value is not None and value != harmless and path not in but:
                self.log.unmodelled(pointer_of(path), value, Message("importers.predicted_as", what=harmless))

    def note_rest(
        self, reasons: Mapping[str, str], effect_of: Callable[[str], FlagEffect | None]
    ) -> tuple[KeptFlag, ...]:
        """As `note_unread`; reasons : why keys are idle, by their path or the first part of it."""
        return note_unread(
            self.log,
            ((KeptFlag(path, str(value), 0), pointer_of(path), value) for path, value in leaves(self.document)),
            lambda path: path in self._read or path.startswith(tuple(self._whole)),
            effect_of,
            lambda path: reasons.get(path) or reasons.get(path.partition(".")[0]),
        )


def pointer_of(path: str) -> str:
    """A dotted path as a JSON pointer."""
    return "/" + path.replace(".", "/")


def leaves(document: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Values of a nested mapping with their dotted paths."""
    for key, value in document.items():
        path = f"{prefix}{key}"
        if isinstance(value, Mapping) and value:
            yield from leaves(value, path + ".")
        else:
            yield path, value
