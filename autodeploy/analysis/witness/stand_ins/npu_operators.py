"""CPU versions of torch_npu's fused operators, by what each keeps for the backward pass.

What they keep is what MindSpeed's and torch_npu's own autograd functions save: Ascend/MindSpeed @028de58c
mindspeed/ops/ (npu_rotary_position_embedding.py, gmm.py, npu_moe_token_permute.py, npu_moe_token_unpermute.py) and, of
attention, the inputs, the output and eight FP32 numbers a row and head, twice.
"""

from __future__ import annotations

from typing import Any

import torch

from .fused import RmsNorm, attended, attention_gradients

STATISTICS = 8  # numbers that attention keeps a row and head, of the maximum and of the sum


def rms_norm(x: Any, gamma: Any, epsilon: float = 1e-6) -> tuple[Any, Any]:
    """torch_npu.npu_rms_norm."""
    return RmsNorm.apply(x, gamma, epsilon), x.new_empty(0)


class _Swiglu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any, dim: int) -> Any:
        ctx.save_for_backward(x)
        ctx.dim = dim
        a, b = x.chunk(2, dim)
        return torch.nn.functional.silu(a) * b

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        a, b = ctx.saved_tensors[0].chunk(2, ctx.dim)
        s = torch.sigmoid(a)
        return torch.cat((g * b * s * (1 + a * (1 - s)), g * a * s), ctx.dim), None


def swiglu(x: Any, dim: int = -1) -> Any:
    """torch_npu.npu_swiglu."""
    return _Swiglu.apply(x, dim)


@torch.no_grad()
def swiglu_backward(g: Any, x: Any, dim: int = -1) -> Any:
    """torch_npu.npu_swiglu_backward."""
    a, b = x.chunk(2, dim)
    s = torch.sigmoid(a)
    return torch.cat((g * b * s * (1 + a * (1 - s)), g * a * s), dim)


class _Turn(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any, cos: Any, sin: Any, interleaved: bool) -> Any:
        ctx.save_for_backward(cos, sin)
        ctx.interleaved = interleaved
        return _turned(x, cos, sin, interleaved)

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        cos, sin = ctx.saved_tensors
        return _turned(g, cos, -sin, ctx.interleaved), None, None, None


def _turned(t: Any, cos: Any, sin: Any, interleaved: bool) -> Any:
    if interleaved:
        half = torch.stack((-t[..., 1::2], t[..., ::2]), -1).reshape(t.shape)
    else:
        a, b = t.chunk(2, -1)
        half = torch.cat((-b, a), -1)
    return (t * cos + half * sin).to(t.dtype)


def rotary_mul(x: Any, cos: Any, sin: Any, rotary_mode: str = "half") -> Any:
    """torch_npu.npu_rotary_mul."""
    return _Turn.apply(x, cos, sin, rotary_mode == "interleave")


def rotary_position_embedding(x: Any, cos: Any, sin: Any, mode: int = 0) -> Any:
    """The operator of MindSpeed's builder of the same name."""
    return _Turn.apply(x, cos, sin, mode == 1)


def _heads(t: Any, heads: int, layout: str) -> Any:
    if layout == "SBH":
        rows, batch, width = t.shape
        return t.reshape(rows, batch, heads, width // heads).permute(1, 2, 0, 3)
    if layout == "BSH":
        batch, rows, width = t.shape
        return t.reshape(batch, rows, heads, width // heads).permute(0, 2, 1, 3)
    if layout == "BSND":
        return t.permute(0, 2, 1, 3)
    if layout == "TND":
        return t.permute(1, 0, 2)[None]
    return t


def _rows(t: Any, like: Any, layout: str) -> Any:
    if layout == "SBH":
        return t.permute(2, 0, 1, 3).reshape(*like.shape[:2], -1)
    if layout == "BSH":
        return t.permute(0, 2, 1, 3).reshape(*like.shape[:2], -1)
    if layout == "BSND":
        return t.permute(0, 2, 1, 3)
    if layout == "TND":
        return t[0].permute(1, 0, 2)
    return t


def _key_heads(q: Any, k: Any, heads: int, layout: str) -> int:
    return int(k.shape[-1] // (q.shape[-1] // heads)) if layout in ("SBH", "BSH") else heads


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Any, k: Any, v: Any, heads: int, layout: str, scale: float) -> Any:
        few = _key_heads(q, k, heads, layout)
        parts = _heads(q, heads, layout), _heads(k, few, layout), _heads(v, few, layout)
        out, sums = attended(*parts, scale)
        out = _rows(out, q, layout).to(q.dtype).contiguous()
        top = sums.expand(*sums.shape[:-1], STATISTICS).contiguous()
        total = torch.ones_like(top)
        ctx.save_for_backward(q, k, v, out, top, total)
        ctx.rest = heads, layout, scale
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(top, total)
        return out, top, total

    @staticmethod
    def backward(ctx: Any, g: Any, *_: Any) -> Any:
        q, k, v, *_ = ctx.saved_tensors
        return *_attention_gradients(g, q, k, v, *ctx.rest), None, None, None


def _attention_gradients(g: Any, q: Any, k: Any, v: Any, heads: int, layout: str, scale: float) -> Any:
    few = _key_heads(q, k, heads, layout)
    parts = _heads(g, heads, layout), _heads(q, heads, layout), _heads(k, few, layout), _heads(v, few, layout)
    found = attention_gradients(*parts, scale)
    return tuple(
        _rows(t, like, layout).reshape(like.shape).contiguous() for t, like in zip(found, (q, k, v), strict=True)
    )


def fusion_attention(q: Any, k: Any, v: Any, head_num: int, input_layout: str, *_: Any, **named: Any) -> Any:
    """torch_npu.npu_fusion_attention: causal, without dropout."""
    scale = float(named.get("scale", named.get("scale_value", 1.0)))
    out, top, total = _Attention.apply(q, k, v, head_num, input_layout, scale)
    return out, top, total, torch.empty(0), 0, 0, 0


@torch.no_grad()
def fusion_attention_grad(q: Any, k: Any, v: Any, g: Any, head_num: int, input_layout: str, **named: Any) -> Any:
    """torch_npu.npu_fusion_attention_grad, as a ring calls it."""
    scale = float(named.get("scale_value", named.get("scale", 1.0)))
    return _attention_gradients(g, q, k, v, head_num, input_layout, scale)


def ring_attention_update(old: Any, old_top: Any, old_sum: Any, new: Any, new_top: Any, new_sum: Any, *_: Any) -> Any:
    """torch_npu.npu_ring_attention_update: shapes alone."""
    return new, new_top, new_sum


def grouped(x: Any, w: Any, ends: Any) -> Any:
    """Products of groups of rows, of which `ends` are the ends."""
    out, at = x.new_zeros(x.shape[0], w.shape[-1]), 0
    w = w.reshape(len(ends), -1, w.shape[-1]) if w.dim() == 2 else w
    for number, end in enumerate(ends):
        out[at:end] = x[at:end] @ w[number]
        at = end
    return out


def grouped_weight_gradient(x: Any, g: Any, ends: Any) -> Any:
    """Gradients of the weights of `grouped`."""
    at, out = 0, []
    for end in ends:
        out.append(x[at:end].t() @ g[at:end])
        at = end
    return torch.stack(out)


class _Permute(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any, ids: Any, count: Any) -> Any:
        taken = 1 if ids.dim() == 1 else ids.shape[1]
        order = ids.reshape(-1).argsort(stable=True)
        back = order.argsort().to(torch.int32)
        ctx.save_for_backward(back)
        ctx.rest = x.shape[0], taken
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(back)
        return x[order[: count or None] // taken], back

    @staticmethod
    def backward(ctx: Any, g: Any, _: Any) -> Any:
        (back,) = ctx.saved_tensors
        rows, taken = ctx.rest
        full = g.new_zeros(back.numel(), g.shape[-1])
        full[: g.shape[0]] = g
        return full[back.long()].view(rows, taken, -1).sum(1), None, None


def permute(x: Any, ids: Any, count: Any = None, padded: bool = False) -> Any:
    """torch_npu.npu_moe_token_permute."""
    return _Permute.apply(x, ids, count)


class _Unpermute(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any, back: Any, probs: Any) -> Any:
        ctx.save_for_backward(x, back, probs)
        full = x.new_zeros(back.numel(), x.shape[-1])
        full[: x.shape[0]] = x
        taken = probs.shape[-1] if probs is not None else 1
        rows = full[back.long()].view(-1, taken, x.shape[-1])
        return (rows * probs[..., None]).sum(1).to(x.dtype) if probs is not None else rows[:, 0]

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        x, back, probs = ctx.saved_tensors
        taken = probs.shape[-1] if probs is not None else 1
        rows = g[:, None].expand(-1, taken, -1)
        gp = None
        if probs is not None:
            full = x.new_zeros(back.numel(), x.shape[-1])
            full[: x.shape[0]] = x
            gp = (rows * full[back.long()].view(-1, taken, x.shape[-1])).sum(-1).to(probs.dtype)
            rows = rows * probs[..., None]
        gx = g.new_zeros(back.numel(), g.shape[-1])
        gx[back.long()] = rows.reshape(-1, g.shape[-1]).to(g.dtype)
        return gx[: x.shape[0]], None, gp


def unpermute(x: Any, back: Any, probs: Any = None, *_: Any, **__: Any) -> Any:
    """torch_npu.npu_moe_token_unpermute."""
    return _Unpermute.apply(x, back, probs)


def _places(routing_map: Any) -> tuple[Any, Any]:
    experts, tokens = routing_map.bool().t().nonzero(as_tuple=True)
    return experts, tokens


@torch.no_grad()
def permute_by_map(x: Any, routing_map: Any, probs: Any = None, num_out_tokens: Any = None, drop_and_pad: bool = False):
    """torch_npu.npu_moe_token_permute_with_routing_map."""
    experts, tokens = _places(routing_map)
    return x[tokens], (probs[tokens, experts] if probs is not None else x.new_empty(0)), tokens.to(torch.int32)


@torch.no_grad()
def permute_by_map_grad(g: Any, gp: Any, ids: Any, routing_map: Any, experts: int, rows: int, padded: bool) -> Any:
    """Its gradient."""
    places = _places(routing_map)
    found = g.new_zeros(routing_map.shape, dtype=gp.dtype if gp is not None else g.dtype)
    if gp is not None and gp.numel():
        found[places[1], places[0]] = gp
    return g.new_zeros(rows, g.shape[1]).index_add_(0, places[1], g), found


@torch.no_grad()
def unpermute_by_map(
    x: Any, ids: Any, shape: Any, probs: Any = None, routing_map: Any = None, drop_and_pad: bool = False
) -> Any:
    """torch_npu._npu_moe_token_unpermute_with_routing_map."""
    if probs is not None:
        experts, tokens = _places(routing_map)
        x = x * probs[tokens, experts][:, None].to(x.dtype)
    return x.new_zeros(list(shape)).index_add_(0, ids.long(), x), ids.clone(), ids.clone(), None


@torch.no_grad()
def unpermute_by_map_grad(g: Any, out: Any, *_: Any, **named: Any) -> Any:
    """Its gradient."""
    gx, gp, probs = g[out.long()], g.new_empty(0), named.get("probs")
    if probs is not None:
        experts, tokens = _places(named["routing_map"])
        gp = torch.zeros_like(probs)
        gp[tokens, experts] = (gx * named["permuted_tokens"]).sum(-1).to(gp.dtype)
        gx = gx * probs[tokens, experts][:, None].to(gx.dtype)
    return gx, gp


def adam(p: Any, g: Any, m: Any, v: Any, step: int, lr: float, b1: float, b2: float, decay: float, eps: float) -> None:
    """One parameter's update, in place."""
    m.lerp_(g.to(m.dtype), 1 - b1)
    v.mul_(b2).addcmul_(g.to(v.dtype), g.to(v.dtype), value=1 - b2)
    p.mul_(1 - lr * decay).addcdiv_(m / (1 - b1**step), (v / (1 - b2**step)).sqrt() + eps, value=-lr)
