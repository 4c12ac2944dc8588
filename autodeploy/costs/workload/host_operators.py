"""Host work for a layer: operators it issues, and sizes that it waits for.

A row's `launches` are kernels with a fixed cost on the device. The host issues more than those: casts, transpositions,
index arithmetic, copies of sizes. The counts below are of the calls in Megatron-LM core_v0.12.1 (router.py,
moe_utils.py, token_dispatcher.py, experts.py), which MindSpeed @028de58c patches without changing them by much.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from autodeploy.costs.workload.operators import OperatorFeatures, Sharding
    from autodeploy.specs.model import ModelSpec
    from cost_models.arrays import Floats


class Issued(NamedTuple):
    """Operators that the host issues in the forward and in the backward pass, as `Operator` has them."""

    issued: Floats | float
    issued_backward: Floats | float


# gating: the input's view or cast and the product; backward both products, the cast and the sum of dW.
ROUTER = Issued(2.0, 4.0)
# topk_softmax_with_capacity: top-k, softmax, casts, two cleared maps with a scatter each, counts (13); the auxiliary
# loss: softmax, two sums, products, its place in the log (7); counts for the bias of experts (2).
ROUTING, FUSED_ROUTING = Issued(22.0, 12.0), Issued(4.0, 4.0)
# preprocess: counts of tokens by expert, by rank and gathered over the group, five copies to the host; the exchange of
# the tokens' weights. On one rank: the counts and their copy. Gathered tokens: the gathers of map and weights too.
SIZES, SIZES_OF_ONE, SIZES_OF_GATHERED = Issued(13.0, 1.0), Issued(3.0, 0.0), Issued(6.0, 1.0)
# Those of them that only the host reads: three sums to sizes of messages and the five copies; on one rank the copy.
# Source: MindSpeed @028de58c legacy_a2a_token_dispatcher.py, preprocess.
READ_BY_HOST, READ_BY_HOST_OF_ONE = 8.0, 1.0
# permute: transposed map, range, selection by the mask, rows by index, transposed weights and their selection. Fused:
# a map of rows and the rows, in the weights' format.
# sort_chunks_by_idxs: parts of the rows put together, and those of their weights, and on the way back without weights.
# Fused: a map of rows and the rows. unpermute: a cleared buffer, the sum by index, a cast.
PERMUTATION = {
    False: (Issued(7.0, 6.0), Issued(3.0, 3.0), Issued(2.0, 2.0), Issued(3.0, 2.0)),
    True: (Issued(3.0, 2.0), Issued(2.0, 1.0), Issued(1.0, 1.0), Issued(1.0, 1.0)),
}
ACTIVATION = Issued(3.0, 4.0)  # of the joined projection, times the tokens' weights, in their format
# The same of one expert alone, its SwiGLU in parts, and two sums of its weights' gradients. Seen: with 8 local experts
# apart 35 and 170 operators of a layer more than joined (Megatron-LM core_v0.12.1 with MindSpeed @028de58c on the CPU).
OWN_ACTIVATION = Issued(3.0, 18.0)
# Where a grouped product works on experts' own parameters, of each: its weight copied into one array before it, and its
# part of the gradient added to its sum when its hook runs.
JOINED_WEIGHT, SUMMED_GRADIENT = 1.0, 1.0
WEIGHTED = Issued(3.0, 4.0)  # rows times the tokens' weights, in their format
# Rotation of queries or of keys: cosine, sine, their scale and cast, the rotation, its join with what is not rotated.
# Seen on the CPU (TorchDispatchMode): Megatron-LM core_v0.12.1 rope_utils.py with MindSpeed @028de58c fused_rope.py.
ROTATION, UNFUSED_ROTATION = Issued(8.0, 4.0), Issued(12.0, 8.0)
# Of packed documents, around all: bounds divided, subtracted, read and results joined; since core_v0.16.0 angles are
# put together first and compared with the last bound. One after another each document has all of it but one join
# backward, and over a ring of ranks its angles are put together from two pieces.
BY_DOCUMENT, PACKED = Issued(3.0, 2.0), Issued(4.0, 0.0)
# Hooks of a layer's parameters: two norms, attention's two products, and the router or the MLP's two.
HOOKS, MLP_HOOKS = 5.0, 6.0

# Selections by a mask have as many rows as the mask has ones: the host waits for that number. Source: PyTorch
# masked_select, torch_npu aclnnMaskedSelect; Megatron-LM moe_utils.py permute, lines 296 (rows) and 302 (weights).
SELECTIONS = 2.0


def synchronisations(shard: Sharding, on: OperatorFeatures) -> Floats:
    """Times that the host waits for the router of a layer in a forward pass [n].

    Notes
    -----
    alltoall 1, on one rank too: sizes of messages, or of the experts' rows. alltoall_seq 1: the same. DeepEP 1: rows
    that arrive, inside the dispatch. Forward-backward overlap 1. Each of these 2 more where the permutation is not
    fused: its selections by the mask. allgather 3: rows of the own experts, their selection, that of their weights.
    Experts padded to their capacity 0: sizes are fixed. Tensor parallelism adds none, since the sizes of its gathers
    arrive with the others. A replay that routes waits again.

    References
    ----------
    Megatron-LM core_v0.12.1, token_dispatcher.py: 337-357 (padded), 396-447 (where to wait), 705 (the wait), 195 and
    206 (allgather); moe_utils.py 296, 302; fused_a2a.py FusedDispatch. MindSpeed @028de58c:
    core/transformer/moe/legacy_a2a_token_dispatcher.py 352, moe_feature/common.py ascend_gmm_preprocess,
    moe_feature/fb_overlap/overlap_funcs/fwdbwd.py 480. MindSpeed 2.0.0_core_r0.8.0 (2024 and early 2025) permutes by
    indices: alltoall 2, sizes that arrive and an index by torch.repeat_interleave (token_dispatcher.py 302, 334).
    """
    if on.capacity_factor is not None:
        return np.zeros_like(shard.tp)
    exchanged = 1.0 if on.fused_operators else 1.0 + SELECTIONS
    return np.where(shard.gathers_tokens, 1.0 + SELECTIONS, exchanged)


def replayed_synchronisations(on: OperatorFeatures) -> float:
    """Times that the host waits in a replay of the permutation alone: for its selections, the sizes are kept.

    Source: MindSpeed @028de58c moe_feature/overlap/moe_layer_overlap_all2all.py 197, moe-zero-memory.
    """
    return 0.0 if on.fused_operators or on.capacity_factor is not None else SELECTIONS


def sizes(shard: Sharding, on: OperatorFeatures) -> Issued:
    """Operators that count tokens and copy the counts to the host, if it reads them [n], forward and backward."""
    several = shard.ep * shard.etp > 1.0

    def of(number: int) -> Floats:
        of_ranks = np.where(several, SIZES[number], SIZES_OF_ONE[number])
        return np.where(shard.gathers_tokens, SIZES_OF_GATHERED[number], of_ranks)

    unread = np.where(several, READ_BY_HOST, READ_BY_HOST_OF_ONE) if on.sizes_stay else 0.0
    return Issued(of(0) - np.where(shard.gathers_tokens, 0.0, unread), of(1))


def of_rotation(shard: Sharding, on: OperatorFeatures) -> Issued:
    """Operators of rotating queries and keys, forward and backward, where each layer makes the angles anew."""
    each = ROTATION if on.fused_rotary else UNFUSED_ROTATION
    if on.mean_keys is None:
        return Issued(2.0 * each.issued, 2.0 * each.issued_backward)
    if not on.rotates_documents:
        return Issued(2.0 * (PACKED.issued + each.issued), 2.0 * (PACKED.issued_backward + each.issued_backward))
    documents = on.documents * shard.micro_batch_size
    forward = BY_DOCUMENT.issued + documents * (each.issued + np.where(shard.ring > 1.0, 1.0, 0.0))
    return Issued(2.0 * forward, 2.0 * (BY_DOCUMENT.issued_backward + documents * (each.issued_backward - 1.0)))


def of_products(groups: Floats | float, on: OperatorFeatures) -> Issued:
    """Operators of one multiplication of all experts of a rank, `groups` of them, forward and backward.

    Without the grouped kernel each expert has its own. A grouped one may still launch a kernel for each group, from
    inside one operator (`group_launches` of an operator's cost each), and joins parameters that are apart.
    """
    if not on.grouped_gemm:
        return Issued(groups, 2.0 * groups)
    each = 1.0 + on.group_launches * groups
    apart = groups if on.experts_apart else 0.0
    return Issued(each + JOINED_WEIGHT * apart, 2.0 * each)


def of_activation(groups: Floats | float, on: OperatorFeatures) -> Issued:
    """Operators of the activation of all experts of a rank, forward and backward."""
    if on.grouped_gemm:
        return ACTIVATION
    return Issued(*(each * groups for each in OWN_ACTIVATION))


def of_hooks(groups: Floats | float, on: OperatorFeatures) -> Floats | float:
    """Operators that hand gradients over after a backward pass through a layer with experts: one a parameter.

    Experts have two parameters: joined ones (MindSpeed GroupedMLP), or of each expert (Transformer Engine
    GroupedLinear, SequentialMLP). Source: Megatron-LM DistributedDataParallel, a hook on every parameter.
    """
    if on.experts_apart and on.grouped_gemm:
        return HOOKS + 2.0 * (1.0 + SUMMED_GRADIENT) * groups
    return HOOKS + 2.0 * (groups if on.group_launches or not on.grouped_gemm else 1.0)


def of_attention_hooks(model: ModelSpec) -> float:
    """Operators that hand over gradients of attention's parameters beside its two products: norms of queries and keys,
    or of latents with their products. Seen on the CPU: plans of tests/witness/operators.py.
    """
    if model.kv_lora_rank:
        return 4.0 if model.q_lora_rank else 3.0
    return 2.0 if model.qk_norm else 0.0


def of_both_halves(hooks: Floats | float) -> Floats | float:
    """The same in a layer with a shortcut: two halves without experts, and a router with its experts."""
    return 2.0 * MLP_HOOKS + 1.0 + (hooks - HOOKS)
