"""Which features are on: what the spec asks for, what the target can launch, what numerics allow."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from autodeploy.errors import FieldError, UnsupportedError
from autodeploy.specs.features import FEATURES, GROUPS, expand

if TYPE_CHECKING:
    from collections.abc import Mapping

    from autodeploy.specs.model import ModelSpec
    from autodeploy.specs.search import SearchSpec

# Modelled as mechanisms today. Any other feature is refused by name when it is switched on.
MODELLED: frozenset[str] = frozenset(
    {
        *("adaptive_pipe", "dualpipev", "hierarchical_a2a", "moe_alltoall_overlap", "shared_expert_overlap"),
        *("expert_migration", "sample_rearrangement", "mutual_routing", "capacity_drop"),
        *("virtual_pipeline_balance", "rect_fa", "ascendp_mm", "vector_sort", "fused_operators"),
        *("cube_vector_parallel", "host_sync_free", "host_reorder", "host_core_binding"),
        *("selective_recompute", "selective_swap", "swap_attention", "reuse_fp32_param", "swap_optimizer"),
        *("virtual_optimizer", "o2_optimizer", "quantized_optimizer", "adaptive_comm_buffers"),
        *("coc", "mc2", "overlap_grad_reduce", "overlap_param_gather", "tp_extend_ep", "grouped_gemm", "fsdp"),
        *("ulysses", "ring", "hybrid_cp", "flash_attention", "fused_swiglu", "fused_rmsnorm"),
    }
)

# Kernels and host code of Huawei's own stack, which no public release has.
_OWN_STACK = frozenset({"ascendp_mm", "vector_sort", "cube_vector_parallel", "host_sync_free", "host_reorder"})

# What a framework's public release can launch; the rest comes from Huawei's own stack.
LAUNCHABLE: dict[str, frozenset[str]] = {
    # Samples are rearranged by the data pipeline, which no public release does.
    "mindspeed-llm": MODELLED - _OWN_STACK - {"hierarchical_a2a", "sample_rearrangement"},
    "megatron": MODELLED
    - _OWN_STACK
    - {
        *("expert_migration", "mutual_routing", "sample_rearrangement"),
        "dualpipev",
        "hierarchical_a2a",
        "host_core_binding",
        "coc",
        "mc2",
        "reuse_fp32_param",
        "swap_optimizer",
        "virtual_optimizer",
        "o2_optimizer",
        "quantized_optimizer",
        "adaptive_comm_buffers",
        "swap_attention",
        "selective_swap",
        "tp_extend_ep",
        "moe_alltoall_overlap",
    },
    "mindformers": MODELLED
    - _OWN_STACK
    - {
        *("expert_migration", "mutual_routing", "sample_rearrangement", "capacity_drop"),
        "adaptive_pipe",
        "dualpipev",
        "coc",
        "mc2",
        "reuse_fp32_param",
        "swap_optimizer",
        "virtual_optimizer",
        "o2_optimizer",
        "quantized_optimizer",
        "adaptive_comm_buffers",
        "moe_alltoall_overlap",
        "tp_extend_ep",
        "fsdp",
    },
    "any": MODELLED,
}

_ASCEND_ONLY = frozenset(
    {
        *("mc2", "coc", "reuse_fp32_param", "swap_optimizer", "swap_attention", "moe_alltoall_overlap", "tp_extend_ep"),
        *("ascendp_mm", "vector_sort", "cube_vector_parallel", "host_reorder", "host_core_binding"),
        *("virtual_optimizer", "o2_optimizer", "quantized_optimizer", "adaptive_comm_buffers"),
        *("expert_migration", "mutual_routing"),
    }
)
# Never chosen by `auto`: every micro batch gathers all parameters, so it is slower wherever a plan fits without.
_ASKED_FOR = frozenset({"fsdp"})
_RANK = {"exact": 0, "reordered": 1, "lossy": 2}
# Migration and mutual routing replace the same layer; copied experts drop nothing (MindSpeed balanced_moe.py).
_EXCLUDED_TOGETHER = (
    ("mc2", "coc"),
    ("moe_alltoall_overlap", "shared_expert_overlap"),
    ("expert_migration", "mutual_routing"),
    ("capacity_drop", "mutual_routing"),
)
_NEED_EXPERTS = frozenset({"expert_migration", "mutual_routing", "capacity_drop"})


@dataclass(frozen=True, slots=True)
class FeatureChoice:
    """Features that are on, those that the search decides, and every switch with its reason."""

    on: frozenset[str]
    switches: Mapping[str, str]
    off_reasons: dict[str, str]


def choose_features(search: SearchSpec, model: ModelSpec, profile_name: str) -> FeatureChoice:
    """Resolve every feature's switch.

    `auto` is on where it is modelled, launchable, within the numerics asked for and useful to the model. Features that
    are axes of the search (schedules, dispatchers, algorithms, memory modes) stay open when they are on by auto.

    Raises
    ------
    UnsupportedError
        with every feature that is on but not modelled, not launchable, or beyond the numerics.
    """
    asked = {member: switch for name, switch in search.features.items() for member in expand(name)}
    on, reasons, errors = set(), {}, []
    for name in FEATURES:
        switch = asked.get(name, "auto")
        reason = _why_not(name, search, model, profile_name)
        if switch == "off":
            reasons[name] = "switched off"
        elif switch == "auto" and reason is None and name in _ASKED_FOR:
            reasons[name] = "every micro batch would gather its parameters: switch it on where nothing else fits"
        elif reason is None:
            on.add(name)
        elif switch == "on":
            errors.append(
                FieldError(f"/search/features/{_as_asked(name, search)}", f"{name}: {reason}", _hint(name, search))
            )
        else:
            reasons[name] = reason
    if errors:
        raise UnsupportedError(errors=tuple(errors))
    for first, second in _EXCLUDED_TOGETHER:
        if first in on and second in on:
            loser = first if asked.get(second) == "on" and asked.get(first) != "on" else second
            on.discard(loser)
            reasons[loser] = f"excluded by {second if loser == first else first}"
    switches = {name: asked.get(name, "auto") if name in on else "off" for name in FEATURES}
    return FeatureChoice(frozenset(on), switches, reasons)


def _as_asked(name: str, search: SearchSpec) -> str:
    """The key of the spec that switched the feature: its own name or its group's."""
    return name if name in search.features else next((g for g, members in GROUPS.items() if name in members), name)


def _hint(name: str, search: SearchSpec) -> str:
    if name in MODELLED and name not in LAUNCHABLE[search.target]:
        return "search.target any plans with it"
    return "leave it at auto"


def _why_not(name: str, search: SearchSpec, model: ModelSpec, profile_name: str) -> str | None:
    """Why a feature can't be on, or None."""
    if name not in MODELLED:
        return "not modelled yet"
    if name not in LAUNCHABLE[search.target]:
        return f"{search.target} can't launch it"
    if _RANK[FEATURES[name].numerics] > _RANK[search.numerics]:
        return f"its numerics are {FEATURES[name].numerics}, the spec allows {search.numerics}"
    if search.deterministic_training and FEATURES[name].numerics != "exact" and name in {"mc2", "coc"}:
        return "it changes the order of sums from run to run"
    if name in {"mc2", "coc"} and model.is_moe:
        return "fused collectives exclude mixture of experts"
    if name in _ASCEND_ONLY and profile_name.startswith("nvidia"):
        return "it is a feature of Ascend software"
    if name == "mc2" and profile_name == "cloudmatrix-384":
        return "MC2 is not supported on Atlas 900 A3"
    if not model.is_moe and (FEATURES[name].area in {"all-to-all", "experts"} or name in _NEED_EXPERTS):
        return "the model has no experts"
    if name == "rect_fa" and not model.is_mla:
        return "keys and values of the model are as wide as its queries"
    if name in {"vector_sort", "cube_vector_parallel"} and not model.is_moe:
        return "it moves rows between experts, and the model has none"
    if name in _NEED_EXPERTS and model.capacity_factor is not None:
        return "experts are padded to the model's capacity_factor: all do the same work"
    if name in {"adaptive_pipe", "dualpipev"} and not model.is_moe:
        return "it hides expert communication, and the model has no experts"
    return None
