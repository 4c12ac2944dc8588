"""What sharded parameters cost a pass: they arrive before it, their gradients leave after it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.support.accounting.layer import Account


def through_step(a: Account) -> bool:
    """Whether parameters are gathered and gradients reduced once a step: FSDP2's under a pipeline."""
    return "torch_fsdp2" in a.run.on and "fsdp" in a.run.on and a.d.pp > 1


def sharded(a: Account, work: float, *, backward: bool) -> float:
    """Parameters arrive for each pass, gradients leave after the backward one; work hides what overlaps."""
    if "fsdp" not in a.run.on:
        return 0.0
    here = (a.dense_params - a.copied_params, a.expert_params)
    if through_step(a):
        sizes = zip(here, _formats(a), strict=True)
        # The gradient of a micro batch is read, its sum read and written.
        added = sum(params * (2 + size + size) for params, size in sizes) if backward else 0.0
        return added / _memory_rate(a)
    gather, reduce = exchanged(a, here)
    copied = _copied_bytes(a, here, backward=backward) / _memory_rate(a)
    if backward and a.d.keep_gathered:
        gather = 0.0
    beside_reduce = "overlap_grad_reduce" in a.run.on
    beside_gather = beside_reduce and "overlap_param_gather" in a.run.on
    alone = beside = 0.0
    for seconds, overlaps in ((gather, beside_gather), (reduce if backward else 0.0, beside_reduce)):
        alone, beside = (alone, beside + seconds) if overlaps else (alone + seconds, beside)
    return copied + alone + min(beside, max(0.0, a.machine.contention * beside - a.machine.overlap * work))


def once_a_step(a: Account, count: float, last: float) -> float:
    """What is exposed of gathering `count` of a unit before a step and of reducing it after: the first layer (`last` of
    all) arrives before anything runs, and gradients leave when everything ran.
    """
    here = (count * a.dense_params, count * a.expert_params)
    gather, reduce = exchanged(a, here)
    moved = sum(_copied_bytes(a, here, backward=back) for back in (False, True))
    moved -= sum(params * (2 + 2) * again for params, again in zip(here, _copies(a), strict=True))  # gathered once
    shown = gather
    if {"overlap_grad_reduce", "overlap_param_gather"} <= a.run.on:
        window = count * a.forward.compute * a.machine.overlap
        shown = min(gather, max(0.0, gather * (1 - last) * a.machine.contention - window) + gather * last)
    return shown + reduce + moved / _memory_rate(a)


def exchanged(a: Account, here: tuple[float, float]) -> tuple[float, float]:
    """Seconds to gather so many dense and expert parameters, and to reduce their gradients."""
    groups = (a.groups["dense"], a.groups["edp"])
    gather = sum(a.machine.all_gather(2 * params, ranks) for params, ranks in zip(here, groups, strict=True) if params)
    formats = _formats(a)
    sums = zip(here, groups, formats, strict=True)
    reduce = sum(a.machine.all_gather(size * params, ranks) for params, ranks, size in sums if params)
    reduce += sum(
        a.machine.all_reduce(size * params / len(a.groups[axis]), a.groups[f"{axis}_copies"])
        for axis, params, size in (("dense", here[0], formats[0]), ("edp", here[1], formats[1]))
        if params and a.d.dp_replicate > 1
    )
    return gather, reduce


def _memory_rate(a: Account) -> float:
    return a.machine.hbm_bytes_per_s * a.machine.hbm_fraction


def _experts_apart(a: Account) -> bool:
    """Whether experts are a unit of their own, which reduces in FP32 and by columns."""
    return "torch_fsdp2" in a.run.on and a.d.ep > 1


def _formats(a: Account) -> tuple[float, float]:
    return a.run.gradient_bytes, 4.0 if _experts_apart(a) else a.run.gradient_bytes


def _copies(a: Account) -> tuple[int, int]:
    """How often FSDP2 copies a weight out of the gathered buffer."""
    return 1, 2 if _experts_apart(a) else 1


def _copied_bytes(a: Account, here: tuple[float, float], *, backward: bool) -> float:
    """What FSDP2 reads and writes to take weights out of the gathered buffer, and to put gradients into one."""
    if "torch_fsdp2" not in a.run.on:
        return 0.0
    moved = 0.0
    for params, size, copies in zip(here, _formats(a), _copies(a), strict=True):
        if not (backward and a.d.keep_gathered):
            moved += params * (2 + 2) * copies
        if backward:
            moved += params * (2 + size + (2 + 2) * (copies - 1))
    return moved
