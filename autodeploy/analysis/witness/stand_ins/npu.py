"""A stand-in for torch_npu: its modules, and its operators on the CPU."""

from __future__ import annotations

import importlib
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
import torch.utils.cpp_extension  # MindSpeed asks for its build folder

from . import fused, group, operators
from . import npu_operators as ops
from .absent import Anything, module
from .record import nbytes

_COMMUNICATORS: dict[str, Any] = {}


def _ends(groups: Any, kind: int = 0) -> list[int]:
    counts = groups if torch.is_tensor(groups) else torch.tensor(groups)
    return (counts.cumsum(0) if kind == 1 else counts).tolist()


def _grouped_matmul(kind: int) -> SimpleNamespace:
    @torch.no_grad()
    def forward(x: Any, w: Any, bias: Any, groups: Any, *_: Any) -> Any:
        return [ops.grouped(x[0], w[0], _ends(groups, kind))]

    @torch.no_grad()
    def backward(g: Any, x: Any, w: Any, groups: Any, *_: Any) -> Any:
        ends = _ends(groups, kind)
        dx = ops.grouped(g[0], w[0].transpose(-1, -2), ends)
        return [dx], [ops.grouped_weight_gradient(x[0], g[0], ends)], []

    @torch.no_grad()
    def input_alone(g: Any, w: Any, groups: Any, *_: Any) -> Any:
        return [ops.grouped(g[0], w[0].transpose(-1, -2), _ends(groups, kind))], [], []

    return SimpleNamespace(npu_gmm=forward, npu_gmm_backward=backward, npu_gmm_backward_fusion=input_alone)


@torch.no_grad()
def _add_grouped(x: Any, g: Any, ends: Any, main: Any) -> None:
    shape = (len(ends), x.shape[-1], g.shape[-1])
    main.view(shape).add_(ops.grouped_weight_gradient(x, g, ends.tolist()).float())


@torch.no_grad()
def _add_product(g: Any, x: Any, main: Any) -> None:
    main.add_((g.float().t() @ x.float()).view(main.shape))


@torch.no_grad()
def _adam(p: Any, g: Any, m: Any, v: Any, largest: Any, step: Any, *rest: Any) -> None:
    ops.adam(p, g, m, v, int(step), *rest[:5])


BUILDERS: dict[str, Any] = {
    "grouped_matmul": lambda: _grouped_matmul(0),
    "grouped_matmul_v2": lambda: _grouped_matmul(1),
    "npu_groupmatmul_add_fp32": lambda: SimpleNamespace(npu_groupmatmul_add_fp32=_add_grouped),
    "npu_matmul_add_fp32": lambda: SimpleNamespace(npu_matmul_add_fp32=_add_product),
    "npu_moe_token_permute": lambda: SimpleNamespace(npu_moe_token_permute=ops.permute),
    "npu_moe_token_unpermute": lambda: SimpleNamespace(npu_moe_token_unpermute=ops.unpermute),
    "npu_rotary_position_embedding": lambda: SimpleNamespace(
        npu_rotary_position_embedding=ops.rotary_position_embedding
    ),
    "npu_apply_fused_adamw_v2": lambda: SimpleNamespace(npu_apply_fused_adamw_v2=_adam),
}


@torch.no_grad()
def _all_gather_mm(x: Any, w: Any, name: str, size: int, **_: Any) -> Any:
    whole = x.repeat(size, *[1] * (x.dim() - 1))
    group.note("all_gather", _COMMUNICATORS[name], nbytes(x), nbytes(whole), blocking=True)
    return whole @ w, whole


@torch.no_grad()
def _mm_reduce_scatter(x: Any, w: Any, name: str, size: int, **_: Any) -> Any:
    out = x @ w
    group.note("reduce_scatter", _COMMUNICATORS[name], nbytes(out), nbytes(out) // size, blocking=True)
    return out[: x.shape[0] // size].contiguous()


OPERATORS: dict[str, Any] = {
    "npu_rms_norm": ops.rms_norm,
    "npu_swiglu": ops.swiglu,
    "npu_swiglu_backward": ops.swiglu_backward,
    "npu_rotary_mul": ops.rotary_mul,
    "npu_fusion_attention": ops.fusion_attention,
    "npu_fusion_attention_grad": ops.fusion_attention_grad,
    "npu_ring_attention_update": ops.ring_attention_update,
    "npu_moe_token_permute": ops.permute,
    "npu_moe_token_unpermute": ops.unpermute,
    "npu_moe_token_permute_with_routing_map": ops.permute_by_map,
    "npu_moe_token_permute_with_routing_map_grad": ops.permute_by_map_grad,
    "_npu_moe_token_unpermute_with_routing_map": ops.unpermute_by_map,
    "npu_moe_token_unpermute_with_routing_map_grad": ops.unpermute_by_map_grad,
    "npu_all_gather_base_mm": _all_gather_mm,
    "npu_mm_reduce_scatter_base": _mm_reduce_scatter,
    "empty_with_swapped_memory": lambda size, dtype=None, device=None: torch.empty(size, dtype=dtype),
}


def install() -> None:
    """Puts torch_npu, torch.npu and the devices named npu in their places."""
    cuda = {name: value for name, value in vars(torch.cuda).items() if not name.startswith("__")}
    npu = module("torch.npu", **cuda)
    npu.config, npu.set_compile_mode, npu.set_option = Anything(), lambda *_, **__: None, lambda *_, **__: None
    torch.npu = npu
    operators.count_backward(ops, fused)
    counted = {name: operators.as_one(name, each) for name, each in OPERATORS.items()}
    top = module("torch_npu", npu=npu, unsupported_dtype=[], **counted)
    module("torch_npu.npu", **cuda)
    for name in ("contrib", "contrib.transfer_to_npu", "profiler", "utils", "_C", "_C._distributed_c10d", "npu.utils"):
        module(f"torch_npu.{name}")
    top.npu = npu
    for holder in (torch.Tensor, torch.nn.Module):
        holder.npu = lambda self, *_, **__: self
    torch.Tensor.is_npu = property(lambda self: True)
    _take_private_registrations()

    def backend(self: Any, device: Any) -> Any:
        name = "-".join(map(str, dist.get_process_group_ranks(self)))
        _COMMUNICATORS[name] = self
        return SimpleNamespace(get_hccl_comm_name=lambda *_, **__: name)

    dist.ProcessGroup._get_backend = backend


def _take_private_registrations() -> None:
    """Operators that MindSpeed registers for its own device are run by their definition."""
    real = torch.library.impl

    def impl(library: Any, name: Any, key: str = "", *args: Any, **named: Any) -> Any:
        if key == "PrivateUse1" and getattr(library, "ns", "") == "mindspeed":
            key = "CompositeImplicitAutograd"
        return real(library, name, *([key] if key else []), *args, **named)

    torch.library.impl = impl


def import_adaptor(of_llm: bool) -> None:
    """Lets MindSpeed patch Megatron before anything of it is imported."""
    builder = importlib.import_module("mindspeed.op_builder.builder").MindSpeedOpBuilder
    atb = importlib.import_module("mindspeed.op_builder.atb_builder").AtbOpBuilder

    def load(self: Any, verbose: bool = True) -> Any:
        if self.name not in BUILDERS:
            raise NotImplementedError(f"no stand-in for the operators of builder {self.name}")
        return SimpleNamespace(**{n: operators.as_one(n, each) for n, each in vars(BUILDERS[self.name]()).items()})

    builder.load = atb.load = load
    importlib.import_module("mindspeed_llm" if of_llm else "mindspeed.megatron_adaptor")
    if of_llm:
        _ = importlib.import_module("mindspeed_llm").megatron_adaptor
    importlib.import_module("mindspeed.utils")._HAS_TRITON = False
    importlib.import_module("megatron.legacy.fused_kernels").load = lambda *_, **__: None
    fp8 = importlib.import_module("megatron.core.fp8_utils")
    if hasattr(fp8, "_quantize_param_shard_impl"):
        fp8._quantize_param_shard_impl = lambda *_, **__: None
