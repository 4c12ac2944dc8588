"""What sharded parameters cost a pass: they arrive before it, their gradients leave after it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.support.accounting.layer import Account


def sharded(a: Account, work: float, *, backward: bool) -> float:
    """Parameters arrive for each pass, gradients leave after the backward one; work hides what overlaps."""
    if "fsdp" not in a.run.on:
        return 0.0
    here = ((a.dense_params - a.copied_params, a.groups["dense"]), (a.expert_params, a.groups["edp"]))
    gather = sum(a.machine.all_gather(2 * params, ranks) for params, ranks in here if params)
    own = "torch_fsdp2" in a.run.on and a.d.ep > 1  # experts reduce in FP32, by columns
    formats = (a.run.gradient_bytes, 4.0 if own else a.run.gradient_bytes)
    sums = zip(here, formats, strict=True)
    reduce = sum(a.machine.all_gather(size * params, ranks) for (params, ranks), size in sums if params)
    reduce += sum(
        a.machine.all_reduce(size * params / len(a.groups[axis]), a.groups[f"{axis}_copies"])
        for axis, params, size in (("dense", here[0][0], formats[0]), ("edp", here[1][0], formats[1]))
        if params and a.d.dp_replicate > 1
    )
    copied = _copied_bytes(a, own, formats, backward=backward) / (a.machine.hbm_bytes_per_s * a.machine.hbm_fraction)
    if backward and a.d.keep_gathered:
        gather = 0.0
    beside_reduce = "overlap_grad_reduce" in a.run.on
    beside_gather = beside_reduce and "overlap_param_gather" in a.run.on
    alone = beside = 0.0
    for seconds, overlaps in ((gather, beside_gather), (reduce if backward else 0.0, beside_reduce)):
        alone, beside = (alone, beside + seconds) if overlaps else (alone + seconds, beside)
    return copied + alone + min(beside, max(0.0, a.machine.contention * beside - a.machine.overlap * work))


def _copied_bytes(a: Account, columns: bool, formats: tuple[float, float], *, backward: bool) -> float:
    """What FSDP2 reads and writes to take weights out of the gathered buffer, and to put gradients into one."""
    if "torch_fsdp2" not in a.run.on:
        return 0.0
    moved = 0.0
    for params, size, again in (
        (a.dense_params - a.copied_params, formats[0], False),
        (a.expert_params, formats[1], columns),
    ):
        if not (backward and a.d.keep_gathered):
            moved += params * (2 + 2) * (2 if again else 1)
        if backward:
            moved += params * (2 + size + (2 + 2 if again else 0))
    return moved
