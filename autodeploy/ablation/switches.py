"""Switching features of a strategy off: what its document says instead."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autodeploy.specs.strategy import Recompute, Strategy
from autodeploy.stack.features import FEATURES
from cost_models.schedule import kinds

if TYPE_CHECKING:
    from collections.abc import Callable


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


def _switched_on(strategy: Strategy, name: str, on: frozenset[str]) -> dict[str, bool]:
    """For each part of a strategy's document, whether it says that the feature of this name is on."""
    return {
        "schedule": strategy.schedule == name,
        "dispatcher": strategy.moe_dispatcher == "hierarchical",
        "recompute": strategy.recompute.granularity == "selective",
        "swap": any(each != "attention" for each in strategy.swap),
        "attention_swap": "attention" in strategy.swap,
        "placement": name in on and strategy.layers_per_stage is not None,
        "field": getattr(strategy, name, False) is True,
        "sequence": strategy.cp > 1 and strategy.cp_algo == name.removesuffix("_cp"),
        "experts": strategy.etp == 1 and strategy.tp > 1 and strategy.ep > 1,
        "base": False,
    }


# What a part of the document says where the feature that it switches is off.
_OFF: dict[str, Callable[[Strategy], Strategy]] = {
    "schedule": _plain_schedule,
    "dispatcher": _flat_dispatch,
    "recompute": _recompute_all,
    "swap": _keep_on_device,
    "attention_swap": _keep_on_device,
    "placement": _even_layers,
    "sequence": _ring,
    "experts": _sliced_experts,
}


def active_features(strategy: Strategy, on: frozenset[str]) -> tuple[str, ...]:
    """Features that this strategy uses, of those that are on; a sequence cut by the ring alone uses none for it."""
    stated = {name: feature.switch for name, feature in FEATURES.items() if feature.switch}
    listed = set(strategy.features) or set(on)
    used = {name for name, switch in stated.items() if _switched_on(strategy, name, on)[switch]}
    return tuple(sorted(used | (listed - stated.keys())))


def without(strategy: Strategy, features: frozenset[str]) -> Strategy:
    """The strategy with these of its features switched off."""
    for name in sorted(features):
        strategy = _off(strategy, name)
    left = tuple(name for name in strategy.features if name not in features)
    return strategy.model_copy(update={"features": left})


def _off(strategy: Strategy, name: str) -> Strategy:
    """The strategy with what its document says of a feature switched off; its list of features is another matter."""
    switch = FEATURES[name].switch if name in FEATURES else ""
    if switch == "field":
        return strategy.model_copy(update={name: False})
    return _OFF[switch](strategy) if switch in _OFF else strategy
