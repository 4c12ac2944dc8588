"""Stand-ins for Transformer Engine's permutations of tokens, by routing map: each keeps its map of rows alone.

NVIDIA/TransformerEngine @d0067d0d pytorch/triton/permutation.py:52 (2 x experts + 1 numbers a token), 381.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch


def _places(routing_map: Any) -> SimpleNamespace:
    """Expert and token of each row: the same as the map of rows, which alone is kept."""
    return SimpleNamespace(pair=routing_map.bool().t().nonzero(as_tuple=True))


class _Permute(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any, probs: Any, routing_map: Any) -> Any:
        rows = torch.zeros(x.shape[0], 2 * routing_map.shape[1] + 1, dtype=torch.int32)
        rows.places = _places(routing_map)
        experts, tokens = rows.places.pair
        ctx.save_for_backward(rows)
        ctx.places, ctx.shape = rows.places, x.shape
        ctx.probs_shape = None if probs is None else probs.shape
        ctx.mark_non_differentiable(rows)
        ctx.set_materialize_grads(False)
        return x[tokens], None if probs is None else probs[tokens, experts], rows

    @staticmethod
    def backward(ctx: Any, g: Any, gp: Any, _: Any) -> Any:
        experts, tokens = ctx.places.pair
        dx = g.new_zeros(ctx.shape).index_add_(0, tokens, g)
        dp = None
        if gp is not None and ctx.probs_shape is not None:
            dp = gp.new_zeros(ctx.probs_shape)
            dp[tokens, experts] = gp
        return dx, dp, None


class _Unpermute(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any, rows: Any, probs: Any, shape: Any, places: Any) -> Any:
        experts, tokens = places.pair
        ctx.places = places
        ctx.save_for_backward(*((rows,) if probs is None else (x, rows, probs)))
        scaled = x if probs is None else x * probs[tokens, experts][:, None].to(x.dtype)
        return x.new_zeros(tuple(shape)).index_add_(0, tokens, scaled)

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        experts, tokens = ctx.places.pair
        dx = g[tokens]
        if len(ctx.saved_tensors) == 1:
            return dx, None, None, None, None
        x, _, probs = ctx.saved_tensors
        dp = torch.zeros_like(probs)
        dp[tokens, experts] = (dx * x).sum(-1).to(dp.dtype)
        return dx * probs[tokens, experts][:, None].to(dx.dtype), None, dp, None, None


class _Sort(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any, probs: Any, sizes: Any, order: Any) -> Any:
        chunks = torch.arange(x.shape[0], dtype=torch.int32).split(sizes.tolist())
        rows = torch.cat([chunks[place] for place in order.tolist()])
        ctx.save_for_backward(rows)
        ctx.set_materialize_grads(False)
        return x[rows.long()], None if probs is None else probs[rows.long()]

    @staticmethod
    def backward(ctx: Any, g: Any, gp: Any) -> Any:
        back = ctx.saved_tensors[0].long().argsort()
        return g[back], None if gp is None else gp[back], None, None


def _permute_with_probs(inp: Any, probs: Any, routing_map: Any, num_out_tokens: int = -1, **_: Any) -> Any:
    out, permuted, rows = _Permute.apply(inp, probs, routing_map)
    rows.places = _places(routing_map)
    return out, permuted, rows


def _permute(inp: Any, routing_map: Any, num_out_tokens: int = -1, map_type: str = "mask", **_: Any) -> Any:
    out, _, rows = _permute_with_probs(inp, None, routing_map)
    return out, rows


def _unpermute(
    inp: Any, row_id_map: Any, merging_probs: Any = None, restore_shape: Any = None, map_type: str = "mask", **_: Any
) -> Any:
    return _Unpermute.apply(inp, row_id_map, merging_probs, restore_shape, row_id_map.places)


def _sort(inp: Any, split_sizes: Any, sorted_index: Any) -> Any:
    return _Sort.apply(inp, None, split_sizes, sorted_index)[0]


def _sort_with_probs(inp: Any, probs: Any, split_sizes: Any, sorted_index: Any) -> Any:
    return _Sort.apply(inp, probs, split_sizes, sorted_index)


FUNCTIONS: dict[str, Any] = {
    "moe_permute": _permute,
    "moe_permute_with_probs": _permute_with_probs,
    "moe_unpermute": _unpermute,
    "moe_sort_chunks_by_index": _sort,
    "moe_sort_chunks_by_index_with_probs": _sort_with_probs,
}
