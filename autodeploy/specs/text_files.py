"""YAML and JSON files of people: read without surprises, refused early when they are hostile or broken.

YAML is read as version 1.2 (`1e-6` is a number, `on` and `no` are words, but for frameworks). What a file may be is
held before anything is built (`bounds`), so that a "billion laughs" file costs no more than any other.
"""

from __future__ import annotations

import json
import re
import warnings
from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NoReturn

from ruamel.yaml.constructor import SafeConstructor

from autodeploy.kit.errors import SpecError, UnsupportedError
from autodeploy.messages import Message, at_place
from autodeploy.messages.field_faults import json_fault, os_fault

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path


MAX_BYTES = 1_000_000
MAX_LAUNCH_CHARACTERS = 200_000
"""Of a shell script, or of TOML."""
MAX_DEPTH = 32
"""Levels of nesting, or parts of a dotted key."""
MAX_VALUES = 30_000
MAX_YAML_VALUES = 5_000
"""Fewer: reading YAML takes some 90 us a value; three times what the longest profile has."""
MAX_KEY_LENGTH = 1_000
_JSON = re.compile(r'"(?:[^"\\]++|\\.)*+"?|[\[{]\s*+[\]}]|[\[\]{},]', re.DOTALL)
_KEY_ENDS = re.compile(r"\s*+:")
_TOML = re.compile(
    r"""\"{3}(?:[^"\\]++|\\.|"(?!""))*+(?:"{3,5})?|'{3}.*?(?:'{3,5}|\Z)|"(?:[^"\\\n]++|\\[^\n])*+"?|'[^'\n]*+'?"""
    r"""|\#[^\n]*+|[0-9][0-9a-fA-FxobX_:.]{300,}+|[\[\]{}.,=\n]""",
    re.DOTALL,
)
# No number that anybody means: what Python's decimal digits are limited for, in the notations that have no limit.
_ENDLESS = re.compile(r"[-+]?[0-9][0-9a-fA-FxobX_:.]{300,}+")


def refuse_long(text: str, most: int) -> None:
    """Refuses a text of more characters."""
    if len(text) > most:
        raise SpecError(Message("field_fault.at_most_characters", bound=f"{most:,}"))


def scan_json(text: str, max_values: int = MAX_VALUES) -> None:
    """Refuses JSON that is nested too deep, or has too many values or too long a key."""
    depth, values = 0, 1
    for match in _JSON.finditer(text):
        token = match[0]
        if token[0] == '"':
            if len(token) > MAX_KEY_LENGTH and _KEY_ENDS.match(text, match.end()):
                raise _long_key(text, match.start())
        elif token == ",":
            values += 1
        elif token in "[{":
            values, depth = values + 1, depth + 1
        elif token in "]}":
            depth -= 1
        _refuse_deep(depth)
        if values > max_values:
            raise _many(max_values)


def load_toml(text: str) -> dict[str, Any]:
    """A document of TOML.

    Raises SpecError with what is wrong, and where.
    """
    import tomllib

    scan_toml(text)
    try:
        return tomllib.loads(text)
    except ValueError as error:  # also a number of thousands of digits
        raise SpecError(Message("common.not_of_format", reason=str(error)[:200], format="TOML")) from None


def scan_toml(text: str) -> None:
    """Refuses TOML that is too long or nested too deep, by brackets or dots, or has too many values or a long key."""
    refuse_long(text, MAX_LAUNCH_CHARACTERS)
    depth = dots = values = start = 0
    for match in _TOML.finditer(text):
        token = match[0]
        if token[0] in "\"'#":
            continue
        if token[0].isdigit():
            raise SpecError(_placed(text, match.start(), Message("field_fault.is_too_big", value=token[:40])))
        if token in ".=" and match.start() - start > MAX_KEY_LENGTH:
            raise _long_key(text, start)
        if token == ".":
            dots += 1
            _refuse_deep(dots)
            continue
        dots, start = 0, match.end()
        values += token in "=,[{"
        depth = max(0, depth + (token in "[{") - (token in "]}"))
        _refuse_deep(depth)
        if values > MAX_VALUES:
            raise _many(MAX_VALUES)


def scanned_yaml(events: Iterable[Any]) -> Iterator[Any]:
    """The events of a YAML text up to the first bound that it passes, counted as if every alias were written out."""
    from ruamel.yaml.events import (
        AliasEvent,
        CollectionEndEvent,
        CollectionStartEvent,
        DocumentStartEvent,
        NodeEvent,
        ScalarEvent,
    )

    expanded: dict[str, tuple[int, int]] = {}
    anchors: set[str] = set()
    open_nodes: list[tuple[str | None, int, int]] = []
    total = size = documents = 0
    for event in events:
        if isinstance(event, DocumentStartEvent):
            documents += 1
            if documents > 1:
                raise SpecError(_at(event, Message("importers.several_yaml_documents")))
        elif isinstance(event, CollectionEndEvent):
            anchor, start, start_size = open_nodes.pop()
            if anchor is not None:
                expanded[anchor] = total - start, size - start_size
        elif isinstance(event, AliasEvent):
            if event.anchor not in expanded:
                raise SpecError(_at(event, Message("profiles.alias_undefined", name=event.anchor)))
            values, characters = expanded[event.anchor]
            total, size = total + values, size + characters
        elif isinstance(event, NodeEvent):
            if event.anchor in anchors:
                raise SpecError(_at(event, Message("common.given_twice", name=f"&{event.anchor}")))
            anchors |= {event.anchor} - {None}
            total += 1
            if isinstance(event, CollectionStartEvent):
                open_nodes.append((event.anchor, total - 1, size))
            elif isinstance(event, ScalarEvent):
                size += len(event.value)
                if _ENDLESS.fullmatch(event.value):
                    raise SpecError(_at(event, Message("field_fault.is_too_big", value=event.value[:40])))
                if event.anchor is not None:
                    expanded[event.anchor] = 1, len(event.value)
        _refuse_deep(len(open_nodes))
        if total > MAX_YAML_VALUES:
            raise _many(MAX_YAML_VALUES)
        if size > MAX_BYTES:
            raise SpecError(Message("field_fault.at_most_characters", bound=f"{MAX_BYTES:,}"))
        yield event


def refuse_long_key(key: str, path: str = "") -> None:
    """Refuses a dotted key of too many parts or characters, as Hydra and strategies have them, in what `path` names."""
    _refuse_deep(key.count("."), path)
    if len(key) > MAX_KEY_LENGTH:
        raise SpecError(_KEY, path=path)


_KEY = Message("importers.key_too_long", bound=f"{MAX_KEY_LENGTH:,}")


def _refuse_deep(levels: int, path: str = "") -> None:
    if levels > MAX_DEPTH:
        raise SpecError(Message("profiles.nested_too_deep", depth=MAX_DEPTH), path=path)


def _many(most: int) -> SpecError:
    return SpecError(Message("field_fault.at_most_entries", bound=f"{most:,}"))


def _long_key(text: str, offset: int) -> SpecError:
    return SpecError(_placed(text, offset, _KEY))


def _placed(text: str, offset: int, message: str) -> str:
    return at_place(message, (text.count("\n", 0, offset) + 1, offset - text.rfind("\n", 0, offset)))


def _at(event: Any, message: str) -> str:
    return at_place(message, (event.start_mark.line + 1, event.start_mark.column + 1))


# YAML as frameworks read it.
WORDS = {"yes": True, "on": True, "no": False, "off": False}


class BooleanWords(SafeConstructor):
    """Makes plain `yes`, `no`, `on` and `off` booleans, and what is quoted text."""


def _boolean_or_text(_constructor: BooleanWords, node: Any) -> Any:
    is_plain = node.style is None
    return WORDS.get(node.value.lower(), node.value) if is_plain else node.value


BooleanWords.add_constructor("tag:yaml.org,2002:str", _boolean_or_text)


# On which line of a JSON text something stands.
MAX_DIGITS = 40
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\],:]|[^\s{}\[\],:"]+')
_CONSTANTS = frozenset({"NaN", "Infinity", "-Infinity"})


def at_line(text: str, error: SpecError) -> SpecError:
    """The error with the line of its JSON pointer, or of the first thing that is no plain JSON, before its message."""
    said = str(error)
    if said.startswith("line "):
        return error
    path = error.errors[0].path if error.errors else ""
    line = _line_of(text, path) if path else _line_of_fault(text)
    return SpecError(Message("common.line", line=line, message=said) if line else said, path=path, hint=error.hint)


def _line_of(text: str, pointer: str) -> int:
    """The line of a value, or of the nearest value around it that is there; 0 without any."""
    wanted = pointer.strip("/").split("/")
    position, depth = 1, 0
    for path, _, place in _walk(text):
        if depth < len(path) <= len(wanted) and path == wanted[: len(path)]:
            position, depth = place, len(path)
            if depth == len(wanted):
                break
    return text.count("\n", 0, position) + 1


def _line_of_fault(text: str) -> int:
    """The line of the first repeated key, constant, endless number or too deep value; 0 without any."""
    seen: dict[int, set[str]] = {}
    for path, token, place in _walk(text):
        depth = len(path)
        keys = seen.get(depth, set())
        endless = token[0] in "-0123456789" and len(token) > MAX_DIGITS
        if depth > MAX_DEPTH or token in _CONSTANTS or endless or (path and path[-1] in keys):
            return text.count("\n", 0, place) + 1
        keys.update(path[-1:])
        if token in "{[":
            seen[depth + 1] = set()
    return 0


def _walk(text: str) -> Iterator[tuple[list[str], str, int]]:
    """(keys and indices, token, place in the text) of each value; the list is changed from one to the next."""
    path: list[str] = []
    kinds: list[str] = []
    key_next = False
    for match in _TOKEN.finditer(text):
        token = match[0]
        if token == ":":
            continue
        if token == ",":
            if kinds and kinds[-1] == "[":
                path[-1] = str(int(path[-1]) + 1)
            key_next = bool(kinds) and kinds[-1] == "{"
        elif token in "}]":
            if not kinds:
                return
            kinds.pop()
            path.pop()
            key_next = False
        elif key_next:
            try:
                path[-1] = str(json.loads(token))
            except ValueError:
                return
            key_next = False
        else:
            yield path, token, match.start()
            if token in "{[":
                kinds.append(token)
                path.append("" if token == "{" else "0")
                key_next = token == "{"


MODEL_ZOO, SWIFT = "Megatron-MoE-ModelZoo", "ms-swift"
# Keys that tell the configuration of a framework that is not read.
FOREIGN: dict[str, str] = {
    "FlagScale": "system model data | experiment action",
    "LLaMA-Factory": "finetuning_type | model_name_or_path template | cutoff_len model | peft_config model",
    "GPT-NeoX": "pipe_parallel_size | pipe-parallel-size",
    "Primus": "work_group modules",
    "axolotl": "base_model datasets",
    "DeepSpeed": "zero_optimization | train_batch_size | train_micro_batch_size_per_gpu",
    "NeMo": "trainer exp_manager",
    "Megatron Bridge": "model ddp scheduler",
    "Accelerate": "compute_environment",
    MODEL_ZOO: "MODEL_ARGS",
    SWIFT: "tuner_type model | train_type model | max_length model micro_batch_size",
}


def read_document(path: Path) -> Any:
    """The content of a YAML or JSON (by suffix) file.

    Raises SpecError when the file is missing, too large, too deep, or not well formed; the message names line and
    column.
    """
    text = read_text(path)
    with in_file(path):
        return load_json(text) if path.suffix.lower() == ".json" else load_yaml(text)


@contextmanager
def in_file(path: Path) -> Iterator[None]:
    """Errors about a file's content, raised inside, begin with its name."""
    try:
        yield
    except SpecError as error:
        path_in_file = error.errors[0].path if error.errors else ""
        message = Message("common.place", place=path.name, message=str(error))
        raise SpecError(message, path=path_in_file, hint=error.hint) from error


def read_text(path: Path, max_bytes: int = MAX_BYTES) -> str:
    """The text of a file of at most `max_bytes`."""
    try:
        with path.open("rb") as stream:
            content = stream.read(max_bytes + 1)

    except OSError as error:
        message = Message("common.cannot_be_read", file=path, reason=os_fault(error))
        raise SpecError(message, hint=Message("common.check_path")) from error
    if len(content) > max_bytes:
        raise SpecError(Message("common.is_larger_than_bytes", file=path.name, limit=max_bytes))
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise SpecError(Message("common.not_utf8", file=path.name, place=error.start)) from error


def load_json(text: str, *, max_values: int = MAX_VALUES, constants: bool = False) -> Any:
    """JSON without repeated keys, of at most so many values; NaN and infinities are refused, or texts.

    constants : whether NaN and infinities are read as texts, as published configurations have them in limits.
    """
    scan_json(text, max_values)
    try:
        return json.loads(text, parse_constant=str if constants else _no_constant, object_pairs_hook=_unique_keys)
    except json.JSONDecodeError as error:
        fault = Message("common.not_of_format", reason=json_fault(error), format="JSON")
        raise SpecError(at_place(fault, (error.lineno, error.colno))) from error
    except ValueError as error:  # an integer of thousands of digits
        raise SpecError(Message("common.not_of_format", reason=str(error).partition(";")[0], format="JSON")) from error


def load_yaml(text: str, *, boolean_words: bool = False) -> Any:
    """The one document of a YAML 1.2 text, standard tags only.

    boolean_words : whether `yes`, `no`, `on` and `off` are booleans, as in YAML 1.1, with which frameworks read.
    """
    from ruamel.yaml import YAML  # here: reading JSON or a preset needs no YAML
    from ruamel.yaml.error import MantissaNoDotYAML1_1Warning, YAMLError
    from ruamel.yaml.parser import Parser

    from hardware_profiles.yaml_faults import fault_of

    warnings.simplefilter("ignore", MantissaNoDotYAML1_1Warning)  # of numbers that are read as they are meant

    class Scanned(Parser):
        """A parser whose events are bounded before anything is composed of them."""

        def __init__(self, loader: Any) -> None:
            super().__init__(loader)
            self._scanned = scanned_yaml(iter(super().get_event, None))

        def get_event(self) -> Any:
            return next(self._scanned)

    reader = YAML(typ="safe", pure=True)
    reader.Parser = Scanned
    reader.composer.warn_double_anchors = False  # they are refused
    if boolean_words:
        reader.Constructor = BooleanWords
    try:
        return reader.load(text)
    except YAMLError as error:
        raise SpecError(str(fault_of(error, text))) from error
    except (ValueError, TypeError, LookupError, AssertionError, AttributeError, ArithmeticError) as error:
        # Such as a date of month 13, a list as a key, or a word with the tag of truth values.
        reason = str(error).partition(";")[0][:200]
        raise SpecError(Message("common.not_of_format", reason=reason, format="YAML")) from error


def _no_constant(name: str) -> NoReturn:
    raise SpecError(Message("field_fault.is_not_finite", value=name))


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    mapping = dict(pairs)
    if len(mapping) != len(pairs):
        repeated = next(key for key, times in Counter(key for key, _ in pairs).items() if times > 1)
        raise SpecError(Message("common.given_twice", name=repr(repeated[:100])))
    return mapping


def refuse_framework(document: Mapping[Any, Any]) -> None:
    """Refuses configurations of frameworks that are not read.

    Raises UnsupportedError with the framework, and the JSON pointer of a key that tells it.
    """
    groups = [(name, keys.split()) for name, groups in FOREIGN.items() for keys in groups.split("|")]
    groups += [(MODEL_ZOO, [key]) for key in document if isinstance(key, str) and key.startswith("--")]
    for name, keys in groups:
        if document.keys() >= set(keys):
            message = Message("importers.configuration_of", framework=name)
            hint = Message("importers.give_starter" if name == SWIFT else "importers.importable_files")
            raise UnsupportedError(message, path=f"/{keys[0]}", hint=hint)
