"""A fused pair of layers: the forward of one micro batch beside the backward of another, lane by lane.

Two streams run side by side: computation in one, expert exchanges in the other. In the order of MindSpeed's
fb_overlap (`transformer_layer_forward_moe_backward_moe_overlaping`):

    stream of computation                                          stream of exchanges
    1  dW left over from the layer before, attention forward,      combine of the backward
       routing, shared experts forward
    2  shared and routed experts' dX, then the experts' dW         dispatch of the forward
    3  routed experts forward                                      dispatch of the backward, after the experts' dX
    4  routing backward, attention dX                              combine of the forward

A dense layer has no exchanges and its MLP in the place of the experts. Step 1 ends when both streams end, steps 2 and 3
when the forward's rows and the backward's gradients are there, step 4 when both streams end. No step is shorter than
any of its lanes is busy: matrix (cube) and vector work follow each other in one stream with the collectives that
nothing hides; every tier of the network carries tensor-parallel collectives and exchanges one after the other. A pair
is no shorter than the host needs to issue both of its passes.

Parameters
----------
cube_s, vector_s, collective_s : of `Lanes`: matrix units, vector units, collectives that nothing hides.
tiers_s : collectives on every tier, hidden or not.
other : `Lanes` that follow.
seconds : of one exchange alone [s].
around : `Lanes` of attention, routing and shared experts.
middle : `Lanes` of routed experts or a dense MLP.
dispatch, combine : the exchanges of a half.
expert_dw : dW of the routed experts [s].
left_over_dw : dW beside the next layer's combine [s].
inner_s, first_s : a pair after another one of its chunk; what the first one takes longer.
forward, backward : the `ForwardHalf` and the `BackwardHalf` of a pair.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from cost_models.arrays import Floats


@dataclass(frozen=True, slots=True)
class Lanes:
    """Seconds that a piece of work keeps each lane busy [n].

    cube_s, vector_s: computation. collective_s: collectives that stand in the stream of computation because nothing
    hides them. tiers_s: collectives on every tier of the network, hidden or not, innermost first.
    """

    cube_s: Floats
    vector_s: Floats
    collective_s: Floats
    tiers_s: tuple[Floats, ...]

    @property
    def stream_s(self) -> Floats:
        """Seconds of the stream of computation: its operators follow each other."""
        return np.asarray(self.cube_s + self.vector_s + self.collective_s)

    def and_then(self, other: Lanes) -> Lanes:
        """Both, one after the other."""
        return Lanes(
            np.asarray(self.cube_s + other.cube_s),
            np.asarray(self.vector_s + other.vector_s),
            np.asarray(self.collective_s + other.collective_s),
            tuple(np.asarray(a + b) for a, b in zip(self.tiers_s, other.tiers_s, strict=True)),
        )


@dataclass(frozen=True, slots=True)
class ExpertExchange:
    """One dispatch or combine: its seconds alone, and on every tier of the network [n]."""

    seconds: Floats
    tiers_s: tuple[Floats, ...]


@dataclass(frozen=True, slots=True)
class ForwardHalf:
    """Forward of a layer as a part of a pair.

    around: attention, routing, permutation and shared experts; middle: routed experts and the sorting beside them, or
    a dense layer's MLP.
    """

    around: Lanes
    middle: Lanes
    dispatch: ExpertExchange
    combine: ExpertExchange


@dataclass(frozen=True, slots=True)
class BackwardHalf:
    """Backward of a layer as a part of a pair.

    middle: dX of shared and routed experts, or a dense layer's MLP; expert_dw: the routed experts' dW; around: routing
    and attention dX; left_over_dw: dW of attention and shared experts, which runs beside the combine of the next
    layer's backward, or beside the sends after the last one.
    """

    middle: Lanes
    expert_dw: Floats
    around: Lanes
    left_over_dw: Floats
    dispatch: ExpertExchange
    combine: ExpertExchange


@dataclass(frozen=True, slots=True)
class PairTime:
    """Seconds of a pair of layers on the device [n].

    inner_s: a layer after another one of its chunk, whose left-over dW fills its first step. first_s: what the first
    layer of a chunk takes longer: nothing fills its first step, and its neighbour's dW still has to run.
    """

    inner_s: Floats
    first_s: Floats


def pair_time(forward: ForwardHalf, backward: BackwardHalf) -> PairTime:
    """Seconds of a forward-backward overlap: a fused pair of two layers, of one micro batch each."""
    nothing = np.zeros(1)
    filled = _beside(forward.around, backward.combine, backward.left_over_dw)
    bare = _beside(forward.around, backward.combine, nothing)
    rest = experts_s(forward, backward) + _beside(backward.around, forward.combine, nothing)
    return PairTime(np.asarray(filled + rest), np.asarray(bare + backward.left_over_dw - filled))


def _beside(work: Lanes, exchange: ExpertExchange, filler_s: Floats) -> Floats:
    """A step in which one exchange runs beside work, and work that nobody waits for fills what is left."""
    end = np.maximum(work.stream_s + filler_s, exchange.seconds)
    for mine, theirs in zip(work.tiers_s, exchange.tiers_s, strict=True):
        end = np.maximum(end, mine + theirs)
    return np.asarray(end)


def experts_s(forward: ForwardHalf, backward: BackwardHalf) -> Floats:
    """Steps 2 and 3: both dispatches in one stream, and the experts of both passes in the other.

    The forward's experts wait for the forward's dispatch, the backward's dispatch for the experts' dX.
    """
    dx, there, back = backward.middle.stream_s, forward.dispatch, backward.dispatch
    arrived = np.maximum(dx + backward.expert_dw, there.seconds)
    end = np.maximum(arrived + forward.middle.stream_s, np.maximum(there.seconds, dx) + back.seconds)
    work = backward.middle.and_then(forward.middle)
    for mine, one, other in zip(work.tiers_s, there.tiers_s, back.tiers_s, strict=True):
        end = np.maximum(end, mine + one + other)
    return np.asarray(end)


def pair_s(device_s: Floats, forward_s: Floats, backward_s: Floats, host_s: Floats, waits_s: Floats) -> Floats:
    """Seconds of a pair with the host's lane, and no less than either pass alone [n].

    Parameters
    ----------
    device_s : of the pair on the device. forward_s, backward_s : each pass alone, with its waits.
    host_s : to issue the operators of both passes. waits_s : synchronisations that stop the device in any case.

    Notes
    -----
    min(F + B, max(device, host) + waits, no less than F and than B): two passes in one slot can't end before the longer
    of them, and where pairing them takes longer than one after the other there is nothing to gain from it.

    References
    ----------
    Own bound around the windows of MindSpeed's fb_overlap, one host thread for both passes (`fwdbwd.py`).
    """
    together = np.maximum(device_s, host_s) + waits_s
    longest = np.maximum(together, np.maximum(forward_s, backward_s))
    return np.asarray(np.minimum(longest, forward_s + backward_s))
