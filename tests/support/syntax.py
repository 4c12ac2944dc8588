"""All nodes of a module's syntax tree, for tests that read hundreds of modules: sooner than by `ast.walk`."""

from __future__ import annotations

import ast

PLAIN = frozenset({int, str, type(None), ast.Load, ast.Store, ast.Del})


def nodes(tree: ast.AST) -> list[ast.AST]:
    """A tree's nodes in the order of `ast.walk`, without those that say whether a name is read or written."""
    found = [tree]
    for node in found:  # it grows meanwhile
        for value in vars(node).values():
            kind = type(value)
            if kind is list:
                found += [each for each in value if isinstance(each, ast.AST)]
            elif kind not in PLAIN and isinstance(value, ast.AST):
                found.append(value)
    return found
