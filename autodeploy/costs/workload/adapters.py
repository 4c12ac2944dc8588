"""Low-rank adapters beside the matrices of a frozen layer: what the frozen weights no longer cost, what adapters add.

A frozen matrix has no weight's gradient and keeps no input for one; its input's gradient stays, and waits for its
collective (Megatron-LM tensor_parallel/layers.py, LinearWithFrozenWeight). Beside a target, the input goes down to the
rank and up to the output's width. Source: arXiv 2106.09685; the cut over tensor-parallel ranks as in PEFT
(tuners/lora/tp_layer.py): beside a matrix cut by columns the way up is cut, beside one cut by rows the way down.

Adapters run fused, as MindSpeed-LLM's --lora-fusion does (tasks/posttrain/lora/cc_lora_forward.py): where that saves
work, the product of both ways is added to the weight and the input multiplied once (`_merged`); the input's own rows
and the inner width are kept, so that the inner width travels between ranks and the input is gathered once. Those of
experts, and of the down projections of latent attention, run apart (`_Apart`).
Not counted: the gradients of adapters' whole halves, summed over tensor-parallel ranks once a step, and the bytes of
one merged weight beyond the working space that every layer has.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Literal

import numpy as np

from autodeploy.costs.workload.operators import (
    MATRIX_KINDS,
    Exchange,
    LayerTable,
    Operator,
    Sharding,
    Tensor,
    Touches,
    accumulating,
    cut_and_whole,
    moving,
)

if TYPE_CHECKING:
    from autodeploy.costs.workload.operators import OperatorFeatures
    from cost_models.arrays import Floats

    Size = Floats | float


# The reference of preference tuning.
REFERENCE: Final = "reference_"
HOOK: Final = "gradient_accumulation"
# Stages send what both models made of each sequence, and as much comes back.
SENT_OF_A_SEQUENCE: Final = 2
# Bytes of a logit in the loss. Kept: those of both models joined in FP32, and the exponents. While it runs: two
# differences. Moved forward, for each model: cast (2 + 4), transposed (2 + 2), joined (4 + 4), maximum (4), difference
# and exponent (8 each), sum (4), two differences (8 each); backward: the picked ones' gradient (4), exponent's product
# (12), two sums (12 each), slices (8), cast and transposed (6). Source: posttrain/utils.py, compute_log_probs.
LOSS_KEPT_BYTES: Final = 8.0 + 4.0
LOSS_BESIDE_BYTES: Final = 8.0
LOSS_MOVED_BYTES: Final = (58.0, 54.0)
LOSS_OPERATORS: Final = 12.0
LOSS_REDUCED_BYTES: Final = 8.0  # of a token: the maximum and the sum of exponents, in FP32


def with_reference(table: LayerTable, on: OperatorFeatures) -> LayerTable:
    """A layer or piece of the policy with the reference's beside it; as it is where nothing is compared."""
    if not on.reference:
        return table
    return replace(
        table,
        operators=(*table.operators, *(_forward(op) for op in table.operators if op.name != HOOK)),
        exchanges=(*table.exchanges, *(_once(each) for each in table.exchanges if np.any(each.forward_count))),
        frozen_params=np.asarray(2.0 * table.frozen_params + table.dense_params),
    )


def _forward(op: Operator) -> Operator:
    return op._replace(
        name=f"{REFERENCE}{op.name}", role="reference", passes=(op.passes[0], 0.0, 0.0), issued_backward=0.0
    )


def _once(exchange: Exchange) -> Exchange:
    beside = f"{REFERENCE}{exchange.beside}" if exchange.beside else ""
    return exchange._replace(
        name=f"{REFERENCE}{exchange.name}", backward_count=0.0, recomputed_count=0.0, beside=beside, behind=""
    )


@dataclass(frozen=True, slots=True)
class _Product:
    """A matrix that may have an adapter, the tensor that is its input and would be kept for its weight, and its kind.

    cut : how tensor-parallel ranks, or those of an expert, cut it; whole: every rank has it for its own tokens.
    """

    operator: str
    kept_input: str
    cut: Literal["columns", "rows", "whole"]


# Matrices of a layer by the name of the target that they are; a layer has some of them.
_TARGETS = {
    "linear_qkv": (
        _Product("qkv_proj", "attention_norm_out", "columns"),
        _Product("latent_down_proj", "attention_norm_out", "whole"),
    ),
    "linear_proj": (_Product("attention_out_proj", "", "rows"),),  # attention keeps its output for itself
    "linear_fc1": (
        _Product("mlp_up_proj", "mlp_norm_out", "columns"),
        _Product("expert_up_proj", "expert_in", "columns"),
        _Product("shared_up_proj", "mlp_norm_out", "columns"),
    ),
    "linear_fc2": (
        _Product("mlp_down_proj", "mlp_activation_out", "rows"),
        _Product("expert_down_proj", "expert_activation_out", "rows"),
        _Product("shared_down_proj", "shared_activation_out", "rows"),
    ),
}
_INPUTS = {product.kept_input for products in _TARGETS.values() for product in products} - {""}
_ALONE = (1.0, 1.0, 0.0)  # no gradient of a frozen weight


def frozen_piece(table: LayerTable, on: OperatorFeatures) -> LayerTable:
    """A piece outside the layers (embedding, head) that has no adapters; nothing below the embedding has a gradient."""
    if not on.frozen:
        return table
    operators = tuple(_frozen(op) for op in table.operators if op.name != HOOK)
    exchanges = table.exchanges
    if table.name == "embedding":
        operators = tuple(op._replace(backward_bytes=0.0, issued_backward=0.0) for op in operators)
        exchanges = tuple(each._replace(backward_count=0.0) for each in exchanges)
    none = np.zeros_like(table.dense_params)
    return replace(
        table,
        operators=operators,
        exchanges=tuple(_beside_frozen(each, frozenset()) for each in exchanges),
        dense_params=none,
        frozen_params=np.asarray(table.dense_params + none),
    )


def with_adapters(table: LayerTable, shard: Sharding, on: OperatorFeatures) -> LayerTable:
    """A transformer layer of a frozen model with the LoRA adapters of its targets; as it is where nothing is frozen."""
    if not on.frozen:
        return table
    rows = {op.name: op for op in table.operators}
    targets = [product for name in on.lora_targets for product in _TARGETS[name] if product.operator in rows]
    own = frozenset(target.operator for target in targets)
    operators = [_frozen(op) for op in table.operators if op.name != HOOK]
    exchanges = [_beside_frozen(each, own) for each in table.exchanges]
    unread = _INPUTS - {t.kept_input for t in targets}
    tensors = [t._replace(kept_bytes=np.zeros_like(t.kept_bytes)) if t.name in unread else t for t in table.tensors]
    # Parameters on the rank [n] that all replicas share, beside dense matrices and beside experts; those of experts.
    none: Floats = np.zeros_like(table.dense_params)
    shared, cut = [none, none], none
    adapters: list[Size] = [0.0, 0.0]
    for target in targets:
        adapter = _adapter_of(target, rows[target.operator], shard, float(on.lora_rank))
        operators += accumulating(adapter.operators(), on)
        tensors.append(adapter.kept())
        exchanges += adapter.exchanges()
        whole, of_experts = adapter.trained()
        experts = rows[target.operator].role == "experts"
        shared[experts], cut = np.asarray(shared[experts] + whole), np.asarray(cut + of_experts)
        adapters[experts] += parts(rows[target.operator], on) if experts else 1.0
    summed = on.accumulation_bytes * shared[0] + on.expert_accumulation_bytes * (shared[1] + cut)
    hook = rows[HOOK]._replace(
        backward_bytes=np.asarray(summed),
        issued_backward=np.asarray(2.0 * (adapters[0] + adapters[1])),
    )
    return replace(
        table,
        operators=(*operators, hook),
        tensors=tuple(tensors),
        exchanges=tuple(exchanges),
        dense_params=np.asarray(shared[0] + shared[1]),
        expert_params=cut,
        frozen_params=np.asarray(table.dense_params + table.expert_params),
    )


def parts(base: Operator, on: OperatorFeatures) -> Floats | float:
    """In how many parts the experts of a rank have an adapter: one for all where one operator multiplies them."""
    return base.groups if on.group_launches or not on.grouped_gemm else 1.0


def _frozen(op: Operator) -> Operator:
    """Without the gradient of its weight, for which the host issues as much as for that of its input."""
    if not op.weighted or op.kind not in MATRIX_KINDS:
        return op
    again = op.issued_backward
    return op._replace(passes=_ALONE, issued_backward=None if again is None else np.asarray(again / 2.0))


def _beside_frozen(exchange: Exchange, targets: frozenset[str]) -> Exchange:
    """Inputs are not gathered again, no weight's gradient hides a collective, and targets run in kernels of their own.

    targets : operators that have an adapter; their products are not cut into chunks beside a collective.
    """
    if exchange.behind == "input_gradient":
        return exchange._replace(backward_count=0.0)
    if exchange.behind == "weight_gradient" or exchange.beside in targets:
        return exchange._replace(beside="", behind="")
    return exchange


def _merged(shard: Sharding, base: Operator, *, by_rows: bool) -> tuple[Floats, Floats]:
    """Whether a pass adds both ways to the weight and multiplies once [n]: forward and backward; 1 or 0.

    On one tensor-parallel rank where the input has no fewer rows than columns; with sequence parallelism forward, and
    backward beside a matrix cut by columns, whose gradient is merged without sequence parallelism too.
    """
    cut, whole = cut_and_whole(shard)
    alone = np.where((shard.tp <= 1) & (np.asarray(base.rows) >= base.depth), 1.0, 0.0)
    return np.asarray(alone + cut), np.asarray(alone if by_rows else alone + cut + whole)


def _adapter_of(target: _Product, base: Operator, shard: Sharding, rank: float) -> _Adapter | _Apart:
    if target.cut == "whole" or base.role == "experts":
        return _Apart(base, target.cut, rank, shard.hot_experts)
    return _Adapter(base, target.cut == "rows", shard, rank)


@dataclass(frozen=True)
class _Apart:
    """An adapter whose two products run beside the target's, without collectives of its own.

    Of a matrix that every rank has whole, or of all experts of a rank, whose rows and sums travel with the target's.

    The half of an expert's adapter that is not cut is reduced as if it were of a dense layer. Source: MindSpeed-LLM
    @c77308a1, tasks/posttrain/lora/moe/experts.py; core/tensor_parallel/layers.py, LinearNoTP.
    """

    base: Operator
    cut: str
    rank: float
    copies: Floats | float  # of experts of other ranks

    @property
    def name(self) -> str:
        """Prefix of what it adds."""
        return f"{self.base.name}_lora"

    def trained(self) -> tuple[Floats, Floats]:
        """Parameters on the rank [n]: that all replicas share, and those of experts."""
        base, groups = self.base, np.asarray(self.base.groups) - self.copies * (self.cut != "whole")
        down, up = np.asarray(self.rank * groups * base.depth), np.asarray(self.rank * groups * base.columns)
        if self.cut == "whole":
            return np.asarray(down + up), np.zeros_like(down)
        return (down, up) if self.cut == "columns" else (up, down)

    def operators(self) -> list[Operator]:
        """Both products, and sums of outputs and of the input's gradients (6 B an element)."""
        base = self.base
        rows = np.asarray(base.rows) * base.groups
        down = base._replace(name=f"{self.name}_down", columns=self.rank)
        up = base._replace(name=f"{self.name}_up", depth=self.rank)
        add = moving(
            f"{self.name}_add",
            base.window,
            np.asarray(6.0 * rows * base.columns),
            np.asarray(6.0 * rows * base.depth),
            role=base.role,
            per_expert=base.per_expert,
            routes=base.routes,
        )
        once = {"launches": 1.0} if self.cut == "whole" else {}
        return [down._replace(**once), up._replace(**once), add]  # type: ignore[arg-type]

    def kept(self) -> Tensor:
        """Rows of the inner width."""
        rows = np.asarray(2.0 * np.asarray(self.base.rows) * self.base.groups * self.rank)
        return Tensor(f"{self.name}_inner", rows, per_expert=self.base.per_expert)

    def exchanges(self) -> list[Exchange]:
        """None of its own."""
        return []


@dataclass(frozen=True)
class _Adapter:
    """One adapter on a rank: `base` is the target's product of `rows` x `depth` with `depth` x `columns`."""

    base: Operator
    by_rows: bool
    shard: Sharding
    rank: float

    @property
    def name(self) -> str:
        """Prefix of what it adds."""
        return f"lora_{self.base.name}"

    @property
    def own_rows(self) -> Floats:
        """Tokens that the rank holds between tensor-parallel regions [n]."""
        return np.asarray(self.shard.local_tokens)

    def trained(self) -> tuple[Floats, Floats]:
        """Parameters on the rank [n], that all replicas share; none of experts."""
        none = np.zeros_like(self.own_rows)
        return np.asarray(self.rank * (self.base.depth + self.base.columns) + none), none

    def operators(self) -> list[Operator]:
        """Products of the way down and up, those that make a merged weight, and sums."""
        tokens, own = np.asarray(self.base.rows), self.own_rows
        width, out, rank = self.base.depth, self.base.columns, self.rank
        forward, backward = _merged(self.shard, self.base, by_rows=self.by_rows)
        apart, apart_back = 1.0 - forward, 1.0 - backward

        # Where the outputs stay apart, two are read and one is written; a merged weight as well.
        down = self._gemm("down", (tokens if self.by_rows else own, rank, width), (1.0, apart_back, 1.0))
        ups = [self._gemm("up", (tokens, out, rank), (apart, 1.0, 1.0))]
        summed = own if self.by_rows else tokens
        if self.by_rows:  # what leaves a matrix cut by rows are the rank's own rows; its gradient is of all
            ups = [
                self._gemm("up", (own, out, rank), (apart, 0.0, 1.0)),
                self._gemm("up_gradient", (tokens, out, rank), (0.0, 1.0, 0.0)),
            ]
        whole = np.asarray(out * width + np.zeros_like(tokens))
        rows = np.asarray(out + np.zeros_like(tokens))
        return [
            down,
            *ups,
            self._gemm("merge", (rows, width, rank), (forward, 0.0, 0.0)),
            self._gemm("merge_again", (rows, rank, width), (0.0, backward, 0.0)),
            moving(
                f"{self.name}_add",
                self.base.window,
                6.0 * (apart * summed * out + forward * whole),
                6.0 * (apart_back * tokens * width + backward * whole),
            ),
        ]

    def _gemm(self, part: str, shape: tuple[Size, Size, Size], passes: tuple[Size, Size, Size]) -> Operator:
        rows, columns, depth = shape
        name, window = f"{self.name}_{part}", self.base.window
        return Operator(name, "gemm", window, rows, columns, depth, passes=passes)

    def kept(self) -> Tensor:
        """The rank's rows of the inner width."""
        return Tensor(f"{self.name}_inner", np.asarray(2.0 * self.own_rows * self.rank))

    def exchanges(self) -> list[Exchange]:
        """Of the rows of the inner width: beside rows forward, beside columns backward."""
        cut, whole = cut_and_whole(self.shard)
        name, window = self.name, self.base.window
        inner = np.asarray(2.0 * np.asarray(self.base.rows) * self.rank)
        if self.by_rows:
            return [
                Exchange(f"{name}_scatter", "scatter", window, inner, cut, 0.0),
                Exchange(f"{name}_reduce", "reduce", window, inner, whole, 0.0),
            ]
        return [
            Exchange(f"{name}_inner_gather", "gather", window, inner, 0.0, cut),
            Exchange(f"{name}_gradient_scatter", "scatter", window, inner, 0.0, cut),
            Exchange(f"{name}_gradient_reduce", "reduce", window, inner, 0.0, whole),
        ]


def _beside(*matrices: str) -> tuple[str, ...]:
    """Operators of the forward pass of adapters beside matrices that tensor parallelism cuts."""
    return tuple(f"lora_{matrix}_{part}" for matrix in matrices for part in ("down", "up", "merge", "add"))


_UP, _DOWN = (
    tuple(f"{matrix}_lora_{part}" for part in ("down", "up", "add"))
    for matrix in ("expert_up_proj", "expert_down_proj")
)
_SHARED: Final = Touches(
    ("lora_shared_up_proj_inner", "lora_shared_down_proj_inner"),
    _beside("shared_up_proj", "shared_down_proj"),
    ("lora_shared_down_proj_scatter", "lora_shared_down_proj_reduce"),
)
ADAPTER_CHOICES: Final = {
    "moe_zero_memory_level1": Touches(("expert_up_proj_lora_inner",), _UP),
    "mlp": Touches(
        ("lora_mlp_up_proj_inner", "lora_mlp_down_proj_inner"),
        _beside("mlp_up_proj", "mlp_down_proj"),
        ("lora_mlp_down_proj_scatter", "lora_mlp_down_proj_reduce"),
    ),
    "moe": Touches(
        (*_SHARED.frees, "expert_up_proj_lora_inner", "expert_down_proj_lora_inner"),
        (*_UP, *_DOWN, *_SHARED.replays),
        _SHARED.exchanges,
    ),
    "shared_experts": _SHARED,
}
