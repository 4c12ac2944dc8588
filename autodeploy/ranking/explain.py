"""Plans in words: why the best is best, and what divisibility costs."""

from __future__ import annotations

from autodeploy.specs.planset import PARTS, Plan

PART_NAMES: dict[str, str] = {
    "compute_s": "compute",
    "exposed_tp_s": "exposed tensor-parallel communication",
    "exposed_ep_s": "exposed expert communication",
    "exposed_cp_s": "exposed context-parallel communication",
    "exposed_dp_s": "exposed data-parallel communication",
    "exposed_pp_s": "pipeline sends",
    "pipeline_bubble_s": "pipeline bubble",
    "recompute_s": "recomputation",
    "exposed_swap_s": "exposed swapping",
    "host_bound_s": "waiting for the host",
    "optimizer_s": "optimizer",
    "imbalance_s": "imbalance",
    "generation_s": "generation",
    "hand_over_s": "hand-over of weights",
}


def degrees(plan: Plan) -> str:
    """TP2 PP8 VPP2 EP32 DP48: the degrees above one, and dp; where it generates too, where and how."""
    s = plan.strategy
    parts = [f"TP{s.tp}", f"PP{s.pp}"]
    parts += [f"VPP{s.vpp}"] if s.vpp > 1 else []
    parts += [f"CP{s.cp}"] if s.cp > 1 else []
    parts += [f"EP{s.ep}"] if s.ep > 1 else []
    parts += [f"DP{s.dp}"]
    if s.rl is not None:
        experts = f" EP{s.rl.generation.ep}" if s.rl.generation.ep > 1 else ""
        parts += [f"{s.rl.placement} with generation TP{s.rl.generation.tp}{experts}"]
    return " ".join(parts)


def explanation(plan: Plan, other: Plan | None) -> str:
    """How much longer another plan takes and with which parts of the step, the largest first."""
    if other is None:
        largest = sorted(PARTS, key=lambda p: -getattr(plan.breakdown, p))[:3]
        shares = [f"{PART_NAMES[p]} {getattr(plan.breakdown, p) / plan.step_time_s:.0%}" for p in largest]
        return "its time goes to " + ", ".join(shares)
    gains = {p: getattr(other.breakdown, p) - getattr(plan.breakdown, p) for p in PARTS}
    total = other.step_time_s - plan.step_time_s
    better = [p for p in sorted(gains, key=lambda p: -gains[p]) if gains[p] > 0.002 * plan.step_time_s][:3]
    worse = [p for p in sorted(gains, key=lambda p: gains[p]) if gains[p] < -0.002 * plan.step_time_s][:2]
    share = f"{100.0 * abs(total) / plan.step_time_s:.1f}"
    than = "as long" if share == "0.0" else f"{share} % longer" if total > 0.0 else f"{share} % less time"
    text = f"{degrees(other)} takes {than}"
    if better:
        text += ": it adds " + ", ".join(f"{gains[p]:.2f} s of {PART_NAMES[p]}" for p in better)
    if worse:
        text += (
            ("; " if better else ": ") + "it saves " + ", ".join(f"{-gains[p]:.2f} s of {PART_NAMES[p]}" for p in worse)
        )
    return text


def memory_explanation(plan: Plan, other: Plan | None) -> str:
    """What of the fullest stage's memory is what, and what another plan takes instead."""
    if other is None:
        fullest = max(plan.stages, key=lambda stage: stage.total_gib).memory_gib.model_dump()
        largest = sorted(fullest, key=lambda kind: -fullest[kind])[:3]
        shares = [f"{kind.replace('_', ' ')} {fullest[kind]:.1f} GiB" for kind in largest]
        return "its memory goes to " + ", ".join(shares)
    more = other.peak_memory_gib - plan.peak_memory_gib
    time = other.step_time_s / plan.step_time_s - 1.0
    return f"{more:+.1f} GiB of peak memory and {time:+.1%} step time for {degrees(other)}"
