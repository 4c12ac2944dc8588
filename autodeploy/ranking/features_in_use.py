"""Which of the features that are on a candidate makes use of: what its plan names."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autodeploy.evaluation.stage_memory import ADAPTIVE_BUFFERS, saves_buffers

if TYPE_CHECKING:
    from autodeploy.evaluation.context import Context
    from autodeploy.strategies.candidates import Candidates

ALGORITHMS = {"ring": "ring", "ulysses": "ulysses", "hybrid": "hybrid_cp"}
# Features that come with an axis of the strategy; all others are in use wherever they are on.
OF_AXES = frozenset(
    {
        *("adaptive_pipe", "dualpipev", "hierarchical_a2a", "reuse_fp32_param", "swap_optimizer", "swap_attention"),
        *("ulysses", "ring", "hybrid_cp", "tp_extend_ep", "selective_recompute", "selective_swap"),
        *("moe_alltoall_overlap", "shared_expert_overlap", "mc2", "coc"),
        *("overlap_grad_reduce", "overlap_param_gather", "virtual_optimizer"),
        *("expert_migration", "mutual_routing", "capacity_drop", "sample_rearrangement"),
    }
)


def features_in_use(candidate: Candidates, context: Context) -> set[str]:
    """Names of the features that the first candidate uses; recompute and swap are its layout's to name."""
    features = (set(context.features) - OF_AXES) | _of_pipeline(candidate, context)
    if context.model.is_moe:
        features |= _of_experts(candidate, context)
    if ADAPTIVE_BUFFERS in features and not saves_buffers(candidate, context):
        features.discard(ADAPTIVE_BUFFERS)
    return features


def _of_pipeline(candidate: Candidates, context: Context) -> set[str]:
    """Features of the schedule, of the dense layers and of the optimizer."""
    axes, on, found = candidate.axes_at(0), context.features, set()
    if candidate.paired[0]:
        found |= {str(axes["schedule"])} & OF_AXES
    else:
        found |= {"overlap_grad_reduce", "overlap_param_gather"} & on
    if int(axes["tp"]) > 1 and not context.model.is_moe:
        found |= {"mc2", "coc"} & on
    if int(axes["cp"]) > 1:
        found.add(ALGORITHMS[str(axes["cp_algo"])])
    if context.packs is not None and int(axes["dp"]) > 1:
        found |= {"sample_rearrangement"} & on
    return found | {name for name in ("reuse_fp32_param", "swap_optimizer", "virtual_optimizer") if axes[name]}


def _of_experts(candidate: Candidates, context: Context) -> set[str]:
    """Features of the exchange of tokens between experts and of the experts' load."""
    axes, on, found = candidate.axes_at(0), context.features, set()
    dispatcher = axes["moe_dispatcher"]
    if dispatcher == "hierarchical":
        found.add("hierarchical_a2a")
    if dispatcher == "alltoall_seq" and int(axes["tp"]) > 1 and int(axes["etp"]) == 1:
        found |= {"tp_extend_ep"} & on
    if int(axes["ep"]) > 1:
        found |= {"capacity_drop"} & on
        if dispatcher in {"alltoall", "alltoall_seq"} and not candidate.paired[0]:
            found |= {"moe_alltoall_overlap", "shared_expert_overlap"} & on
    if context.levels_experts(candidate)[0]:
        found |= {"expert_migration", "mutual_routing"} & on
    return found
