"""The language and the application of legality rules, whatever the expression and the candidates."""

from __future__ import annotations

import ast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autodeploy.stack.expression import evaluate, names
from tests.support.examples import examples

MANY = settings(max_examples=examples(30))
AXES = {"tp": [1, 2, 4, 8], "pp": [1, 3, 5, 7], "ep": [2, 2, 6, 9], "layers": [61] * 4}
ALLOWED = (
    *(ast.Expression, ast.BoolOp, ast.And, ast.Or, ast.UnaryOp, ast.Not, ast.BinOp, ast.Compare, ast.Name, ast.Load),
    *(
        ast.Add,
        ast.Sub,
        ast.Mult,
        ast.FloorDiv,
        ast.Mod,
        ast.Eq,
        ast.NotEq,
        ast.Lt,
        ast.LtE,
        ast.Gt,
        ast.GtE,
        ast.Constant,
    ),
)

numbers = st.one_of(st.sampled_from(sorted(AXES)), st.integers(0, 100).map(str))
arithmetic = st.recursive(
    numbers,
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from(["+", "-", "*"]), inner).map(lambda p: f"({p[0]} {p[1]} {p[2]})"),
        st.tuples(inner, st.sampled_from(["//", "%"]), st.sampled_from(["tp", "pp", "ep", "7"])).map(
            lambda p: f"({p[0]} {p[1]} {p[2]})"
        ),
    ),
    max_leaves=6,
)
comparisons = st.lists(arithmetic, min_size=2, max_size=3).flatmap(
    lambda terms: st.lists(
        st.sampled_from(["==", "!=", "<", "<=", ">", ">="]), min_size=len(terms) - 1, max_size=len(terms) - 1
    ).map(lambda signs: terms[0] + "".join(f" {sign} {term}" for sign, term in zip(signs, terms[1:], strict=True)))
)
conditions = st.recursive(
    comparisons,
    lambda inner: st.one_of(
        inner.map(lambda c: f"not ({c})"),
        st.lists(inner, min_size=2, max_size=3).map(lambda cs: " and ".join(f"({c})" for c in cs)),
        st.lists(inner, min_size=2, max_size=3).map(lambda cs: " or ".join(f"({c})" for c in cs)),
    ),
    max_leaves=5,
)


@MANY
@given(conditions)
def test_an_expression_means_what_python_means_for_each_candidate(text: str) -> None:
    values = {name: np.array(column, dtype=np.int64) for name, column in AXES.items()}
    mask = np.broadcast_to(np.asarray(evaluate(text, values), dtype=bool), (4,))
    tree = compile(text, "<rule>", "eval")
    for index in range(4):
        row = {name: column[index] for name, column in AXES.items()}
        assert bool(mask[index]) == bool(eval(tree, {"__builtins__": {}}, row))  # the reference


@MANY
@given(conditions)
def test_names_are_those_of_the_tree(text: str) -> None:
    assert names(text) == {n.id for n in ast.walk(ast.parse(text, mode="eval")) if isinstance(n, ast.Name)}


frames = st.sampled_from(["{0} and {1} == 1", "({1}) == 1 or {0}", "not ({1})", "1 + ({1}) < 5"])
foreign = st.sampled_from(
    [
        "{0}.real",
        "{0}[0]",
        "abs({0})",
        "-{0}",
        "+{0}",
        "~{0}",
        "{0} ** 2",
        "{0} / 2",
        "{0} << 1",
        "{0} | 1",
        "{0} if {0} else 1",
        "lambda: {0}",
        "[{0}]",
        "({0}, 1)",
        "{{{0}}}",
        "{{{0}: 1}}",
        "f'{{{0}}}'",
        "'text'",
        "None",
        "{0} in {0}",
        "{0} is {0}",
        "[t for t in {0}]",
    ]
)


@MANY
@given(comparisons, foreign, st.sampled_from(sorted(AXES)), frames)
def test_one_foreign_part_is_enough_to_refuse_a_rule(good: str, shape: str, name: str, frame: str) -> None:
    text = frame.format(good, f"({shape.format(name)})")
    tree = ast.parse(text, mode="eval")
    outside = [n for n in ast.walk(tree) if not isinstance(n, ALLOWED)]
    constants = [n for n in ast.walk(tree) if isinstance(n, ast.Constant) and not isinstance(n.value, int | float)]
    assert outside or constants, "the part is outside the grammar"
    with pytest.raises(ValueError, match="a rule cannot use"):
        evaluate(text, {n: np.array(c) for n, c in AXES.items()})


@MANY
@given(st.text(max_size=20))
def test_arbitrary_text_is_evaluated_within_the_grammar_or_refused(text: str) -> None:
    try:
        evaluate(text, {name: np.array(column) for name, column in AXES.items()})
    except (ValueError, SyntaxError, KeyError):
        return
    tree = ast.parse(text, mode="eval")
    assert all(isinstance(node, ALLOWED) for node in ast.walk(tree))
