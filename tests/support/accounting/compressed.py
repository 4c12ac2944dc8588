"""DeepSeek-V4's layers in the account: attention to a window and to pooled entries, and residuals in several streams.

From the description of csa.py, compressor.py, dsa_indexer.py and mhc.py (MindSpeed-LLM, tasks/models/transformer), and
from the reads and writes of fused hyper-connections (arXiv 2512.24880, table 2).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.support.accounting.hiding import behind, chunked, returned

if TYPE_CHECKING:
    from tests.support.accounting.layer import Account
    from tests.support.accounting.run import Run

W = "attention"
SPARSE, HEAVY = "compressed_sparse_attention", "heavily_compressed_attention"
TOKENS_OF_AN_ENTRY = {SPARSE: 4, HEAVY: 128}


def streams_of(run: Run) -> int:
    """Streams of hidden states between layers."""
    return int((run.hyper_connections or {}).get("hc_mult", 1))


def add_streams(a: Account, half: str) -> int:
    """Maps and mixing around half a layer; how many streams there are."""
    n, h = streams_of(a.run), a.run.hidden_size
    if n == 1:
        return 1
    numbers = n + n + n * n  # to read, to write, to mix
    a.gemm(f"{half}_stream_maps", half, a.local, numbers, n * h)
    reads, writes = n + (n + 1), 1 + n  # streams to read from; output and streams to mix; the input, mixed streams
    copy = n + n
    # Backward: reading again reads streams and a gradient and writes streams' gradients; mixing reads those of the
    # result, streams and output, and writes both; the two gradients of the streams are added.
    back = (2 * n + 1 + n) + (n + n + 1 + n + 1) - 1 + 1 + (n + n + n)
    a.vector(f"{half}_streams", half, 2 * a.local * h * (reads + writes + copy), 2 * a.local * h * back, 3)
    a.keep(f"{half}_stream_out", 2 * a.local * h)
    a.keep(f"{half}_stream_in", 2 * a.local * h)
    a.keep(f"{half}_stream_maps", 4 * a.local * (numbers + numbers))
    a.dense_params += numbers * n * h + numbers + 3
    return n


def add_repeat(a: Account) -> None:
    """One state to every stream, and back their sum."""
    n = streams_of(a.run)
    if n > 1:
        moved = 2 * (1 + n) * a.local * a.run.hidden_size
        a.vector("stream_repeat", "mlp", moved, moved)


def add_join(a: Account) -> None:
    """A weighted sum of the streams, weights from all of them."""
    n, h = streams_of(a.run), a.run.hidden_size
    if n == 1:
        return
    a.gemm("stream_head_maps", "mlp", a.local, n, n * h)
    a.vector("stream_head", "mlp", 2 * (n + 1) * a.local * h, 2 * (n + 1 + n + n) * a.local * h)
    a.keep("stream_head_in", 2 * n * a.local * h)
    a.dense_params += n * n * h + n + 1


def add_compressed(a: Account, kind: str) -> None:
    """Attention of one layer of the kind."""
    r, tp, d, h = a.run, a.d.tp, a.run.head_dim, a.run.hidden_size
    own, rank, heads = r.compressed_attention, r.q_lora_rank, r.num_attention_heads / tp
    sequence = a.d.cp // a.d.ulysses  # ranks that a sequence lies on
    a.gemm("latent_down_proj", W, a.local, rank + d, h, launches=2)
    a.vector("latent_norm", W, (2 + 2) * a.local * (rank + d), 2 * (2 + 2) * a.local * (rank + d), 2)
    a.gemm("q_up_proj", W, a.tokens, heads * d, rank)
    queries = a.tokens * heads * d
    a.vector("query_norm", W, (2 + 2) * queries, (2 + 2 + 2) * queries)
    turned = (a.tokens * heads + a.local + a.tokens * heads) * r.qk_rope_head_dim
    each = (2 + 4) + (4 + 4 + 4) + (4 + 2) + (2 + 2)
    a.vector("rotary", W, each * turned, each * turned, 12)
    a.keep("latents", (r.norm_bytes + 2) * a.local * (rank + d))
    a.keep("query_unnormed", 2 * queries)
    a.keep("query", 2 * queries)
    a.keep("mqa_key", 2 * a.tokens * sequence * d)
    a.dense_params += h * (rank + d) + rank + d + rank * heads * d + heads
    _latents(a, 2 * a.tokens * rank)
    _gather(a, "mqa_key", 2 * a.tokens * d)
    window = min(r.seq / 2, 128 - 128**2 / (2 * r.seq))
    entries = 0.0
    if kind in TOKENS_OF_AN_ENTRY:
        _pool(a, kind, d, "pool", (4, 4, 4))
        all_entries = r.seq / TOKENS_OF_AN_ENTRY[kind]
        entries = all_entries / 2
        if kind == SPARSE:
            entries = _indexer(a, all_entries)
    _attend(a, window + entries, heads)
    a.vector("output_join", W, (2 + 2) * queries, (2 + 2) * queries, moves=True)
    groups, low = own["o_groups"] / tp, own["o_lora_rank"]
    a.gemm("output_down_proj", W, a.tokens, low, heads * d / groups, groups=groups)
    a.gemm("attention_out_proj", W, a.tokens, h, groups * low)
    a.keep("output_joined", 2 * queries)
    a.keep("output_low_rank", 2 * a.tokens * groups * low)
    a.dense_params += groups * low * heads * d / groups + groups * low * h


def _attend(a: Account, seen: float, heads: float) -> None:
    d = a.run.head_dim
    product = 2 * a.tokens * seen * heads * d
    flops = (2 * product, 5 * product)
    times = tuple(a.machine.attention(w, d, 2 * seen, backward=b) for w, b in zip(flops, (False, True), strict=True))
    a._operator("mqa_attention", W, (*times, 0.0), (*times, 0.0), 1, 1)
    a.keep("mqa_out", 2 * a.tokens * heads * d)
    a.keep("mqa_stats", a.run.stats_bytes * a.tokens * heads)


def _pool(a: Account, kind: str, width: int, name: str, passes: tuple[float, float, float]) -> None:
    """Entries of a width: two products of FP32 numbers, four passes of 16 bits each; a softmax; a sum."""
    r, h, length = a.run, a.run.hidden_size, TOKENS_OF_AN_ENTRY[kind]
    wide = (2 if kind == SPARSE else 1) * width
    backward = 2 * sum(1 for each in passes[1:] if each)
    a.gemm(f"{name}_proj", W, a.local, 2 * wide, h, launches=2, calls=(2, backward), passes=passes)
    elements = a.local * wide
    softened = (4 + 4) + (4 + 4) + (4 + 4 + 4) + 4
    copied = 2 * (4 + 4 + 4) if kind == SPARSE else 0
    moved = (softened + copied) * elements + (2 + 4) * a.local * h
    a.vector(f"{name}_entries", W, moved, 1.5 * moved, 20 if kind == SPARSE else 12)
    a.keep(f"{name}_in", 4 * a.local * h)
    a.keep(f"{name}_weighted", (4 + 4) * elements)
    made = 2 * a.tokens / length * width
    a.keep(f"{name}_entries", made + made * (a.d.cp // a.d.ulysses))
    a.dense_params += 2 * wide * h + length * wide + width
    _gather(a, f"{name}_entries", made)
    if kind == SPARSE:  # of an entry and of the one before it
        _gather(a, f"{name}_tokens", 4 * a.tokens * 2 * wide)
    assert r.compressed_attention


def _indexer(a: Account, entries: float) -> float:
    """Scores, choice and loss of one layer; entries that a query attends to."""
    own, h, rank = a.run.compressed_attention, a.run.hidden_size, a.run.q_lora_rank
    heads, width, most = own["index_n_heads"], own["index_head_dim"], own["index_topk"]
    _pool(a, SPARSE, width, "index_pool", (4, 0, 4))
    a.gemm("index_q_proj", W, a.local, heads * width, rank, calls=(1, 1), passes=(1, 0, 1))
    a.gemm("index_weight_proj", W, a.local, heads, h, calls=(1, 1), passes=(1, 0, 1))
    a.vector("index_rotary", W, 16 * a.local * heads * width, 16 * a.local * heads * width, 6)
    a.dense_params += rank * heads * width + h * heads
    chosen = entries / 2 if most >= entries else most - most**2 / (2 * entries)
    pair = 2 * a.tokens * heads * width
    scored = (
        a.machine.attention(pair * entries / 2, width, entries, backward=False),
        a.machine.attention(2 * pair * chosen, width, entries, backward=True),
        0.0,
    )
    a._operator("index_scores", W, scored, scored, 1, 1)
    a.vector("index_choice", W, (4 + 4 + 4) * a.tokens * entries / 2, 0, 3)
    d = a.run.head_dim
    target = 2 * a.tokens * chosen * a.run.num_attention_heads / a.d.tp * d
    learned = (
        a.machine.attention(target, d, entries, backward=False),
        a.machine.attention(0, d, entries, backward=True),
        0.0,
    )
    a._operator("index_target", W, learned, learned, 1, 1)
    a.keep("index_q", 2 * a.tokens * heads * width)
    a.keep("index_chosen", a.tokens * ((4 + 4) * min(most, entries) + 4 * heads))
    size = a.machine.all_gather(2 * a.tokens * heads * (width + 1), a.groups["tp"])
    cut = 1 if a.d.sequence_parallel and len(a.groups["tp"]) > 1 else 0
    a.message("index_q_gather", "tp", size, cut, 0)
    a.message("index_q_gradient_scatter", "tp", size, 0, cut)
    return chosen


def _gather(a: Account, name: str, size: float) -> None:
    """Over tensor-parallel ranks, then over those of the sequence; nothing hides it."""
    tp, ring = a.groups["tp"], a.groups["ring"]
    cut = 1 if a.d.sequence_parallel and len(tp) > 1 else 0
    whole = 1 if not a.d.sequence_parallel and len(tp) > 1 else 0
    gathered = a.machine.all_gather(size, tp)
    a.message(f"{name}_gather", "tp", gathered, cut, 0)
    a.message(f"{name}_gradient_scatter", "tp", gathered, 0, cut)
    a.message(f"{name}_gradient_reduce", "tp", a.machine.all_reduce(size, tp), 0, whole)
    a.message(f"{name}_ring", "cp", a.machine.ring_step(size, ring), len(ring) - 1, len(ring) - 1)


def _latents(a: Account, size: float) -> None:
    """As any input of a product that is cut by columns."""
    tp, up = a.groups["tp"], a.operators["q_up_proj"]
    gather, reduce = a.machine.all_gather(size, tp), a.machine.all_reduce(size, tp)
    sp = 1 if a.d.sequence_parallel and len(tp) > 1 else 0
    plain = 1 if not a.d.sequence_parallel and len(tp) > 1 else 0
    m, n, k = a.shapes["q_up_proj"]
    a.message("latent_gather", "tp", gather, sp, 0, hide_forward=chunked(a, up.busy[0], (m, n, k), (m * n,)))
    a.message("latent_regather", "tp", gather, 0, sp, hide_backward=behind(a, up.busy[1]))
    scattered, reduced = returned(a, "q_up_proj")
    a.message("latent_gradient_scatter", "tp", gather, 0, sp, hide_backward=scattered)
    a.message("latent_gradient_reduce", "tp", reduce, 0, plain, hide_backward=reduced)
