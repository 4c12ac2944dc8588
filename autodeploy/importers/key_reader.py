"""Takes values out of a nested mapping by dotted path, remembers which were read and says so in the diagnostics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NoReturn

from autodeploy.errors import SpecError
from autodeploy.importers.diagnostics import DiagnosticsLog, shown
from autodeploy.importers.flag_effects import NO_EFFECT
from autodeploy.importers.imported import KeptFlag
from autodeploy.messages import Message

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from autodeploy.importers.flag_effects import FlagEffect

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

        Raises
        ------
        SpecError
            with the JSON pointer of a value that is none.
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
                Message(
                    "importers.is_not_whole_number_from_to", value=shown(number), least=least, most=MAX_WHOLE_NUMBER
                ),
            )
        return number

    def switch(self, field: str, *paths: str) -> bool:
        """A truth value; absent is false."""
        return self.take(field, *paths) is True

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
        self, reasons: Mapping[str, str], effect_of: Callable[[str], FlagEffect | None], otherwise: str
    ) -> tuple[KeptFlag, ...]:
        """Says of every key not read why; returns those of which nobody knows what they do.

        Parameters
        ----------
        reasons : why keys are idle, by their path or the first part of it.
        effect_of : the effect of the key at a path, where it is known.
        otherwise : what is said of the others.
        """
        kept = []
        for path, value in _leaves(self.document):
            effect = effect_of(path)
            without = effect.of_value(str(value)) if effect is not None else None
            if without is not None:
                self.log.unmodelled(pointer_of(path), value, without)
            if without is not None or path in self._read or path.startswith(tuple(self._whole)):
                continue
            reason = reasons.get(path) or reasons.get(path.partition(".")[0])
            if reason is None and effect is not None:
                reason = NO_EFFECT if effect.harmless else effect.reason
            if reason is None:
                kept.append(KeptFlag(path, shown(value), 0))
            self.log.ignore(pointer_of(path), value, reason or otherwise)
        return tuple(kept)


def pointer_of(path: str) -> str:
    """A dotted path as a JSON pointer."""
    return "/" + path.replace(".", "/")


def _leaves(document: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in document.items():
        path = f"{prefix}{key}"
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, path + ".")
        else:
            yield path, value
