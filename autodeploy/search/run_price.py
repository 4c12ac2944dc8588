"""What risks cost in the run of a spec."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autodeploy.costs.training_run.run_estimate import phases_of
from autodeploy.search.ranking.expected_cost import DAY_S, HOUR_S, RiskPrice

if TYPE_CHECKING:
    from autodeploy.specs.spec import Spec


def price_of(spec: Spec, step_s: float) -> RiskPrice:
    """The price of risks in a run of steps that take about `step_s`; without tokens as long as the spec's terms say."""
    terms = spec.search.risk_terms
    tokens = sum(phase.tokens for phase in phases_of(spec))
    run_s = terms.run_days * DAY_S
    if tokens:
        training = spec.training
        run_s = max(step_s, step_s * tokens / (training.global_batch_size.value * training.sample_tokens))
    return RiskPrice(
        floor=terms.floor,
        failed_launch_s=terms.failed_launch_hours * HOUR_S,
        restart_s=terms.restart_hours * HOUR_S,
        run_s=run_s,
    )
