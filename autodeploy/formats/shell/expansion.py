"""Variables of a script and what its words stand for. Command substitutions stay holes: nothing is ever run."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from autodeploy.formats.shell.values import (
    BLANKS,
    Arithmetic,
    Parameter,
    Part,
    Refused,
    Run,
    Text,
    Value,
    Word,
    WordBuilder,
    joined,
)
from autodeploy.kit.errors import SpecError
from autodeploy.messages import Message
from autodeploy.messages.field_faults import quoted
from autodeploy.specs.text_files import MAX_DEPTH

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from autodeploy.formats.shell.statements import WordReader


# Whole-number expressions of `$((...))` and `((...))`.
_TOKEN = re.compile(r"\s*(?:(\d+)|\$?\{?([A-Za-z_]\w*(?:\[\w+\])?)\}?|(\|\||&&|\*\*|[<>=!]=|[-+*/%<>!()?:]))")
_LEVELS: tuple[tuple[str, ...], ...] = (
    ("||",),
    ("&&",),
    ("==", "!="),
    ("<", "<=", ">", ">="),
    ("+", "-"),
    ("*", "/", "%"),
)
_WORD_BITS = 64
MAX_LENGTH = 4096


class ExpressionError(ValueError):
    """The expression is not one of those read here."""


class UnreadableError(ExpressionError):
    """The expression uses more of the shell's arithmetic than is read here."""


class UnknownOperandError(Exception):
    """A name in the expression has no known value."""


def evaluate(expression: str, value_of: Callable[[str], int | None]) -> int:
    """The expression's value; names are looked up with `value_of`.

    Raises UnknownOperandError with the name that has no value; UnreadableError when it uses operators that are not
    followed; ExpressionError when it is not an expression, divides by zero or leaves 64 bits.
    """
    if len(expression) > MAX_LENGTH:
        raise ExpressionError(Message("field_fault.at_most_characters", bound=f"{MAX_LENGTH:,}"))
    parser = _Parser(_tokens(expression), value_of)
    result = parser.choice()
    if parser.tokens:
        raise ExpressionError(Message("importers.unexpected", token=repr(parser.tokens[0])))
    return result


def _tokens(expression: str) -> list[str]:
    tokens, position = [], 0
    text = expression.rstrip()
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise UnreadableError(Message("importers.is_not_followed", text=repr(text[position:].strip()[:20])))
        tokens.append(match[1] or match[2] or match[3])
        position = match.end()
    return tokens


class _Parser:
    """Precedence climbing over the tokens that are left."""

    def __init__(self, tokens: list[str], value_of: Callable[[str], int | None]) -> None:
        self.tokens = tokens
        self.value_of = value_of
        self.depth = 0

    def choice(self) -> int:
        """`a ? b : c`, from the right."""
        value = self.level(0)
        if self.tokens[:1] != ["?"]:
            return value
        self.tokens.pop(0)
        first = self.choice()
        self.expect(":")
        second = self.choice()
        return first if value else second

    def expect(self, token: str) -> None:
        if not self.tokens or self.tokens.pop(0) != token:
            raise ExpressionError(Message("common.missing", word=repr(token)))

    def level(self, index: int) -> int:
        if index == len(_LEVELS):
            return self.power()
        left = self.level(index + 1)
        while self.tokens and self.tokens[0] in _LEVELS[index]:
            operator = self.tokens.pop(0)
            left = _apply(operator, left, self.level(index + 1))
        return left

    def power(self) -> int:
        """`2 ** 3 ** 2` is 2 ** 9; a sign before it binds closer."""
        powers = [self.operand()]
        while self.tokens and self.tokens[0] == "**":
            self.tokens.pop(0)
            powers.append(self.operand())
        value = powers.pop()
        while powers:
            base = powers.pop()
            if value < 0:
                raise ExpressionError(Message("field_fault.is_no_whole_number", value=f"{base} ** {value}"))
            value = _bounded(base ** min(value, _WORD_BITS)) if abs(base) > 1 else base ** (value % 2 + 2 * (value > 1))
        return value

    def operand(self) -> int:
        if not self.tokens:
            raise ExpressionError(Message("common.missing", word=Message("field_fault.a_number")))
        token = self.tokens.pop(0)
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise ExpressionError(Message("profiles.nested_too_deep", depth=MAX_DEPTH))
        try:
            if token in {"-", "+", "!"}:
                value = self.operand()
                return -value if token == "-" else value if token == "+" else int(not value)
            if token == "(":
                value = self.choice()
                self.expect(")")
                return value
        finally:
            self.depth -= 1
        if token.isdigit():
            return _bounded(int(token[: _WORD_BITS + 1]))
        if not (token[0].isalpha() or token[0] == "_"):
            raise ExpressionError(Message("importers.unexpected", token=repr(token)))
        number = self.value_of(token)
        if number is None:
            raise UnknownOperandError(token)
        return _bounded(number)


def _apply(operator: str, left: int, right: int) -> int:
    if operator in {"/", "%"}:
        if right == 0:
            raise ExpressionError(Message("field_fault.is_no_whole_number", value=f"{left} {operator} 0"))
        quotient = abs(left) // abs(right) * (1 if (left < 0) == (right < 0) else -1)
        return quotient if operator == "/" else left - quotient * right
    results = {
        "||": int(bool(left or right)),
        "&&": int(bool(left and right)),
        "==": int(left == right),
        "!=": int(left != right),
        "<": int(left < right),
        "<=": int(left <= right),
        ">": int(left > right),
        ">=": int(left >= right),
        "+": left + right,
        "-": left - right,
        "*": left * right,
    }
    return _bounded(results[operator])


def _bounded(value: int) -> int:
    if abs(value) >= 2 ** (_WORD_BITS - 1):
        raise ExpressionError(Message("field_fault.is_too_big", value=quoted(value)))
    return value


MAX_WORK = 3_000_000
_INDEX = re.compile("-?[0-9]{1,6}|")
_BRACES = re.compile(r"\{[^{}]*(?:,|\.\.)[^{}]*\}")
_KEYED = re.compile(r"\[(\w{1,60})\]=")


class Variables:
    """Scalars and arrays by name, and the expansion of words with them.

    source : the reader of the script, for places in messages.
    given : values that the caller sets as the environment of the script would.
    """

    def __init__(self, source: WordReader, given: Mapping[str, str]) -> None:
        self.source = source
        self.scalars: dict[str, Value] = {name: Value((Run(text, 0),)) for name, text in given.items()}
        self.arrays: dict[str, list[Value]] = {}
        self.refused: list[tuple[int, str]] = []
        self.changes = 0  # of variables so far: a loop that makes none goes on for ever
        self.printed: Callable[[str], str | None] = lambda _: None  # by the commands of a text, as far as it is known
        self._work = 0

    def work(self, amount: int) -> None:
        """Counts what following the script costs: a character as 1, what is looked at by itself as 10.

        Raises SpecError when it is more than any script needs.
        """
        self._work += amount
        if self._work > MAX_WORK:
            raise SpecError(Message("importers.too_much_work", count=MAX_WORK))

    def words(self, word: Word) -> list[Value]:
        """The words that one word of the script becomes."""
        return self._expanded(word.parts, WordBuilder())

    def value(self, word: Word) -> Value:
        """The word as the value of an assignment: never split."""
        return self._expanded(word.parts, WordBuilder(splits=False))[0]

    def assign(self, name: str, value: Value, *, appends: bool) -> None:
        """Sets a scalar, or the first element of an array."""
        self.changes += 1
        before = self.known(name) if appends else None
        (whole,) = self._count([Value((*before.runs, *value.runs)) if before is not None else value])
        if elements := self.arrays.get(name):
            elements[0] = whole
        else:
            self.arrays.pop(name, None)
            self.scalars[name] = whole

    def unset(self, name: str) -> None:
        """Leaves a name without a value, as an array without elements is; an array that loses one becomes unknown."""
        array, element, _ = name.partition("[")
        self.scalars.pop(name, None)
        if element:
            self.arrays.pop(array, None)
        else:
            self.arrays[name] = []

    def assign_array(self, name: str, values: list[Value], *, appends: bool) -> None:
        """Sets an array; `([NAME]=value)` sets the scalars `ARRAY[NAME]`."""
        self.changes += 1
        keyed = [_keyed(value) for value in values]
        if values and None not in keyed:
            for key_and_value in keyed:
                if key_and_value is not None:
                    self.scalars[f"{name}[{key_and_value[0]}]"] = key_and_value[1]
            return
        whole = self.scalars.pop(name, None)
        if not appends or name not in self.arrays:
            self.arrays[name] = [whole] if appends and whole is not None else []
        self.arrays[name] += values

    def known(self, name: str) -> Value | None:
        """The value of a scalar, of an array's first element or of `NAME[index]`; None where the script sets none."""
        if name in self.scalars:
            return self.scalars[name]
        if (arguments := self.arrays.get("@")) is not None:
            if name == "#":
                return Value((Run(str(len(arguments)), 0),))
            if name.isdigit() and name != "0":
                return arguments[int(name) - 1] if int(name) <= len(arguments) else None
        array, _, index = name.removesuffix("]").partition("[")
        elements = self._elements(array) or ()
        if not _INDEX.fullmatch(index):
            return None
        place = int(index or 0) + (len(elements) if index.startswith("-") else 0)
        return elements[place] if 0 <= place < len(elements) else None

    def _elements(self, name: str) -> list[Value] | None:
        """Elements of an array, or the one value; none of what is unset; None where the script doesn't say."""
        return [self.scalars[name]] if name in self.scalars else self.arrays.get(name)

    def number(self, expression: str, offset: int) -> int | None:
        """The value of an arithmetic expression; None where it rests on something unknown.

        Raises SpecError with line and column where it can't be read.
        """

        def value_of(name: str) -> int | None:
            value = self.known(name)
            if value is None or value.unknown:
                return None
            text = value.text.strip()
            return int(text) if text.removeprefix("-").isdigit() and len(text) <= 20 else None

        self.work(10 * len(expression))
        try:
            return evaluate(expression, value_of)
        except UnknownOperandError:
            return None
        except UnreadableError:
            self.refused.append((offset, f"(({expression[:50]}))"))
            return None
        except ExpressionError as error:
            raise self.source.error(offset, Message("common.place", place="((...))", message=error.args[0])) from error

    def _expanded(self, parts: tuple[Part, ...], builder: WordBuilder) -> list[Value]:
        self.work(10 + 10 * len(parts))
        for part in parts:
            self._expand(part, builder)
        return self._count(builder.finish())

    def _expand(self, part: Part, builder: WordBuilder) -> None:
        if isinstance(part, Parameter):
            self._parameter(part, builder)
            return
        if isinstance(part, Text) and not (builder.splits and not part.quoted and _BRACES.search(part.text)):
            run = Run(part.text, part.offset)
        elif isinstance(part, Arithmetic):
            number = self.number(part.expression, part.offset)
            hole = "" if number is not None else f"$(({part.expression[:60]}))"
            run = Run("" if number is None else str(number), part.offset, hole)
        elif isinstance(part, Refused) and (output := self.printed(part.source)) is not None:
            run = Run(output, part.offset)
        else:
            source = part.text if isinstance(part, Text) else part.source
            self.refused.append((part.offset, source))
            run = Run("", part.offset, source[:60])
        if not part.quoted:
            builder.split(Value((run,)))
        else:
            builder.add([run]) if run.text or run.unknown else builder.begin()

    def _parameter(self, part: Parameter, builder: WordBuilder) -> None:
        values, kind = self._values(part), part.operator[-1:]
        null = not values or (len(part.operator) > 1 and not joined(values).text)
        if kind in {"-", "+"} and null == (kind == "-"):
            kept, builder.kept = builder.kept, builder.kept or part.quoted
            for each in part.operand:
                self._expand(each, builder)
            builder.kept = kept
            return
        if kind == "+":
            values = [Value()] if values else []
        elif kind == "=" and null:
            values = self._expanded(part.operand, WordBuilder(splits=False))
            self.assign(part.name, values[0], appends=False)
        elif values is None:
            values = [Value((Run("", part.offset, f"${part.name}"),))]
        elif kind == ":":
            values = self._slice(part, values)
        elif kind == "#":
            values = [self._length(part, values)]
        self._count(values)
        if part.quoted and part.every != "@":
            builder.add(joined(values, self._separators()[:1] if part.every == "*" else " ").runs)
        elif part.quoted and not values:
            builder.vanish()
        else:
            for index, value in enumerate(values):
                if index:
                    builder.cut()
                if part.quoted:
                    builder.begin(element=True)
                    builder.add(value.runs)
                else:
                    builder.split(value, self._separators())

    def _separators(self) -> str:
        """Characters of IFS: what elements are joined by and fields are cut at."""
        given = self.known("IFS")
        return BLANKS if given is None or given.unknown else given.text

    def _values(self, part: Parameter) -> list[Value] | None:
        """Elements or the one value; none of what is unset; None where the script doesn't say."""
        if not part.every and (value := self.known(part.name)) is not None:
            return [value]
        array = "@" if part.name.isdigit() and part.name != "0" else part.name.partition("[")[0]
        elements = self._elements(array)
        self.work(10 * len(elements or ()) if part.every else 0)
        return None if elements is None else [*elements] if part.every else []

    def _length(self, part: Parameter, values: list[Value]) -> Value:
        """Number of elements, or of characters."""
        self.work(10 * len(values))
        whole = joined(values)
        hole = f"${{#{part.name}}}" if whole.unknown and not part.every else ""
        return Value((Run("" if hole else str(len(values if part.every else whole.text)), part.offset, hole),))

    def _slice(self, part: Parameter, values: list[Value]) -> list[Value]:
        """Elements, or characters, from an offset on: all, or as many as the length says."""
        self.work(10 * len(values))
        (operand,), text = self._expanded(part.operand, WordBuilder(splits=False)), joined(values).text
        hole = Value((Run("", part.offset, f"${part.name}"),))
        bounds = [self.number(word, part.offset) if word.strip() else 0 for word in operand.text.split(":", 1)]
        if None in bounds or (not part.every and any(value.unknown for value in values)):
            return [hole]
        start, length = bounds[0] or 0, bounds[1] if len(bounds) > 1 else None
        elements = [Value((Run("", part.offset, "$0"),)), *values] if part.name in {"@", "*"} else values
        size = len(elements) if part.every else len(text)
        start += size if start < 0 else 0
        end = size if length is None else length + (start if length >= 0 else size)
        if not 0 <= start <= size:
            return []
        if end < start:
            return [hole] if size else []
        return elements[start:end] if part.every else [Value((Run(text[start:end], part.offset),))]

    def _count(self, values: list[Value]) -> list[Value]:
        self.work(sum(value.size for value in values))
        return values


def _keyed(value: Value) -> tuple[str, Value] | None:
    """Key and value of an array's element that is written `[key]=value`."""
    match = _KEYED.match(value.runs[0].text) if value.runs else None
    if match is None:
        return None
    first = value.runs[0]
    rest = Run(first.text[match.end() :], first.offset + match.end())
    return match[1], Value((rest, *value.runs[1:]) if rest.text else value.runs[1:])
