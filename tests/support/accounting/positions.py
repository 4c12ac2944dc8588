"""Positions of queries and keys: their rotation, and the tables that it keeps."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.support.accounting.layer import Account
    from tests.support.accounting.run import Run


def rotary(a: Account, elements: float) -> None:
    """In and out once; unfused: negated half, joined halves, two products, their sum, of queries and of keys."""
    if "unfused_rotary" in a.run.on:
        moved = ((2 + 2) / 2 + (2 + 2) + 2 * (2 + 2) + (2 + 2 + 2)) * elements
        a.vector("rotary", "attention", moved, moved, 2 * 5)
    else:
        a.vector("rotary", "attention", (2 + 2) * elements, (2 + 2) * elements, 2)


def one_product(r: Run) -> bool:
    """Queries, keys and values come from one product: not in PyTorch's own models, nor in MindFormers'."""
    return not r.on & {"torch_fsdp2", "graph_mode"}


def tables(a: Account, width: float) -> None:
    """Cosine and sine of each position, for queries and for keys: of every layer but where a kernel keeps angles."""
    if one_product(a.run) and (a.run.copies_heads or "unfused_rotary" in a.run.on):
        a.keep("rotary_tables", 2 * 2 * 2 * a.run.seq / a.d.cp * width)
