"""Which features are on: what the spec asks for, what the target can launch, what numerics allow."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from autodeploy.errors import FieldError, UnsupportedError
from autodeploy.specs.features import FEATURES, GROUPS, LACKING, expand

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
    "megatron": MODELLED - _OWN_STACK - LACKING["megatron"],
    "mindformers": MODELLED - _OWN_STACK - LACKING["mindformers"],
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
    ("quantized_optimizer", "o2_optimizer"),
)
_NEED_EXPERTS = frozenset({"expert_migration", "mutual_routing", "capacity_drop"})
# What a feature rests on, by target; `every` holds for all of them.
# Source: Megatron-LM arguments (--overlap-param-gather); MindSpeed moe_alltoall_overlap, tp_extend_ep, balanced_moe.
_RESTS_ON: dict[str, dict[str, str]] = {
    "every": {"overlap_param_gather": "overlap_grad_reduce"},
    "mindspeed-llm": {
        "moe_alltoall_overlap": "grouped_gemm",
        "tp_extend_ep": "grouped_gemm",
        "mutual_routing": "grouped_gemm",
    },
}
# Of two that exclude each other neither is faster for every strategy: where `auto` may have either, each strategy's
# estimate decides. Grouped multiplication is not left to that: no record has one layout with and without it, and its
# fitted rate stands for more than the kernel. It stays on, as in the recipes, and `off` is for the user to ask.
_DECIDED_BY_TIME: tuple[tuple[str, str], ...] = (("expert_migration", "mutual_routing"),)


@dataclass(frozen=True, slots=True)
class FeatureChoice:
    """Features that are on, those that the search decides, and every switch with its reason.

    alternatives : other sets that `auto` may use, each legal by itself; the faster one is chosen for each strategy.
    """

    on: frozenset[str]
    switches: Mapping[str, str]
    off_reasons: dict[str, str]
    alternatives: tuple[frozenset[str], ...] = ()

    @property
    def off_everywhere(self) -> dict[str, str]:
        """Features that no alternative uses either, each with its reason."""
        some = frozenset().union(*self.alternatives)
        return {name: reason for name, reason in self.off_reasons.items() if name not in some}


def choose_features(search: SearchSpec, model: ModelSpec, profile_name: str) -> FeatureChoice:
    """Resolve every feature's switch.

    `auto` is on where it is modelled, launchable, within the numerics asked for and useful to the model. Features that
    are axes of the search (schedules, dispatchers, algorithms, memory modes) stay open when they are on by auto; those
    that are faster for some strategies and slower for others stay open as `alternatives`.

    Raises
    ------
    UnsupportedError
        with every feature that is on but not modelled, not launchable, beyond the numerics, or without what it needs.
    """
    asked: dict[str, str] = {member: switch for name, switch in search.features.items() for member in expand(name)}
    on, reasons, errors = _resolved(asked, search, model, profile_name)
    if errors:
        raise UnsupportedError(errors=tuple(errors))
    switches = {name: asked.get(name, "auto") if name in on else "off" for name in FEATURES}
    return FeatureChoice(on, switches, reasons, _alternatives(on, asked, search, model, profile_name))


def _resolved(
    asked: Mapping[str, str], search: SearchSpec, model: ModelSpec, profile_name: str
) -> tuple[frozenset[str], dict[str, str], list[FieldError]]:
    """Features that are on under these switches, why the others are not, and what is asked for but can't be."""
    on: set[str] = set()
    reasons: dict[str, str] = {}
    errors: list[FieldError] = []

    def refuse(name: str, reason: str, hint: str) -> None:
        errors.append(FieldError(f"/search/features/{_as_asked(name, search)}", f"{name}: {reason}", hint))

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
            refuse(name, reason, _hint(name, search))
        else:
            reasons[name] = reason
    for name, needed in (*_RESTS_ON["every"].items(), *_RESTS_ON.get(search.target, {}).items()):
        if name not in on or needed in on:
            continue
        reasons[name] = f"it needs {needed}"
        if asked.get(name) == "on":
            refuse(name, reasons[name], f"switch {needed} on, or leave it at auto")
        on.discard(name)
    for first, second in _EXCLUDED_TOGETHER:
        if first in on and second in on:
            loser = first if asked.get(second) == "on" and asked.get(first) != "on" else second
            on.discard(loser)
            reasons[loser] = f"excluded by {second if loser == first else first}"
    return frozenset(on), reasons, errors


def _alternatives(
    on: frozenset[str], asked: Mapping[str, str], search: SearchSpec, model: ModelSpec, profile_name: str
) -> tuple[frozenset[str], ...]:
    """The sets that result where one decided by time gives way to the other."""
    found: list[frozenset[str]] = []
    for first, second in _DECIDED_BY_TIME:
        if first not in on or "auto" not in {asked.get(first, "auto")} & {asked.get(second, "auto")}:
            continue
        other, _, errors = _resolved({**asked, first: "off"}, search, model, profile_name)
        if not errors and second in other:
            found.append(other)
    return tuple(found)


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
