"""The small language of rules and features: arithmetic and comparisons over axes, read as numpy masks.

A condition is text such as "pp * vpp <= layers" or "schedule == adaptive_pipe". Names are axes of the candidates or
facts of the spec; a bare word that names a schedule, dispatcher or algorithm is that choice. Values of launch flags are
said in it too: "min(hot_experts, experts // ep)".
"""

from __future__ import annotations

import ast
import threading
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

import numpy as np

from autodeploy.messages import Message

Values = Mapping[str, Any]

_BINARY: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: np.add,
    ast.Sub: np.subtract,
    ast.Mult: np.multiply,
    ast.FloorDiv: np.floor_divide,
    ast.Mod: np.mod,
}
_COMPARE: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
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
        raise ValueError(Message("stack.not_expression", text=repr(text))) from error


@lru_cache(maxsize=1024)
def names(text: str) -> frozenset[str]:
    """Names an expression reads."""
    tree = ast.walk(_parse(text))
    return frozenset(node.id for node in tree if isinstance(node, ast.Name)) - _FUNCTIONS


@lru_cache(maxsize=1024)
def conjuncts(text: str) -> tuple[str, ...]:
    """Conditions that must all hold for the expression to hold: it, cut at its outermost `and`."""
    tree = _parse(text)
    if isinstance(tree, ast.BoolOp) and isinstance(tree.op, ast.And):
        return tuple(part for value in tree.values for part in conjuncts(ast.unparse(value)))
    return (text,)


def evaluate(text: str, values: Values) -> Any:
    """Value of an expression, elementwise over arrays.

    Raises
    ------
    KeyError
        if it names something that `values` does not hold.
    ValueError
        if it uses anything but + - * // %, min, max, comparisons, and, or, not.
    """
    return _visit(_parse(text), values)


def _visit(node: ast.expr, values: Values) -> Any:
    match node:
        case ast.Constant(value=bool() | int() | float()):
            return node.value
        case ast.Name(id=name):
            return values[name]
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
            return _BINARY[type(op)](_visit(left, values), _visit(right, values))
        case ast.Call(func=ast.Name(id=("min" | "max") as name), args=[first, second], keywords=[]):
            choose = np.minimum if name == "min" else np.maximum
            return choose(_visit(first, values), _visit(second, values))
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return np.logical_not(_visit(operand, values))
        case ast.BoolOp(op=op, values=parts):
            combine = np.logical_and if isinstance(op, ast.And) else np.logical_or
            result = _visit(parts[0], values)
            for part in parts[1:]:
                result = combine(result, _visit(part, values))
            return result
        case ast.Compare(left=left, ops=ops, comparators=comparators):
            terms = [_visit(left, values), *(_visit(c, values) for c in comparators)]
            result = np.bool_(True)
            for operator, first, second in zip(ops, terms, terms[1:], strict=False):
                if type(operator) not in _COMPARE:
                    raise ValueError(Message("stack.rule_cannot_use", name=type(operator).__name__))
                result = np.logical_and(result, _COMPARE[type(operator)](first, second))
            return result
    raise ValueError(Message("stack.rule_cannot_use", name=type(node).__name__))
