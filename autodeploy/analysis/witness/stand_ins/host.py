"""The host in the place of a node with cards: whatever asks CUDA is answered, tensors are made on the CPU."""

from __future__ import annotations

import collections
import contextlib
from types import SimpleNamespace
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

CARD_BYTES = 80 << 30
_DTYPES = {
    torch.float32: "FloatTensor",
    torch.float16: "HalfTensor",
    torch.bfloat16: "BFloat16Tensor",
    torch.float64: "DoubleTensor",
    torch.int64: "LongTensor",
    torch.int32: "IntTensor",
    torch.uint8: "ByteTensor",
}


class OnHost(TorchFunctionMode):
    """A device that is no CPU is the host, and no memory is pinned."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        named = kwargs or {}
        device = named.get("device")
        if device is not None and not _is_here(device):
            named = {**named, "device": "cpu"}
        if named.get("pin_memory"):
            named = {**named, "pin_memory": False}
        if func is torch.Tensor.to and len(args) > 1 and _is_device(args[1]) and not _is_here(args[1]):
            args = (args[0], "cpu", *args[2:])
        return func(*args, **named)


def _is_device(value: Any) -> bool:
    return isinstance(value, (str, int, type(torch.empty(0).device))) and not isinstance(value, bool)


def _is_here(device: Any) -> bool:
    return str(device).startswith(("cpu", "meta"))


class Stream:
    """A stream or an event, always ready; a context, and the decorator of one."""

    cuda_stream = 0
    device = torch.device("cpu")

    def __init__(self, *_: Any, **__: Any):
        pass

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: Any) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *_, **__: self

    def query(self) -> bool:
        """All that was issued is done."""
        return True

    def elapsed_time(self, other: Any) -> float:
        """No time passes."""
        return 0.0


class _LegacyType(type):
    """torch.cuda.FloatTensor and its like: makes tensors on the host, and knows them."""

    def __instancecheck__(cls, value: Any) -> bool:
        return isinstance(value, torch.Tensor) and value.dtype == cls.dtype

    def __call__(cls, data: Any = (), *more: Any) -> Any:
        if isinstance(data, int):
            return torch.empty(data, *more, dtype=cls.dtype)
        return torch.tensor(data, dtype=cls.dtype)


def _answers(devices: int, local_rank: int, name: str) -> dict[str, Any]:
    def answers(value: Any, names: str) -> dict[str, Any]:  # a function for each name: torch tells them apart
        def answer() -> Any:
            return lambda *_, **__: value

        return {name: answer() for name in names.split()}

    properties = SimpleNamespace(major=9, minor=0, multi_processor_count=132, total_memory=CARD_BYTES, name=name)
    return {
        **answers(None, "set_device synchronize set_stream empty_cache manual_seed manual_seed_all ipc_collect init"),
        **answers(None, "reset_peak_memory_stats reset_max_memory_allocated _lazy_init _lazy_call"),
        **answers(0, "max_memory_allocated memory_allocated memory_reserved max_memory_reserved"),
        **answers(Stream(), "current_stream default_stream"),
        **answers(True, "is_available is_initialized is_bf16_supported"),
        **answers(False, "is_current_stream_capturing"),
        "Stream": Stream,
        "Event": Stream,
        "device_count": lambda: devices,
        "current_device": lambda: local_rank,
        "get_device_capability": lambda *_: (9, 0),
        "get_device_name": lambda *_: name,
        "get_device_properties": lambda *_: properties,
        "stream": lambda *_, **__: contextlib.nullcontext(),
        "memory_stats": lambda *_: collections.defaultdict(int),
        "mem_get_info": lambda *_: (CARD_BYTES, CARD_BYTES),
        "get_rng_state": lambda *_, **__: torch.get_rng_state(),
        "set_rng_state": lambda state, *_, **__: torch.set_rng_state(state),
        "default_generators": [torch.default_generator] * devices,
        "nvtx": SimpleNamespace(range_push=len, range_pop=dict, mark=len, range=contextlib.nullcontext),
    }


def _name_devices() -> None:
    """Makes every device that isn't here the host."""
    real = torch.device

    class _Device(type):
        def __instancecheck__(cls, value: Any) -> bool:
            return isinstance(value, real)

        def __call__(cls, device: Any = "cpu", *rest: Any) -> Any:
            here = isinstance(device, int) or str(device).startswith(("npu", "cuda"))
            return real("cpu") if here else real(device, *rest)

    torch.device = _Device("device", (), {})


def _backward(
    tensors: Any, grad_tensors: Any = None, retain_graph: Any = None, create_graph: bool = False, **more: Any
):
    """`torch.autograd.backward` by the engine itself: within a function that a mode sees, no mode is on."""
    outputs = (tensors,) if torch.is_tensor(tensors) else tuple(tensors)
    given = (grad_tensors,) * len(outputs) if not isinstance(grad_tensors, (list, tuple)) else tuple(grad_tensors)
    gradients = tuple(torch.ones_like(t) if g is None else g for t, g in zip(outputs, given, strict=True))
    inputs = more.get("inputs") or ()
    torch.autograd.Variable._execution_engine.run_backward(
        outputs,
        gradients,
        bool(retain_graph) or create_graph,
        create_graph,
        (inputs,) if torch.is_tensor(inputs) else tuple(inputs),
        allow_unreachable=True,
        accumulate_grad=True,
    )


def _uncompiled(function: Any = None, **_: Any) -> Any:
    return function if function is not None else lambda decorated: decorated


def answer_for_cards(devices: int, local_rank: int, name: str) -> None:
    """Answers what is asked of CUDA as a node with that many cards would; for the rest of the process."""
    cuda = torch.cuda
    for attribute, answer in _answers(devices, local_rank, name).items():
        setattr(cuda, attribute, answer)
    cuda.random.get_rng_state, cuda.random.set_rng_state = cuda.get_rng_state, cuda.set_rng_state
    cuda.device = Stream
    for dtype, kind in _DTYPES.items():
        setattr(cuda, kind, _LegacyType(kind, (), {"dtype": dtype}))
    for holder in (torch.Tensor, torch.nn.Module):
        holder.cuda = lambda self, *_, **__: self
    torch.Tensor.pin_memory = lambda self, *_, **__: self
    torch.Tensor.record_stream = lambda self, *_: None
    torch.Tensor.is_cuda = property(lambda self: True)
    kind_of = torch.Tensor.type

    def type_of(self: Any, dtype: Any = None, *args: Any, **named: Any) -> Any:
        if dtype is None:
            return "torch.cuda." + kind_of(self).rpartition(".")[2]
        if isinstance(dtype, _LegacyType):
            dtype = dtype.dtype
        return kind_of(
            self, dtype.replace("torch.cuda.", "torch.") if isinstance(dtype, str) else dtype, *args, **named
        )

    torch.Tensor.type = type_of
    torch.compile = _uncompiled
    count = torch.histc
    torch.histc = lambda x, *args, **named: count(x.float(), *args, **named).to(x.dtype)  # of integers too
    torch.autograd.backward = _backward
    torch.Tensor.backward = lambda self, gradient=None, retain_graph=None, create_graph=False, inputs=None: _backward(
        self, gradient, retain_graph, create_graph, inputs=inputs
    )
    _name_devices()
    torch._C._cuda_getDevice = lambda: local_rank
    OnHost().__enter__()
