"""The order of forward and backward passes, read off the schedules' own step functions."""

from __future__ import annotations

import collections
import contextlib
import functools
import importlib
import inspect
import sys
from typing import TYPE_CHECKING, Any

import torch

from .kept import Kept
from .record import BACKWARD, FORWARD, MERGED, NOTES

if TYPE_CHECKING:
    from collections.abc import Iterator

MEGATRON = "megatron.core.pipeline_parallel.schedules"
DUALPIPEV = "mindspeed.core.pipeline_parallel.dualpipev.dualpipev_schedules"
OVERLAPPED = "mindspeed.core.transformer.moe.moe_feature.fb_overlap.vpp_schedules"
FORWARDS = ("forward_step", "forward_step_no_model_graph", "forward_step_with_model_graph")
BACKWARDS = ("backward_step", "backward_step_with_model_graph")
MERGED_GRAPHS = "bwd_block_graphs"  # what a forward pass is given that runs a backward one beside it
LAYER_GRAPH = "LayerGraph"


class Passes:
    """Chunk and micro batch of each pass: what a forward pass returns names the backward pass."""

    def __init__(self, chunks: list[Any]):
        self.chunks = chunks
        self.begun: collections.Counter[tuple[int, Any]] = collections.Counter()
        self.returned: dict[int, tuple[int | None, int]] = {}
        self.by_layer: set[tuple[int | None, int | None]] = set()  # run backward by layer, apart from the head

    def chunk_of(self, model: Any) -> int | None:
        """Number of the chunk that this model is."""
        return next((number for number, chunk in enumerate(self.chunks) if chunk is model), None)

    def pass_of(self, value: Any) -> tuple[int | None, int | None]:
        """The forward pass that returned this; unknown where none did."""
        return next((self.returned[id(one)] for one in _parts(value) if id(one) in self.returned), (None, None))

    def forward(self, function: Any) -> Any:
        """A forward step that is noted."""
        shape = inspect.signature(function)

        @functools.wraps(function)
        def noted(*args: Any, **named: Any) -> Any:
            given = shape.bind(*args, **named).arguments
            chunk = self.chunk_of(given.get("model"))
            micro = self.begun[NOTES.step, chunk]
            self.begun[NOTES.step, chunk] += 1
            graphs = (given.get("extra_block_kwargs") or {}).get(MERGED_GRAPHS)
            beside = None if graphs is None else self.pass_of(graphs)
            NOTES.begin(FORWARD if beside is None else MERGED, chunk, micro)
            try:
                with Kept():
                    out = function(*args, **named)
                for one in _parts(out):
                    self.returned[id(one)] = chunk, micro
                    if isinstance(one, list) and one and type(one[0]).__name__ == LAYER_GRAPH:
                        self.by_layer.add((chunk, micro))
                return out
            finally:
                NOTES.end("F" if beside is None else "F{}.{}B{}.{}".format(chunk, micro, *beside))

        return noted

    def backward(self, function: Any) -> Any:
        """A backward step that is noted; one of the head alone is no pass."""
        shape = inspect.signature(function)

        @functools.wraps(function)
        def noted(*args: Any, **named: Any) -> Any:
            given = shape.bind(*args, **named).arguments
            graph, output = given.get("model_graph"), given.get("output_tensor")
            chunk, micro = self.pass_of(output if graph is None else graph)
            head = graph is None and (chunk, micro) in self.by_layer
            NOTES.begin(BACKWARD, chunk, micro)
            try:
                return function(*args, **named)
            finally:
                NOTES.end("head" if head else "B")

        return noted


def _parts(value: Any, depth: int = 3) -> Iterator[Any]:
    """Tensors and lists in what a step takes or returns."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)) and depth:
        yield value
        for one in value:
            yield from _parts(one, depth - 1)


def watch_passes(chunks: list[Any]) -> None:
    """Notes every pass of every schedule that is loaded."""
    passes = Passes(chunks)
    with contextlib.suppress(ImportError):
        importlib.import_module(MEGATRON)
    for name in (MEGATRON, DUALPIPEV, OVERLAPPED):
        schedule = sys.modules.get(name)
        for functions, noted in ((FORWARDS, passes.forward), (BACKWARDS, passes.backward)):
            for function in functions:
                if schedule is not None and hasattr(schedule, function):
                    setattr(schedule, function, noted(getattr(schedule, function)))
