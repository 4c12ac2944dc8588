"""Adam on the host's cores: states that lie in host memory are updated there.

Parameters
----------
kernel : of one pass over the states: unfused (an operator a step of the formula), foreach, fused.
threads : of one rank's optimizer [count].
core_ratio : time of the host's core against the one that was measured [ratio].
host_bytes_per_s : share of the node's memory bandwidth of one rank [B/s].
link_bytes_per_s : of the rank's link to its host [B/s].
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cost_models.arrays import Floats, Number

# Seconds of one thread a parameter. Source: torch 2.13.0+cpu, torch.optim.AdamW of 8e6 FP32 parameters in one tensor,
# one thread of an AMD EPYC core at 2.4 to 3.4 GHz, least of four steps.
THREAD_S: Final[Mapping[str, float]] = MappingProxyType({"unfused": 5.9e-9, "foreach": 2.3e-9, "fused": 0.70e-9})
# Bytes of host memory a parameter. Fused: reads weight, gradient and two moments, writes three. Unfused, each operator
# of torch/optim/adam.py _single_tensor_adam reads and writes arrays of its own: decay 8, two averages 12 + 8 + 12,
# root 8, quotient 8, sum 8, update 16.
MOVED_BYTES: Final[Mapping[str, float]] = MappingProxyType({"unfused": 80.0, "foreach": 80.0, "fused": 28.0})
LINK_BYTES: Final = 8.0  # FP32 gradient down and FP32 weight up. Source: Megatron-LM cpu_offloading/hybrid_optimizer.py


def host_adam_s(
    params: Number,
    kernel: str,
    threads: Number,
    *,
    core_ratio: Number,
    host_bytes_per_s: float,
    link_bytes_per_s: Number,
) -> Floats:
    """Seconds to update `params` parameters of one rank on the host, with their way there and back.

    Notes
    -----
    The larger of MOVED / bandwidth and THREAD ratio / threads, and the link's copies, which stand beside it: gradients
    come before the step and weights leave after it.

    References
    ----------
    Megatron-LM @d98e8a64 optimizer/cpu_offloading/hybrid_optimizer.py, HybridDeviceOptimizer.step.
    """
    working = np.maximum(MOVED_BYTES[kernel] / host_bytes_per_s, THREAD_S[kernel] * core_ratio / np.asarray(threads))
    return np.asarray(np.asarray(params) * (working + LINK_BYTES / np.asarray(link_bytes_per_s)))
