"""Tensors of true sizes without their numbers: a step at real widths on a CPU.

Tensors of floating-point numbers are torch's fake tensors, whose storages have a size and no memory. Integers are real,
because a framework reads them: counts of tokens, places of rows.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

READ = torch.ops.aten._local_scalar_dense.default


class Sizes(TorchDispatchMode):
    """Makes tensors of floating-point numbers fake, and what is computed of them; one that is read is 1."""

    def __init__(self) -> None:
        super().__init__()
        self.fake = FakeTensorMode(allow_non_fake_inputs=True)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        named = kwargs or {}
        given = [leaf for leaf in tree_leaves((args, named)) if isinstance(leaf, torch.Tensor)]
        if given and not any(isinstance(tensor, FakeTensor) for tensor in given):
            return func(*args, **named)
        if func is READ:
            return 1.0 if given[0].is_floating_point() else 0
        with self.fake:
            out = func(*args, **named)
        if given or (isinstance(out, torch.Tensor) and out.is_floating_point()):
            return out
        return func(*args, **named)


@torch.no_grad()
def _apply(self: Any, function: Any, recurse: bool = True) -> Any:
    """`torch.nn.Module._apply` by setting data: swapping tensors fails for those that something refers to."""
    for part in self.modules():
        for parameter in part._parameters.values():
            if parameter is not None:
                parameter.data = function(parameter.data)
        for name, buffer in part._buffers.items():
            if buffer is not None:
                part._buffers[name] = function(buffer)
    return self


def install() -> None:
    """Makes tensors fake from here on; for the rest of the process."""
    make = torch.tensor

    def tensor(data: Any, *args: Any, **named: Any) -> Any:
        numbers = tree_leaves(data) if isinstance(data, (list, tuple)) else ()
        if any(isinstance(number, FakeTensor) for number in numbers):
            return torch.stack([number if isinstance(number, FakeTensor) else make(number) for number in numbers])
        return make(data, *args, **named)

    torch.tensor = tensor
    torch.nn.Module._apply = _apply
    Sizes().__enter__()
