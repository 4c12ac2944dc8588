"""Accumulation of a weight's gradient over micro batches: by the product that makes it, or an operator of its own.

Plain products of MindSpeed, Megatron-LM and compiled graphs add in their epilogue unless
`--no-gradient-accumulation-fusion` is given (Megatron-LM, training/arguments.py: on by default). MindSpeed's grouped
product of experts does so only with `--gemm-gradient-accumulation-fusion`, off by default, whatever the other flag says
(Ascend/MindSpeed @028de58c, features_manager/moe/gmm.py, core/transformer/moe/grouped_matmul_util.py,
fb_overlap/modules/weight_grad_store.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Collection

PLAIN_APART: Final = "unfused_gradient_accumulation"  # plain products leave their sums to an operator
EXPERTS_APART: Final = "unfused_expert_accumulation"
EXPERTS_FUSED: Final = "fused_expert_accumulation"  # although plain products are not
WORDS: Final = frozenset({PLAIN_APART, EXPERTS_APART, EXPERTS_FUSED})
NO_FUSION: Final = "--no-gradient-accumulation-fusion"
EXPERT_FUSION: Final = "--gemm-gradient-accumulation-fusion"


def in_mindspeed(grouped: bool, *, plain_apart: bool, experts_fused: bool) -> frozenset[str]:
    """The words for a MindSpeed launch with experts or without.

    grouped : experts are one grouped product. plain_apart, experts_fused : the two flags.
    """
    ways = {PLAIN_APART} if plain_apart else set[str]()
    if grouped and not experts_fused:
        ways.add(EXPERTS_APART)
    elif grouped and plain_apart:
        ways.add(EXPERTS_FUSED)
    return frozenset(ways)


def expert_sums_apart(words: Collection[str]) -> bool:
    """Whether experts' products do."""
    return EXPERTS_APART in words or (PLAIN_APART in words and EXPERTS_FUSED not in words)
