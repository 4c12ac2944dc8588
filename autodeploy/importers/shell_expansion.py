"""Variables of a script and what its words stand for. Command substitutions stay holes: nothing is ever run."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from autodeploy.errors import SpecError
from autodeploy.importers.shell_arithmetic import ExpressionError, UnknownOperandError, UnreadableError, evaluate
from autodeploy.importers.shell_tree import Arithmetic, Parameter, Part, Refused, Text, Word
from autodeploy.importers.shell_values import Run, Value, WordBuilder, joined
from autodeploy.messages import Message

if TYPE_CHECKING:
    from collections.abc import Mapping

    from autodeploy.importers.shell_words import WordReader

MAX_EXPANDED = 1_000_000
_KEYED = re.compile(r"\[(\w{1,60})\]=")


class Variables:
    """Scalars and arrays by name, and the expansion of words with them.

    Parameters
    ----------
    source : the reader of the script, for places in messages.
    given : values that the caller sets as the environment of the script would.
    """

    def __init__(self, source: WordReader, given: Mapping[str, str]) -> None:
        self.source = source
        self.scalars: dict[str, Value] = {name: Value((Run(text, 0),)) for name, text in given.items()}
        self.arrays: dict[str, tuple[Value, ...]] = {}
        self.refused: list[tuple[int, str]] = []
        self._spent = 0

    def words(self, word: Word) -> list[Value]:
        """The words that one word of the script becomes."""
        builder = WordBuilder()
        for part in word.parts:
            self._expand(part, builder)
        return self._count(builder.finish())

    def value(self, word: Word) -> Value:
        """The word as the value of an assignment: never split."""
        return self._value(word.parts)

    def assign(self, name: str, value: Value, *, appends: bool) -> None:
        """Sets a scalar."""
        before = self.scalars.get(name, Value()).runs if appends else ()
        self.arrays.pop(name, None) if not appends else None
        self.scalars[name] = self._count([Value((*before, *value.runs))])[0]

    def assign_array(self, name: str, values: list[Value], *, appends: bool) -> None:
        """Sets an array; `([NAME]=value)` sets the scalars `ARRAY[NAME]`."""
        keyed = [_keyed(value) for value in values]
        if values and None not in keyed:
            for key_and_value in keyed:
                if key_and_value is not None:
                    self.scalars[f"{name}[{key_and_value[0]}]"] = key_and_value[1]
            return
        before = self.arrays.get(name) or ((self.scalars[name],) if name in self.scalars else ())
        self.arrays[name] = (*(before if appends else ()), *values)
        self.scalars.pop(name, None)

    def known(self, name: str) -> Value | None:
        """The value of a scalar, of an array's first element or of `NAME[index]`; None where the script sets none."""
        if name in self.scalars:
            return self.scalars[name]
        array, _, index = name.removesuffix("]").partition("[")
        if index:
            elements = self.arrays.get(array, ())
            return elements[int(index)] if index.isdigit() and int(index) < len(elements) else None
        return self.arrays[name][0] if self.arrays.get(name) else None

    def number(self, expression: str, offset: int) -> int | None:
        """The value of an arithmetic expression; None where it rests on something unknown.

        Raises
        ------
        SpecError
            with line and column where it can't be read.
        """

        def value_of(name: str) -> int | None:
            value = self.known(name)
            if value is None or value.unknown:
                return None
            text = value.text.strip()
            return int(text) if text.removeprefix("-").isdigit() and len(text) <= 20 else None

        try:
            return evaluate(expression, value_of)
        except UnknownOperandError:
            return None
        except UnreadableError:
            self.refused.append((offset, f"(({expression[:50]}))"))
            return None
        except ExpressionError as error:
            raise self.source.error(offset, Message("common.place", place="((...))", message=error.args[0])) from error

    def _expand(self, part: Part, builder: WordBuilder) -> None:
        if isinstance(part, Text):
            builder.add([Run(part.text, part.offset)] if part.text else [])
        elif isinstance(part, Parameter) and part.all_elements and part.name in self.arrays and not part.operator:
            for index, element in enumerate(self.arrays[part.name]):
                if index:
                    builder.cut()
                builder.add(element.runs) if part.quoted else builder.split(element)
        else:
            value = self._value((part,))
            builder.add(value.runs) if part.quoted else builder.split(value)

    def _value(self, parts: tuple[Part, ...]) -> Value:
        runs: list[Run] = []
        for part in parts:
            if isinstance(part, Text):
                runs += [Run(part.text, part.offset)] if part.text else []
            elif isinstance(part, Arithmetic):
                number = self.number(part.expression, part.offset)
                hole = "" if number is not None else f"$(({part.expression[:60]}))"
                runs.append(Run("" if number is None else str(number), part.offset, hole))
            elif isinstance(part, Refused):
                self.refused.append((part.offset, part.source))
                runs.append(Run("", part.offset, part.source[:60]))
            else:
                runs += self._parameter(part).runs
        return self._count([Value(tuple(runs))])[0]

    def _parameter(self, part: Parameter) -> Value:
        if part.operator == "#":
            return self._number_of_elements(part)
        value = joined(self.arrays[part.name]) if part.all_elements and part.name in self.arrays else None
        value = value if value is not None else self.known(part.name)
        hole = Value((Run("", part.offset, f"${part.name}"),))
        kind = part.operator[-1:]
        if kind == "+":
            return Value() if value is None else self._value(part.operand)
        empty = value is not None and not value.runs
        if kind in {"-", "="} and (value is None or (empty and part.operator.startswith(":"))):
            value = self._value(part.operand)
            if kind == "=":
                self.assign(part.name, value, appends=False)
        return hole if value is None else value

    def _number_of_elements(self, part: Parameter) -> Value:
        if part.name in self.arrays:
            return Value((Run(str(len(self.arrays[part.name])), part.offset),))
        hole = "" if part.name in self.scalars else f"${{#{part.name}[@]}}"
        return Value((Run("" if hole else "1", part.offset, hole),))  # a scalar is an array of one

    def _count(self, values: list[Value]) -> list[Value]:
        self._spent += sum(value.size for value in values)
        if self._spent > MAX_EXPANDED:
            raise SpecError(Message("field_fault.at_most_characters", bound=f"{MAX_EXPANDED:,}"))
        return values


def _keyed(value: Value) -> tuple[str, Value] | None:
    """Key and value of an array's element that is written `[key]=value`."""
    match = _KEYED.match(value.runs[0].text) if value.runs else None
    if match is None:
        return None
    first = value.runs[0]
    rest = Run(first.text[match.end() :], first.offset + match.end())
    return match[1], Value((rest, *value.runs[1:]) if rest.text else value.runs[1:])
