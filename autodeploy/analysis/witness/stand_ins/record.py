"""Notes of what a rank does: collectives, passes and their order, tensors kept for the backward pass."""

from __future__ import annotations

import collections
from typing import TYPE_CHECKING, Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

if TYPE_CHECKING:
    from collections.abc import Iterable

SETUP, BETWEEN, FORWARD, BACKWARD, MERGED = "setup", "between", "forward", "backward", "forward_backward"

RANDOM_STATE = torch.get_rng_state().shape  # a few bytes of the host where a card draws


class Recorder:
    """All notes of one process, by step.

    `phase`, `chunk` and `micro` say where the rank is. A kept tensor is a storage, counted once while it lives and
    weighed when a pass has ended: a framework may have emptied it by then.
    """

    def __init__(self) -> None:
        self.step, self.phase = -1, SETUP
        self.chunk: int | None = None
        self.micro: int | None = None
        self.quiet = False  # what stand-ins do among themselves
        self.collectives: collections.Counter[tuple[Any, ...]] = collections.Counter()
        self.passes: list[dict[str, Any]] = []
        self.groups: dict[tuple[int, ...], str] = {}
        self.permanent: set[int] = set()
        self.living: dict[int, StorageWeakRef] = {}
        self.first: set[int] = set()  # of these, what the first micro batch kept
        self.held: dict[int, Any] = {}
        self.constants: dict[int, int] = {}
        self.fired: collections.Counter[tuple[int, str]] = collections.Counter()
        self.tensors: list[list[Any]] = []
        self.inside = False  # of what stands in for one operator
        self.operators: collections.Counter[tuple[Any, ...]] = collections.Counter()

    def operator(self, name: str) -> None:
        """Notes one call that writes device memory."""
        self.operators[self.step, self.phase, self.chunk, self.micro, name] += 1

    def group_of(self, group: Any) -> tuple[str, int]:
        """Name and size of a process group; None is the world."""
        try:
            ranks = tuple(torch.distributed.get_process_group_ranks(group))
        except (KeyError, RuntimeError, TypeError, ValueError):
            return "unknown", 0
        world = torch.distributed.get_world_size()
        return self.groups.get(ranks, "world" if len(ranks) == world else "unnamed"), len(ranks)

    def collective(self, operation: str, group: Any, sent: int, received: int, *, blocking: bool) -> None:
        """Notes one call."""
        if not self.quiet:
            where = (self.step, self.phase, self.chunk, self.micro)
            key = (*where, operation, *self.group_of(group), sent, received, blocking)
            self.collectives[key] += 1

    def make_permanent(self, tensors: Iterable[Any]) -> None:
        """Leaves these tensors out of what passes keep: parameters, gradients and buffers of the model."""
        self.permanent |= {tensor.untyped_storage()._cdata for tensor in tensors}

    def keep(self, tensor: Any) -> None:
        """Notes a tensor that the backward pass will read."""
        if not isinstance(tensor, torch.Tensor) or not tensor.numel() or tensor.shape == RANDOM_STATE:
            return
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key not in self.permanent and key not in self.living:
            self.living[key] = StorageWeakRef(storage)  # its address is nobody else's as long as this lives
            self.held[key] = tensor.detach()
            if not self.micro:
                self.first.add(key)

    def begin(self, phase: str, chunk: int | None, micro: int | None) -> None:
        """A pass begins."""
        self.phase, self.chunk, self.micro = phase, chunk, micro

    def end(self, kind: str) -> None:
        """A pass ends: what it keeps is weighed, and all that still lives."""
        fresh = {key: [str(tensor.dtype), list(tensor.shape)] for key, tensor in self.held.items()}
        self.held.clear()  # from here on autograd alone holds them
        kept = total = 0
        for key, reference in list(self.living.items()):
            if reference.expired():
                del self.living[key]
                self.first.discard(key)
                continue
            size = torch.UntypedStorage._new_with_weak_ptr(reference.cdata).nbytes()
            total += size
            if key in fresh:
                kept += size
                if size and self.step == 0 and not self.micro:
                    self.tensors.append([self.chunk, size, *fresh[key]])
        here = {"step": self.step, "kind": kind, "chunk": self.chunk, "micro": self.micro}
        self.passes.append({**here, "kept_bytes": kept, "live_bytes": total})
        self.begin(BETWEEN, None, None)

    def close_step(self) -> None:
        """A step ends: what still lives of its first micro batch is no pass's own, as a table of positions."""
        found = [self.living[key] for key in self.first if not self.living[key].expired()]
        sizes = [torch.UntypedStorage._new_with_weak_ptr(reference.cdata).nbytes() for reference in found]
        self.constants[self.step] = sum(sizes)

    def answer(self) -> dict[str, Any]:
        """The notes as plain data."""
        names = ("step", "phase", "chunk", "micro", "operation", "group", "size", "sent", "received", "blocking")
        return {
            "collectives": [{**dict(zip(names, key, strict=True)), "calls": n} for key, n in self.collectives.items()],
            "passes": self.passes,
            "operators": [[*key, count] for key, count in self.operators.items()],
            "constants": self.constants,
            "hooks": [[step, name, count] for (step, name), count in self.fired.items()],
            "groups": {name: list(ranks) for ranks, name in self.groups.items()},
            "kept_tensors": self.tensors,
        }


NOTES = Recorder()


def nbytes(value: Any) -> int:
    """Bytes of a tensor, or of all in a list."""
    if isinstance(value, (list, tuple)):
        return sum(nbytes(one) for one in value)
    return int(value.numel() * value.element_size())
