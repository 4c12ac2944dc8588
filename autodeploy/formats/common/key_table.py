"""Keys of a framework's configuration, each a row of one table that reader and writer share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import reduce
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

from autodeploy.formats.common.import_result import (
    ImportResult,
    plan_id_of,
    release_of_marks,
    search_of_marks,
)
from autodeploy.formats.common.value_readers import pointer_of
from autodeploy.messages import Message
from autodeploy.specs.diagnostics import NO_EFFECT, DiagnosticsLog
from autodeploy.stack.expression import evaluate
from autodeploy.stack.releases import release_of

if TYPE_CHECKING:
    from autodeploy.formats.common.value_readers import KeyReader
    from autodeploy.specs.spec import Spec
    from autodeploy.specs.strategy import Strategy

FEATURES = "features"
Words = Mapping[Any, tuple[Any, ...]]


@dataclass(frozen=True, slots=True)
class Key:
    """A key, and the field of a spec that it is. A key of which only the path is told is logic beside the table.

    path : dotted, as the configuration has it.
    field : dotted, as `strategy.cp`; of a feature `features.NAME`.
    kind : int (from 1 on), float, bool, or of each of our values its words: all are read, the first is written.
    when : under which it is read: an expression of what is known of the launch, and of fields read before it.
    """

    path: str
    field: str = ""
    kind: type[int | float | bool] | Words | None = None
    when: str = ""

    @property
    def pointer(self) -> str:
        """Its field, as diagnostics name it."""
        section, _, name = self.field.partition(".")
        return f"/strategy/{FEATURES}" if section == FEATURES else f"/{section}/{name.replace('.', '/')}"


class Reader(Protocol):
    """Values of a launch by key; notes the field that each became."""

    log: DiagnosticsLog

    def value(self, key: Key) -> Any:
        """The value of a key, of its kind, or the word that stands there; None where there is none.

        Raises SpecError at a value of another kind.
        """

    def fail(self, path: str, /, message: str, hint: str = "") -> NoReturn:
        """Refuses the launch at a key."""


@dataclass(frozen=True, slots=True)
class KeyTable:
    """All keys that a format writes, in the order of the framework's own files, and those that it only reads.

    defaults : of the framework's classes, by path: told where the file is silent.
    """

    framework: str
    defaults: Mapping[str, Any]
    keys: tuple[Key, ...]

    def of(self, reader: Reader, **known: Any) -> Values:
        """The values that a launch gives; known : what conditions of rows ask for."""
        return Values(self, reader, known)

    def pairs(self, spec: Spec, strategy: Strategy, logic: Mapping[str, Any]) -> dict[str, Any]:
        """Keys by path, with their values; what is None is left out.

        logic : values by field or by path, in place of those of the spec and the strategy.
        """
        values = {key.path: _of_plan(spec, strategy, key, logic) for key in self.keys}
        fields = {key.field for key in self.keys}
        values |= {path: value for path, value in logic.items() if path not in fields}
        return {path: value for path, value in values.items() if value is not None}

    def written(self, spec: Spec, strategy: Strategy, logic: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
        """The same as sections of a document."""
        document: dict[str, Any] = {}
        for path, value in self.pairs(spec, strategy, logic).items():
            *above, name = path.split(".")
            reduce(lambda section, part: section.setdefault(part, {}), above, document)[name] = value
        return document


@dataclass(slots=True)
class Values:
    """Fields by name, each read when it is first asked for: diagnostics are in that order.

    Words beside the first are told as predicted like it. A value that is none of its kind raises SpecError; a feature
    whose word is another one is off.
    """

    table: KeyTable
    reader: Reader
    known: dict[str, Any]
    found: dict[str, Any] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Any:
        """The field's value, else its default; None where it has none, or its condition does not hold."""
        key = next(key for key in self.table.keys if key.field == name)
        if name not in self.found and not (key.when and not evaluate(key.when, self.known)):
            value, default = self.reader.value(key), self.table.defaults.get(key.path)
            if isinstance(key.kind, Mapping):
                value = _ours(self.reader, key, key.kind, value)
            if value is None and default is not None:
                value, reason = default, Message("importers.default_of", framework=self.table.framework)
                self.reader.log.default(key.pointer, default, reason)
            self.found[name] = value
            if value is not None:
                self.known[name.rpartition(".")[2]] = value
        return self.found.get(name)

    def section(self, name: str, *first: str) -> dict[str, Any]:
        """All fields of a section that have a value, by their names there; first : those read before the others."""
        others = [key.field for key in self.table.keys if key.field.startswith(f"{name}.")]
        fields = dict.fromkeys([*(f"{name}.{each}" for each in first), *others])
        return {each.removeprefix(f"{name}."): self[each] for each in fields if self[each] is not None}

    def features(self, *first: str) -> set[str]:
        """The features that are on; first : as of `section`."""
        return {name for name, on in self.section(FEATURES, *first).items() if on}


def _ours(reader: Reader, key: Key, kind: Words, given: Any) -> Any:
    """Our value of a word; None where there is none, or a feature has another one."""
    found = next((ours for ours, words in kind.items() if given in words), None)
    if given is None or key.field.startswith(FEATURES):
        return found
    if found is None:
        names = ", ".join(word for words in kind.values() for word in words)
        fault = Message("field_fault.is_invalid", value=repr(str(given)[:40]))
        reader.fail(key.path, fault, Message("common.one_of", names=names))
    if given != (usual := kind[found][0]):
        reader.log.unmodelled(pointer_of(key.path), given, Message("importers.predicted_as", what=usual))
    return found


def _of_plan(spec: Spec, strategy: Strategy, key: Key, logic: Mapping[str, Any]) -> Any:
    for name in (key.path, key.field):
        if name in logic:
            return logic[name]
    section, *names = key.field.split(".")
    if not section:
        return None
    if section == FEATURES:
        value: Any = names[0] in strategy.features
    else:
        value = reduce(getattr, names, strategy if section == "strategy" else getattr(spec, section))
    return key.kind.get(value, (value,))[0] if isinstance(key.kind, Mapping) else value


# A launch whose routers are overruled: tokens are dealt evenly.
EVENLY_ROUTED: dict[str, Any] = {"routing_imbalance": 1.0, "routing_imbalance_peak": 1.0, "router": "forced"}


def import_result(
    kind: str, target: str, reader: KeyReader, text: str, spec: dict[str, Any], *, deterministic: bool, **more: Any
) -> ImportResult:
    """The result of a document whose keys are read, with a note of every other key.

    spec : model, training and strategy. more : fields of the result.
    """
    search = search_of_marks(text, target) | ({"deterministic_training": True} if deterministic else {})
    release = release_of_marks(text) or release_of(target, None)
    kept = reader.note_rest(dict.fromkeys(release.keys, NO_EFFECT), lambda _: None)
    found = {"kept": kept, "plan_id": plan_id_of(text), **more}
    return ImportResult(kind, {**spec, "search": search}, reader.log.finish(), target=target, **found)
