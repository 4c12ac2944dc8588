"""What chunks add up: costs of layers, pieces and memory options as arrays, on one machine or on several at once."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from cost_models.arrays import Floats


@dataclass(frozen=True, eq=False)
class ChunkCosts:
    """Costs for one micro batch on each of k machines; of one machine (k = 1) they hold for every layout.

    layers : of a layer, by the name of a number of `LayerClass` [k, classes]. pieces : the same of every piece [k,
    pieces]. hidden_s, exchange_s, first_s : of `LayerPairs`, for pairs of classes [classes, classes, k].
    extra_backward_s, swap_bytes : of a layer that uses an option [k, options].
    host_link_bytes_per_s, p2p_s, blocking_p2p_s : [k].
    """

    layers: Mapping[str, Floats]
    pieces: Mapping[str, Floats]
    hidden_s: Floats
    exchange_s: Floats
    first_s: Floats
    extra_backward_s: Floats
    swap_bytes: Floats
    host_link_bytes_per_s: Floats
    p2p_s: Floats
    blocking_p2p_s: Floats


AXIS_OF_MACHINES: Final = {"hidden_s": 2, "exchange_s": 2, "first_s": 2}  # of all others 0


def joined_costs(parts: Sequence[ChunkCosts]) -> ChunkCosts:
    """Costs on the machines of several, one after the other; all are of the same layers, pieces and options."""
    if len(parts) == 1:
        return parts[0]

    def joined(name: str) -> Any:
        values = [getattr(part, name) for part in parts]
        if name in {"layers", "pieces"}:
            return {key: np.concatenate([each[key] for each in values]) for key in values[0]}
        return np.concatenate(values, axis=AXIS_OF_MACHINES.get(name, 0))

    return ChunkCosts(**{field.name: joined(field.name) for field in fields(ChunkCosts)})
