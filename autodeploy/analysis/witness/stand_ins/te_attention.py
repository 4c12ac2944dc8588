"""Stand-ins for Transformer Engine's attention, with context parallelism, and what goes with it.

Kept: queries, keys, values, output, one FP32 number a row and head and the state of two 64-bit random numbers
(NVIDIA/TransformerEngine @d0067d0d pytorch/attention/dot_product_attention/backends.py, context_parallel.py). A ring
passes keys and values on in the forward pass, and them and their gradients in the backward pass; all-to-all exchanges
each of queries, keys, values and output once a pass.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from .fused import attended, attention_gradients


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Any, k: Any, v: Any, owner: Any, batch_first: bool) -> Any:
        owner.send_forward(k, v)
        whole = owner.exchanged((q, k, v))
        out, sums = attended(*(_heads(t, batch_first) for t in whole), owner.scale)
        out = _rows(out, batch_first).to(q.dtype).contiguous()
        (out,) = owner.returned((out,), q.shape[:-1])
        kept = whole if owner.exchanges else (q, k, v)
        ctx.save_for_backward(*kept, out, sums, torch.zeros(2, dtype=torch.int64))
        ctx.owner, ctx.batch_first, ctx.shapes = owner, batch_first, tuple(t.shape for t in (q, k, v))
        return out

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        q, k, v, *_ = ctx.saved_tensors
        owner, batch_first = ctx.owner, ctx.batch_first
        owner.send_backward(k, v)
        (g,) = owner.exchanged((g.contiguous(),))
        heads = tuple(_heads(t, batch_first) for t in (g, q, k, v))
        found = tuple(_rows(t, batch_first).contiguous() for t in attention_gradients(*heads, owner.scale))
        back = owner.returned(found, None)
        return *(one.view(shape) for one, shape in zip(back, ctx.shapes, strict=True)), None, None


def _heads(t: Any, batch_first: bool) -> Any:
    if t.dim() == 3:
        return t.permute(1, 0, 2)[None]
    return t.permute(0, 2, 1, 3) if batch_first else t.permute(1, 2, 0, 3)


def _rows(t: Any, batch_first: bool) -> Any:
    return t.permute(0, 2, 1, 3) if batch_first else t.permute(2, 0, 1, 3)


class DotProductAttention(torch.nn.Module):
    """transformer_engine.pytorch.DotProductAttention: causal, without dropout."""

    def __init__(self, num_attention_heads: int, kv_channels: Any, softmax_scale: Any = None, **named: Any):
        super().__init__()
        k_width = kv_channels[0] if isinstance(kv_channels, tuple) else kv_channels
        self.scale = softmax_scale if softmax_scale is not None else k_width**-0.5
        self.qkv_format = named.get("qkv_format", "sbhd")
        self.set_context_parallel_group(
            named.get("cp_group"), named.get("cp_global_ranks"), None, named.get("cp_comm_type") or "p2p"
        )

    def set_context_parallel_group(self, group: Any, ranks: Any, stream: Any, kind: str = "p2p") -> None:
        """Takes a group; of a hierarchy the inner group exchanges, the outer one is a ring."""
        exchange, ring = None, None
        if isinstance(group, (list, tuple)) and kind == "a2a+p2p":
            exchange, ring = group[0], group[1]
        elif kind == "a2a":
            exchange = group
        else:
            ring = group
        self.exchange_group, self.ring_group, self.cp_comm_type = exchange, ring, kind
        self.exchanges = (dist.get_world_size(exchange) if exchange is not None else 1) > 1
        self.ring = dist.get_world_size(ring) if ring is not None else 1

    def forward(self, query: Any, key: Any, value: Any, attention_mask: Any = None, **named: Any) -> Any:
        """Attention, its heads joined."""
        layout = named.get("qkv_format", self.qkv_format)
        out = _Attention.apply(query, key, value, self, layout == "bshd")
        return out.reshape(*out.shape[:-2], -1)

    def send_forward(self, k: Any, v: Any) -> None:
        """Keys and values to the next rank of the ring, from the one before."""
        if self.ring > 1 and self.cp_comm_type == "all_gather":
            for t in (k, v):
                dist.all_gather_into_tensor(
                    t.new_empty((self.ring * t.shape[0], *t.shape[1:])), t.contiguous(), self.ring_group
                )
        else:
            for _ in range(self.ring - 1):
                self._pass_on(torch.cat((k.reshape(-1), v.reshape(-1))))

    def send_backward(self, k: Any, v: Any) -> None:
        """Keys and values again, and their gradients beside them one step later."""
        both = torch.cat((k.reshape(-1), v.reshape(-1)))
        if self.ring > 1 and self.cp_comm_type == "all_gather":
            for t in (k, v):
                dist.all_gather_into_tensor(
                    t.new_empty((self.ring * t.shape[0], *t.shape[1:])), t.contiguous(), self.ring_group
                )
            for t in (k, v):
                whole = t.new_empty((self.ring * t.shape[0], *t.shape[1:]))
                dist.reduce_scatter_tensor(torch.empty_like(t), whole, group=self.ring_group)
            return
        for step in range(self.ring if self.ring > 1 else 0):
            self._pass_on(both if step in (0, self.ring - 1) else torch.stack((both, both)))

    def _pass_on(self, tensor: Any) -> None:
        ranks = dist.get_process_group_ranks(self.ring_group)
        place = dist.get_rank(self.ring_group)
        after, before = ranks[(place + 1) % len(ranks)], ranks[place - 1]
        sending = dist.P2POp(dist.isend, tensor, after, self.ring_group)
        receiving = dist.P2POp(dist.irecv, torch.empty_like(tensor), before, self.ring_group)
        dist.batch_isend_irecv([sending, receiving])

    def exchanged(self, tensors: tuple[Any, ...]) -> tuple[Any, ...]:
        """Fewer heads of more rows, where heads are exchanged."""
        if not self.exchanges:
            return tensors
        return tuple(self._swapped(t, more_rows=True) for t in tensors)

    def returned(self, tensors: tuple[Any, ...], shape: Any) -> tuple[Any, ...]:
        """All heads of the rank's own rows again."""
        if not self.exchanges:
            return tensors
        return tuple(self._swapped(t, more_rows=False) for t in tensors)

    def _swapped(self, t: Any, *, more_rows: bool) -> Any:
        size = dist.get_world_size(self.exchange_group)
        rows, heads, width = t.shape[0], t.shape[-2], t.shape[-1]
        out = torch.empty_like(t)
        dist.all_to_all_single(out, t.contiguous(), group=self.exchange_group)
        if more_rows:
            return out.reshape(rows * size, *t.shape[1:-2], heads // size, width)
        return out.reshape(rows // size, *t.shape[1:-2], heads * size, width)


class SplitAlongDim(torch.autograd.Function):
    """Cuts a tensor and joins its gradients; keeps nothing."""

    @staticmethod
    def forward(ctx: Any, x: Any, dim: int, sizes: Any) -> Any:
        ctx.dim = dim
        return x.split(sizes, dim)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return torch.cat(gradients, ctx.dim), None, None


def checkpoint(function: Any, *args: Any, **named: Any) -> Any:
    """Computes again in the backward pass, as the framework's own checkpoint does."""
    from megatron.core.tensor_parallel.random import CheckpointFunction

    for word in ("get_rng_state_tracker", "tp_group", "use_reentrant"):
        named.pop(word, None)
    distribute = named.pop("distribute_saved_activations", False)
    return CheckpointFunction.apply(lambda *given: function(*given, **named), distribute, *args)
