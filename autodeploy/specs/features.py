"""The features a strategy can switch on: one mechanism each.

`numerics` says how a feature changes training results: exact (bit for bit the same sums), reordered (the same
sums in another order) or lossy. Names and groups are the vocabulary of specs, plans and records.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from autodeploy.specs.search import Numerics


@dataclass(frozen=True, slots=True)
class Feature:
    """One switchable mechanism."""

    name: str
    title: str
    numerics: Numerics
    area: str
    modelled: bool = True


def _rows(area: str, numerics: Numerics, *names_titles: tuple[str, str]) -> list[Feature]:
    return [Feature(name, title, numerics, area) for name, title in names_titles]


FEATURES: dict[str, Feature] = {
    f.name: f
    for f in [
        *_rows(
            "schedule",
            "exact",
            ("adaptive_pipe", "Adaptive Pipe: forward of one micro batch against backward of another"),
            ("dualpipev", "DualPipeV schedule"),
        ),
        *_rows(
            "all-to-all",
            "exact",
            ("hierarchical_a2a", "AllGather between nodes, All-to-All inside"),
            ("moe_alltoall_overlap", "All-to-All overlapped inside a micro batch"),
            ("shared_expert_overlap", "shared expert computed during the All-to-All"),
        ),
        Feature("expert_migration", "experts move to level the ranks' load", "exact", "load balance"),
        Feature("sample_rearrangement", "samples packed to level attention time", "reordered", "load balance"),
        Feature("virtual_pipeline_balance", "layers placed unevenly to level the stages", "exact", "load balance"),
        Feature("mutual_routing", "hot experts broadcast instead of their tokens", "reordered", "load balance"),
        *_rows(
            "operators",
            "reordered",
            ("rect_fa", "flash attention without padding and concatenation of K and V"),
            ("ascendp_mm", "matrix multiplication with deeper on-chip pipelining"),
            ("vector_sort", "sort class operators on vector units"),
            ("fused_operators", "fused permute, rotary embedding and softmax"),
            ("flash_attention", "attention without a materialised score matrix"),
            ("fused_swiglu", "SwiGLU as one operator"),
            ("fused_rmsnorm", "RMSNorm as one operator"),
        ),
        Feature("cube_vector_parallel", "vector work beside matrix work", "exact", "operators"),
        *_rows(
            "host",
            "exact",
            ("host_sync_free", "no device-host synchronisation in the MoE layer"),
            ("host_reorder", "operators issued in an order that keeps the queue full"),
            ("host_core_binding", "24 cores bound to each device"),
        ),
        *_rows(
            "memory",
            "exact",
            ("selective_recompute", "recompute chosen per module and stage"),
            ("selective_swap", "tensors swapped to the host, chosen per module and stage"),
            ("swap_attention", "attention activations swapped to the host"),
            ("reuse_fp32_param", "BF16 weights share the FP32 copy's storage"),
            ("swap_optimizer", "optimizer states kept on the host"),
            ("virtual_optimizer", "Adam moments in host-mapped memory"),
            ("adaptive_comm_buffers", "communication buffers sized by their messages"),
        ),
        *_rows(
            "memory",
            "lossy",
            ("o2_optimizer", "optimizer states in BF16"),
            ("quantized_optimizer", "optimizer states in 8 bits"),
            ("capacity_drop", "tokens above an expert's capacity are dropped"),
        ),
        *_rows(
            "tensor parallel",
            "reordered",
            ("coc", "matrix multiplication and collective in chunks"),
            ("mc2", "matrix multiplication fused with the collective"),
        ),
        *_rows(
            "data parallel",
            "exact",
            ("overlap_grad_reduce", "gradient reduction during the backward pass"),
            ("overlap_param_gather", "parameter gathering during the forward pass"),
        ),
        Feature("fsdp", "weights and gradients sharded over data parallel ranks", "reordered", "data parallel"),
        *_rows(
            "experts",
            "exact",
            ("tp_extend_ep", "tensor parallel ranks join the expert parallel group"),
            ("grouped_gemm", "all experts of a rank in one matrix multiplication"),
        ),
        *_rows(
            "context parallel",
            "reordered",
            ("ulysses", "context parallel by heads"),
            ("ring", "context parallel by key-value ring"),
            ("hybrid_cp", "context parallel by heads inside, ring outside"),
        ),
    ]
}

GROUPS: dict[str, tuple[str, ...]] = {
    "edpb": ("expert_migration", "sample_rearrangement", "virtual_pipeline_balance"),
    "host": ("host_sync_free", "host_reorder", "host_core_binding"),
}

# MindSpeed's and its trainers' own, which another framework's public release does not have.
_MINDSPEED_ONLY = (
    *("expert_migration", "mutual_routing", "sample_rearrangement", "moe_alltoall_overlap", "tp_extend_ep"),
    *("dualpipev", "coc", "mc2", "adaptive_comm_buffers"),
    *("reuse_fp32_param", "swap_optimizer", "virtual_optimizer", "o2_optimizer", "quantized_optimizer"),
)
LACKING: dict[str, frozenset[str]] = {
    "megatron": frozenset(
        (*_MINDSPEED_ONLY, "hierarchical_a2a", "host_core_binding", "swap_attention", "selective_swap")
    ),
    "mindformers": frozenset((*_MINDSPEED_ONLY, "capacity_drop", "adaptive_pipe", "fsdp")),
}


def expand(name: str) -> tuple[str, ...]:
    """The members of a feature group, or the feature itself."""
    return GROUPS.get(name, (name,))
