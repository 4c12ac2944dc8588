"""Lowering a model to tables: one per layer type, and the fixed pieces (embedding, head, multi-token prediction)."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from autodeploy.costs.workload.adapters import (
    HOOK,
    LOSS_MOVED_BYTES,
    LOSS_OPERATORS,
    LOSS_REDUCED_BYTES,
    frozen_piece,
    with_adapters,
    with_reference,
)
from autodeploy.costs.workload.attention_types import LayerKind, kind_of, kind_with, of_attention, shape_of, table_name
from autodeploy.costs.workload.compressed_attention import joined, repeated, stream_rows
from autodeploy.costs.workload.host_operators import of_attention_hooks, replayed_synchronisations, synchronisations
from autodeploy.costs.workload.kinds import costs_of, layer_costs_of
from autodeploy.costs.workload.mlp import AFTER_SPLIT_SIZES, twice
from autodeploy.costs.workload.operators import (
    IN_FORMAT,
    MATRIX_KINDS,
    Exchange,
    LayerTable,
    Matrices,
    Operator,
    OperatorFeatures,
    Sharding,
    Tensor,
    Window,
    accumulating,
    column_exchanges,
    cut_and_whole,
    moving,
    region_exchanges,
)
from autodeploy.specs.model import NORMS_PER_LAYER, ModelSpec

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from cost_models.arrays import Floats


# Matrices of weights that some optimizers update as wholes.
HEAD = "output_proj"
GROUPED = "output_down_proj"  # one weight, whose rows are cut among groups of heads


def matrices_of(
    operators: Iterable[Operator], model: ModelSpec, on: OperatorFeatures, copies: Floats | float = 0.0
) -> tuple[Matrices, ...]:
    """Of the operators of a layer; none where the optimizer has no use for them. copies : of other ranks' experts."""
    if on.optimizer.matrix_s is None:
        return ()
    weighted = (op for op in operators if op.weighted and op.kind in MATRIX_KINDS and op.name != HEAD)
    return tuple(each for op in weighted for each in _of_operator(op, model, on, copies))


def _of_operator(op: Operator, model: ModelSpec, on: OperatorFeatures, copies: Floats | float) -> Iterator[Matrices]:
    experts = op.kind == "grouped_gemm"
    owned = op.runs * (op.groups - copies * experts)
    if op.name == "qkv_proj":
        whole = model.num_attention_heads * (model.head_dim + model.value_head_dim * model.attention_output_gate)
        keys, values = (model.num_key_value_heads * width for width in (model.head_dim, model.value_head_dim))
        for width in (whole, keys, values):
            yield Matrices(np.asarray(op.columns * (width / (whole + keys + values))), op.depth, op.runs)
    elif experts and on.grouped_gemm and not on.group_launches:
        # Stored as the input's width by that of all experts, or that of all experts by the output's width.
        joined = np.asarray(owned * (op.columns if op.name == "expert_up_proj" else op.depth))
        yield Matrices(joined, op.depth if op.name == "expert_up_proj" else op.columns, experts=True)
    elif op.name == GROUPED:
        yield Matrices(np.asarray(op.columns * op.groups), op.depth)
    else:
        yield Matrices(np.asarray(op.columns), op.depth, owned, experts=experts)


# Bytes of a layer's table in a run that computes in another format than 16 bits.
HALF_WORD = 2.0  # bytes of the elements that tables count


def in_format(table: LayerTable, element_bytes: float) -> LayerTable:
    """The table with elements of `element_bytes`; itself where they have 16 bits."""
    if element_bytes == HALF_WORD:
        return table
    wider = element_bytes / HALF_WORD
    return replace(
        table,
        operators=tuple(_operator(op, wider) for op in table.operators),
        tensors=tuple(_tensor(tensor, wider) for tensor in table.tensors),
        exchanges=tuple(_exchange(exchange, wider) for exchange in table.exchanges),
    )


def _operator(op: Operator, wider: float) -> Operator:
    if op.as_it_is:
        return op
    return op._replace(forward_bytes=op.forward_bytes * wider, backward_bytes=op.backward_bytes * wider)


def _tensor(tensor: Tensor, wider: float) -> Tensor:
    return tensor if tensor.as_it_is else tensor._replace(kept_bytes=np.asarray(tensor.kept_bytes * wider))


def _exchange(exchange: Exchange, wider: float) -> Exchange:
    return exchange.wider(wider) if exchange.carries in IN_FORMAT else exchange


def layer_kinds(model: ModelSpec) -> list[tuple[LayerKind, int]]:
    """Kinds of layers (dense or moe, attention window and type) with their counts, dense before moe."""
    counts: dict[LayerKind, int] = {}
    for facts, layers in Counter(model.layer_facts(layer) for layer in range(model.num_hidden_layers)).items():
        kind = kind_with(model, facts)
        counts[kind] = counts.get(kind, 0) + layers
    return sorted(counts.items(), key=lambda item: (item[0].mlp, item[0].attention, item[0].window or 0))


def tables_of(model: ModelSpec, shard: Sharding, on: OperatorFeatures) -> list[tuple[LayerTable, int]]:
    """Tables of all that a model has, and of how many layers each is."""
    tables = [(layer_table(model, shard, on, kind), layers) for kind, layers in layer_kinds(model)]
    tables += [(embedding_table(model, shard, on), 1), (head_table(model, shard, on), 1)]
    if model.num_nextn_predict_layers:
        tables.append((mtp_table(model, shard, on), model.num_nextn_predict_layers))
    return tables


def layer_table(
    model: ModelSpec, shard: Sharding, on: OperatorFeatures, kind: LayerKind | tuple[str, int | None]
) -> LayerTable:
    """The table of one transformer layer.

    kind : "dense" or "moe", the attention's window or None, and its type (absent: over keys and values).
    """
    kind = LayerKind(*kind)
    model = shape_of(model, kind)
    mlp, attention = layer_costs_of(model, kind), costs_of(model, kind)
    operators, tensors, exchanges = attention.rows(model, shard, on, kind)
    norms = _norms(model, shard, on)
    norms[0].extend(_biases(model, shard, on, kind))
    gathers_hidden = not attention.gathers_latents or model.q_lora_rank is None
    norms[1].extend(_gathered(shard, on, model, hidden=gathers_hidden, mlp=mlp.gathers))
    part = mlp.rows(model, shard, on)
    if on.dropout:
        norms[0].append(_hidden_dropout(model, shard))
        norms[1].append(Tensor("dropout_masks", np.asarray(2.0 * shard.local_tokens * model.hidden_size)))
    first = "q_up_proj" if attention.gathers_latents else "qkv_proj"
    exchanges += region_exchanges(
        model, shard, on, "attention", first, "attention_out_proj", gathers_hidden=gathers_hidden
    )
    if model.halves > 1:
        operators, tensors, exchanges = twice((operators, tensors, exchanges))
        norms = twice((*norms, []))[:2]
    dense_params, expert_params = _params(
        model, shard, attention.params(model, shard, on, kind), mlp.params(model, shard)
    )
    hooks = mlp.hooks((model.n_routed_experts or 1) / shard.ep, on) + model.halves * of_attention_hooks(model)
    sums = on.accumulation_bytes * dense_params + on.expert_accumulation_bytes * expert_params
    operators.append(_accumulation(sums, hooks))
    dispatchers = 2.0 if model.n_zero_experts else 1.0
    reads = 0.0 if on.mean_keys is None or kind.attention == "linear_attention" else on.reads_of_packs
    shares = attention.shares if on.torch_modules and not mlp.routes else None
    table = LayerTable(
        name=table_name(kind),
        layer_class=kind.mlp,
        operators=accumulating(operators + norms[0] + part[0], on),
        tensors=tuple(norms[1] + tensors + part[1]),
        exchanges=tuple(exchanges + part[2]),
        dense_params=dense_params,
        expert_params=expert_params,
        choices_per_token=model.computing_experts_per_tok if mlp.routes else 0.0,
        synchronisations=reads + (dispatchers * synchronisations(shard, on) if mlp.routes else 0.0),
        replayed_synchronisations=dispatchers * replayed_synchronisations(on) if mlp.routes else 0.0,
        after_synchronisation=AFTER_SPLIT_SIZES if mlp.routes else (),
        by_operator=shares and shares(model, shard, on),
        matrices=matrices_of((*operators, *norms[0], *part[0]), model, on, shard.hot_experts),
        matrix_s=on.optimizer.matrix_s,
    )
    return in_format(with_reference(with_adapters(table, shard, on), on), on.element_bytes)


def _accumulation(sums: Floats, hooks: Floats | float, name: str = HOOK) -> Operator:
    """Adding a micro batch's weight gradients to the accumulated ones; the host runs a hook for each parameter.

    Unfused, a 16-bit sum reads product and sum and writes the sum (6 B a parameter); fused into the product's epilogue
    it is that product's memory traffic (`accumulating`). Source: Megatron-LM DistributedDataParallel main_grad.

    sums : bytes moved for them [B].
    """
    return moving(name, "mlp", 0.0, sums, launches=0.0, as_it_is=True, issued=0.0, issued_backward=hooks)


def _looked_up_sums(model: ModelSpec, cut: Floats, on: OperatorFeatures) -> Floats:
    """Bytes for the gradient of an embedding that rows were looked up in.

    No product makes it: an array as large as the embedding is cleared, rows are added to it, and then all of it to the
    accumulated gradient, whatever products do. Source: Megatron-LM DistributedDataParallel, grad_added_to_main_grad.
    """
    return np.asarray((on.element_bytes + on.sums_bytes) * model.embedding_params / cut)


def _params(
    model: ModelSpec, shard: Sharding, of_attention: tuple[int, Floats], of_mlp: tuple[int, int, Floats | float]
) -> tuple[Floats, Floats]:
    """Parameters of a layer on a rank: shared by data parallel ranks, and by expert data parallel ranks."""
    whole = of_attention[0] + NORMS_PER_LAYER[model.norm_layout] * model.hidden_size
    whole = model.halves * (whole + model.streams.layer_matrices + model.streams.layer_vectors) + of_mlp[0]
    return np.asarray(whole + model.halves * of_attention[1] + of_mlp[1] / shard.tp), np.asarray(of_mlp[2])


def _norms(model: ModelSpec, shard: Sharding, on: OperatorFeatures) -> tuple[list[Operator], list[Tensor]]:
    """RMSNorm (or LayerNorm) and residual additions around attention and MLP: bytes moved and kept.

    Bytes an element. A fused norm reads and writes it once (4 B), as does PyTorch's LayerNorm; an unfused RMSNorm is
    five operators that pass over it three to four times (14 B). Plain PyTorch's is in FP32: cast (2 + 4), square
    (4 + 4), mean (4), product with its root (4 + 4), cast back (4 + 2), product with the weight (2 + 2). Each residual
    addition reads two elements and writes one (6 B); residuals in several streams are mixed instead
    (`hyper_connections`), and are a layer's input.
    """
    elements = shard.local_tokens * model.hidden_size
    norms = NORMS_PER_LAYER[model.norm_layout]
    unfused_bytes, unfused_operators = (36.0, 7.0) if on.torch_modules else (14.0, 5.0)
    fused = on.fused_rmsnorm or model.layer_norms
    per_norm = 4.0 if fused else unfused_bytes
    operators, tensors = [], []
    halves: tuple[Window, Window] = ("attention", "mlp")
    for half in halves:
        mixed = stream_rows(model, shard, half)
        operators += mixed[0]
        tensors += mixed[1]
        added = 0.0 if mixed[0] else 1.0
        moved = (per_norm * norms / 2.0 + 6.0 * added) * elements
        operators.append(
            moving(
                f"{half}_norm",
                half,
                moved,
                1.5 * moved,
                launches=(1.0 if fused else unfused_operators) * norms / 2.0 + added,
            )
        )
        # The layer's input is 16-bit; an FP32 norm keeps its cast instead, and full recompute the input alone.
        tensors.append(Tensor(f"{half}_norm_in", np.asarray(2.0 * elements * model.residual_streams)))
        if norms > len(halves):
            tensors.append(Tensor(f"{half}_post_norm_in", np.asarray(2.0 * elements * (norms / 2.0 - 1.0))))
        tensors.append(Tensor(f"{half}_norm_cast", np.asarray((on.norm_bytes - 2.0) * elements * norms / 2.0)))
        tensors.append(Tensor(f"{half}_norm_out", np.asarray(2.0 * elements)))
    return operators, tensors


def _gathered(shard: Sharding, on: OperatorFeatures, model: ModelSpec, *, hidden: bool, mlp: bool) -> list[Tensor]:
    """Gathered hidden states beyond the rank's own rows that a compiled graph, or plain PyTorch, keeps.

    Megatron-LM gathers again in the backward pass. Latent attention gathers its latents; experts, shared ones too,
    work on the rank's own tokens. Source: MindFormers deepseek2_model.py, LlamaFeedForwardWithMoE.shard and
    select_comm_recompute, which recomputes these gathers.
    """
    if not on.keeps_gathered:
        return []
    others = np.asarray(2.0 * (shard.tokens - shard.local_tokens) * model.hidden_size)
    gathered = (("attention_gathered", hidden), ("mlp_gathered", mlp))
    return [Tensor(name, others) for name, is_input in gathered if is_input]


def _biases(model: ModelSpec, shard: Sharding, on: OperatorFeatures, kind: LayerKind) -> list[Operator]:
    """Biases of a layer's products, where its recipe has them.

    A product adds that of queries, keys and values itself; the others are added apart (4 B an element). Backward each
    that is trained is summed up over the tokens (2 B). Source: Megatron-LM tensor_parallel/layers.py, skip_bias_add
    and grad_bias.
    """
    recipe, out = model.recipe_or_default, shard.local_tokens * model.hidden_size
    heads, keys = model.num_attention_heads / shard.tp, np.maximum(model.num_key_value_heads / shard.tp, 1.0)
    joined_width = heads * model.qk_head_dim + keys * (model.qk_head_dim + model.value_head_dim)
    own_bias = recipe.attention_bias and model.attention.own_keys
    qkv = shard.tokens * joined_width if own_bias else np.zeros_like(out)
    added = {"attention": out * bool(recipe.attention_out_bias), "mlp": np.zeros_like(out)}
    if recipe.mlp_bias and kind.mlp == "dense":
        gates = 2.0 if model.is_gated else 1.0
        added["mlp"] = out + shard.tokens * gates * (model.intermediate_size or 0) / shard.tp
    summed = {"attention": qkv + added["attention"], "mlp": added["mlp"]}
    halves: tuple[Window, Window] = ("attention", "mlp")
    return [
        moving(f"{half}_biases", half, 4.0 * added[half], (0.0 if on.lora_rank else 2.0) * summed[half])
        for half in halves
        if np.any(summed[half])
    ]


def _hidden_dropout(model: ModelSpec, shard: Sharding) -> Operator:
    """Dropout of both residual branches: reads and writes an element, writes a mask byte."""
    elements = 2.0 * shard.local_tokens * model.hidden_size
    return moving("hidden_dropout", "mlp", 5.0 * elements, 5.0 * elements, launches=2.0)


def vocabulary_cut(shard: Sharding, on: OperatorFeatures) -> Floats:
    """Ranks over which embedding and head are cut: the tensor-parallel group, or none where each rank holds them whole.

    Source of the latter: MindFormers vocab_emb_dp, which cuts the head's product over data parallel ranks only
    (mindformers llama.py, deepseek2_model.py: lm_head.shard); its loss is cut over both.
    """
    return np.ones_like(shard.tp) if on.whole_vocabulary else shard.tp


def embedding_table(model: ModelSpec, shard: Sharding, on: OperatorFeatures | None = None) -> LayerTable:
    """Token embedding on the first stage: a gather forward, a scatter-add backward.

    Rows that other ranks have are summed forward; with sequence parallelism scattered, and their gradients gathered.
    Source: Megatron-LM tensor_parallel/layers.py, VocabParallelEmbedding.
    """
    on = on or OperatorFeatures()
    cut = vocabulary_cut(shard, on)
    elements = shard.tokens * model.hidden_size
    lookup = moving("embedding", "mlp", 4.0 * elements, 8.0 * elements, kind="movement")
    params = np.asarray(model.embedding_params / cut)
    message, (sharded, whole) = np.asarray(2.0 * elements), (np.where(cut > 1, n, 0.0) for n in cut_and_whole(shard))
    exchanges = (
        Exchange("embedding_scatter", "scatter", "mlp", message, sharded, 0.0),
        Exchange("embedding_gather", "gather", "mlp", message, 0.0, sharded),
        Exchange("embedding_reduce", "reduce", "mlp", message, whole, 0.0),
    )
    ids = Tensor("token_ids", np.asarray(8.0 * shard.tokens), as_it_is=True)
    operators = (lookup, *repeated(model, shard), _accumulation(_looked_up_sums(model, cut, on), 1.0))
    table = LayerTable("embedding", operators, (ids,), exchanges, params, np.zeros_like(params))
    return in_format(with_reference(frozen_piece(table, on), on), on.element_bytes)


def head_table(model: ModelSpec, shard: Sharding, on: OperatorFeatures) -> LayerTable:
    """Final norm, output projection and cross-entropy on the last stage.

    The loss works on FP32 logits, bytes a logit: cast (6), maximum (4), difference (8), exponent (8), sum (4), softmax
    (8); backward it is scaled (8) and cast back (6). A fused kernel keeps the maximum, difference and exponent
    together (22 forward, 12 backward). It keeps the FP32 cast of the logits, which the softmax and the gradient
    overwrite; the 16-bit logits, and after it their 16-bit gradient, are there beside it only while it runs. Fused
    kernels work in place on the 16-bit logits. Tied weights are the embedding's: a pipeline that keeps them apart adds
    a copy. A whole head makes whole 16-bit logits on every rank, and needs their whole gradient when the loss is done
    with its share of them. Source: Megatron-LM tensor_parallel/cross_entropy.py. Preference tuning has its own
    loss (`reference_model`). Over tensor-parallel ranks PyTorch's has one more FP32 array in its backward pass: the
    log-softmax, the targets' gradient, the exponents and their sum (torch/distributed/tensor/parallel/loss.py,
    _nll_loss_and_log_softmax_backward).

    Prediction modules that run on another part of the model leave their passes through the projection and the loss
    here, with the weights that there are. Source: Megatron-LM @d98e8a64, multi_token_prediction.py, process_mtp_loss.

    A loss in chunks has the logits of one chunk at a time, and their gradients too: it keeps the 16-bit gradients of
    its input and of the weight, the latter once more as a chunk adds to it. Source: MindSpeed-LLM @c77308a1,
    mindspeed_llm/fsdp2/features/chunkloss.py.
    """
    h, tokens, cut = model.hidden_size, shard.tokens, vocabulary_cut(shard, on)
    vocab, logits = model.vocab_size / cut, tokens * model.vocab_size / shard.tp
    forward, backward = (22.0, 12.0) if on.fused_cross_entropy else (38.0, 14.0)
    if on.scored_loss:  # divided by the temperature first
        forward, backward = forward + 4.0, backward + 4.0
    if on.reference:
        forward, backward = LOSS_MOVED_BYTES
    streams = joined(model, shard)
    operators = (
        *streams[0],
        Operator("output_proj", "gemm", "mlp", tokens, vocab, h, wide=True),
        moving(
            "cross_entropy",
            "mlp",
            forward * logits,
            backward * logits,
            launches=LOSS_OPERATORS if on.reference else 8.0,
            as_it_is=True,
        ),
        moving("final_norm", "mlp", 4.0 * shard.local_tokens * h, 6.0 * shard.local_tokens * h),
        _accumulation(on.accumulation_bytes * vocab * h, 2.0),
    )
    loss_bytes = on.loss_bytes + np.where(cut > 1, 4.0, 0.0) if on.torch_modules else on.loss_bytes
    kept, beside = on.logit_bytes * logits, loss_bytes * logits
    if on.loss_chunk:
        at_once = logits * np.minimum(1.0, on.loss_chunk / tokens)
        beside = (on.logit_bytes + loss_bytes) * at_once + 2.0 * vocab * h
        kept = 2.0 * (tokens + vocab) * h
    tensors = (
        Tensor("final_norm_out", np.asarray(4.0 * shard.local_tokens * h)),
        Tensor("logits", np.asarray(kept), as_it_is=True),
        Tensor("whole_logits", np.asarray(2.0 * tokens * vocab * (cut < shard.tp))),
        *streams[1],
    )
    exchanges = column_exchanges(shard, "head", "mlp", np.asarray(2.0 * tokens * h), "output_proj", on)
    if on.whole_vocabulary:  # every rank has the whole gradient of its input
        exchanges = [exchange for exchange in exchanges if exchange.kind == "gather"]
    once = np.where(shard.tp > 1, 1.0, 0.0)
    sums = LOSS_REDUCED_BYTES / 4.0 if on.reference else 3.0  # FP32 of a token each: largest, label's, sum of exponents
    loss = Exchange("loss_reduce", "reduce", "mlp", np.asarray(4.0 * tokens), sums * once, 0.0, carries="sums")
    params = np.asarray(model.head_params / cut + h + model.streams.head)
    none, passing = np.zeros_like(params), tensors[1].kept_bytes
    summed = accumulating(operators, on)
    table = LayerTable("head", summed, tensors, (*exchanges, loss), params, none, np.asarray(beside), passing)
    if on.predictors_apart:
        table = _passed_again(table, model.num_nextn_predict_layers)
    return in_format(with_reference(frozen_piece(table, on), on), on.element_bytes)


def _passed_again(table: LayerTable, times: int) -> LayerTable:
    """The piece with so many more passes through its weights in a micro batch."""
    operators, tensors, exchanges = list(table.operators), list(table.tensors), list(table.exchanges)
    for number in range(times):

        def again(name: str, number: int = number) -> str:
            return f"{name}_of_module_{number}"

        operators += [op._replace(name=again(op.name)) for op in table.operators]
        tensors += [each._replace(name=again(each.name)) for each in table.tensors]
        exchanges += [
            each._replace(name=again(each.name), beside=again(each.beside) if each.beside else "")
            for each in table.exchanges
        ]
    return replace(
        table,
        operators=tuple(operators),
        tensors=tuple(tensors),
        exchanges=tuple(exchanges),
        passing_bytes=table.passing_bytes * (1 + times),
    )


def last_kind(model: ModelSpec) -> LayerKind:
    """Kind of a prediction module's layer: that of the last one, which chooses its keys itself; or a window alone."""
    like = kind_of(model, model.module_like_layer)
    return of_attention(model, like.mlp, model.module_attention)


def mtp_table(model: ModelSpec, shard: Sharding, on: OperatorFeatures, layer: LayerTable | None = None) -> LayerTable:
    """One multi-token prediction module: joined projection 2h -> h, a layer of the last kind, the shared head again.

    Where modules are apart from the head, `head_table` has their passes through it.

    Source: DeepSeek-V3, arXiv:2412.19437, section 2.2. It needs the embedding and the head's weights beside it, and
    looks up the next tokens there. The joined projection is cut by columns; its output is gathered, and scattered again
    under sequence parallelism. Source: Megatron-LM multi_token_prediction.py, all_gather_last_dim and
    scatter_to_sequence_parallel_region; MindSpeed-LLM multi_token_prediction.py, mtp_block_forward.
    layer : the table of its layer, where it is there already.
    """
    layer = layer or layer_table(model, shard, on, last_kind(model))
    parts = (layer,) if on.predictors_apart else (layer, head_table(model, shard, on))
    h = model.hidden_size
    both = Operator("mtp_joined_proj", "gemm", "mlp", shard.tokens, h / shard.tp, 2.0 * h)
    kept = Tensor("mtp_joined_in", np.asarray(2.0 * on.element_bytes * shard.local_tokens * h))
    cut, whole = cut_and_whole(shard)
    # Three norms, the joined projection, embedding and head; the layer has its own.
    sums = _looked_up_sums(model, vocabulary_cut(shard, on), on) + on.accumulation_bytes * 2.0 * h * h / shard.tp
    sums += sum(op.backward_bytes for part in parts[1:] for op in part.operators if op.name == HOOK)
    summed = () if on.frozen else (_accumulation(np.asarray(sums), 6.0, f"mtp_{HOOK}"),)
    hidden = np.asarray(on.element_bytes * shard.tokens * h)
    exchanges = (
        *embedding_table(model, shard, on).exchanges,
        *column_exchanges(shard, "mtp", "mlp", np.asarray(2.0 * hidden), "mtp_joined_proj", on),
        Exchange("mtp_output_gather", "gather", "mlp", hidden, cut + whole, cut),
        Exchange("mtp_output_scatter", "scatter", "mlp", hidden, 0.0, cut + whole),
    )
    return replace(
        layer,
        name="mtp",
        layer_class="",
        operators=(
            *accumulating([both], on),
            *repeated(model, shard),
            *layer.operators,
            *(op for part in parts[1:] for op in part.operators if op.name != HOOK),
            *summed,
        ),
        tensors=(kept, *(tensor for part in parts for tensor in part.tensors)),
        exchanges=(*(each for part in parts for each in part.exchanges), *exchanges),
        dense_params=np.asarray(layer.dense_params + 2.0 * h * h / shard.tp + 3.0 * h + model.streams.head),
        matrices=(*layer.matrices, *matrices_of([both], model, on)),
        by_operator=None,
    )


def model_matrices(model: ModelSpec, on: OperatorFeatures) -> tuple[float, float]:
    """Matrices of all layers that the optimizer updates as wholes, of a rank with all experts: dense, of experts."""
    one = np.ones(1)
    shard = Sharding(one, one, one, one, one, one, one < 0.0, one < 0.0, 1.0)
    totals = [0.0, 0.0]
    for kind, layers in layer_kinds(model):
        for each in layer_table(model, shard, on, kind).matrices:
            totals[each.experts] += layers * float(np.max(each.count))
    return totals[0], totals[1]
