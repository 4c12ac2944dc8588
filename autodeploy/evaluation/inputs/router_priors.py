"""What is assumed of each kind of router, from `router_priors.yaml`, and the family of loads that follows."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING

from autodeploy.specs.router import STATED_AT_EP, RouterKind, even_groups
from cost_models.expert_skew import REFERENCE_SPLIT, SkewFamily
from hardware_profiles.shipped_yaml import load_shipped_yaml

if TYPE_CHECKING:
    from autodeploy.specs.model import ModelSpec
    from autodeploy.specs.router import StatedImbalance


@dataclass(frozen=True, slots=True)
class RouterPrior:
    """A number that nobody measured on the user's router: its value, what it may be, and where it comes from.

    low, high : the extremes. sigma : standard deviation inside of them.
    """

    value: float
    low: float
    high: float
    sigma: float
    unit: str
    kind: str
    source: str


@cache
def persistent_shares() -> dict[str, RouterPrior]:
    """Share of the variance of log loads that lasts, by kind of router; forced routers have none."""
    text = files("autodeploy.evaluation.inputs").joinpath("router_priors.yaml").read_text(encoding="utf-8")
    known = load_shipped_yaml(text)
    return {kind: RouterPrior(**each["persistent_share"], source=each["source"]) for kind, each in known.items()}


def family_of(
    model: ModelSpec, router: RouterKind, stated: StatedImbalance | None, seq_length: int, share: float | None = None
) -> SkewFamily:
    """The loads behind a stated factor; even without one, and under a forced router.

    Parameters
    ----------
    share : of the variance that lasts, in place of the prior's.
    """
    experts = model.n_routed_experts or 1
    value = 1.0 if stated is None or router == "forced" or not model.is_moe else stated.value
    if router != "forced" and share is None:
        share = persistent_shares()[router].value
    return SkewFamily(
        experts=experts,
        value=value,
        at_ranks=STATED_AT_EP if stated is None else stated.at_ep,
        copies=(model.num_experts_per_tok or 1) * seq_length / REFERENCE_SPLIT,
        persistent=1.0 if share is None else share,
        groups=even_groups(model, router),
    )
