"""The host's time line: operators are issued one by one, and a device that runs faster than the host waits."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Number = Floats | float | int


def issue_s(operators: Number, issue_per_operator_s: Number, synchronisations: Number, sync_s: Number) -> Floats:
    """Seconds the host needs to issue `operators` and to wait at `synchronisations`.

    References
    ----------
    T_host = N_ops * t_issue + N_sync * t_sync; dropless routing synchronises about once per MoE layer to learn the
    split sizes (MindSpeed; capacity-padded routing does not).
    """
    return np.asarray(np.asarray(operators) * issue_per_operator_s + np.asarray(synchronisations) * sync_s)


def exposed_host_s(host_s: Number, device_s: Number, synchronisations: Number, sync_s: Number) -> Floats:
    """Seconds the device waits for the host while it works through a stretch of operators.

    Notes
    -----
    The task queue lets the host run ahead, so a stretch takes max(device, host). A synchronisation empties the queue:
    its round trip is exposed whatever the device does.
    """
    ahead = np.maximum(0.0, np.asarray(host_s) - np.asarray(synchronisations) * sync_s - device_s)
    return np.asarray(ahead + np.asarray(synchronisations) * sync_s)
