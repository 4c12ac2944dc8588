"""Attention over a ring: pieces of whole sequences are joined by operators of their own, and widths of padded heads."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.support.accounting.positions import one_product

if TYPE_CHECKING:
    from tests.support.accounting.layer import Account
    from tests.support.accounting.run import Run


def widths(r: Run) -> tuple[int, int]:
    """Query and value heads as the kernel gets them: V is padded to Q's width, or all to a multiple of 128."""
    if "rect_fa" in r.on or r.qk == r.value:
        return r.qk, r.value
    wide = -(-max(r.qk, r.value) // 128) * 128 if "padded_heads" in r.on else r.qk
    return wide, wide


def pad(a: Account, heads: float) -> None:
    """Keys joined of two parts; values widened, or all three and the output cut back."""
    r = a.run
    wide, value = widths(r)
    widened = 2 * (r.qk - r.value)
    if wide > r.qk:
        widened = 2 * (r.qk + wide) + (r.value + value) + 2 * r.value
    moved = 2 * a.tokens * heads * (2 * r.qk + widened)
    a.vector("concat_and_pad", "attention", moved, moved, 3, moves=True)


def join(a: Account, heads: float, key_value: float) -> None:
    """Operators after the attention of each step but the first: of whole rows, or of half of them half of the time.

    Eight numbers of 4 bytes a row and head go through a maximum, two differences, two products, a sum, two quotients
    (two in, one out) and two powers (one in, one out). Both scales are written as wide as the output, brought in its
    order, multiplied with an output in 16 bits, added up and cast; half of the output is copied back half of the time.
    """
    r, steps = a.run, a.d.cp // a.d.ulysses - 1
    if not (steps and one_product(r)):
        return
    if not r.copies_heads:
        _add_up(a, steps, heads, key_value)
        return
    rows = (1 + 1 / 2) / 2
    out, statistics = heads * r.value, heads * 8 * 4 * (8 * 3 + 2 * 2)
    joined = 2 * (4 + 4 + 4) + 2 * (2 + 4 + 4) + 3 * 4 + (4 + 2)
    forward = rows * (joined * out + statistics) + (2 + 2) / 4 * out
    backward = rows * (2 + 2 + 2) * (heads * r.qk + key_value)
    calls = (steps * (10 + 4 + 4 + 1 + 3 / 2) + 3, steps * 4 + 12)
    a.vector(
        "ring_update", "attention", steps * a.tokens * forward, steps * a.tokens * backward, 2 * steps, calls=calls
    )


def _add_up(a: Account, steps: int, heads: float, key_value: float) -> None:
    """Outputs of pieces weighted and added up behind the last step; the ranks' mean of whole rows and halves."""
    ranks = range(steps + 1)
    whole = sum((p + 1) + (steps - p) / 2 for p in ranks) / (steps + 1)
    forward = (2 + 2 + 2) * whole * heads * a.run.value
    backward = ((2 + 2) + steps * (2 + 2 + 2) * (1 + 1 / 2) / 2) * (heads * a.run.qk + key_value)
    a.vector("ring_update", "attention", a.tokens * forward, a.tokens * backward, steps + 1)


def hooks_beside(r: Run) -> int:
    """Parameters of attention beside its two products: a norm and a product of each latent, or two norms of heads."""
    if r.kv_lora_rank:
        return 2 + (2 if r.q_lora_rank else 1)  # without a latent of queries their product is beside the latent's down
    return 2 if r.qk_norm else 0
