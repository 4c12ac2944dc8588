"""The host link: what moving tensors to the host and back costs beside computation.

Parameters
----------
transfer_bytes : both that hide and that do not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from cost_models.arrays import Floats


def transfer_s(transfer_bytes: Floats | float, link_bytes_per_s: Floats | float) -> Floats:
    """Seconds to move bytes [B] over the host link [B/s], one direction.

    S / B of Hockney's T = a + S / B ("The communication challenge for MPP", 1994): a tensor that is swapped has many
    MB, milliseconds at the tens of GB/s of a host link, beside which a latency of microseconds is left out.
    """
    return np.asarray(np.asarray(transfer_bytes, dtype=np.float64) / link_bytes_per_s)


def exposed_swap_s(swap_bytes: Floats | float, link_bytes_per_s: Floats | float, window_s: Floats | float) -> Floats:
    """Seconds of a swap in one direction that its swap window, the computation beside it, does not hide.

    Parameters
    ----------
    swap_bytes : bytes moved in one direction during the window [B]; tensors that share the link add up.
    link_bytes_per_s : host link of the device, one direction [B/s].
    window_s : computation beside which the transfer may run [s].

    Notes
    -----
    exposed = max(0, bytes / bandwidth - window), one way. Activations pay out and in: a tensor leaves beside its
    own forward pass and comes back beside its own backward pass, because its memory counts as free between the two.

    References
    ----------
    MindSpeed, swap-attention: M bytes are hidden if 2 M / bandwidth, out and in, is below the computation between them.
    Stricter here: each way has to fit its own pass, whatever computation lies between.
    """
    return np.asarray(np.maximum(0.0, transfer_s(swap_bytes, link_bytes_per_s) - window_s))


def beyond_own_layer_s(
    swap_bytes: Floats | float, link_bytes_per_s: Floats | float, window_s: Floats | float, pass_s: Floats | float
) -> Floats:
    """Seconds that a transfer shows because it has to fit a part of its layer's pass, beyond what fits the whole pass.

    Parameters
    ----------
    window_s : computation of the layer beside which the transfer may run [s]. pass_s : of the whole pass, which
        `exposed_swap_s` counts for all layers of a chunk together.

    Notes
    -----
    max(0, min(bytes / bandwidth, pass) - window): with the part beyond the passes, max(0, bytes / bandwidth - window).

    References
    ----------
    MindSpeed swap_attention/prefetch.py @028de58c: the compute stream waits for all copies of a layer to the host at
    the end of that layer (sync_d2h), and copies back start with the layer's own backward pass (interval 0).
    """
    seconds = transfer_s(swap_bytes, link_bytes_per_s)
    return np.asarray(np.maximum(0.0, np.minimum(seconds, pass_s) - window_s))
