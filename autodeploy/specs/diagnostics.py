"""What an importer took from a foreign file, what it filled in, what it left and what it found contradictory."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

from autodeploy.messages import Message
from autodeploy.specs.message_table import changes_the_result

NO_EFFECT = Message("importers.no_effect_on_time_or_memory_of_step")
_SHOWN_LENGTH = 80


@dataclass(frozen=True, slots=True)
class Note:
    """One finding: where in the file, which field of the spec, what value (shortened) and why."""

    source: str
    field: str = ""
    value: str = ""
    reason: str = ""

    def in_words(self, place: str) -> Message:
        """`place = value: reason`."""
        return Message("common.place", place=f"{place} = {self.value}", message=self.reason)


@dataclass(frozen=True, slots=True)
class Diagnostics:
    """Everything an importer has to say about one file, in the order it was found.

    `ignored` changes nothing that is predicted; `unmodelled` changes time, memory or what is trained, and the
    prediction does without it. `doubted` is what had to be assumed and the result hangs on.
    """

    taken: tuple[Note, ...] = ()
    defaulted: tuple[Note, ...] = ()
    ignored: tuple[Note, ...] = ()
    contradicted: tuple[Note, ...] = ()
    unmodelled: tuple[Note, ...] = ()
    doubted: tuple[Note, ...] = ()

    @property
    def contradictions(self) -> tuple[str, ...]:
        """What the file contradicts, in words."""
        return tuple(note.in_words(note.source) for note in self.contradicted)

    @property
    def doubts(self) -> tuple[str, ...]:
        """What changes the result and is not modelled, in words: the same that stands above a verdict."""
        return tuple(
            Message("common.place", place=f"{note.source} {note.value}", message=note.reason)
            for note in self.unmodelled
        )

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What had to be assumed or is contradicted, in words."""
        assumed = (note.in_words(note.field) if note.field else note.reason for note in self.doubted)
        return (*assumed, *self.contradictions)

    @property
    def to_check(self) -> tuple[str, ...]:
        """Everything that whoever plans should check before a number is believed, the weightiest first."""
        return (*map(changes_the_result, self.doubts), *self.assumptions)


@dataclass(slots=True)
class DiagnosticsLog:
    """Collects notes while a file is read."""

    _taken: list[Note] = field(default_factory=list)
    _defaulted: list[Note] = field(default_factory=list)
    _ignored: list[Note] = field(default_factory=list)
    _contradicted: list[Note] = field(default_factory=list)
    _unmodelled: list[Note] = field(default_factory=list)
    _doubted: list[Note] = field(default_factory=list)

    def take(self, source: str, field: str, value: Any, reason: str = "") -> None:
        """The value at `source` became the spec's `field`."""
        self._taken.append(Note(source, field, shown(value), reason))

    def default(self, field: str, value: Any, reason: str) -> None:
        """The file says nothing of `field`; the value follows from the reason."""
        self._defaulted.append(Note("", field, shown(value), reason))

    def ignore(self, source: str, value: Any, reason: str) -> None:
        """The value at `source` has no place in the spec."""
        self._ignored.append(Note(source, "", shown(value), reason))

    def contradict(self, source: str, field: str, value: Any, reason: str) -> None:
        """The value at `source` disagrees with what was taken for `field`."""
        self._contradicted.append(Note(source, field, shown(value), reason))

    def unmodelled(self, source: str, value: Any, reason: str) -> None:
        """The value at `source` changes time, memory or what is trained, and no prediction knows it."""
        self._unmodelled.append(Note(source, "", shown(value), reason))

    def doubt(self, field: str, value: Any, reason: str) -> None:
        """The file leaves open what `field` is, and the result hangs on it; no field: the file as a whole."""
        self._doubted.append(Note("", field, shown(value), reason))

    def finish(self) -> Diagnostics:
        """All notes, immutable."""
        return Diagnostics(
            tuple(self._taken),
            tuple(self._defaulted),
            tuple(self._ignored),
            tuple(self._contradicted),
            tuple(self._unmodelled),
            tuple(self._doubted),
        )


def joined(*logs: DiagnosticsLog) -> Diagnostics:
    """All notes of several readers of one file."""
    finished = [log.finish() for log in logs]
    return Diagnostics(*(sum((getattr(each, part.name) for each in finished), ()) for part in fields(Diagnostics)))


def shown(value: Any) -> str:
    """A value as short text."""
    text = f"{type(value).__name__} of {len(value)}" if isinstance(value, dict | list | tuple) else str(value)
    return text if len(text) <= _SHOWN_LENGTH else text[: _SHOWN_LENGTH - 3] + "..."


def not_modelled(what: str, by: str) -> Message:
    """That a mechanism is not modelled yet, with the word of the file that asks for it."""
    return Message("common.is_not_modelled_yet", what=Message("common.text_and_numbers", text=what, numbers=by))
