"""The host's time line: operators are issued one by one, and a device that runs faster than the host waits.

Parameters
----------
operators : that the host issues [count].
per_launch_s : of the host to launch one operator.
synchronisations : between device and host [count].
sync_s : of one synchronisation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from cost_models.order_statistics import expected_maximum

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cost_models.arrays import Floats, Number


# Threads of a process that keep a device's queue filled, each wanting a core of its own: Python's main thread, the
# autograd thread of backward passes, the second level of the task queue and the one that watches collectives. Source:
# torch_npu documentation, TASK_QUEUE_ENABLE and CPU_AFFINITY_CONF (fine-grained binding gives hot threads a core each).
ISSUING_THREADS = 4.0


# Time of the second stage to hand an operator to the driver, against Python's and autograd's for it; assumed.
LAUNCH_SHARE = 0.5


def issue_s(python_s: Number, new_shape_s: Number, task_queue: int) -> Floats:
    """Seconds between two operators that reach the device's queue, of a host that is never waited for.

    Parameters
    ----------
    python_s : Python's and autograd's part of an operator. new_shape_s : of computing its tiling and workspace where
    its shape was not seen before. task_queue : level of the queue between two threads.

    Notes
    -----
    Two stages in series work at the pace of the slower one: python + new and launch at level 1, python and launch +
    new at level 2; at level 0 one thread does it all.

    References
    ----------
    torch_npu documentation, TASK_QUEUE_ENABLE: level 1 (default) hands operators to a second thread, level 2 moves what
    belongs to the workspace there too.
    """
    launch_s = LAUNCH_SHARE * np.asarray(python_s)
    if task_queue == 0:
        return np.asarray(python_s + launch_s + new_shape_s)
    if task_queue == 1:
        return np.asarray(np.maximum(python_s + np.asarray(new_shape_s), launch_s))
    return np.asarray(np.maximum(python_s, launch_s + new_shape_s))


def slowest_of(ranks: Number, scatter: Number) -> Floats:
    """Time of the slowest of so many hosts or devices against the mean one: those that meet wait for it [n].

    scatter : standard deviation over mean of one's time [fraction]. 1 + scatter m(ranks), m the expected maximum of
    independent standard normal variables.

    References
    ----------
    David and Nagaraja, Order Statistics, 2003, section 3.1.
    """
    return np.asarray(1.0 + np.asarray(scatter) * expected_maximum(ranks))


def kernel_launch_s(operators: Number, per_launch_s: Number, synchronisations: Number, sync_s: Number) -> Floats:
    """Seconds of kernel launches: the host issues `operators` and waits at `synchronisations`.

    References
    ----------
    T_host = N_ops * t_issue + N_sync * t_sync; dropless routing synchronises at least once a layer with experts to
    learn the split sizes (Megatron-LM, MindSpeed; capacity-padded routing does not).
    """
    return np.asarray(np.asarray(operators) * per_launch_s + np.asarray(synchronisations) * sync_s)


def bound_issue_factor(cores: float, numa_nodes: float, remote_ratio: float, memory_share: float) -> float:
    """Time to issue an operator on cores bound to the device, against threads that wander over the whole node.

    Parameters
    ----------
    cores : cores bound to one device [count]. numa_nodes : memory domains of a node [count].
    remote_ratio : latency of another domain's memory against the own one's [ratio].
    memory_share : share of issuing that waits for memory [fraction].

    Returns
    -------
    The ratio of the times, below 1 where binding is faster.

    Notes
    -----
    max(1, 4 / cores) / (1 - s + s (1 / D + (1 - 1 / D) r)) with D domains, ratio r and share s. A wandering thread
    finds its data at home once in D times; a bound one always, but its threads share the cores where those are fewer.

    References
    ----------
    torch_npu documentation, CPU_AFFINITY_CONF: binding avoids memory of other NUMA nodes and switches between cores; a
    card's range is the node's cores over its cards (160 / 8 = 20). r and s are of the hardware profile, both assumed.
    """
    away = 1.0 - 1.0 / numa_nodes
    wandering = 1.0 - memory_share + memory_share * (1.0 - away + away * remote_ratio)
    return max(1.0, ISSUING_THREADS / cores) / wandering


def restart_s(issuing_s: Sequence[Number], device_s: Sequence[Number]) -> Floats:
    """Seconds that a device with an empty queue waits in all while the host issues the operators that follow.

    Parameters
    ----------
    issuing_s : the host's time to issue the operators of each row, in order. device_s : the device's time for them.

    Notes
    -----
    Before row i the device has waited max over rows of (issued so far - worked so far): small operators first mean a
    long wait, one long operator lets the host run ahead.

    References
    ----------
    Own derivation: a device idles until the operators of a row are issued, and what it has idled in all is the largest
    such lead. The queue is that of torch_npu documentation, TASK_QUEUE_ENABLE.
    """
    waited, issued, worked = (np.asarray(0.0) for _ in range(3))
    for issuing, seconds in zip(issuing_s, device_s, strict=True):
        issued = issued + np.asarray(issuing)
        waited = np.maximum(waited, issued - worked)
        worked = worked + np.asarray(seconds)
    return np.asarray(waited)


def exposed_host_s(
    host_s: Number,
    device_s: Number,
    synchronisations: Number,
    sync_s: Number,
    *,
    restart_s: Number = 0.0,
    queued_s: Number = 0.0,
) -> Floats:
    """Seconds the device waits for the host while it works through a stretch of operators.

    Parameters
    ----------
    host_s : issuing and synchronising. restart_s : wait after the synchronisations until the host is ahead again.
    queued_s : work that does not depend on the synchronisation and was issued before it.

    Notes
    -----
    The task queue lets the host run ahead, so a stretch takes max(device, host). A synchronisation empties the queue:
    every round trip is exposed and, after the last one, the restart, but for what the device still has queued:

        ahead   = max(0, host - N_sync t_sync - device)
        exposed = max(ahead, N_sync t_sync + max(restart, ahead) - queued)      ahead alone where N_sync = 0

    References
    ----------
    torch_npu documentation, TASK_QUEUE_ENABLE; MindSpeed: a dropless MoE layer synchronises to learn its split sizes.
    """
    synchronisations = np.asarray(synchronisations, dtype=np.float64)
    ahead = np.maximum(0.0, np.asarray(host_s) - synchronisations * sync_s - device_s)
    event = synchronisations * sync_s + np.maximum(restart_s, ahead) - queued_s
    return np.asarray(np.maximum(ahead, np.where(synchronisations > 0, event, 0.0)))
