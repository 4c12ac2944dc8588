"""A software stack's demands on the host: how operators reach the device, and who runs the optimizer on states there.

Causes, not names of stacks: shapes that change, the level of the task queue, threads, experts joined or apart. The
document of a stack states each in its section `host`; `HostSoftware.of` is the one reading.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

MICRO: Final = 1e-6
CPU_KERNELS: Final = ("unfused", "foreach", "fused")


def _fact(name: str, values: tuple[str, ...], default: Any, read: Callable[[str], Any]) -> Any:
    """A field that a fact of the section says. values : that the fact has; of a number, its unit."""
    return field(default=default, metadata={"fact": name, "values": values, "read": read})


def _word(name: str, plain: str, other: str) -> Any:
    """Whether a fact is the other of its two words."""
    return _fact(name, (plain, other), False, other.__eq__)


def _number(name: str, unit: str, default: float | None = 0.0) -> Any:
    """A number, times in seconds."""
    factor = MICRO if unit == "us" else 1.0
    return _fact(name, (unit,), default, lambda text: float(text) * factor)


@dataclass(frozen=True, slots=True)
class HostSoftware:
    """The host's part of a stack.

    changing_shapes : no two micro batches have the same shapes; else routed rows alone differ. new_shape_s : what
    issuing an operator of a new shape costs beside the rest, as its tiling is computed anew; new_shape_range : its 80 %
    interval over that, where all shapes are new. task_queue : its level. scatter : of the hosts' time, standard
    deviation over mean, where their work differs. reads_of_packs : of packed documents' bounds by an attention, for
    which the host waits. experts_apart : each expert has parameters of its own. updates : the host runs the optimizer
    on the states that lie there, else they stream through the device. kernel, threads, fraction : of that optimizer,
    and of the states there. scores : the loss divides logits by a temperature first. rotates_documents : queries and
    keys of packed documents are rotated one document after another.
    issue_s_per_op, sync_s : instead of the profile's; operator_factor : time of operators against the release that the
    profile's efficiencies describe, instead of its band's. None: the profile has them.
    """

    changing_shapes: bool = _word("shapes", "fixed", "changing")
    new_shape_s: float = _number("new_shape_us", "us")
    new_shape_range: tuple[float, float] = (1.0, 1.0)
    task_queue: int = _fact("task_queue", ("0", "1", "2"), 1, int)
    scatter: float = _number("scatter", "fraction")
    reads_of_packs: float = _number("reads_of_packs", "count")
    experts_apart: bool = _word("expert_parameters", "joined", "apart")
    updates: bool = _word("optimizer_on_host", "swapped", "updated")
    kernel: str = _fact("optimizer_kernel", CPU_KERNELS, CPU_KERNELS[0], str)
    threads: float = _number("optimizer_threads", "count", 1.0)
    fraction: float = _number("optimizer_fraction", "fraction", 1.0)
    scores: bool = _word("loss", "plain", "scored")
    rotates_documents: bool = _word("rotary", "whole", "by_document")
    issue_s_per_op: float | None = _number("issue_us_per_op", "us", None)
    sync_s: float | None = _number("sync_us", "us", None)
    operator_factor: float | None = _number("operator_factor", "ratio", None)

    @classmethod
    def of(cls, facts: Mapping[str, str], intervals: Mapping[str, tuple[float, ...]]) -> HostSoftware:
        """The facts of a section `host` as numbers; what it does not say is as in a stack without one."""
        said = cls(**{f.name: f.metadata["read"](facts[n]) for n, f in _FIELDS.items() if n in facts})
        if not said.changing_shapes:
            return replace(said, scatter=0.0)
        ends = intervals.get("new_shape_us", ())
        if not said.new_shape_s or len(ends) != 2:
            return said
        low, high = (end * MICRO / said.new_shape_s for end in ends)
        return replace(said, new_shape_range=(low, high))

    def of_strategy(self, offload_fraction: float | None) -> HostSoftware:
        """The same where a strategy says which fraction of the optimizer the host runs; None: it does not say."""
        return self if offload_fraction is None else replace(self, updates=True, fraction=offload_fraction)


_FIELDS: Final = {each.metadata["fact"]: each for each in fields(HostSoftware) if each.metadata}
HOST_VALUES: Final[Mapping[str, tuple[str, ...]]] = {n: each.metadata["values"] for n, each in _FIELDS.items()}
"""Facts of the section, with the values that each has; of numbers, their unit."""
HOST_UNITS: Final = {name: values[0] for name, values in HOST_VALUES.items() if len(values) == 1}
