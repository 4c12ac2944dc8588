"""Published formulas of pipeline bubbles and of what is paired, for equal stages.

What the graph and the closed forms are held to.
"""

from __future__ import annotations

from cost_models.schedule.orders import forwards_ahead


def bubble_fraction(pp: int, vpp: int, micro_batches: int) -> float:
    """Idle share of a pipeline of equal stages: (P - 1) / (M V + P - 1).

    Interleaving cuts the ramp of (P - 1) stages to 1 / V of its length and leaves the work as it is.

    References
    ----------
    arXiv:2104.04473, section 2.2. Pangu Ultra 135B (arXiv:2504.07866, P = 8, M = 16): 7 / 23 = 30.43 % at V = 1
    (published: 30.45 %) and 7 / 103 = 6.80 % at V = 6 (published: 6.8 %).
    """
    return (pp - 1) / (micro_batches * vpp + pp - 1)


def dualpipev_bubble_s(pp: int, forward_s: float, backward_s: float, weight_s: float, pair_s: float) -> float:
    """Idle seconds of a device: (P - 1)(F&B + B - W) - F of one chunk, half a stage.

    Parameters
    ----------
    forward_s, backward_s : F and B [s]. weight_s : W, dW alone, a part of B [s]. pair_s : F&B, a fused pair [s].

    Notes
    -----
    The published formula is for long pipelines. The graph gives the same from 8 stages on where W is at most 0.8 F, as
    simulations of 2 to 16 stages show; in short pipelines a path remains that passes one or two whole backwards, and
    the idle time lies between this and the same with W = 0.

    Source: MindSpeed dualpipev.md; DeepSeek DualPipe README for the two directions' version.
    """
    return (pp - 1) * (pair_s + backward_s - weight_s) - forward_s


def paired_share(pp: int, vpp: int, micro_batches: int, *, stage: int = 0, kind: str = "adaptive_pipe") -> float:
    """Share of a stage's forwards that an interleaved schedule such as Adaptive Pipe pairs: 1 - w / (M V).

    w = 2 (P - p - 1) + (V - 1) N + 1 forwards come before the first pair (`orders.forwards_ahead`; N = P where M is a
    multiple of P): one more than Megatron's warm-up. Source: MindSpeed fb_overlap `vpp_schedules.py`.
    """
    total = micro_batches * vpp
    return max(0, total - int(forwards_ahead(kind, stage, pp, vpp, micro_batches))) / total
