"""What a framework release switched on by default, and its software band.

A record names what its script says. On Ascend and before 2024 an absent feature is off; later NVIDIA stacks switch
fusions and data-parallel overlap on by default, and their scripts don't say so.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from autodeploy.specs.record import Record

RELEASE_1_0_0 = (2024, 10, 30)  # MindSpeed-LLM 1.0.0; tables of its release candidates were measured before
# Records of other stacks use names outside the vocabulary; each stands for a mechanism that has a name.
ALIASES: dict[str, str] = {"moe_fb_overlap": "adaptive_pipe"}


@dataclass(frozen=True, slots=True)
class ReleaseDefaults:
    """Features that were on without being named, and the band of the software factor."""

    features: frozenset[str]
    band: str
    dispatcher: str = "alltoall"


_MODERN_NVIDIA = frozenset(
    {
        "flash_attention",
        "fused_swiglu",
        "fused_rmsnorm",
        "grouped_gemm",
        "fused_operators",
        "rect_fa",
        "overlap_grad_reduce",
        "overlap_param_gather",
        "fused_cross_entropy",
    }
)
_MEGATRON_2021 = frozenset({"fused_rmsnorm", "fused_swiglu", "dropout", "scatter_gather_sends"})
# Graph mode: the compiler fuses what the script does not name and issues collectives as soon as their inputs exist.
_GRAPH_MODE = frozenset({"graph_mode", "fused_rmsnorm", "fused_swiglu", "overlap_grad_reduce", "overlap_param_gather"})


def release_of(record: Record) -> ReleaseDefaults:
    """Defaults and band of the release that a record ran on."""
    year, month, day = _released(record)
    if record.cluster.profile.startswith("nvidia"):
        old = record.cluster.profile == "nvidia-a100-80g"
        return ReleaseDefaults(_MEGATRON_2021 if old else _MODERN_NVIDIA, "current")
    if record.framework == "mindformers":
        return ReleaseDefaults(_GRAPH_MODE, "mindformers")
    # Megatron-LM dispatches by all-gather unless a script says otherwise.
    if (year, month) < (2024, 6):
        return ReleaseDefaults(frozenset(), "early_2024", "allgather")
    if (year, month, day) < RELEASE_1_0_0:
        return ReleaseDefaults(frozenset(), "mid_2024", "allgather")
    return ReleaseDefaults(frozenset(), "current", "allgather")


def _released(record: Record) -> tuple[int, int, int]:
    """When the software was released, from the record's date or its release name."""
    text = record.date or ""
    if match := re.match(r"(20\d\d)-(\d\d)-(\d\d)", text):
        return int(match[1]), int(match[2]), int(match[3])
    if text.startswith("1.0.RC1"):
        return 2024, 3, 30
    if text.startswith("2023"):
        return 2023, 12, 30
    return 2025, 1, 1


def features_of(record: Record) -> frozenset[str]:
    """Everything that was on in a record's run."""
    named = {ALIASES.get(name, name) for name in record.strategy.features}
    return frozenset(named) | release_of(record).features
