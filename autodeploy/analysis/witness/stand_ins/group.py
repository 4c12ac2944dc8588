"""One rank of a job of any size: torch's fake process group, what is sent noted, what is received made up.

A gathered tensor is the rank's own part repeated, a scattered one its own slice, a received one noise: shapes, bytes
and order are those of the job, numbers are not.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

from .record import NOTES, nbytes

if TYPE_CHECKING:
    from collections.abc import Callable

NOISE = 0.1  # standard deviation of what other ranks send
GATHER = ("all_gather_into_tensor", "_all_gather_base", "all_gather_single")
SCATTER = ("reduce_scatter_tensor", "_reduce_scatter_base", "reduce_scatter_single")


class Done:
    """Work that is finished."""

    def wait(self, *_: Any) -> bool:
        """Nothing to wait for."""
        return True

    def is_completed(self) -> bool:
        """Always."""
        return True

    def get_future(self) -> Any:
        """A future of nothing."""
        future: Any = torch.futures.Future()
        future.set_result(None)
        return future


def _gathered(output: Any, mine: Any) -> None:
    if output.data_ptr() != mine.data_ptr() and mine.numel():
        output.view(-1).copy_(mine.reshape(-1).repeat(output.numel() // mine.numel()))


def _scattered(output: Any, mine: Any) -> None:
    if output.data_ptr() != mine.data_ptr():
        output.view(-1).copy_(mine.reshape(-1)[: output.numel()])


def _exchanged(output: Any, mine: Any) -> None:
    if mine.numel():
        output.view(-1).copy_(mine.reshape(-1).repeat(-(-output.numel() // mine.numel()))[: output.numel()])
    else:
        output.zero_()


def _received(tensor: Any) -> None:
    if tensor.is_floating_point():
        tensor.normal_(0, NOISE)


def _told(tensor: Any, source: int | None, group: Any) -> None:
    """Message of another rank: that there is a data set for training alone, tokens 0, weights 1."""
    if source == dist.get_rank():
        return
    if tensor.dtype == torch.int64 and tensor.numel() == 3:
        tensor.copy_(torch.tensor([1, 0, 0]))
    elif tensor.is_floating_point():
        tensor.fill_(1.0)
    else:
        tensor.zero_()


class Operation:
    """One function of torch.distributed: `read` gives (sent, received, group, fill) of its arguments."""

    def __init__(
        self, name: str, read: Callable[..., tuple[Any, Any, Any, Callable[[], None]]], *, works: bool = False
    ):
        self.name, self.read, self.works = name, read, works

    def __call__(self, *args: Any, **named: Any) -> Any:
        sent, received, group, fill = self.read(*args, **named)
        later = bool(named.pop("async_op", False)) or self.works
        note(self.name, group, nbytes(sent), nbytes(received), blocking=not later)
        filled(fill)
        return Done() if later else None


def note(name: str, group: Any, sent: int, received: int, *, blocking: bool) -> None:
    """Notes a collective under the name of its kind."""
    kind = "all_gather" if name in GATHER else "reduce_scatter" if name in SCATTER else name.removesuffix("_single")
    NOTES.collective(kind, group, sent, received, blocking=blocking)


def filled(fill: Callable[[], None]) -> None:
    """Makes up what is received; none of it is the framework's doing."""
    before, NOTES.quiet = NOTES.quiet, True
    try:
        with torch.no_grad():
            fill()
    finally:
        NOTES.quiet = before


def _pair(output: Any, mine: Any, fill: Callable[[Any, Any], None], group: Any) -> tuple[Any, ...]:
    return mine, output, group, lambda: fill(output, mine)


def _all_gather(output_tensor: Any = None, input_tensor: Any = None, group: Any = None, *_: Any, **named: Any) -> Any:
    output = output_tensor if output_tensor is not None else named["output"]
    return _pair(output, input_tensor if input_tensor is not None else named["input"], _gathered, group)


def _reduce_scatter(output: Any, input: Any, op: Any = None, group: Any = None, *_: Any, **__: Any) -> Any:
    return _pair(output, input, _scattered, group)


def _all_to_all(output: Any, input: Any, a: Any = None, b: Any = None, group: Any = None, *_: Any, **__: Any) -> Any:
    return _pair(output, input, _exchanged, group)


def _all_reduce(tensor: Any, op: Any = None, group: Any = None, *_: Any, **__: Any) -> Any:
    return tensor, tensor, group, lambda: None


def _broadcast(tensor: Any, src: Any = None, group: Any = None, *_: Any, **__: Any) -> Any:
    return tensor, tensor, group, lambda: _told(tensor, src, group)


def _list_gather(tensor_list: Any, tensor: Any, group: Any = None, *_: Any, **__: Any) -> Any:
    return tensor, tensor_list, group, lambda: [one.copy_(tensor) for one in tensor_list] and None


def _list_exchange(outputs: Any, inputs: Any, group: Any = None, *_: Any, **__: Any) -> Any:
    return inputs, outputs, group, lambda: [_exchanged(o, i) for o, i in zip(outputs, inputs, strict=True)] and None


def _send(tensor: Any, dst: Any = None, group: Any = None, *_: Any, **__: Any) -> Any:
    return tensor, [], group, lambda: None


def _receive(tensor: Any, src: Any = None, group: Any = None, *_: Any, **__: Any) -> Any:
    return [], tensor, group, lambda: _received(tensor)


def _object_gather(object_list: Any, obj: Any, group: Any = None, *_: Any, **__: Any) -> Any:
    return [], [], group, lambda: object_list.__setitem__(slice(None), [obj] * len(object_list))


def _reduce(tensor: Any, dst: Any = None, op: Any = None, group: Any = None, *_: Any, **__: Any) -> Any:
    return tensor, tensor, group, lambda: None


def _barrier(group: Any = None, *_: Any, **__: Any) -> Any:
    return [], [], group, lambda: None


OPERATIONS: tuple[Operation, ...] = (
    *(Operation(name, _all_gather) for name in GATHER),
    *(Operation(name, _reduce_scatter) for name in SCATTER),
    Operation("all_to_all_single", _all_to_all),
    Operation("all_reduce", _all_reduce),
    Operation("reduce", _reduce),
    Operation("broadcast", _broadcast),
    Operation("all_gather", _list_gather),
    Operation("all_to_all", _list_exchange),
    Operation("all_gather_object", _object_gather),
    Operation("barrier", _barrier),
    Operation("send", _send),
    Operation("recv", _receive),
    Operation("isend", _send, works=True),
    Operation("irecv", _receive, works=True),
)


def _batch(operations: Any) -> list[Done]:
    for one in operations:
        if one.op.name.endswith("send"):
            note("isend", one.group, nbytes(one.tensor), 0, blocking=False)
        else:
            note("irecv", one.group, 0, nbytes(one.tensor), blocking=False)
            filled(lambda tensor=one.tensor: _received(tensor))
    return [Done() for _ in operations]


def _put(name: str, function: Any) -> None:
    for holder in (dist, dist.distributed_c10d):
        setattr(holder, name, function)


def become_one_rank(rank: int, world: int) -> None:
    """Makes this process that rank of a job of that size, whatever back end it asks for."""
    begin, make = dist.init_process_group, dist.new_group

    def init_process_group(*_: Any, **__: Any) -> None:
        begin("fake", store=FakeStore(), rank=rank, world_size=world)

    def new_group(ranks: Any = None, *_: Any, **__: Any) -> Any:
        if ranks is None or rank in ranks:
            return make(ranks, backend="fake")
        return dist.GroupMember.NON_GROUP_MEMBER

    _put("init_process_group", init_process_group)
    _put("new_group", new_group)
    for operation in OPERATIONS:
        if hasattr(dist, operation.name):
            _put(operation.name, operation)
    dist.P2POp.__new__ = lambda cls, *_, **__: object.__new__(cls)
    _put("_check_op", lambda op: None)
    _put("batch_isend_irecv", _batch)


def name_groups() -> None:
    """Names the groups that the framework has made, as it calls them; one of several names has all of them."""
    from megatron.core import parallel_state

    labels = {
        "tp": "get_tensor_model_parallel_group",
        "cp": "get_context_parallel_group",
        "ep": "get_expert_model_parallel_group",
        "etp": "get_expert_tensor_parallel_group",
        "dp": "get_data_parallel_group",
        "edp": "get_expert_data_parallel_group",
        "pp": "get_pipeline_model_parallel_group",
        "embd": "get_embedding_group",
        "tp_ep": "get_expert_tensor_and_model_parallel_group",
        "tp_cp": "get_tensor_and_context_parallel_group",
        "mp": "get_model_parallel_group",
    }
    groups: list[tuple[str, Any]] = []
    for label, getter in labels.items():
        try:
            groups.append((label, getattr(parallel_state, getter)()))
        except (AssertionError, AttributeError):
            continue
    with contextlib.suppress(AssertionError, TypeError):
        groups.append(("dp_cp", parallel_state.get_data_parallel_group(with_context_parallel=True)))
    for label, group in groups:
        ranks = tuple(dist.get_process_group_ranks(group))
        if len(ranks) > 1:
            known = NOTES.groups.get(ranks)
            NOTES.groups[ranks] = label if known is None else f"{known}={label}"
