"""The pieces beside the layers: embedding, head and multi-token prediction module, in the same account."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.support.accounting.compressed import add_join, add_repeat
from tests.support.accounting.hiding import behind, chunked, returned
from tests.support.accounting.layer import Account, add_layer, add_reference

if TYPE_CHECKING:
    from tests.support.accounting.machine import Numbers
    from tests.support.accounting.ranks import Degrees
    from tests.support.accounting.run import Run


def embedding(run: Run, d: Degrees, machine: Numbers, groups: dict[str, list[int]]) -> Account:
    """Token embedding, cut by vocabulary; partial rows are summed over the tensor-parallel ranks."""
    a = Account(run, d, machine, groups)
    elements = a.tokens * run.hidden_size
    frozen = bool(run.lora_rank)
    back = 0 if frozen else 8 * elements
    a.vector("embedding", "mlp", 4 * elements, back, moves=True, calls=(1, 0) if frozen else None)
    a.keep("token_ids", 8 * a.tokens)
    add_repeat(a)
    moved, summed = machine.all_gather(2 * elements, groups["tp"]), machine.all_reduce(2 * elements, groups["tp"])
    cut = vocabulary_ranks(run, d)
    sharded, whole = (1 if cut > 1 and d.sequence_parallel is on else 0 for on in (True, False))
    a.message("embedding_scatter", "tp", moved, sharded, 0)
    a.message("embedding_gather", "tp", moved, 0, 0 if frozen else sharded)
    a.message("embedding_reduce", "tp", summed, whole, 0)
    a.dense_params = a.end_params = (run.vocab_size + (run.learned_position_embeddings or 0)) * run.hidden_size / cut
    if not frozen:
        a.vector("gradient_accumulation", "mlp", 0, _of_embedding(a), 0, calls=(0, 1))
    _freeze(a)
    add_reference(a)
    a.close()
    return a


def _of_embedding(a: Account) -> float:
    """An array as large as the embedding is cleared, and, but for shards, added to the sums."""
    params = (a.run.vocab_size + (a.run.learned_position_embeddings or 0)) * a.run.hidden_size
    return (2 + a.run.apart) * params / vocabulary_ranks(a.run, a.d)


def _freeze(a: Account) -> None:
    """Pieces beside the layers have no adapters."""
    if a.run.lora_rank:
        a.frozen_params, a.dense_params, a.shared_params = a.dense_params, 0.0, 0.0


def vocabulary_ranks(run: Run, d: Degrees) -> int:
    """Ranks that share embedding and head."""
    return 1 if "whole_vocabulary" in run.on else d.tp


def _head(a: Account) -> None:
    r, machine, tp = a.run, a.machine, a.groups["tp"]
    cut = vocabulary_ranks(r, a.d)
    h, vocab = r.hidden_size, r.vocab_size / cut
    logits = a.tokens * r.vocab_size / a.d.tp  # of the loss
    if cut < a.d.tp:
        a.keep("whole_logits", 2 * a.tokens * r.vocab_size)
    add_join(a)
    a.gemm("output_proj", "mlp", a.tokens, vocab, h)
    # Cast, maximum, difference, exponent, sum, quotient; scaled and cast back. Fused kernels touch them less often.
    cast, once, twice = 2 + 4, 4, 4 + 4
    unfused = (cast + once + twice + twice + once + twice, twice + cast)
    forward, backward = (22, 12) if "fused_cross_entropy" in r.on else unfused
    if r.pairs:  # joined FP32 logits of both models, then a log-softmax of plain operators
        joined, differences = (2 + 4) + (2 + 2) + (4 + 4), twice + twice
        forward, backward = joined + 2 * once + 2 * twice + differences, 4 + 3 * 12 + 8 + 6
    a.vector("cross_entropy", "mlp", forward * logits, backward * logits, 12 if r.pairs else 8)
    a.vector("final_norm", "mlp", 4 * a.local * h, 6 * a.local * h)
    a.keep("final_norm_out", 4 * a.local * h)
    # An FP32 cast, and 16 bits before it and after it; in graph mode an FP32 log-softmax and an FP32 one-hot label.
    kept, beside = (4 + 4, 0) if "graph_mode" in r.on else (4, 2)
    if r.pairs:
        kept, beside = 2 * 4 + 4, 2 * 4
    if "torch_fsdp2" in r.on and cut > 1:
        beside += 4  # the sum of the targets' gradient and the exponents is an array of its own
    done = kept * logits
    loss = beside * logits
    if "chunked_loss" in r.on:
        # 1024 tokens' logits at a time; gradients of input and weight stay, a chunk's own of the weight come and go.
        loss = (kept + beside) * min(1024, a.tokens) * r.vocab_size / a.d.tp + 2 * vocab * h
        done = 2 * a.tokens * h + 2 * vocab * h
    a.keep("logits", done)
    a.loss_beside, a.loss_done = loss, done
    sp = 1 if a.d.sequence_parallel and len(tp) > 1 else 0
    head = a.operators["output_proj"]
    gather = machine.all_gather(2 * a.tokens * h, tp)
    m, n, k = a.shapes["output_proj"]
    a.message("head_gather", "tp", gather, sp, 0, hide_forward=chunked(a, head.busy[0], (m, n, k), (m * n,)))
    # Backward as any multiplication cut by columns: the input again, then its gradient, where ranks hold parts of it.
    again = 0 if r.lora_rank or "torch_fsdp2" in r.on else sp
    scattered, reduced = returned(a, "output_proj")
    a.message("head_regather", "tp", gather, 0, again, hide_backward=behind(a, head.busy[1]))
    if cut > 1:
        a.message("head_gradient_scatter", "tp", gather, 0, sp, hide_backward=scattered)
    plain = 1 if not a.d.sequence_parallel and cut > 1 else 0
    whole = machine.all_reduce(2 * a.tokens * h, tp)
    a.message("head_gradient_reduce", "tp", whole, 0, plain, hide_backward=reduced)
    a.message("loss_reduce", "tp", machine.all_reduce(4 * a.tokens, tp), (2 if r.pairs else 3) * (len(tp) > 1), 0)


def _of_projection(a: Account) -> float:
    """The head's gradient is added to its sums by an operator where products of their own do not add."""
    each = a.run.apart if a.run.summed() == 2 else 0
    return each * a.run.vocab_size * a.run.hidden_size / vocabulary_ranks(a.run, a.d)


def head(run: Run, d: Degrees, machine: Numbers, groups: dict[str, list[int]]) -> Account:
    """Final norm, output projection and loss."""
    a = Account(run, d, machine, groups)
    _head(a)
    if not run.lora_rank:
        a.vector("gradient_accumulation", "mlp", 0, _of_projection(a), 0, calls=(0, 2))
    # Tied weights are the embedding's, where that is on the same stage.
    own = not run.tie_word_embeddings or _apart(d)
    cut = vocabulary_ranks(run, d)
    joins = a.dense_params
    a.dense_params = (run.vocab_size * run.hidden_size / cut if own else 0) + run.hidden_size + joins
    a.copied_params = a.dense_params - run.hidden_size if run.tie_word_embeddings else 0.0
    a.shared_params = run.vocab_size * run.hidden_size / cut if run.tie_word_embeddings and _apart(d) else 0.0
    a.end_params = a.dense_params
    _freeze(a)
    add_reference(a)
    a.close()
    return a


def _apart(d: Degrees) -> bool:
    """Whether the model's last part is on another stage than the embedding."""
    return d.pp > 1 and not d.schedule.startswith("dual")


def prediction_module(run: Run, d: Degrees, machine: Numbers, groups: dict[str, list[int]]) -> Account:
    """One multi-token prediction module: joined projection, a layer of the last kind, the head once more."""
    a, h = Account(run, d, machine, groups), run.hidden_size
    a.gemm("mtp_joined_proj", "mlp", a.tokens, h / d.tp, 2 * h)
    a.keep("mtp_joined_in", 4 * a.local * h)
    _joined_messages(a)
    add_repeat(a)
    add_layer(a, run.num_hidden_layers - 1, of_module=True)
    _head(a)
    joined = a.run.apart * 2 * h * h / d.tp if a.run.summed() == 2 else 0
    moved = _of_embedding(a) + _of_projection(a) + joined
    if not run.lora_rank:
        a.vector("mtp_gradient_accumulation", "mlp", 0, moved, 0, calls=(0, 6))
    a.dense_params += 2 * h * h / d.tp + 3 * h
    if _apart(d):  # all modules share one copy of the embedding, whose own is on the first stage
        a.copied_params = run.vocab_size * h / vocabulary_ranks(run, d) / run.num_nextn_predict_layers
        a.dense_params += a.copied_params
        a.end_params = a.copied_params
        a.shared_params = 0.0 if run.tie_word_embeddings else a.copied_params
    a.close()
    return a


def _joined_messages(a: Account) -> None:
    """Rows of the embedding, both inputs of the joined projection, and its output, which is gathered and cut again."""
    tp, whole = a.groups["tp"], 2 * a.tokens * a.run.hidden_size
    several, sp = len(tp) > 1, a.d.sequence_parallel
    cut, plain = (1 if several and sp is on else 0 for on in (True, False))
    once, both = a.machine.all_gather(whole, tp), a.machine.all_gather(2 * whole, tp)
    if vocabulary_ranks(a.run, a.d) > 1:
        a.message("embedding_scatter", "tp", once, cut, 0)
        a.message("embedding_gather", "tp", once, 0, 0 if a.run.lora_rank else cut)
        a.message("embedding_reduce", "tp", a.machine.all_reduce(whole, tp), plain, 0)
    up, (m, n, k) = a.operators["mtp_joined_proj"], a.shapes["mtp_joined_proj"]
    a.message("mtp_gather", "tp", both, cut, 0, hide_forward=chunked(a, up.busy[0], (m, n, k), (m * n,)))
    again = 0 if a.run.lora_rank or "torch_fsdp2" in a.run.on else cut
    a.message("mtp_regather", "tp", both, 0, again, hide_backward=behind(a, up.busy[1]))
    scattered, reduced = returned(a, "mtp_joined_proj")
    a.message("mtp_gradient_scatter", "tp", both, 0, cut, hide_backward=scattered)
    summed = a.machine.all_reduce(2 * whole, tp)
    a.message("mtp_gradient_reduce", "tp", summed, 0, plain, hide_backward=reduced)
    a.message("mtp_output_gather", "tp", once, 1 if several else 0, cut)
    a.message("mtp_output_scatter", "tp", once, 0, 1 if several else 0)
