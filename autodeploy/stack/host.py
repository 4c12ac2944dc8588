"""A software stack's demands on the host: how operators reach the device, and who runs the optimizer on states there.

Causes, not names of stacks: shapes that change, the level of the task queue, threads, experts joined or apart. The
document of a stack states each in its section `host`; `HostSoftware.of` is the one reading.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

MICRO: Final = 1e-6
CPU_KERNELS: Final = ("unfused", "foreach", "fused")
# Words of the section, with the values that each has; those with a unit are numbers.
HOST_VALUES: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "shapes": ("fixed", "changing"),
        "task_queue": ("0", "1", "2"),
        "expert_parameters": ("joined", "apart"),
        "optimizer_on_host": ("swapped", "updated"),
        "optimizer_kernel": CPU_KERNELS,
        "loss": ("plain", "scored"),
        "rotary": ("whole", "by_document"),
    }
)
HOST_UNITS: Final[Mapping[str, str]] = MappingProxyType(
    {
        **{"new_shape_us": "us", "scatter": "fraction", "reads_of_packs": "count"},
        **{"optimizer_threads": "count", "optimizer_fraction": "fraction"},
        **{"issue_us_per_op": "us", "sync_us": "us", "operator_factor": "ratio"},
    }
)


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

    changing_shapes: bool = False
    new_shape_s: float = 0.0
    new_shape_range: tuple[float, float] = (1.0, 1.0)
    task_queue: int = 1
    scatter: float = 0.0
    reads_of_packs: float = 0.0
    experts_apart: bool = False
    updates: bool = False
    kernel: str = "unfused"
    threads: float = 1.0
    fraction: float = 1.0
    scores: bool = False
    rotates_documents: bool = False
    issue_s_per_op: float | None = None
    sync_s: float | None = None
    operator_factor: float | None = None

    @classmethod
    def of(cls, facts: Mapping[str, str], intervals: Mapping[str, tuple[float, ...]]) -> HostSoftware:
        """The facts of a section `host` as numbers; what it does not say is as in a stack without one."""
        changing = facts.get("shapes") == "changing"
        one = float(facts.get("new_shape_us", 0.0)) * MICRO
        return cls(
            changing_shapes=changing,
            new_shape_s=one,
            new_shape_range=_range(one, intervals.get("new_shape_us", ())) if changing else (1.0, 1.0),
            task_queue=int(facts.get("task_queue", 1)),
            scatter=float(facts.get("scatter", 0.0)) if changing else 0.0,
            reads_of_packs=float(facts.get("reads_of_packs", 0.0)),
            experts_apart=facts.get("expert_parameters") == "apart",
            updates=facts.get("optimizer_on_host") == "updated",
            kernel=facts.get("optimizer_kernel", "unfused"),
            threads=float(facts.get("optimizer_threads", 1.0)),
            fraction=float(facts.get("optimizer_fraction", 1.0)),
            scores=facts.get("loss") == "scored",
            rotates_documents=facts.get("rotary") == "by_document",
            issue_s_per_op=_number(facts, "issue_us_per_op", MICRO),
            sync_s=_number(facts, "sync_us", MICRO),
            operator_factor=_number(facts, "operator_factor", 1.0),
        )

    def of_strategy(self, offload_fraction: float | None) -> HostSoftware:
        """The same where a strategy says which fraction of the optimizer the host runs; None: it does not say."""
        return self if offload_fraction is None else replace(self, updates=True, fraction=offload_fraction)


def _number(facts: Mapping[str, str], name: str, unit: float) -> float | None:
    return float(facts[name]) * unit if name in facts else None


def _range(value_s: float, interval_us: tuple[float, ...]) -> tuple[float, float]:
    if not value_s or len(interval_us) != 2:
        return 1.0, 1.0
    return interval_us[0] * MICRO / value_s, interval_us[1] * MICRO / value_s


def host_value_is_valid(name: str, value: object) -> bool:
    """Whether a fact of the section has a value that its name can have."""
    if name in HOST_VALUES:
        return value in HOST_VALUES[name]
    try:
        return float(str(value)) >= (1.0 if name == "optimizer_threads" else 0.0)
    except ValueError:
        return False
