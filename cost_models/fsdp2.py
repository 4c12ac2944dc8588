"""PyTorch FSDP2: what gathering and reducing sharded parameters moves in device memory beside the links."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from cost_models.arrays import Floats, Number


def copy_out_s(params: Number, copies: Number, weight_bytes: Number, memory_bytes_per_s: Number) -> Floats:
    """Seconds of FSDP2's copy-out of gathered weights from the buffer: each copy reads and writes them [n].

    Parameters
    ----------
    params : of the unit on a rank [parameters]. copies : 1 where shards are rows, 2 where they are columns: those are
        put together once more. weight_bytes : of one gathered weight. memory_bytes_per_s : what streaming operators
        reach [B/s].

    References
    ----------
    PyTorch torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py, foreach_all_gather_copy_out, on the stream of the
    computation: nothing hides it.
    """
    moved = 2.0 * np.asarray(weight_bytes) * np.asarray(params) * np.asarray(copies)
    return np.asarray(moved / np.asarray(memory_bytes_per_s))


def copy_in_s(
    params: Number, copies: Number, weight_bytes: Number, gradient_bytes: Number, memory_bytes_per_s: Number
) -> Floats:
    """Seconds to copy gradients into the reduction's buffer, in its format [n]; parameters as in `copy_out_s`.

    The last copy reads the format of the product that made them and writes that of the reduction; one of columns before
    it reads and writes the former. Source: the same file, foreach_reduce_scatter_copy_in.
    """
    weight, gradient, copies = (np.asarray(each, dtype=np.float64) for each in (weight_bytes, gradient_bytes, copies))
    each = np.where(copies > 0.0, weight + gradient + 2.0 * weight * (copies - 1.0), 0.0)
    return np.asarray(each * np.asarray(params) / np.asarray(memory_bytes_per_s))


def added_s(params: Number, weight_bytes: Number, gradient_bytes: Number, memory_bytes_per_s: Number) -> Floats:
    """Seconds to add a micro batch's whole gradients to those that are reduced once a step [n].

    Reads the gradient as its product wrote it, reads and writes the sum, which has the format of the reduction.

    Parameters
    ----------
    params : of the unit on a rank. weight_bytes : of a gradient as it comes. gradient_bytes : of the sum's [B].
    memory_bytes_per_s : what streaming operators reach [B/s].

    References
    ----------
    PyTorch torch/distributed/fsdp/_fully_shard/_fsdp_param.py, accumulate_unsharded_grad_if_needed.
    """
    moved = np.asarray(weight_bytes) + 2.0 * np.asarray(gradient_bytes)
    return np.asarray(moved * np.asarray(params) / np.asarray(memory_bytes_per_s))
