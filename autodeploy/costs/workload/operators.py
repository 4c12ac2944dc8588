"""Operators as data: what one layer computes, moves, keeps and exchanges for one micro batch on one rank.

A layer is a table of operators, tensors and exchanges. Sizes are arrays with the candidate as first axis. Features
change rows of the table; nothing multiplies a layer's final time. Rows are named tuples: a search makes very many.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

import numpy as np

from cost_models.optimizers import ADAM, Optimizer

if TYPE_CHECKING:
    from collections.abc import Iterable

    from autodeploy.specs.model import ModelSpec
    from cost_models.arrays import Bools, Floats
    from cost_models.optimizers import MatrixSeconds


OperatorKind = Literal["gemm", "grouped_gemm", "attention", "vector", "movement"]
MATRIX_KINDS = frozenset({"gemm", "grouped_gemm"})
Window = Literal["attention", "mlp"]
Role = Literal["", "dense", "shared", "experts", "sorting", "reference"]
ROUTED: frozenset[Role] = frozenset({"experts", "sorting"})  # of operators between dispatch and combine
EVERY_PASS = (1.0, 1.0, 1.0)
ExchangeKind = Literal["gather", "scatter", "reduce", "dispatch", "combine", "ring", "heads"]
ExchangeGroup = Literal["tp", "etp", "ep", "ring", "ulysses"]
# Rows in the run's format, weights likewise; FP32 routing weights, integers, and FP32 sums, whatever it computes in.
SizeClass = Literal["tokens", "weights", "probabilities", "counts", "sums"]
IN_FORMAT: frozenset[SizeClass] = frozenset({"tokens", "weights"})
FORWARD, BACKWARD, RECOMPUTED = range(3)
_GROUPS: dict[ExchangeKind, ExchangeGroup] = {
    **{"gather": "tp", "scatter": "tp", "reduce": "tp", "dispatch": "ep", "combine": "ep"},
    **{"ring": "ring", "heads": "ulysses"},
}


class Operator(NamedTuple):
    """One row of a layer's table.

    rows, columns, depth : m, n, k of a matrix multiplication; groups: how many of them (experts of the rank).
    flops, backward_flops, head_dim, seq : of an attention operator (FLOPs that are computed, mean width of products).
    forward_bytes, backward_bytes : device memory traffic of a vector or movement operator, or of single rows that an
    attention operator gathers.
    launches : kernels of the forward pass, with a fixed cost each on the device.
    issued, issued_backward : operators that the host issues in each pass, where they are not the launches.
    window : which half of the layer it belongs to, for schedules that pair windows.
    role : of a dense MLP, shared experts, experts, the sorting of their rows or a model of reference; "": of none.
    per_expert : its work grows with the tokens of the busiest rank.
    routes : belongs to the software that routes tokens to experts and runs them, whose releases have a factor of their
        own.
    whole_rows : a movement by one kernel that reads and writes whole rows.
    weighted : one factor is a weight, whose gradient is added into a sum over micro batches.
    gradient_bytes : moved by the product that makes it, for an element of the weight's gradient; None: it is written.
    wide : stays in 16 bits where linear layers run in 8.
    as_it_is : its bytes are of FP32 numbers or integers, whatever format the run computes in.
    runs : equal operators of the layer that the row stands for.
    passes : how often each product of a matrix multiplication runs: forward, gradient of its input, gradient of its
        weight, which a frozen one has none of.
    """

    name: str
    kind: OperatorKind
    window: Window
    rows: Floats | float = 0.0
    columns: Floats | float = 0.0
    depth: Floats | float = 0.0
    groups: Floats | float = 1.0
    flops: Floats | float = 0.0
    backward_flops: Floats | float = 0.0
    head_dim: float = 0.0
    seq: Floats | float = 0.0
    forward_bytes: Floats | float = 0.0
    backward_bytes: Floats | float = 0.0
    launches: Floats | float = 1.0
    issued: Floats | float | None = None
    issued_backward: Floats | float | None = None
    role: Role = ""
    per_expert: bool = False
    routes: bool = False
    whole_rows: Bools | bool = False
    weighted: bool = True
    gradient_bytes: float | None = None
    fused: bool = True
    wide: bool = False
    as_it_is: bool = False
    runs: float = 1.0
    passes: tuple[Floats | float, Floats | float, Floats | float] = EVERY_PASS


def moving(
    name: str,
    window: Window,
    forward_bytes: Floats | float,
    backward_bytes: Floats | float,
    *,
    kind: OperatorKind = "vector",
    **facts: Any,
) -> Operator:
    """A row that moves bytes of device memory and multiplies nothing."""
    return Operator(name, kind, window, forward_bytes=forward_bytes, backward_bytes=backward_bytes, **facts)


class Tensor(NamedTuple):
    """An activation kept for the backward pass, in bytes of one micro batch on one rank."""

    name: str
    kept_bytes: Floats
    per_expert: bool = False
    as_it_is: bool = False  # FP32 or integers, whatever format the run computes in


class Exchange(NamedTuple):
    """One communication of a layer, in the forward pass, the backward pass, and where a replay runs it again.

    message_bytes : output of a gather, input of a scatter or reduce, tokens of the rank once each of a dispatch or
        combine, one chunk of a ring, all tensors of a heads exchange.
    backward_bytes, recomputed_bytes : the same of these passes, where their messages differ.
    recomputed_count : None: as often as in the forward pass.
    carries : size class of what `message_bytes` counts.
    along : size classes of smaller messages that the host issues with it.
    group : None: that of its kind (`group_of`).
    blocking : the layer waits for it; others run behind all of the layer's work of their window.
    beside : the matrix multiplication it can be fused with or cut into chunks against; "" if none.
    behind : which gradient of `beside` hides it in the backward pass, as frameworks do without any feature.
    choices : experts that each token of a dispatch or combine is sent to; 0: the layer's `choices_per_token`.
    """

    name: str
    kind: ExchangeKind
    window: Window
    message_bytes: Floats
    forward_count: Floats | float = 1.0
    backward_count: Floats | float = 1.0
    beside: str = ""
    behind: Literal["", "input_gradient", "weight_gradient"] = ""
    choices: float = 0.0
    backward_bytes: Floats | None = None
    recomputed_bytes: Floats | None = None
    recomputed_count: Floats | float | None = None
    carries: SizeClass = "tokens"
    along: tuple[SizeClass, ...] = ()
    group: ExchangeGroup | None = None
    blocking: bool = True

    @property
    def sizes(self) -> tuple[Floats, Floats, Floats]:
        """Bytes of a message of each pass; one object where they are the same."""
        first, back, again = self.message_bytes, self.backward_bytes, self.recomputed_bytes
        return first, first if back is None else back, first if again is None else again

    @property
    def counts(self) -> tuple[Floats | float, Floats | float, Floats | float]:
        """Messages of each pass."""
        again = self.forward_count if self.recomputed_count is None else self.recomputed_count
        return self.forward_count, self.backward_count, again

    @property
    def sent(self) -> tuple[tuple[int, Floats | float], ...]:
        """Messages of a forward and a backward pass, those of one size together: the pass they are of, how many."""
        if self.backward_bytes is None:
            return ((FORWARD, self.forward_count + self.backward_count),)
        return (FORWARD, self.forward_count), (BACKWARD, self.backward_count)

    def often(self, times: float) -> Exchange:
        """The exchange so many times as often."""
        first, back, again = self.counts
        own = None if self.recomputed_count is None else times * again
        return self._replace(forward_count=times * first, backward_count=times * back, recomputed_count=own)

    def wider(self, times: float) -> Exchange:
        """The exchange with messages so many times as long."""
        others = (self.backward_bytes, self.recomputed_bytes)
        back, again = (None if size is None else np.asarray(size * times) for size in others)
        whole = np.asarray(self.message_bytes * times)
        return self._replace(message_bytes=whole, backward_bytes=back, recomputed_bytes=again)


Rows: TypeAlias = tuple[list[Operator], list[Tensor], list[Exchange]]


def joined_rows(*parts: Rows) -> Rows:
    """Rows of all parts, one after the other."""
    return (
        [row for part in parts for row in part[0]],
        [row for part in parts for row in part[1]],
        [row for part in parts for row in part[2]],
    )


def group_of(exchange: Exchange) -> ExchangeGroup:
    """The group in which an exchange runs."""
    return exchange.group or _GROUPS[exchange.kind]


@dataclass(frozen=True, slots=True)
class Matrices:
    """Equal matrices of weights on a rank, `count` of them, of rows x columns; experts: of those alone."""

    rows: Floats | float
    columns: Floats | float
    count: Floats | float = 1.0
    experts: bool = False


@dataclass(frozen=True, slots=True)
class LayerTable:
    """Everything one layer (or fixed piece) does for one micro batch on one rank."""

    name: str
    operators: tuple[Operator, ...]
    tensors: tuple[Tensor, ...]
    exchanges: tuple[Exchange, ...]
    dense_params: Floats  # parameters on the rank that data parallel x context parallel ranks share
    expert_params: Floats  # parameters on the rank that expert data parallel ranks share
    workspace_bytes: Floats | float = 0.0  # beyond what is kept, while it runs
    passing_bytes: Floats | float = 0.0  # of what it keeps: gone before the backward pass of any layer begins
    choices_per_token: float = 0.0  # experts with matrices that a token is sent to
    synchronisations: Floats | float = 0.0  # device-host synchronisations of the forward pass
    replayed_synchronisations: float = 0.0  # of a replay that permutes again and does not route again
    after_synchronisation: tuple[str, ...] = ()  # operators that the host issues right after, in order
    frozen_params: Floats | float = 0.0  # parameters on the rank that are not trained: weights alone
    matrices: tuple[Matrices, ...] = ()  # that the optimizer updates as wholes
    matrix_s: MatrixSeconds | None = None  # as of `Optimizer`
    layer_class: str = ""  # dense or moe, as strategies count layers; "" of pieces and prediction modules
    by_operator: ByOperator | None = None  # what selective recomputation by operator leaves; None: it does not know it

    def choices_of(self, exchange: Exchange) -> float:
        """Experts that each token of a dispatch or combine is sent to."""
        return exchange.choices or self.choices_per_token


@dataclass(frozen=True)
class Sharding:
    """Sharding of a layer's tensors: one entry per candidate. All arrays float64 [n] but the booleans."""

    tp: Floats
    cp: Floats
    ulysses: Floats  # share of cp that splits heads; cp / ulysses splits the sequence by ring
    ep: Floats
    etp: Floats
    micro_batch_size: Floats
    sequence_parallel: Bools
    gathers_tokens: Bools  # the dispatcher gathers all tokens of the group and picks its own by index
    seq_length: float
    paired: Bools | bool = False  # the schedule runs a forward against a backward pass
    sends_once: Bools | bool = False  # a dispatch sends a token once to each rank, which makes its experts' rows
    turns_tokens: Bools | bool = False  # ranks that cut an expert exchange all tokens, at a part of the width
    hot_experts: Floats | float = 0.0  # experts whose weights every rank of the group receives for its own tokens

    @cached_property
    def tokens(self) -> Floats:
        """Rows of a tensor-parallel matrix multiplication: tokens of a micro batch on a context-parallel rank."""
        return np.asarray(self.micro_batch_size * self.seq_length / self.cp)

    @cached_property
    def local_tokens(self) -> Floats:
        """Tokens a rank holds between tensor-parallel regions: 1/tp of them under sequence parallelism."""
        return np.asarray(self.tokens / np.where(self.sequence_parallel, self.tp, 1.0))

    @cached_property
    def ring(self) -> Floats:
        """Ranks of the key-value ring."""
        return np.asarray(self.cp / self.ulysses)


@dataclass(frozen=True, slots=True)
class OperatorFeatures:
    """Features and facts of a release that change the operator table."""

    flash_attention: bool = True
    fused_swiglu: bool = True
    fused_rmsnorm: bool = True
    grouped_gemm: bool = True
    rect_fa: bool = False
    padded_heads: bool = False  # queries, keys and values are padded to one width that kernels like, not V to Q's
    vector_sort: bool = False
    fused_operators: bool = False
    fused_ring_update: bool = False
    fused_router: bool = False
    row_index: bool = False  # gathered tokens are picked and added by one index a row, not one an element
    weighted_rows: bool = False  # routing weights are applied to the rows that return, not to the experts' activation
    group_launches: float = 0.0  # of an operator's cost to the host, for each group of a grouped multiplication
    attention_stats_bytes: float = 64.0
    capacity_factor: float | None = None
    norm_bytes: float = 2.0
    element_bytes: float = 2.0  # of what layers compute with: 2 in 16 bits (and in 8: casts are operators), 4 in FP32
    keeps_gathered: bool = False  # what was gathered stays for the weight gradient; others gather again
    accumulation_bytes: float = 0.0  # of a weight gradient per parameter and micro batch, beyond its own product
    expert_accumulation_bytes: float = 0.0  # of an expert's weight gradient
    sums_bytes: float = 0.0  # of a gradient that no product makes, per parameter and micro batch
    added_bytes: float | None = None  # of a weight gradient by its own product, where that adds to the sum
    weighted_activation: bool = False  # routing weights are applied to the experts' activation, which is kept twice
    input_bytes: float = 2.0  # kept of an element of a matrix's input in an MLP; 1 where its 8-bit cast is kept
    weighted_experts: bool = False  # rows return from the experts weighted, inside the activation's kernel
    logit_bytes: float = 4.0  # kept of a logit for the backward pass: the FP32 softmax; other losses differ
    loss_bytes: float = 2.0  # of a logit beyond it while the loss runs: the 16-bit logits, or their 16-bit gradient
    loss_chunk: float = 0.0  # tokens of which the loss is computed at a time, gradients with it; 0: all
    torch_modules: bool = False  # plain PyTorch: a product for each matrix, collectives of DTensor around them
    torch_compiled: bool = False  # torch.compile made each of their layers one graph
    fused_rotary: bool = True
    whole_vocabulary: bool = False  # every tensor-parallel rank holds embedding and head whole
    replicated_dispatch: bool = False  # every tensor-parallel rank sends all tokens of its group to the experts
    casts_router: bool = False  # a router in a wider format keeps its input and weights cast to it
    regathers_latents: bool = False  # products that a patch should feed gathered latents gather them all the same
    regathers_shared: bool = False  # and shared experts of paired passes their input
    cuts_latents: bool = False  # down projections of latent attention are cut over tensor-parallel ranks
    copies_heads: bool = False  # attention kernels take whole arrays, not slices of the joined projection
    joins_heads: bool = False  # queries, keys and values are slices of one product
    slices_heads: bool = False  # attention kernels take slices of the joined projection
    fused_cross_entropy: bool = False
    dropout: bool = False
    attention_dropout: bool = False
    square_alibi: bool = False
    mean_keys: float | None = None  # a query attends to, where documents are packed; None: the whole sequence is one
    documents: float = 1.0  # of a sequence, where documents are packed
    lora_rank: int = 0  # of adapters beside a frozen model; 0: all of it is trained
    lora_targets: tuple[str, ...] = ()  # matrices that have one
    reference: bool = False  # a frozen copy of the model reads every sequence, too (preference tuning)
    sizes_stay: bool = False  # the host does not read how many rows go to whom
    predictors_apart: bool = False  # prediction modules are not on the part of the model that has the head
    experts_apart: bool = False  # each expert has parameters of its own, which a grouped product joins
    makes_angles: bool = False  # cosines and sines are operators of every layer
    joins_pieces: Literal["between_steps", "at_the_end", None] = None  # attention over a ring, of whole sequences
    rotates_documents: bool = False
    reads_of_packs: float = 0.0  # of the bounds of packed documents by an attention, for which the host waits
    gathers_keys: bool = False  # a kernel of sparse attention gathers chosen keys always
    scored_loss: bool = False  # the loss divides logits by a temperature first
    optimizer: Optimizer = ADAM

    @property
    def frozen(self) -> bool:
        """Training of adapters alone, beside frozen weights of the model."""
        return self.lora_rank > 0


def accumulating(operators: Iterable[Operator], on: OperatorFeatures) -> tuple[Operator, ...]:
    """The operators, each product with a weight as its release adds the weight's gradients up."""

    def gradient_bytes(op: Operator) -> float | None:
        apart = on.expert_accumulation_bytes if op.kind == "grouped_gemm" else on.accumulation_bytes
        return None if apart else on.added_bytes

    return tuple(
        op._replace(gradient_bytes=gradient_bytes(op)) if op.weighted and op.kind in MATRIX_KINDS else op
        for op in operators
    )


# Collectives around a multiplication that is cut by columns over the tensor-parallel ranks.
def cut_and_whole(shard: Sharding) -> tuple[Floats, Floats]:
    """Candidates whose inputs are cut between tensor-parallel regions, and those where they are whole [n]: 1 or 0."""
    several = shard.tp > 1
    return (
        np.where(shard.sequence_parallel & several, 1.0, 0.0),
        np.where(~shard.sequence_parallel & several, 1.0, 0.0),
    )


def column_exchanges(
    shard: Sharding, name: str, window: Window, input_bytes: Floats, first: str, on: OperatorFeatures
) -> list[Exchange]:
    """Collectives of the input of `first`, `input_bytes` of all tokens of the group.

    With sequence parallelism the input is gathered; backward it is gathered again behind the input's gradient, which is
    scattered behind the weight's. Without, the gradient alone is reduced behind the weight's.
    Source: Megatron-LM tensor_parallel/layers.py, LinearWithGradAccumulationAndAsyncCommunication.

    Plain PyTorch keeps what it gathered, and returns the input's gradient when both gradients of every product of this
    input are there, so that none hides it. Source: torch/distributed/tensor/_redistribute.py, Redistribute.backward;
    torchtitan, PrepareModuleInput of attention and feed_forward.
    """
    cut, whole = cut_and_whole(shard)
    again = np.zeros_like(cut) if on.torch_modules else cut
    behind: Literal["", "weight_gradient"] = "" if on.torch_modules else "weight_gradient"
    return [
        Exchange(f"{name}_gather", "gather", window, input_bytes, cut, 0.0, beside=first),
        Exchange(f"{name}_regather", "gather", window, input_bytes, 0.0, again, beside=first, behind="input_gradient"),
        Exchange(f"{name}_gradient_scatter", "scatter", window, input_bytes, 0.0, cut, beside=first, behind=behind),
        Exchange(f"{name}_gradient_reduce", "reduce", window, input_bytes, 0.0, whole, beside=first, behind=behind),
    ]


def region_exchanges(
    model: ModelSpec,
    shard: Sharding,
    on: OperatorFeatures,
    window: Window,
    first: str,
    last: str,
    *,
    gathers_hidden: bool = True,
) -> list[Exchange]:
    """Collectives around one tensor-parallel region: `first` cut by columns, `last` by rows.

    The input is `column_exchanges`'. With sequence parallelism the output is scattered and its gradient gathered;
    without, it is reduced. Latent attention gathers its latents instead of the input (`gathers_hidden` false).
    Source: Korthikanti, arXiv:2205.05198; Megatron-LM tensor_parallel/layers.py.
    """
    whole = np.asarray(2.0 * shard.tokens * model.hidden_size)
    cut, reduced = cut_and_whole(shard)
    outputs = [
        Exchange(f"{window}_scatter", "scatter", window, whole, cut, 0.0, beside=last),
        Exchange(f"{window}_gradient_gather", "gather", window, whole, 0.0, cut, beside=last),
        Exchange(f"{window}_reduce", "reduce", window, whole, reduced, 0.0, beside=last),
    ]
    return [*column_exchanges(shard, window, window, whole, first, on), *outputs] if gathers_hidden else outputs


# Selective recomputation by operator.
@dataclass(frozen=True, slots=True)
class ByOperator:
    """Shares [n] of a layer's tensors, by name, that are not kept, and of its operators that run again.

    kept_bytes : that this recomputation alone keeps [n].
    """

    tensors: dict[str, Floats]
    operators: dict[str, Floats]
    kept_bytes: Floats


class Touches(NamedTuple):
    """Tensors of a kind of layers that a memory choice frees, operators and exchanges that are repeated for them."""

    frees: tuple[str, ...] = ()
    replays: tuple[str, ...] = ()
    exchanges: tuple[str, ...] = ()


MemoryChoices = Mapping[str, Touches]  # by the choice's name
