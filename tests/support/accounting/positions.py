"""Positions of queries and keys: their rotation, and the tables that it keeps."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.support.accounting.layer import Account
    from tests.support.accounting.run import Run


def rotates(r: Run) -> bool:
    """Positions turn queries and keys, rather than being a table's or biases of scores."""
    return not (r.learned_position_embeddings or r.alibi)


def rotary(a: Account, elements: float) -> None:
    """In and out once; unfused: negated half, joined halves, two products, their sum, of queries and of keys.

    On Ascend the host issues more, of each: cosine, sine, their scales and casts, and a join with what does not turn;
    backward a slice and a sum. Of packs angles are cut, divided, compared and joined before.
    """
    unfused = "unfused_rotary" in a.run.on
    moved = ((2 + 2) / 2 + (2 + 2) + 2 * (2 + 2) + (2 + 2 + 2) if unfused else 2 + 2) * elements
    turned = 5 if unfused else 1
    packed = 4 if a.run.keys is not None else 0
    calls = (2 * (packed + 2 * 3 + turned + 1), 2 * (turned + 3)) if one_product(a.run) and a.run.copies_heads else None
    a.vector("rotary", "attention", moved, moved, 2 * turned, calls=calls)


def one_product(r: Run) -> bool:
    """Queries, keys and values come from one product: not in PyTorch's own models, nor in MindFormers'."""
    return not r.on & {"torch_fsdp2", "graph_mode"}


def tables(a: Account, width: float, name: str = "rotary_tables") -> None:
    """Cosine and sine of each position, for queries and for keys: of every layer but where a kernel keeps angles."""
    if one_product(a.run) and (a.run.copies_heads or "unfused_rotary" in a.run.on):
        a.keep(name, 2 * 2 * 2 * a.run.seq / a.d.cp * width)
