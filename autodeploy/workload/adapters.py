"""Low-rank adapters beside the matrices of a frozen layer: what the frozen weights no longer cost, what adapters add.

A frozen matrix has no weight's gradient and keeps no input for one; its input's gradient stays, and waits for its
collective (Megatron-LM tensor_parallel/layers.py, LinearWithFrozenWeight). Beside a target, the input goes down to the
rank and up to the output's width. Source: arXiv 2106.09685; the cut over tensor-parallel ranks as in PEFT
(tuners/lora/tp_layer.py): beside a matrix cut by columns the way up is cut, beside one cut by rows the way down.

Adapters run fused, as MindSpeed-LLM's --lora-fusion does (tasks/posttrain/lora/cc_lora_forward.py): where that saves
work, the product of both ways is added to the weight and the input multiplied once (`_merged`); the input's own rows
and the inner width are kept, so that the inner width travels between ranks and the input is gathered once.
Not counted: the gradients of adapters' whole halves, summed over tensor-parallel ranks once a step, and the bytes of
one merged weight beyond the working space that every layer has.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from autodeploy.workload.operators import MATRIX_KINDS, Exchange, LayerTable, Operator, Sharding, Tensor, accumulating
from autodeploy.workload.tensor_parallel import cut_and_whole

if TYPE_CHECKING:
    from autodeploy.workload.operators import OperatorFeatures
    from cost_models.arrays import Floats

    Size = Floats | float


@dataclass(frozen=True, slots=True)
class _Target:
    """Operator of a target, the tensor that is its input and would be kept for its weight, and how it is cut."""

    operator: str
    kept_input: str
    by_rows: bool


_TARGETS = {
    "linear_qkv": _Target("qkv_proj", "attention_norm_out", by_rows=False),
    "linear_proj": _Target("attention_out_proj", "", by_rows=True),  # attention keeps its output for itself
    "linear_fc1": _Target("mlp_up_proj", "mlp_norm_out", by_rows=False),
    "linear_fc2": _Target("mlp_down_proj", "mlp_activation_out", by_rows=True),
}
_HOOK = "gradient_accumulation"
_ALONE = (1.0, 1.0, 0.0)  # no gradient of a frozen weight
GATHERED_AGAIN = "_regather"


def frozen_piece(table: LayerTable, on: OperatorFeatures) -> LayerTable:
    """A piece outside the layers (embedding, head) that has no adapters; nothing below the embedding has a gradient."""
    if not on.lora_rank:
        return table
    operators = tuple(_frozen(op) for op in table.operators)
    exchanges = table.exchanges
    if table.name == "embedding":
        operators = tuple(replace(op, backward_bytes=0.0, issued_backward=0.0) for op in operators)
        exchanges = tuple(replace(each, backward_count=0.0) for each in exchanges)
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
    if not on.lora_rank:
        return table
    rows = {op.name: op for op in table.operators}
    targets = [_TARGETS[name] for name in on.lora_targets]
    own = frozenset(target.operator for target in targets)
    operators = [_frozen(op) for op in table.operators if op.name != _HOOK]
    exchanges = [_beside_frozen(each, own) for each in table.exchanges]
    unread = {t.kept_input for t in _TARGETS.values()} - {t.kept_input for t in targets} - {""}
    tensors = [replace(t, kept_bytes=np.zeros_like(t.kept_bytes)) if t.name in unread else t for t in table.tensors]
    trained: Floats = np.zeros_like(table.dense_params)
    for target in targets:
        adapter = _Adapter(rows[target.operator], target.by_rows, shard, float(on.lora_rank))
        operators += accumulating(adapter.operators(), on)
        tensors.append(adapter.kept())
        exchanges += adapter.exchanges()
        trained = np.asarray(trained + adapter.params)
    hook = replace(
        rows[_HOOK],
        backward_bytes=on.accumulation_bytes * trained,
        issued_backward=2.0 * len(targets),
    )
    return replace(
        table,
        operators=(*operators, hook),
        tensors=tuple(tensors),
        exchanges=tuple(exchanges),
        dense_params=trained,
        frozen_params=table.dense_params,
    )


def _frozen(op: Operator) -> Operator:
    return replace(op, passes=_ALONE) if op.weighted and op.kind in MATRIX_KINDS else op


def _beside_frozen(exchange: Exchange, targets: frozenset[str]) -> Exchange:
    """Inputs are not gathered again, no weight's gradient hides a collective, and targets run in kernels of their own.

    targets : operators that have an adapter; their products are not cut into chunks beside a collective.
    """
    if exchange.name.endswith(GATHERED_AGAIN):
        return replace(exchange, backward_count=0.0)
    if exchange.behind == "weight_gradient" or exchange.beside in targets:
        return replace(exchange, beside="", behind="")
    return exchange


def _merged(shard: Sharding, base: Operator, *, by_rows: bool) -> tuple[Floats, Floats]:
    """Whether a pass adds both ways to the weight and multiplies once [n]: forward and backward; 1 or 0.

    On one tensor-parallel rank where the input has no fewer rows than columns; with sequence parallelism forward, and
    backward beside a matrix cut by columns, whose gradient is merged without sequence parallelism too.
    """
    cut, whole = cut_and_whole(shard)
    alone = np.where((shard.tp <= 1) & (np.asarray(base.rows) >= base.depth), 1.0, 0.0)
    return np.asarray(alone + cut), np.asarray(alone if by_rows else alone + cut + whole)


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

    @property
    def params(self) -> Floats:
        """Parameters on the rank [n]."""
        return np.asarray(self.rank * (self.base.depth + self.base.columns) + np.zeros_like(self.own_rows))

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
            Operator(
                f"{self.name}_add",
                "vector",
                self.base.window,
                forward_bytes=6.0 * (apart * summed * out + forward * whole),
                backward_bytes=6.0 * (apart_back * tokens * width + backward * whole),
            ),
        ]

    def _gemm(self, part: str, shape: tuple[Size, Size, Size], passes: tuple[Size, Size, Size]) -> Operator:
        rows, columns, depth = shape
        name, window = f"{self.name}_{part}", self.base.window
        return Operator(name, "gemm", window, rows=rows, columns=columns, depth=depth, passes=passes)

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
