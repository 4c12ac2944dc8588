"""Windows of a fused pair by hand: what hides what, lane by lane."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from cost_models.schedule import BackwardHalf, ExpertExchange, ForwardHalf, Lanes, pair_s, pair_time
from cost_models.schedule.windows import experts_s


def lanes(cube: float, vector: float = 0.0, collective: float = 0.0, inner: float = 0.0) -> Lanes:
    return Lanes(*(np.array([x]) for x in (cube, vector, collective)), (np.array([inner]), np.zeros(1)))


def exchange(inner: float, outer: float) -> ExpertExchange:
    return ExpertExchange(np.array([max(inner, outer)]), (np.array([inner]), np.array([outer])))


def layer(dispatch: ExpertExchange, combine: ExpertExchange, inner: float = 0.0) -> tuple[ForwardHalf, BackwardHalf]:
    """Forward 3 + 2, backward 4 + 2 + 5 and 3 left over."""
    return (
        ForwardHalf(lanes(2, 0.5, 0.5, inner), lanes(2), dispatch, combine),
        BackwardHalf(lanes(4), np.array([2.0]), lanes(5), np.array([3.0]), dispatch, combine),
    )


WORK = 3 + 2 + 4 + 2 + 5 + 3


def test_computation_hides_short_exchanges() -> None:
    time = pair_time(*layer(exchange(1, 3), exchange(2, 3)))
    assert time.inner_s[0] == WORK
    assert time.first_s[0] == 0.0


def test_left_over_weight_gradients_fill_a_combine() -> None:
    # Combine 5: 3 + 3 of work beside the backward's; without the dW of a layer before, 2 of it show.
    time = pair_time(*layer(exchange(1, 1), exchange(1, 5)))
    assert time.inner_s[0] == WORK
    assert time.first_s[0] == 2.0


@pytest.mark.parametrize(
    ("dispatch", "end"),
    [
        (1.0, 4 + 2 + 2),  # all behind computation
        (5.0, 5 + 5),  # the second dispatch follows the first
        (3.5, 8.0),  # dX 4, then the backward's dispatch to 7.5 beside dW and the forward's experts to 8
        (4.5, 9.0),  # two dispatches; dW and the experts (4.5 .. 6 .. 8) are done before
    ],
)
def test_two_dispatches_beside_the_experts(dispatch: float, end: float) -> None:
    assert experts_s(*layer(exchange(0, dispatch), exchange(0, 0)))[0] == end


def test_experts_collectives_and_both_dispatches_share_a_tier() -> None:
    # 3 of dX and 2 of the forward's experts, and two dispatches of 4, one after the other on the inner tier.
    forward, backward = layer(exchange(4, 0), exchange(0, 0))
    forward, backward = replace(forward, middle=lanes(2, inner=2.0)), replace(backward, middle=lanes(4, inner=3.0))
    assert experts_s(forward, backward)[0] == 3 + 2 + 4 + 4


def test_collectives_and_exchanges_share_a_tier() -> None:
    # Both fit behind 6 of computation, but the inner tier carries 5 of combine after 4 of tensor-parallel collectives.
    free = pair_time(*layer(exchange(0, 0), exchange(1, 5), inner=4.0))
    shared = pair_time(*layer(exchange(0, 0), exchange(5, 1), inner=4.0))
    assert free.inner_s[0] == WORK
    assert shared.inner_s[0] == WORK + 3.0


def test_a_dense_forward_hides_the_exchanges_of_a_backward() -> None:
    # MindSpeed fwdbwd.py, forward_dense_backward_moe: attention beside combine, MLP beside dispatch.
    none = exchange(0, 0)
    dense = ForwardHalf(lanes(3), lanes(6), none, none)
    _, experts = layer(exchange(0, 7), exchange(0, 5))
    # Combine 5 behind 3 + 3; dX 4, then dispatch to 11 beside dW 2 and the MLP's 6 (to 12); attention 5.
    assert pair_time(dense, experts).inner_s[0] == 6 + 12 + 5
    assert pair_time(dense, experts).first_s[0] == 2.0


@pytest.mark.parametrize(
    ("device", "host", "waits", "together"),
    [(12.0, 5.0, 0.0, 12.0), (12.0, 14.0, 0.0, 14.0), (12.0, 14.0, 1.0, 15.0), (20.0, 5.0, 0.0, 17.0), (6, 5, 0, 10.0)],
)
def test_a_pair_is_bound_by_the_host_and_by_its_passes(
    device: float, host: float, waits: float, together: float
) -> None:
    # Passes of 7 and 10 alone: a pair is no shorter than the longer, no longer than both.
    found = pair_s(*(np.array([x]) for x in (device, 7.0, 10.0, host, waits)))
    assert found[0] == together
