"""Names of numbers in profiles, overlays and specs of earlier releases, read as what they are called now."""

from __future__ import annotations

from cost_models.order_statistics import expected_maximum

NODE_GROWTH, DEVICE_SCATTER = "node_growth", "device_scatter"
"""Up to release 1.1 computation slowed by one share with every doubling of the nodes."""
DOUBLINGS, DEVICES = 8, 8
"""Nodes of eight devices, at whose 256 both say the same."""


def renewed(path: str) -> str:
    """The name or dotted path of a number as it is called now."""
    return f"{path.removesuffix(NODE_GROWTH)}{DEVICE_SCATTER}" if _is_growth(path) else path


def renewed_value(path: str, value: float) -> float:
    """The value of a number given under a name or path of any release, in the unit of its present name."""
    if not _is_growth(path):
        return value
    slower = (1.0 + value) ** DOUBLINGS - 1.0
    return float(slower / (expected_maximum(DEVICES * 2.0**DOUBLINGS) - expected_maximum(DEVICES)))


def _is_growth(path: str) -> bool:
    return path.rpartition(".")[2] == NODE_GROWTH
