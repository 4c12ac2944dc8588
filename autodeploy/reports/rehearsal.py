"""What a rehearsal keeps of its plan, what it changes and can't show, and both predictions: sentences in English."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from autodeploy.specs.planset import Plan

SHOWN_MS = 0.005  # parts below it are left out


def rehearsal_lines(
    of: Plan,
    here: Plan,
    changed: Mapping[str, tuple[int, int]],
    layer_s: Mapping[str, tuple[Mapping[str, float], Mapping[str, float]]],
) -> list[str]:
    """One sentence a line, which `translation.translated` says in Chinese.

    Parameters
    ----------
    changed, layer_s : as `autodeploy.rehearsal.Rehearsal` has them.
    """
    fewer = ", ".join(f"{name} {before} -> {after}" for name, (before, after) in changed.items())
    lines = [
        f"a rehearsal of plan {of.plan_id} on {here.num_npus_used} of its {of.num_npus_used} cards",
        f"changed, from the plan to here: {fewer}",
        "all else of a rank's work is as in the plan: flags, tp, cp, micro batch, sequence, experts of a rank, "
        "chunks, schedule, memory choices",
        f"predicted for the rehearsal: {_prediction(here)}",
        f"predicted for the plan: {_prediction(of)}",
    ]
    for kind, (there, now) in layer_s.items():
        parts = [
            f"{part.removesuffix('_s')} {1e3 * there[part]:.2f} -> {1e3 * now[part]:.2f} ms"
            for part in there
            if max(there[part], now[part]) * 1e3 > SHOWN_MS
        ]
        lines.append(f"one {kind} layer and micro batch, from the plan to here: {', '.join(parts)}")
    if "pp" in changed:
        lines.append(f"it does not show the bubble and the sends of {changed['pp'][0]} stages")
    if "ep" in changed:
        lines.append(f"it does not show the exchange of experts among {changed['ep'][0]} ranks, nor how uneven it is")
    if "dp" in changed:
        lines.append(f"it does not show the gradient exchange among {changed['dp'][0]} replicas")
    if "num_experts_per_tok" in changed:
        lines.append(f"it sends a token to fewer experts than the plan's {changed['num_experts_per_tok'][0]}")
    if "layers_of_a_chunk" in changed:
        lines.append("its chunks have fewer layers, because its replicas share the optimizer's states among fewer")
    lines.append("it does not show what a network of more nodes costs")
    return lines


def _prediction(plan: Plan) -> str:
    interval = plan.uncertainty
    return (
        f"{plan.step_time_s:.4g} s a step ({interval.low_s:.4g} to {interval.high_s:.4g}), "
        f"{plan.peak_memory_gib:.1f} GiB on the fullest card"
    )
