"""Layers with experts on a shortcut: both halves, and what does not wait for the experts."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.support.accounting.layer import Account


def do_again(a: Account) -> None:
    """All that stands in the account until now, a second time: the other half of the layer."""
    for name, one in a.operators.items():
        even, busy = (tuple(2 * seconds for seconds in times) for times in (one.even, one.busy))
        a.operators[name] = replace(one, even=even, busy=busy)
    a.twice = set(a.operators)
    for part in (a.forward, a.backward):
        part.tp, part.cp = 2 * part.tp, 2 * part.cp
    a.messages += list(a.messages)
    a.issued = [2 * calls for calls in a.issued]
    a.weights = {name: (n, k, 2 * count) for name, (n, k, count) in a.weights.items()}
    for table in (a.kept, a.among, a.forward_messages, a.launched, a.hidden):
        table.update({name: 2 * value for name, value in table.items()})
    a.dense_params *= 2


def dense_path(a: Account) -> tuple[float, float]:
    """Seconds of both passes of what does not wait for experts on a shortcut: MLPs, the second norms and attention."""
    seconds = [0.0, 0.0]
    for name, one in a.operators.items():
        both = name.startswith(("mlp_up", "mlp_activation", "mlp_down"))  # operators of both halves stand here as one
        if both or name in a.twice:
            part = 1.0 if both else 0.5
            seconds = [seconds[0] + part * one.busy[0], seconds[1] + part * sum(one.busy[1:])]
    return seconds[0], seconds[1]
