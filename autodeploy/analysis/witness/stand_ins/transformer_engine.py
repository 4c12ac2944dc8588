"""Stand-ins for Transformer Engine's modules: what they keep for the backward pass and send, on torch's operators.

What each keeps is that of NVIDIA/TransformerEngine @d0067d0d `save_for_backward`: pytorch/module/linear.py:1434,
layernorm_linear.py:536, grouped_linear.py:936, ops/basic/rmsnorm.py:209, attention/rope.py:152,
permutation.py:519, 808, 1250, cross_entropy.py:62. 16-bit alone; FP8 isn't stood in for.
"""

from __future__ import annotations

import contextlib
import math
import types
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist

from . import te_attention, te_permutation
from .absent import module
from .fused import LayerNorm, RmsNorm, Rotary

VERSION = "2.6.0"  # the newest without a router of its own


def _gather(x: Any, group: Any, size: int) -> Any:
    out = x.new_empty((x.shape[0] * size, *x.shape[1:]))
    dist.all_gather_into_tensor(out, x.contiguous(), group=group)
    return out


def _scatter(x: Any, group: Any, size: int) -> Any:
    out = x.new_empty((x.shape[0] // size, *x.shape[1:]))
    dist.reduce_scatter_tensor(out, x.contiguous(), group=group)
    return out


def _accumulate(weight: Any, gradient: Any, *, fused: bool) -> Any:
    """The gradient that autograd gets: of no value where it was added to `main_grad` already."""
    if not fused or not hasattr(weight, "main_grad"):
        return gradient.to(weight.dtype)
    weight.main_grad.add_(gradient.view(weight.main_grad.shape))
    weight.grad_added_to_main_grad = True
    return torch.empty_like(weight)


class _Linear(torch.autograd.Function):
    """Keeps its own part of the input; gathers it once more in the backward pass."""

    @staticmethod
    def forward(ctx: Any, x: Any, weight: Any, bias: Any, owner: Any) -> Any:
        whole = _gather(x, owner.tp_group, owner.tp_size) if owner.gathers else x
        out = whole @ weight.t()
        if bias is not None:
            out = out + bias
        if owner.scatters:
            out = _scatter(out, owner.tp_group, owner.tp_size)
        elif owner.reduces:
            dist.all_reduce(out, group=owner.tp_group)
        ctx.save_for_backward(x, weight)
        ctx.owner, ctx.has_bias = owner, bias is not None
        return out

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        x, weight = ctx.saved_tensors
        owner = ctx.owner
        if owner.scatters:
            g = _gather(g, owner.tp_group, owner.tp_size)
        whole = _gather(x, owner.tp_group, owner.tp_size) if owner.gathers and weight.requires_grad else x
        dx = g @ weight
        if owner.gathers:
            dx = _scatter(dx, owner.tp_group, owner.tp_size)
        elif owner.sums_input_gradient:
            dist.all_reduce(dx, group=owner.tp_group, async_op=True)
        flat_g = g.reshape(-1, g.shape[-1])
        db = flat_g.sum(0).to(weight.dtype) if ctx.has_bias else None
        return dx, owner.weight_gradient(weight, whole.reshape(-1, whole.shape[-1]), flat_g), db, None


class _Base(torch.nn.Module):
    """Base of linear modules."""

    def __init__(self, **named: Any):
        super().__init__()
        self.fp8_meta: dict[str, Any] = {}
        self.fuse_wgrad_accumulation = named.get("fuse_wgrad_accumulation", False)
        self.delayed = named.get("delay_wgrad_compute", False)
        self.store: list[tuple[Any, Any, Any]] = []
        self.tp_group, self.tp_size = named.get("tp_group"), named.get("tp_size", 1)
        self.parallel_mode, self.sequence_parallel = named.get("parallel_mode"), named.get("sequence_parallel", False)
        self.return_bias = named.get("return_bias", False)
        self.save_original_input = False
        self.init_method = named.get("init_method")
        parallel = self.tp_size > 1
        self.gathers = parallel and self.parallel_mode == "column" and self.sequence_parallel
        self.scatters = parallel and self.parallel_mode == "row" and self.sequence_parallel
        self.reduces = parallel and self.parallel_mode == "row" and not self.sequence_parallel
        self.sums_input_gradient = parallel and self.parallel_mode == "column" and not self.sequence_parallel

    def parameter(self, name: str, *shape: int, dtype: Any = None, drawn: bool = True) -> None:
        """Registers a parameter."""
        value = torch.nn.Parameter(torch.zeros(shape, dtype=dtype or torch.get_default_dtype()))
        if drawn and self.init_method is not None:
            with torch.no_grad():
                self.init_method(value)
        setattr(self, name, value)
        if self.parallel_mode in ("row", "column") and drawn:
            value.tensor_model_parallel, value.partition_stride = True, 1
            value.partition_dim = 1 if self.parallel_mode == "row" else 0

    def weight_gradient(self, weight: Any, x: Any, g: Any) -> Any:
        """The gradient of a weight, or nothing where it is computed later."""
        if not weight.requires_grad:
            return None
        if self.delayed:
            self.store.append((weight, x, g))
            return None
        return _accumulate(weight, g.t() @ x, fused=self.fuse_wgrad_accumulation)

    def backward_dw(self) -> None:
        """Computes the weight gradients that were put off."""
        if self.store:
            weight, x, g = self.store.pop(0)
            found = _accumulate(weight, g.t() @ x, fused=self.fuse_wgrad_accumulation)
            if not (self.fuse_wgrad_accumulation and hasattr(weight, "main_grad")):
                weight.grad = found if weight.grad is None else weight.grad + found

    def need_backward_dw(self) -> bool:
        """Whether weight gradients are put off."""
        return bool(self.delayed)

    def register_wgrad_accumulation_and_reduce_hooks(self, hook: Any) -> None:
        """Nothing: hooks of parameters do it."""

    def init_fp8_metadata(self, *_: Any, **__: Any) -> None:
        """Nothing of 8 bits is here."""

    def set_tensor_parallel_group(self, group: Any) -> None:
        """The group is known from the start, or set here."""
        self.tp_group = group


class Linear(_Base):
    """transformer_engine.pytorch.Linear."""

    def __init__(self, in_features: int, out_features: int, bias: bool = True, params_dtype: Any = None, **named: Any):
        super().__init__(**named)
        self.in_features, self.out_features = in_features, out_features
        if self.parallel_mode == "column":
            out_features //= self.tp_size
        elif self.parallel_mode == "row":
            in_features //= self.tp_size
        self.parameter("weight", out_features, in_features, dtype=params_dtype)
        if bias:
            self.parameter("bias", out_features, dtype=params_dtype, drawn=False)
            self.bias.sequence_parallel = self.parallel_mode == "row" and self.sequence_parallel
        else:
            self.bias = None
        self.use_bias = bias

    def forward(self, x: Any, is_first_microbatch: Any = None, **_: Any) -> Any:
        """The product, and the bias beside it where the caller adds it."""
        out = _Linear.apply(x, self.weight, None if self.return_bias else self.bias, self)
        return (out, self.bias) if self.return_bias else out


class LayerNormLinear(Linear):
    """transformer_engine.pytorch.LayerNormLinear: keeps the norm's input and output."""

    def __init__(self, in_features: int, out_features: int, eps: float = 1e-5, **named: Any):
        self.normalization = named.pop("normalization", "LayerNorm")
        self.returns_norm = named.pop("return_layernorm_output", False)
        self.zero_centered = named.pop("zero_centered_gamma", False)
        super().__init__(in_features, out_features, **named)
        self.eps = eps
        dtype = named.get("params_dtype")
        self.parameter("layer_norm_weight", in_features, dtype=dtype, drawn=False)
        self.layer_norm_weight.sequence_parallel = self.sequence_parallel
        self.layer_norm_bias = None
        if self.normalization != "RMSNorm":
            self.parameter("layer_norm_bias", in_features, dtype=dtype, drawn=False)
            self.layer_norm_bias.sequence_parallel = self.sequence_parallel
        torch.nn.init.zeros_(self.layer_norm_weight) if self.zero_centered else torch.nn.init.ones_(
            self.layer_norm_weight
        )

    def forward(self, x: Any, is_first_microbatch: Any = None, **_: Any) -> Any:
        """The product of the normalised input."""
        weight = self.layer_norm_weight + 1 if self.zero_centered else self.layer_norm_weight
        if self.normalization == "RMSNorm":
            normed = RmsNorm.apply(x, weight, self.eps)
        else:
            normed = LayerNorm.apply(x, weight, self.layer_norm_bias, self.eps)
        out = super().forward(normed)
        if not self.returns_norm:
            return out
        return (*out, normed) if self.return_bias else (out, normed)


class _Grouped(torch.autograd.Function):
    """Keeps the input of all products as one tensor."""

    @staticmethod
    def forward(ctx: Any, x: Any, splits: list[int], owner: Any, *weights: Any) -> Any:
        ctx.save_for_backward(x, *weights)
        ctx.splits, ctx.owner = splits, owner
        parts = x.split(splits)
        return torch.cat([part @ weight.t() for part, weight in zip(parts, weights, strict=True)])

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        x, *weights = ctx.saved_tensors
        gs, xs = g.split(ctx.splits), x.split(ctx.splits)
        dx = torch.cat([part @ weight for part, weight in zip(gs, weights, strict=True)])
        found = [ctx.owner.weight_gradient(*one) for one in zip(weights, xs, gs, strict=True)]
        return dx, None, None, *found


class GroupedLinear(_Base):
    """transformer_engine.pytorch.GroupedLinear: a weight for each product."""

    def __init__(
        self,
        num_gemms: int,
        in_features: int,
        out_features: int,
        bias: bool = True,
        params_dtype: Any = None,
        **named: Any,
    ):
        super().__init__(**named)
        self.num_gemms, self.use_bias = num_gemms, bias
        self.in_features, self.out_features = in_features, out_features
        if self.parallel_mode == "column":
            out_features //= self.tp_size
        elif self.parallel_mode == "row":
            in_features //= self.tp_size
        for number in range(num_gemms):
            self.parameter(f"weight{number}", out_features, in_features, dtype=params_dtype)
            if bias:
                self.parameter(f"bias{number}", out_features, dtype=params_dtype, drawn=False)

    def forward(self, x: Any, m_splits: Any, is_first_microbatch: Any = None) -> Any:
        """All products."""
        weights = [getattr(self, f"weight{number}") for number in range(self.num_gemms)]
        splits = m_splits.tolist() if torch.is_tensor(m_splits) else list(m_splits)
        out = _Grouped.apply(x, splits, self, *weights)
        return (out, None) if self.return_bias else out

    def backward_dw(self) -> None:
        """Computes the weight gradients that were put off, of every product."""
        for _ in range(min(self.num_gemms, len(self.store))):
            super().backward_dw()


class _Norm(torch.nn.Module):
    def __init__(
        self, normalized_shape: Any, eps: float = 1e-5, sequence_parallel: bool = False, dtype: Any = None, **named: Any
    ):
        super().__init__()
        whole = normalized_shape if isinstance(normalized_shape, (tuple, list, torch.Size)) else (normalized_shape,)
        width = math.prod(whole)
        self.eps, self.zero_centered = eps, named.get("zero_centered_gamma", False)
        start = torch.zeros if self.zero_centered else torch.ones
        dtype = dtype or named.get("params_dtype") or torch.get_default_dtype()
        self.weight = torch.nn.Parameter(start(width, dtype=dtype))
        self.weight.sequence_parallel = sequence_parallel

    @property
    def scale(self) -> Any:
        """The factor of every feature."""
        return self.weight + 1 if self.zero_centered else self.weight


class RMSNorm(_Norm):
    """transformer_engine.pytorch.RMSNorm."""

    def forward(self, x: Any) -> Any:
        """The normalised input."""
        return RmsNorm.apply(x, self.scale, self.eps)


class LayerNormModule(_Norm):
    """transformer_engine.pytorch.LayerNorm."""

    def __init__(self, normalized_shape: Any, eps: float = 1e-5, sequence_parallel: bool = False, **named: Any):
        super().__init__(normalized_shape, eps, sequence_parallel, **named)
        self.bias = torch.nn.Parameter(torch.zeros_like(self.weight))
        self.bias.sequence_parallel = sequence_parallel

    def forward(self, x: Any) -> Any:
        """The normalised input."""
        return LayerNorm.apply(x, self.scale, self.bias, self.eps)


class _CrossEntropy(torch.autograd.Function):
    """Keeps the gradient of the logits, in their place."""

    @staticmethod
    def forward(ctx: Any, logits: Any, labels: Any, group: Any) -> Any:
        size = dist.get_world_size(group) if group is not None else 1
        start = (dist.get_rank(group) if group is not None else 0) * logits.shape[-1]
        scores = logits.float()
        top = scores.amax(-1, keepdim=True)
        summed = (scores - top).exp().sum(-1, keepdim=True)
        if size > 1:  # one gather of the largest, the sum and the label's logit of each rank
            mine = torch.cat((top, summed, top), -1).contiguous()
            dist.all_gather_into_tensor(mine.new_empty(size * mine.numel()), mine.view(-1), group=group)
        loss = (summed.log() + top)[..., 0]
        gradient = (scores - top).exp() / summed
        here = (labels - start).clamp(0, logits.shape[-1] - 1)
        gradient.scatter_add_(-1, here[..., None], -torch.ones_like(gradient[..., :1]))
        ctx.save_for_backward(logits.detach().copy_(gradient))
        return loss

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        (gradient,) = ctx.saved_tensors
        return gradient.mul_(g[..., None]), None, None


def _cross_entropy(logits: Any, labels: Any, smoothing: float = 0.0, reduce: bool = False, group: Any = None, *_: Any):
    return _CrossEntropy.apply(logits, labels, group)


class _RngStates:
    """transformer_engine.pytorch.distributed.CudaRNGStatesTracker."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forgets all states."""
        self.states_: dict[str, Any] = {}

    def get_states(self) -> dict[str, Any]:
        """All states."""
        return dict(self.states_)

    def set_states(self, states: dict[str, Any]) -> None:
        """Takes these states."""
        self.states_ = states

    def add(self, name: str, seed: int) -> None:
        """A state of that name."""
        self.states_[name] = seed

    def fork(self, name: str = "") -> Any:
        """Nothing random differs between ranks here."""
        return contextlib.nullcontext()


class _Fp8State:
    fp8_enabled = False
    quantization_state = None

    @staticmethod
    def is_fp8_enabled() -> bool:
        return False

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name)


def install() -> None:
    """Puts the package where the framework will import it."""
    plain = types.ModuleType
    nothing = contextlib.nullcontext

    def context(*_: Any, **__: Any) -> Any:
        return nothing()

    fp8 = {
        "FP8GlobalStateManager": _Fp8State,
        "fp8_autocast": context,
        "fp8_model_init": context,
        "is_fp8_available": lambda: (False, "stand-in"),
    }
    quantised = type("QuantizedTensor", (torch.Tensor,), {})
    modules: dict[str, dict[str, Any]] = {
        "": {"__version__": VERSION},
        ".common": {},
        ".common.recipe": {
            "DelayedScaling": type("DelayedScaling", (), {}),
            "Format": SimpleNamespace(E4M3=0, HYBRID=1),
        },
        ".pytorch": {
            "Linear": Linear,
            "LayerNormLinear": LayerNormLinear,
            "GroupedLinear": GroupedLinear,
            "RMSNorm": RMSNorm,
            "LayerNorm": LayerNormModule,
            "DotProductAttention": te_attention.DotProductAttention,
            **fp8,
        },
        ".pytorch.fp8": fp8,
        ".pytorch.tensor": {"QuantizedTensor": quantised},
        ".pytorch.float8_tensor": {"Float8Tensor": quantised},
        ".pytorch.distributed": {
            "CudaRNGStatesTracker": _RngStates,
            "activation_recompute_forward": context,
            "is_fp8_activation_recompute_enabled": lambda: False,
            "get_all_rng_states": dict,
            "checkpoint": te_attention.checkpoint,
        },
        ".pytorch.attention": {"_SplitAlongDim": te_attention.SplitAlongDim},
        ".pytorch.attention.rope": {"apply_rotary_pos_emb": _rotary},
        ".pytorch.permutation": te_permutation.FUNCTIONS,
        ".pytorch.cross_entropy": {"parallel_cross_entropy": _cross_entropy},
        ".pytorch.module": {},
        ".pytorch.module.base": {
            "TransformerEngineBaseModule": _Base,
            "get_dummy_wgrad": lambda shape, dtype, **_: torch.empty(shape, dtype=dtype),
        },
    }
    for name, attributes in modules.items():
        module(f"transformer_engine{name}", plain, **attributes)
    module(
        "fused_weight_gradient_mlp_cuda",
        plain,
        wgrad_gemm_accum_fp32=_accumulate_product,
        wgrad_gemm_accum_fp16=_accumulate_product,
    )


def _accumulate_product(x: Any, g: Any, main_grad: Any) -> None:
    main_grad.add_(g.reshape(-1, g.shape[-1]).t() @ x.reshape(-1, x.shape[-1]))


def _rotary(t: Any, freqs: Any, tensor_format: str = "sbhd", interleaved: bool = False, **named: Any) -> Any:
    rows = t.shape[0] if tensor_format != "bshd" else t.shape[1]
    if tensor_format == "thd":
        freqs = freqs.view(freqs.shape[0], *freqs.shape[-2:])
    return Rotary.apply(t, freqs[:rows], interleaved)
