"""The small language of rules and features: arithmetic and comparisons over axes, read as numpy masks.

A condition is text such as "pp * vpp <= layers" or "schedule == adaptive_pipe". Names are axes of the candidates or
facts of the spec; a bare word that names a schedule, dispatcher or algorithm is that choice. Values of launch flags are
said in it too: "min(hot_experts, experts // ep)".
"""

from __future__ import annotations

import ast
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, reduce
from operator import itemgetter
from typing import Any

import numpy as np

Values = Mapping[str, Any]

_COMBINED: dict[type[ast.operator | ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Add: np.add,
    ast.Sub: np.subtract,
    ast.Mult: np.multiply,
    ast.FloorDiv: np.floor_divide,
    ast.Mod: np.mod,
    ast.Eq: np.equal,
    ast.NotEq: np.not_equal,
    ast.Lt: np.less,
    ast.LtE: np.less_equal,
    ast.Gt: np.greater,
    ast.GtE: np.greater_equal,
}


_FUNCTIONS = frozenset({"min", "max"})
# CPython 3.11 counts the depth of a syntax tree once for all threads. Where the garbage collector hands over in the
# middle of one, another thread's tree ends in "SystemError: AST constructor recursion depth mismatch".
_PARSER = threading.Lock()


@lru_cache(maxsize=1024)
def _parse(text: str) -> ast.expr:
    try:
        with _PARSER:
            return ast.parse(text, mode="eval").body
    except SyntaxError as error:
        raise ValueError(f"not an expression: {text!r}") from error


@lru_cache(maxsize=1024)
def names(text: str) -> frozenset[str]:
    """Names that an expression reads, of no text none."""
    tree = ast.walk(_parse(text)) if text else ()
    return frozenset(node.id for node in tree if isinstance(node, ast.Name)) - _FUNCTIONS


@lru_cache(maxsize=1024)
def conjuncts(text: str) -> tuple[str, ...]:
    """Conditions that must all hold for the expression to hold: it, cut at its outermost `and`."""
    tree = _parse(text)
    if isinstance(tree, ast.BoolOp) and isinstance(tree.op, ast.And):
        return tuple(part for value in tree.values for part in conjuncts(ast.unparse(value)))
    return (text,)


def is_met(require: str, when: str, values: Values) -> Any:
    """Whether what is required holds wherever `when` does, elementwise; empty: everywhere."""
    met = evaluate(require, values)
    return np.logical_or(met, np.logical_not(evaluate(when, values))) if when else met


def evaluate(text: str, values: Values) -> Any:
    """Value of an expression, elementwise over arrays.

    Raises KeyError if it names something that `values` does not hold; ValueError if it uses anything but + - * // %,
    min, max, comparisons, and, or, not.
    """
    return _meaning_of(text)(values)


@lru_cache(maxsize=1024)
def _meaning_of(text: str) -> Callable[[Values], Any]:
    return _meaning(_parse(text))


def _meaning(node: ast.expr) -> Callable[[Values], Any]:
    """Function of an expression's value: made once, asked with other values again and again."""
    match node:
        case ast.Constant(value=bool() | int() | float() as constant):
            return lambda values: constant
        case ast.Name(id=name):
            return itemgetter(name)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _COMBINED:
            return _joined(_COMBINED[type(op)], [left, right])
        case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in _COMBINED:
            return _joined(_COMBINED[type(op)], [left, right])
        case ast.Compare(left=left, ops=[op, *ops], comparators=[middle, *others]) if ops:
            return _joined(np.logical_and, [ast.Compare(left, [op], [middle]), ast.Compare(middle, ops, others)])
        case ast.Call(func=ast.Name(id=("min" | "max") as name), args=[first, second], keywords=[]):
            return _joined(np.minimum if name == "min" else np.maximum, [first, second])
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            term = _meaning(operand)
            return lambda values: np.logical_not(term(values))
        case ast.BoolOp(op=op, values=parts):
            return _joined(np.logical_and if isinstance(op, ast.And) else np.logical_or, parts)
    raise ValueError(f"a rule cannot use {type(node).__name__}")


def _joined(combine: Callable[[Any, Any], Any], nodes: Sequence[ast.expr]) -> Callable[[Values], Any]:
    """Terms joined from left to right."""
    first, *others = map(_meaning, nodes)

    return lambda values: reduce(combine, (other(values) for other in others), first(values))
