"""YAML and JSON files of people: read without surprises, refused early when they are hostile or broken.

YAML is read as version 1.2 (`1e-6` is a number, `on` and `no` are words, but for frameworks). What a file may be is
held before anything is built (`bounds`), so that a "billion laughs" file costs no more than any other.
"""

from __future__ import annotations

import json
import warnings
from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NoReturn

from autodeploy.errors import SpecError
from autodeploy.importers.bounds import MAX_BYTES, MAX_VALUES, scan_json, scan_yaml
from autodeploy.messages import Message, at_place
from autodeploy.messages.foreign_faults import json_fault, os_fault

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def read_document(path: Path) -> Any:
    """The content of a YAML or JSON (by suffix) file.

    Raises
    ------
    SpecError
        when the file is missing, too large, too deep, or not well formed; the message names line and column.
    """
    text = read_text(path)
    try:
        return load_json(text) if path.suffix.lower() == ".json" else load_yaml(text)
    except SpecError as error:
        raise SpecError(Message("common.place", place=path.name, message=str(error)), hint=error.hint) from error


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
        raise SpecError(Message("common.is_not_utf_8_text_byte", file=path.name, place=error.start)) from error


def load_json(text: str, *, max_values: int = MAX_VALUES) -> Any:
    """JSON without NaN, infinities or repeated keys, of at most so many values."""
    scan_json(text, max_values)
    try:
        return json.loads(text, parse_constant=_no_constant, object_pairs_hook=_unique_keys)
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

    from hardware_profiles.yaml_faults import fault_of

    warnings.simplefilter("ignore", MantissaNoDotYAML1_1Warning)  # of numbers that are read as they are meant
    reader = YAML(typ="safe", pure=True)
    if boolean_words:
        from autodeploy.importers.boolean_words import BooleanWords

        reader.Constructor = BooleanWords
    try:
        scan_yaml(YAML(typ="safe", pure=True).parse(text))
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
