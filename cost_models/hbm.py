"""Bytes of device memory: static state per parameter, activations per token, buffers.

All sizes are bytes on one rank.

Parameters
----------
gradients : gradients that a rank holds [B a parameter].
master, moments, gradient : FP32 master copy, both moments, accumulated gradient [B a parameter].
features : names of the features that are on.
precision : number format of the run.
copies : ranks that keep each optimizer state, where high availability keeps more than one [ranks].
static_bytes : weights, gradients and states of a rank.
adam_bytes : first and second moments, 8 a parameter of the shard.
activation_bytes : what a first step keeps beside them.
update_bytes : what Adam's update holds beside the states for a moment.
message_bytes : the message that sizes a communicator's buffers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from cost_models.optimizers import ADAM, optimizer_among

if TYPE_CHECKING:
    from cost_models.arrays import Floats, Number

Switch = npt.NDArray[np.bool_] | bool
GIB = float(2**30)
MIB = float(2**20)

# Bytes that flash attention keeps of a token and head for the backward pass. Ascend: row maximum and row sum of the
# softmax, each FP32 [batch, heads, tokens, 8], 2 x 8 x 4 B (CANN, FlashAttentionScore: softmax_max, softmax_sum).
# NVIDIA: the logarithm of the sum of exponentials alone, FP32 (FlashAttention-2, arXiv:2307.08691, section 3.1).
SOFTMAX_STATS_BYTES = {"ascend": 64.0, "nvidia": 4.0}


@dataclass(frozen=True, slots=True)
class StateBytes:
    """Bytes per parameter held on a rank, by what they are; each may be an array (candidate first)."""

    weights: Floats
    gradients: Floats
    optimizer: Floats

    @property
    def total(self) -> Floats:
        """Weights, gradients and optimizer states together, bytes per parameter."""
        return np.asarray(self.weights + self.gradients + self.optimizer)


@dataclass(frozen=True, slots=True)
class OptimizerFormat:
    """Bytes per parameter of what an Adam optimizer holds: FP32 master copy, both moments, accumulated gradient.

    weights : of the parameters that the passes compute with; without a master copy (FP32 runs) the update writes them
        [B a parameter].
    eight_bit : of the 8-bit copies of weights that products in 8 bits read [B a parameter].
    update : as of `optimizers.Optimizer` [B a parameter].
    gradient_copy : FP32 copy of an accumulated 16-bit gradient, made for the update of the shard [B a parameter].
    moments_copy : FP32 copies of 16-bit moments, made parameter by parameter for the update: they move, and don't stay
        [B a parameter].
    """

    master: float = 4.0
    moments: float = ADAM.moments
    gradient: float = 4.0
    gradient_copy: float = 0.0
    moments_copy: float = 0.0
    weights: float = 2.0
    eight_bit: float = 0.0
    update: float = 0.0

    @classmethod
    def of(cls, features: frozenset[str], precision: str = "bf16") -> OptimizerFormat:
        """The format of a run's precision, and under lossy features.

        Eager FP16 runs accumulate 16-bit gradients and copy them to FP32 for the update; BF16 runs accumulate in FP32.
        Source: Megatron-LM docs, distributed optimizer: 20 and 4 + 16 / D bytes for FP16, 18 and 6 + 12 / D for BF16.
        With fp32_gradients (--accumulate-allreduce-grads-in-fp32) FP16 runs are as BF16 ones.

        o2_optimizer keeps the FP32 master and stores both moments in BF16, which each update casts to FP32 and back;
        quantized_optimizer keeps 8-bit moments and 16-bit gradients. Source: MindSpeed-LLM @c77308a1
        mindspeed_llm/tasks/models/common/adamw.py (O2AdamW) and docs/zh/pytorch/features/mcore/o2.md (4 N / DP less);
        MindSpeed quant-states, quant-grads.

        bf16_gradients sums and reduces gradients in BF16; their FP32 copy is made when activations are gone. Source:
        Megatron-LM --grad-reduce-in-bf16, MindSpeed-LLM --o2-gradient (o2.md: 2 N less). Products in 8 bits read an
        8-bit copy of each weight and its transpose, kept over the micro batches of a step (Transformer Engine,
        module/base.py, get_weight_workspace); with fp8_weights (--fp8-param-gather) the weight itself is the first of
        them. torchtitan casts weights anew in each product.

        param_remainders keeps of an FP32 master what its BF16 weight lacks. Source: Megatron-LM store_param_remainders
        of its precision-aware optimizer; Transformer Engine, fused_adam.py.

        torch_fsdp2 shards FP32 parameters, gathers them in 16 bits and holds reduced gradients as FP32 shards, whatever
        they were reduced in. Source: PyTorch, torch.distributed.fsdp, MixedPrecisionPolicy and foreach_reduce.
        """
        o2, quantized = "o2_optimizer" in features, "quantized_optimizer" in features
        own = optimizer_among(features)
        if own.matrix_s is not None:
            return cls(moments=own.moments, gradient=2.0 if "bf16_gradients" in features else 4.0, update=own.update)
        if "torch_fsdp2" in features:  # FP32 shards are the parameters: 16-bit ones live as long as they are gathered
            return cls(master=0.0, moments=own.moments, weights=4.0)
        if precision == "fp32":  # no copy in another format: parameters, gradients and moments are FP32
            return cls(master=0.0, moments=own.moments, weights=4.0)
        half = precision == "fp16" and not {"graph_mode", "fp32_gradients"} & features
        short = quantized or half or "bf16_gradients" in features
        eight_bit = precision == "fp8" and "fp8_weights" in features
        copies = 0.0 if precision != "fp8" or "torch_loss" in features else 1.0 if eight_bit else 2.0
        return cls(
            2.0 if "param_remainders" in features and precision == "bf16" else 4.0,
            2.0 if quantized else 4.0 if o2 else own.moments,
            2.0 if short else 4.0,
            4.0 if half and not quantized else 0.0,
            8.0 if o2 and not quantized else 0.0,
            1.0 if eight_bit else 2.0,
            copies,
        )


FULL = OptimizerFormat()


def state_bytes(
    shards: Number,
    *,
    distributed_optimizer: Switch,
    reuse_fp32_param: Switch = False,
    swap_optimizer: Switch = False,
    virtual_optimizer: Switch = False,
    fsdp: Switch = False,
    sharded_gradients: Switch = False,
    optimizer: OptimizerFormat = FULL,
    swap_chunks: float = 16.0,
) -> StateBytes:
    """Bytes per parameter of weights, gradients and optimizer states of mixed-precision Adam.

    Parameters
    ----------
    shards : ranks that share the optimizer states of a parameter (data parallel times context parallel; for experts the
        expert data parallel ranks) [ranks].
    distributed_optimizer : states are split over the shards.
    reuse_fp32_param : the 16-bit weight is stored inside the FP32 master copy: 2 bytes a parameter less, of the
        sharded copy when the optimizer is distributed.
    swap_optimizer : states live on the host; a 1/swap_chunks window of them is on the device during the update.
    swap_chunks : windows in which an update moves the states (count); 16 is the default of --swap-optimizer-times.
    virtual_optimizer : both moments are in host memory that the device reads and writes in place.
    fsdp : weights, gradients and states are all split.
    sharded_gradients : a gradient is reduced and split as soon as it exists: nothing accumulates over micro batches.

    Notes
    -----
    BF16, unsharded: 2 weight + 4 gradient + 4 master + 8 Adam = 18. With a distributed optimizer 6 + 12 / D.
    FP16: 2 weight + 2 gradient + 4 copy of it + 4 master + 8 Adam = 20; 4 + 16 / D.

    References
    ----------
    Megatron-LM theoretical_memory_usage.py and docs, distributed optimizer;
    MindSpeed reuse-fp32-param, swap-optimizer, virtual-optimizer, custom_fsdp.
    """
    sharded = np.asarray(distributed_optimizer, dtype=bool) | np.asarray(fsdp, dtype=bool)
    split = np.where(sharded, np.asarray(shards, dtype=np.float64), 1.0)
    master = optimizer.master - np.where(reuse_fp32_param, min(2.0, optimizer.master), 0.0)
    states = (master + optimizer.gradient_copy + np.where(virtual_optimizer, 0.0, optimizer.moments)) / split
    states = np.where(swap_optimizer, states / swap_chunks, states)
    full = np.where(fsdp, split, 1.0)
    gradient = np.where(sharded_gradients, split, full)
    return StateBytes((optimizer.weights + optimizer.eight_bit) / full, optimizer.gradient / gradient, states)


def replica_shards(shards: Number, *, copies: float = 2.0) -> Floats:
    """Ranks over which optimizer states are split where `copies` ranks keep each; for BF16 6 + 24 / D, not 6 + 12 / D.

    References
    ----------
    MindSpeed-LLM docs/en/pytorch/features/mcore/high_availability.md (replica optimizer) and
    core/high_availability/tft_replica_optimizer.py, show_replica_inc_memsize: 12 bytes more a parameter of a shard.
    """
    return np.asarray(np.maximum(np.asarray(shards, dtype=np.float64) / copies, 1.0))


# Adam written as operators on FP32 arrays: eleven that read one array and write one (8 B), five that read two (12 B),
# three assignments (8 B) and the gradient's cast (6 B).
UNFUSED_ADAM_BYTES = 11 * 8.0 + 5 * 12.0 + 3 * 8.0 + 6.0


def optimizer_moved_bytes(
    shards: Number, *, optimizer: OptimizerFormat = FULL, virtual_optimizer: Switch = False, fused: bool = True
) -> Floats:
    """Device memory traffic of one Adam update, bytes per parameter held on the rank.

    Reads the FP32 gradient (4), reads and writes master weight and both moments (24), writes the 16-bit weight (2), for
    its shard; the gradient is read once more for its norm and cleared (8) wherever it is held. A 16-bit gradient (2) is
    copied to FP32 first, and the copy read (8); 16-bit moments are cast to FP32 and back, which moves their copies four
    times. Moments in host memory (`virtual_optimizer`) pass over the host link
    instead. Where the update is not one operator, each of its products,
    sums and roots reads and writes device memory, in FP32 and on the device.

    References
    ----------
    Unfused: mindformers/core/optim/optim.py, _update_run_op, releases 1.2 to 1.5.
    """
    moments = np.where(virtual_optimizer, 0.0, optimizer.moments)
    state = optimizer.master + optimizer.gradient_copy + moments
    written = optimizer.weights if optimizer.master else 2.0 * optimizer.weights  # read too where they are the master
    shard = optimizer.gradient + 2.0 * state + 4.0 * optimizer.moments_copy + written if fused else UNFUSED_ADAM_BYTES
    shard = optimizer.update or shard
    return np.asarray(shard / np.asarray(shards, dtype=np.float64) + 2.0 * optimizer.gradient)


def first_step_peak_bytes(
    static_bytes: Number, adam_bytes: Number, activation_bytes: Number, update_bytes: Number = 0.0
) -> Floats:
    """Bytes at the allocator's peak in a run's first step: Adam's moments appear only at its end [n].

    max(static + update, static - moments + activations): what a short run's log shows. update_bytes : of Adam's
    operator, which makes the moments of all weights before it begins. Source: torch.optim.Adam makes its state in the
    first step().
    """
    static = np.asarray(static_bytes, dtype=np.float64)
    return np.asarray(np.maximum(static + update_bytes, static - adam_bytes + activation_bytes))


WARM_UP_TENSORS = 17.0  # operators of GELU keep 8, an earlier call's 8 are still there, and their input


def building_moments(
    dense: Number, expert: Number, held: tuple[float, float], chunks: Number, gradients: Number | None = None
) -> tuple[Floats, Floats]:
    """Bytes while a rank's parameters move into contiguous buffers at the start of a run, at the last chunk [n]: when
    its dense ones have, and when its experts have. Both are sums over parameters.

    Each group's buffers of weights and of gradients are made while its weights are still there apart, dense ones first,
    then experts: the weights of one group of a chunk are there twice.

    Parameters
    ----------
    dense, expert : parameters of a rank. held : bytes of a weight and of its gradient. chunks : of equal size.
    gradients : bytes of all gradients, where they are not `held` for each.

    References
    ----------
    Megatron-LM core_v0.12.1 megatron/core/distributed/param_and_grad_buffer.py _ParamAndGradBuffer. modelscope/ms-swift
    issue 9403 (Qwen3-235B, TP4 PP2 EP8, 64 GB): 26.44 GiB asked for with 30.23 GiB held, the experts' buffer beside all
    weights and the dense buffers: 47 layers x 16 experts x 3 x 4096 x 1536 x 2 B. It asks for LoRA by --train_type,
    which release 4 calls --tuner_type, and drops unknown arguments by --ignore_args_error: all parameters train.
    """
    weight, gradient = held
    kept = gradient * (dense + expert) if gradients is None else gradients
    moved = weight * (dense + expert) + kept
    return np.asarray(moved + (weight * dense - gradient * expert) / chunks), np.asarray(
        moved + weight * expert / chunks
    )


def building_bytes(
    dense: Number, expert: Number, held: tuple[float, float], chunks: Number, gradients: Number | None = None
) -> Floats:
    """Most bytes at any of `building_moments` [n]."""
    return np.asarray(np.maximum(*building_moments(dense, expert, held, chunks, gradients)))


def warm_up_bytes(tokens: Number, width: Number, element_bytes: float) -> Floats:
    """Bytes of fused functions tried out at the start [n]: GELU with its bias, of whole sequences, without a model.

    tokens : of a micro batch, not cut by context parallelism. width : of the MLP, a rank's share.

    References
    ----------
    Megatron-LM core_r0.8.0 megatron/training/initialize.py _warmup_jit_function, whose operators run one by one on
    Ascend. Ascend/MindSpeed-LLM 1.0.RC3 chatglm3_gqa_cp8.json, 2.0.0 chatglm3_gqa_cp4.json: 29,104.03 MiB on 8 and on 4
    ranks, 17 x 65,536 x 13,696 x 2 B = 29,104 MiB and two biases.
    """
    return np.asarray(WARM_UP_TENSORS * element_bytes * np.asarray(tokens, dtype=np.float64) * width)


def communicator_bytes(message_bytes: Number) -> Floats:
    """Buffers of one HCCL communicator sized by its message: one to send and one to receive, in whole MiB.

    References
    ----------
    CANN documentation, HCCL_BUFFSIZE: two buffers, not shared with other communicators, 200 MB each by default;
    MindSpeed hccl-group-buffer-adaptive sizes them by message.
    """
    return np.asarray(2.0 * MIB * np.ceil(np.asarray(message_bytes, dtype=np.float64) / MIB))
