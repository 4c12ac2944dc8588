"""Bytes that autograd keeps of a pass, noted without standing in the way of a framework's own hooks.

A tensor that goes through a hook comes back as another object, without the attributes that frameworks put on weights
(`main_grad`). So the hooks are lifted around every function that is written in Python, and what such a function keeps
is read off its context.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch

from .record import NOTES

_AUTOGRAD = torch._C._autograd
_push, _pop = _AUTOGRAD._push_saved_tensors_default_hooks, _AUTOGRAD._pop_saved_tensors_default_hooks


def _pack(tensor: Any) -> Any:
    NOTES.keep(tensor)
    return tensor


def _unpack(tensor: Any) -> Any:
    return tensor


class Kept:
    """A context in which tensors that are kept are noted."""

    def __enter__(self) -> None:
        _push(_pack, _unpack)

    def __exit__(self, *_: Any) -> None:
        _pop()


def _note_context(ctx: Any) -> None:
    for tensor in getattr(ctx, "to_save", None) or ():
        NOTES.keep(tensor)
    for value in list(getattr(ctx, "__dict__", {}).values()):
        for tensor in value if isinstance(value, (list, tuple)) else (value,):
            if isinstance(tensor, torch.Tensor):
                NOTES.keep(tensor)


def lift_hooks_around_functions() -> None:
    """Runs every `torch.autograd.Function` without our hooks, and notes what its context keeps."""
    found = inspect.getattr_static(torch.autograd.Function, "apply")
    apply = getattr(found, "__func__", found)  # from torch 2.14 on a method in C, which is called alike
    watching, graded = [False], [True]
    known: set[Any] = set()

    def watched(cls: Any) -> None:
        known.add(cls)
        forward, setup = cls.forward, cls.setup_context
        apart = setup is not torch.autograd.Function.setup_context

        def noted(*args: Any, **named: Any) -> Any:
            if not watching[0]:
                return forward(*args, **named)
            _push(_pack, _unpack)
            try:
                out = forward(*args, **named)
            finally:
                _pop()
            if not apart and graded[0] and any(args[0].needs_input_grad):
                _note_context(args[0])
            return out

        def noted_setup(ctx: Any, inputs: Any, output: Any) -> None:
            setup(ctx, inputs, output)
            if watching[0] and graded[0] and any(ctx.needs_input_grad):
                _note_context(ctx)

        cls.forward = staticmethod(noted)
        if apart:
            cls.setup_context = staticmethod(noted_setup)

    def lifted(cls: Any, *args: Any, **named: Any) -> Any:
        top = _AUTOGRAD._top_saved_tensors_default_hooks(True)
        ours = (
            top is not None and top[0] is _pack
        )  # else a framework's own hooks are on top, or no pass runs: they stay
        if ours and not known.intersection(cls.__mro__):
            watched(cls)
        before, watching[0], graded[0] = (watching[0], graded[0]), ours, torch.is_grad_enabled()
        if ours:
            _pop()
        try:
            return apply(cls, *args, **named)
        finally:
            if ours:
                _push(_pack, _unpack)
            watching[0], graded[0] = before

    torch.autograd.Function.apply = classmethod(lifted)
