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
# Until then the scripts of all records say --no-gradient-accumulation-fusion, and none after it
# (Ascend/MindSpeed-LLM, examples at the commits that the records name).
FUSED_ACCUMULATION = (2024, 11, 18)
# Two of 21 example scripts of 1.0.RC1 fuse the rotary embedding, half of those of 1.0.RC3.
FUSED_ROTARY = (2024, 6, 1)
MINDFORMERS_1_5 = (1, 5)  # April 2025: built on the operators of the current band
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
# Graph mode: norms are one operator and collectives are issued as soon as their inputs exist; the gate's activation and
# its product are two operators (LlamaSiLU in mindformers/models/llama/llama_layer.py), and Adam is a chain of them.
_GRAPH_MODE = frozenset(
    {"graph_mode", "fused_rmsnorm", "overlap_grad_reduce", "overlap_param_gather", "unfused_optimizer"}
)


def release_of(record: Record) -> ReleaseDefaults:
    """Defaults and band of the release that a record ran on."""
    year, month, day = _released(record)
    if record.cluster.profile.startswith("nvidia"):
        old = record.cluster.profile == "nvidia-a100-80g"
        return ReleaseDefaults(_MEGATRON_2021 if old else _MODERN_NVIDIA, "current")
    if record.framework == "mindformers":
        return _mindformers(record)
    unfused = set()
    if (year, month, day) < FUSED_ACCUMULATION:
        unfused.add("unfused_gradient_accumulation")
    if (year, month, day) < FUSED_ROTARY:
        unfused.add("unfused_rotary")
    band = "current"
    if (year, month, day) < RELEASE_1_0_0:
        band = "early_2024" if (year, month) < (2024, 6) else "mid_2024"
    # Megatron-LM dispatches by all-gather unless a script says otherwise.
    return ReleaseDefaults(frozenset(unfused), band, "allgather")


def _mindformers(record: Record) -> ReleaseDefaults:
    """Graph mode; micro batches of a pipeline add their gradients in operators of their own, a single one has none.

    Every rank of an expert's tensor-parallel group dispatches all tokens of the group: the arrays of MoEV2 are cut over
    data and expert parallel ranks only, unless group_wise_a2a is set (mindformers/modules/transformer/moe.py).
    """
    features = _GRAPH_MODE
    if record.strategy.pp > 1:
        features |= {"unfused_gradient_accumulation"}
    if record.model.is_moe and (record.strategy.etp or 1) > 1:
        features |= {"replicated_dispatch"}
    release = re.match(r"r?(\d+)\.(\d+)", record.date or "")
    late = release is not None and (int(release[1]), int(release[2])) >= MINDFORMERS_1_5
    return ReleaseDefaults(features, "current" if late else "mindformers")


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


def unnamed_features(profile: str) -> frozenset[str]:
    """What a launch of today's software has on without naming it."""
    return _MODERN_NVIDIA if profile.startswith("nvidia") else frozenset()
