"""When the output of a slot reaches the next device: sending, and the weight gradients that run meanwhile.

A backward slot has two halves: the gradient of its input (dX), which the device before waits for, and the gradients of
its weights (dW), which nobody waits for. Where a schedule splits them, dX leaves first and dW fills the wait:

- at the end of a fused pair the attention's dW runs beside both sends, so a send shows only what is longer:
  max(0, send - dW) after the end of the slot (MindSpeed fb_overlap `fwdbwd.py`: `WeightGradStore.pop` after the p2p
  calls);
- the lone backwards between DualPipe's warm-up forwards leave before all of their dW: the output arrives at
  end - dW + send (DeepSeek `dualpipev.py` step 3, enable_zb; MindSpeed `dualpipev_schedules.py`, `start_decouple`).

Parameters
----------
covering_s : dW beside the sends of a pair.
candidates : how many there are [count].
rows : some of the candidates.
sends : `Sends`, or the seconds of an edge alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from cost_models.arrays import Floats
    from cost_models.schedule.orders import OperationOrder


@dataclass(frozen=True, eq=False)
class Sends:
    """Seconds of an edge between two devices, and what runs beside it.

    p2p_s: latency of one send [n] or scalar; the sender's device is free meanwhile. covering_s [n, pp, f, b]: dW
    that runs beside the sends of a pair. split_s [n, pp, vpp]: dW of a chunk's whole
    backward, which a split backward runs after its output has left.
    """

    p2p_s: Floats | float = 0.0
    covering_s: Floats | None = None
    split_s: Floats | None = None

    def take(self, rows: Any) -> Sends:
        """The sends of some candidates."""

        p2p = self.p2p_s if np.ndim(self.p2p_s) == 0 else np.asarray(self.p2p_s)[rows]
        covering = None if self.covering_s is None else self.covering_s[rows]
        return Sends(p2p, covering, None if self.split_s is None else self.split_s[rows])

    def least_s(self, candidates: int) -> Floats:
        """A lower bound on the latency of any edge out of a pair or a whole slot [n]."""
        p2p = np.broadcast_to(np.asarray(self.p2p_s, dtype=np.float64), (candidates,))
        if self.covering_s is None:
            return p2p
        return np.asarray(np.maximum(0.0, p2p - self.covering_s.max(axis=(1, 2, 3))))

    def lags_s(self, order: OperationOrder, candidates: int) -> Floats:
        """When an output arrives after its slot has ended: [1, n] the same for all, or rows by `EventGraph.lag`."""
        p2p = np.broadcast_to(np.asarray(self.p2p_s, dtype=np.float64), (candidates,))[:, None]
        split = self.split_s if order.has_splits else None
        covering = self.covering_s if order.has_pairs and np.any(p2p) else None
        if split is None and covering is None:
            return np.asarray(p2p.T)
        parts = order.pp * order.vpp
        paired, alone = np.repeat(p2p, parts * order.vpp, axis=1), np.repeat(p2p, parts, axis=1)
        if covering is not None:
            covering = np.broadcast_to(covering, (candidates, *covering.shape[1:]))
            paired = np.maximum(0.0, paired - covering.reshape(paired.shape))
        if split is not None:
            alone = alone - np.broadcast_to(split, (candidates, *split.shape[1:])).reshape(alone.shape)
        return np.ascontiguousarray(np.concatenate([p2p, paired, alone], axis=1).T)


def as_sends(sends: Sends | Floats | float) -> Sends:
    """A plain latency as sends that nothing covers."""
    return sends if isinstance(sends, Sends) else Sends(sends)
