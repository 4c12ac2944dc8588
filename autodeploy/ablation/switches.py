"""Switching features of a strategy off: what its document says instead."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autodeploy.specs.features import FEATURES
from autodeploy.specs.strategy import Recompute, Strategy
from cost_models.schedule import kinds

if TYPE_CHECKING:
    from collections.abc import Callable

SWAP_FEATURES = ("selective_swap", "swap_attention")


def _plain_schedule(strategy: Strategy) -> Strategy:
    """The usual schedule of the same stages; a V-shaped one folds back to one chunk a stage."""
    if kinds.schedule(strategy.schedule).ends_meet:
        return strategy.model_copy(update={"schedule": kinds.plain(1).name, "vpp": 1, "layers_per_stage": None})
    return strategy.model_copy(update={"schedule": kinds.plain(strategy.vpp).name})


def _flat_dispatch(strategy: Strategy) -> Strategy:
    return strategy.model_copy(update={"moe_dispatcher": "alltoall"})


def _sliced_experts(strategy: Strategy) -> Strategy:
    """Tensor parallel ranks slice each expert again, so the expert group is smaller by their number."""
    if strategy.etp != 1 or strategy.tp == 1:
        return strategy
    return strategy.model_copy(update={"etp": strategy.tp, "ep": max(1, strategy.ep // strategy.tp)})


def _recompute_all(strategy: Strategy) -> Strategy:
    return strategy.model_copy(update={"recompute": Recompute(granularity="full")})


def _keep_on_device(strategy: Strategy) -> Strategy:
    return strategy.model_copy(update={"swap": (), "swap_per_stage": None})


def _even_layers(strategy: Strategy) -> Strategy:
    return strategy.model_copy(update={"layers_per_stage": None})


def _ring(strategy: Strategy) -> Strategy:
    """Keys and values that go round all ranks of the sequence: what every framework has, whatever the heads."""
    return strategy.model_copy(update={"cp_algo": "ring", "ulysses_degree": None})


def _field_off(field: str) -> Callable[[Strategy], Strategy]:
    return lambda strategy: strategy.model_copy(update={field: False})


# Features that a field of the strategy states. All others are told by `features` alone.
STATED: dict[str, Callable[[Strategy], Strategy]] = {
    **dict.fromkeys((name for name in kinds.SCHEDULES if name in FEATURES), _plain_schedule),
    "hierarchical_a2a": _flat_dispatch,
    "tp_extend_ep": _sliced_experts,
    "selective_recompute": _recompute_all,
    **dict.fromkeys(SWAP_FEATURES, _keep_on_device),
    "virtual_pipeline_balance": _even_layers,
    "swap_optimizer": _field_off("swap_optimizer"),
    "fsdp": _field_off("fsdp"),
    "reuse_fp32_param": _field_off("reuse_fp32_param"),
    "ulysses": _ring,
    "hybrid_cp": _ring,
}


def active_features(strategy: Strategy, on: frozenset[str]) -> tuple[str, ...]:
    """Features that this strategy uses, of those that are on; a sequence cut by the ring alone uses none for it."""
    recompute = strategy.recompute
    stated = {
        **{name: strategy.schedule == name for name in kinds.SCHEDULES if name in FEATURES},
        "hierarchical_a2a": strategy.moe_dispatcher == "hierarchical",
        "selective_recompute": recompute.granularity == "selective",
        "selective_swap": any(name != "attention" for name in strategy.swap),
        "swap_attention": "attention" in strategy.swap,
        "virtual_pipeline_balance": "virtual_pipeline_balance" in on and strategy.layers_per_stage is not None,
        "swap_optimizer": strategy.swap_optimizer,
        "fsdp": strategy.fsdp,
        "reuse_fp32_param": strategy.reuse_fp32_param,
        "ulysses": strategy.cp > 1 and strategy.cp_algo == "ulysses",
        "hybrid_cp": strategy.cp > 1 and strategy.cp_algo == "hybrid",
        "tp_extend_ep": strategy.etp == 1 and strategy.tp > 1 and strategy.ep > 1,
    }
    listed = set(strategy.features) or set(on)
    used = {name for name in listed if name not in stated} | {name for name, used in stated.items() if used}
    return tuple(sorted(used - {"ring"}))


def without(strategy: Strategy, features: frozenset[str]) -> Strategy:
    """The strategy with these of its features switched off."""
    for name in sorted(features):
        if name in STATED:
            strategy = STATED[name](strategy)
    left = tuple(name for name in strategy.features if name not in features)
    return strategy.model_copy(update={"features": left})
