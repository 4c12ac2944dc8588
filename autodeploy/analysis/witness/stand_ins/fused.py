"""Fused operators by what they keep for the backward pass, on torch's operators."""

from __future__ import annotations

from typing import Any

import torch


class RmsNorm(torch.autograd.Function):
    """Keeps its input and one factor a row."""

    @staticmethod
    def forward(ctx: Any, x: Any, weight: Any, eps: float) -> Any:
        factor = torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + eps)
        ctx.save_for_backward(x, weight, factor)
        return (x.float() * factor * weight.float()).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        x, weight, factor = ctx.saved_tensors
        scaled, gw = x.float() * factor, g.float() * weight.float()
        dx = factor * (gw - scaled * (gw * scaled).mean(-1, keepdim=True))
        dw = (g.float() * scaled).reshape(-1, x.shape[-1]).sum(0).to(weight.dtype)
        return dx.to(x.dtype), dw, None


class LayerNorm(torch.autograd.Function):
    """Keeps its input, one mean and one factor a row."""

    @staticmethod
    def forward(ctx: Any, x: Any, weight: Any, bias: Any, eps: float) -> Any:
        mean = x.float().mean(-1, keepdim=True)
        factor = torch.rsqrt((x.float() - mean).pow(2).mean(-1, keepdim=True) + eps)
        ctx.save_for_backward(x, weight, mean, factor)
        return ((x.float() - mean) * factor * weight.float() + bias.float()).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        x, weight, mean, factor = ctx.saved_tensors
        scaled, gw = (x.float() - mean) * factor, g.float() * weight.float()
        dx = factor * (gw - gw.mean(-1, keepdim=True) - scaled * (gw * scaled).mean(-1, keepdim=True))
        flat = g.float().reshape(-1, x.shape[-1])
        dw = (flat * scaled.reshape(flat.shape)).sum(0)
        return dx.to(x.dtype), dw.to(weight.dtype), flat.sum(0).to(weight.dtype), None


class Rotary(torch.autograd.Function):
    """Keeps the frequencies alone."""

    @staticmethod
    def forward(ctx: Any, t: Any, freqs: Any, interleaved: bool) -> Any:
        ctx.save_for_backward(freqs)
        ctx.interleaved = interleaved
        return _turned(t, freqs, 1, interleaved)

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        return _turned(g, ctx.saved_tensors[0], -1, ctx.interleaved), None, None


def _turned(t: Any, freqs: Any, sign: int, interleaved: bool) -> Any:
    width = freqs.shape[-1]
    head, tail = t[..., :width], t[..., width:]
    if interleaved:
        half = torch.stack((-head[..., 1::2], head[..., ::2]), -1).reshape(head.shape)
    else:
        a, b = head.chunk(2, -1)
        half = torch.cat((-b, a), -1)
    return torch.cat((head * freqs.cos().to(t.dtype) + half * (sign * freqs.sin()).to(t.dtype), tail), -1)


def attended(q: Any, k: Any, v: Any, scale: float, offset: int = 0) -> tuple[Any, Any]:
    """Causal attention of [batch, heads, rows, width], and the logarithm of the sums of each row.

    offset : place of the first query among the keys.
    """
    groups = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
    scores = (q.float() @ k.float().transpose(-1, -2)) * scale
    hidden = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1 + offset)
    scores = scores.masked_fill(hidden, -1e9)
    sums = scores.logsumexp(-1, keepdim=True)
    return (scores - sums).exp() @ v.float(), sums


def attention_gradients(g: Any, q: Any, k: Any, v: Any, scale: float) -> tuple[Any, Any, Any]:
    """Gradients of queries, keys and values of [batch, heads, rows, width]."""
    with torch.enable_grad():
        inputs = tuple(t.detach().float().requires_grad_() for t in (q, k, v))
        out, _ = attended(*inputs, scale)
        found = torch.autograd.grad(out, inputs, g.float())
    return found[0].to(q.dtype), found[1].to(k.dtype), found[2].to(v.dtype)
