"""Whole-number expressions of `$((...))` and `((...))`: + - * / % **, comparisons, && and ||, brackets."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from autodeploy.importers.bounds import MAX_DEPTH
from autodeploy.messages import Message
from autodeploy.messages.field_faults import quoted

if TYPE_CHECKING:
    from collections.abc import Callable

_TOKEN = re.compile(r"\s*(?:(\d+)|\$?\{?([A-Za-z_]\w*(?:\[\w+\])?)\}?|(\|\||&&|\*\*|[<>=!]=|[-+*/%<>!()]))")
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

    Raises
    ------
    UnknownOperandError
        with the name that has no value.
    UnreadableError
        when it uses operators that are not followed.
    ExpressionError
        when it is not an expression, divides by zero or leaves 64 bits.
    """
    if len(expression) > MAX_LENGTH:
        raise ExpressionError(Message("field_fault.at_most_characters", bound=f"{MAX_LENGTH:,}"))
    parser = _Parser(_tokens(expression), value_of)
    result = parser.level(0)
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
            raise ExpressionError(Message("profiles.nested_more_than_levels_deep", depth=MAX_DEPTH))
        try:
            if token in {"-", "+", "!"}:
                value = self.operand()
                return -value if token == "-" else value if token == "+" else int(not value)
            if token == "(":
                value = self.level(0)
                if not self.tokens or self.tokens.pop(0) != ")":
                    raise ExpressionError(Message("common.missing", word="')'"))
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
