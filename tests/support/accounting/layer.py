"""One layer on one rank for one micro batch: every operator, tensor and message, one after the other."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tests.support.accounting.adapters import BESIDE_EXPERTS, add_adapters
from tests.support.accounting.compressed import add_compressed
from tests.support.accounting.feed_forward import add_mixture, add_mlp, shared_width
from tests.support.accounting.hiding import Hide, behind, chunked, returned
from tests.support.accounting.lanes import ROUTES, beside_cubes, restart
from tests.support.accounting.norms import biases, norms
from tests.support.accounting.positions import one_product, rotary, rotates, tables
from tests.support.accounting.rings import hooks_beside, join, pad, widths
from tests.support.accounting.sharded import sharded
from tests.support.accounting.shortcut import do_again
from tests.support.accounting.uneven_experts import grown, mean_largest, uneven

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.accounting.machine import Numbers
    from tests.support.accounting.ranks import Degrees
    from tests.support.accounting.run import Run

PAIRING = {"adaptive_pipe", "dualpipev", "dualpipe"}


@dataclass
class Operator:
    """Seconds of forward, input gradient, weight gradient: of a rank with even load, and of the busiest one."""

    window: str
    even: tuple[float, float, float]
    busy: tuple[float, float, float]


@dataclass
class Pass:
    """Seconds of one pass, by part."""

    compute: float = 0.0
    imbalance: float = 0.0
    tp: float = 0.0
    ep: float = 0.0
    cp: float = 0.0
    dp: float = 0.0
    host: float = 0.0

    @property
    def total(self) -> float:
        """Their sum."""
        return self.compute + self.imbalance + self.tp + self.ep + self.cp + self.dp + self.host


@dataclass(frozen=True)
class Message:
    """What a message takes in one pass with the hottest rank's load, and what of it shows."""

    name: str
    backward: bool
    seconds: float
    shown: float


@dataclass
class Account:
    """The running account of a layer or piece."""

    run: Run
    d: Degrees
    machine: Numbers
    groups: dict[str, list[int]]
    operators: dict[str, Operator] = field(default_factory=dict)
    shapes: dict[str, tuple[float, float, float]] = field(default_factory=dict)  # of single products
    kept: dict[str, float] = field(default_factory=dict)  # bytes for the backward pass, at the peak imbalance
    among: dict[str, float] = field(default_factory=dict)  # the same in the mean over the layers of a stage
    forward_messages: dict[str, float] = field(default_factory=dict)
    replayed_messages: dict[str, float] = field(default_factory=dict)  # that a recomputation alone brings
    messages: list[Message] = field(default_factory=list)
    dispatch: float = 0.0
    combine: float = 0.0
    on_tiers: dict[str, list[float]] = field(default_factory=dict)  # dispatch, combine if one tier alone took time
    dense_params: float = 0.0
    frozen_params: float = 0.0
    expert_params: float = 0.0
    beside_experts: tuple[float, float] = (0.0, 0.0)  # of experts' adapters: as dense ones, as experts
    loss_beside: float = 0.0  # while the loss runs
    loss_done: float = 0.0  # what it kept
    weights: dict[str, tuple[float, float, float]] = field(default_factory=dict)  # sides of a matrix, how many
    end_params: float = 0.0  # of an embedding or a head
    copied_params: float = 0.0  # of the dense ones, another unit's: gathered there
    shared_params: float = 0.0  # of these, those whose gradients two stages add up
    forward: Pass = field(default_factory=Pass)
    backward: Pass = field(default_factory=Pass)
    issued: list[float] = field(default_factory=lambda: [0.0, 0.0])
    waits: int = 0  # times that the host waits for the router in the forward pass
    waits_again: int = 0  # in a replay that permutes and does not route
    backward_wait: float = 0.0  # exposed expert exchanges of the backward pass
    launched: dict[str, float] = field(default_factory=dict)  # forward launches of an operator
    grouped: dict[str, tuple[float, float, float, float]] = field(default_factory=dict)  # experts, rows, columns, depth
    twice: set[str] = field(default_factory=set)  # operators of both halves of a layer with a shortcut
    hidden: dict[tuple[str, int], float] = field(default_factory=dict)  # (message, pass) -> seconds behind computation

    @property
    def replays_in_waits(self) -> bool:
        """Whether a backward pass recomputes while it waits for an exchange; pairs of passes have no waits left."""
        return "selective_recompute" in self.run.on and self.d.schedule not in PAIRING

    @property
    def hot(self) -> float:
        """Load of the busiest expert-parallel rank against the mean one: one rank can receive everything at most.

        Experts padded to their capacity all compute the same.
        """
        if self.d.ep == 1 or self.run.capacity_factor:
            return 1.0
        if self.run.levelled is not None:
            return self.run.levelled.compute
        return uneven(self.run, self.d, self.run.imbalance)

    @property
    def tokens(self) -> float:
        """Rows of a tensor-parallel multiplication."""
        return self.d.micro_batch_size * self.run.sequences * self.run.seq / self.d.cp

    @property
    def local(self) -> float:
        """Tokens between tensor-parallel regions."""
        return self.tokens / (self.d.tp if self.d.sequence_parallel else 1)

    # -- entries ---------------------------------------------------------------------------------------------

    def gemm(
        self,
        name: str,
        window: str,
        m: float,
        n: float,
        k: float,
        groups: float = 1,
        launches: float = 1,
        calls: tuple[float, float] | None = None,
        *,
        weighted: bool = True,
        passes: tuple[float, float, float] = (1, 1, 1),
    ) -> None:
        """A matrix multiplication and its two gradients: dX[m, k] over n, dW[k, n] over m; `passes` of each."""
        t = self.machine.gemm
        self.shapes[name] = (m, n, k)
        if weighted:
            self.weights[name] = (n, k, groups)
        result = self.run.summed() if weighted else 2
        once = (t(m, n, k, groups), t(m, k, n, groups), t(k, n, m, groups, result=result))
        times = (once[0] * passes[0], once[1] * passes[1], once[2] * passes[2])
        if weighted and self.run.lora_rank:
            times, calls = (*times[:2], 0.0), (calls[0], calls[1] / 2) if calls else (launches, launches)
        self._operator(name, window, times, times, *(calls or (launches, 2 * launches)))

    def experts(self, name: str, groups: float, m: float, n: float, k: float, *, trained: bool = False) -> None:
        """A grouped multiplication over the experts of the rank, m rows each under even load.

        trained : beside a frozen model, too.
        """
        fused = "grouped_gemm" in self.run.on
        self.grouped[name], self.weights[name] = (groups, m, n, k), (n, k, groups)

        def times(rows: float) -> tuple[float, float, float]:
            t = self.machine.grouped_gemm_s
            return (
                t(groups, rows, n, k, fused=fused),
                t(groups, rows, k, n, fused=fused),
                t(
                    groups,
                    k,
                    n,
                    rows,
                    fused=fused,
                    rows_differ=False,
                    result=self.run.summed(experts=True),
                ),
            )

        calls, joined = (
            1 + self.run.group_launches * groups if fused else groups,
            groups * fused * self.run.experts_apart,
        )
        if self.run.lora_rank and not trained:
            even, busy = (*times(m)[:2], 0.0), (*times(m * self.hot)[:2], 0.0)
            self._operator(name, "mlp", even, busy, calls + joined, calls)
            return
        self._operator(name, "mlp", times(m), times(m * self.hot), calls + joined, 2 * calls)

    def vector(
        self,
        name: str,
        window: str,
        forward: float,
        backward: float,
        launches: float = 1,
        *,
        moves: bool = False,
        whole: bool = False,
        hot: bool = False,
        calls: tuple[float, float] | None = None,
    ) -> None:
        """A memory-bound operator: bytes forward and backward; the host calls as many as it launches, or `calls`."""
        seconds = self.machine.permute if moves and whole else self.machine.scatter if moves else self.machine.stream
        factor = self.hot if hot else 1.0
        even = (seconds(forward, launches), seconds(backward, launches), 0.0)
        busy = (seconds(forward * factor, launches), seconds(backward * factor, launches), 0.0)
        self._operator(name, window, even, busy, *(calls or (launches, launches)))

    def _operator(self, name: str, window: str, even: Any, busy: Any, forward: float, backward: float) -> None:
        assert name not in self.operators
        if name in ROUTES:
            even, busy = (tuple(t * self.machine.routing_factor for t in times) for times in (even, busy))
        self.operators[name] = Operator(window, even, busy)
        self.launched[name] = forward
        self.issued[0] += forward
        self.issued[1] += backward
        if self.run.pairs and name != "gradient_accumulation":  # the reference does it once more, forward alone
            self.operators[f"reference_{name}"] = Operator(window, (even[0], 0.0, 0.0), (busy[0], 0.0, 0.0))
            self.issued[0] += forward

    @property
    def issue_s(self) -> float:
        """To issue an operator on the slowest of n hosts that meet."""
        met = max(self.d.tp * self.d.cp, self.d.ep * self.d.etp if "expert_up_proj" in self.operators else 1)
        return self.machine.issue_s * (1 + self.run.scatter * mean_largest(met))

    def work(self, *, backward: int, where: Callable[[str, str], bool]) -> float:
        """Seconds of the operators that `where` (name, window) picks: 0 forward, 1 input, 2 weight gradients."""
        return sum(o.busy[backward] for name, o in self.operators.items() if where(name, o.window))

    def keep(self, name: str, size: float, *, hot: bool = False) -> None:
        """A tensor kept for the backward pass."""
        peak, together = grown(self.run, self.d) if hot else (1.0, 1.0)
        self.kept[name], self.among[name] = size * peak, size * together

    def message(
        self,
        name: str,
        lane: str,
        seconds: float,
        forward: float,
        backward: float,
        *,
        busy: float | None = None,
        hide_forward: Hide = lambda t: t,
        hide_backward: Hide = lambda t: t,
    ) -> None:
        """A message of `seconds` (`busy` with the hottest rank's load), run so often in each pass."""
        busy = seconds if busy is None else busy
        self.forward_messages[name] = busy * forward
        if seconds > 0:  # a group of one rank exchanges nothing
            self.issued[0] += forward
            self.issued[1] += backward
        passes = [(self.forward, forward, hide_forward), (self.backward, backward, hide_backward)]
        if self.run.pairs and forward:
            self.forward.tp += hide_forward(seconds) * forward * (lane == "tp")
            self.forward.cp += hide_forward(seconds) * forward * (lane == "cp")
            self.issued[0] += forward if seconds > 0 else 0
        for part, count, hide in passes:
            self.hidden[name, 0 if part is self.forward else 1] = (busy - hide(busy)) * count
            if lane == "ep" and part is self.backward and self.replays_in_waits:
                self.backward_wait += hide(busy) * count
            shown = hide(seconds) * count
            setattr(part, lane, getattr(part, lane) + shown)
            part.imbalance += hide(busy) * count - shown
            self.messages.append(Message(name, part is self.backward, busy * count, hide(busy) * count))

    def close(self) -> None:
        """Add up operators, then what the host can't keep up with."""
        for number, part in enumerate((self.forward, self.backward)):
            for operator in self.operators.values():
                even, busy = (each[0] if number == 0 else sum(each[1:]) for each in (operator.even, operator.busy))
                part.compute += even
                part.imbalance += busy - even
            part.compute -= beside_cubes(self, backward=number == 1, busy=False)
            part.imbalance -= beside_cubes(self, backward=number == 1, busy=True) - beside_cubes(
                self, backward=number == 1, busy=False
            )
            hidden = sum(m.seconds - m.shown for m in self.messages if m.backward == (number == 1))
            free = max(0.0, part.compute + self._uneven(number) - hidden)
            part.dp = sharded(self, free, backward=number == 1)
            if "graph_mode" in self.run.on:  # a compiled graph runs without the host
                continue
            ahead = max(0.0, self.issued[number] * self.issue_s - part.total)
            waits = self.waits and number == 0 and "host_sync_free" not in self.run.on
            part.host = max(ahead, restart(self, ahead)) if waits else ahead

    def _uneven(self, number: int) -> float:
        """What the busiest rank computes beyond an even one."""
        work = sum(
            sum(o.busy[1:]) - sum(o.even[1:]) if number else o.busy[0] - o.even[0] for o in self.operators.values()
        )
        lanes = [beside_cubes(self, backward=number == 1, busy=busy) for busy in (True, False)]
        return work - lanes[0] + lanes[1]


# -- parts of a layer ----------------------------------------------------------------------------------------


def transformer_layer(run: Run, d: Degrees, machine: Numbers, groups: dict[str, list[int]], index: int) -> Account:
    """One layer, from its first norm to its last residual."""
    a = Account(run, d, machine, groups)
    add_layer(a, index)
    add_reference(a)
    a.close()
    return a


def add_reference(a: Account) -> None:
    if a.run.pairs:  # the weights of the frozen copy
        a.frozen_params += a.frozen_params + a.dense_params


def keeps_gathered(run: Run) -> bool:
    """Whether gathered inputs stay for the backward pass: a compiled graph's, and plain PyTorch's."""
    return bool({"graph_mode", "torch_fsdp2"} & run.on)


def add_layer(a: Account, index: int, *, of_module: bool = False) -> None:
    moe = a.run.is_moe(index)
    norms(a)
    biases(a, moe)
    if a.run.compressed_attention:
        add_compressed(a, "sliding_attention" if of_module else a.run.layer_types[index])
    else:
        _attention(a, a.run.window(index))
    latent = bool(a.run.kv_lora_rank or a.run.compressed_attention)
    # Latents are gathered instead of the hidden states, unless queries are projected from those directly.
    hidden = not latent or not a.run.q_lora_rank
    if keeps_gathered(a.run):  # the rows of the other ranks that were gathered; latents and experts gather none
        elsewhere = 2 * (a.tokens - a.local) * a.run.hidden_size
        if hidden:
            a.keep("attention_gathered", elsewhere)
        if not moe or a.run.shortcut_moe:
            a.keep("mlp_gathered", elsewhere)
    first = "q_up_proj" if latent else "qkv_proj"
    _tensor_region(a, "attention", first, "attention_out_proj", gathers_input=hidden)
    if a.run.shortcut_moe:
        add_mlp(a, "mlp", a.run.intermediate_size)
        _tensor_region(a, "mlp", "mlp_up_proj", "mlp_down_proj")
        _dropout(a)
        do_again(a)
        add_mixture(a)
        both = (2 + 2 + 2) * a.local * a.run.hidden_size  # experts and residual in, their sum out
        a.vector("shortcut_sum", "mlp", both, both)
    elif moe:
        add_mixture(a)
        if shared_width(a.run):
            _tensor_region(a, "mlp", "shared_up_proj", "shared_down_proj")
            if "regathers_shared" in a.run.on and a.d.schedule in PAIRING and a.d.sequence_parallel:
                once = a.machine.all_gather(2 * a.tokens * a.run.hidden_size, a.groups["tp"])
                a.message("shared_input_gather", "tp", once, 1 if a.d.tp > 1 else 0, 0)
    else:
        add_mlp(a, "mlp", a.run.intermediate_size)
        _tensor_region(a, "mlp", "mlp_up_proj", "mlp_down_proj")
    if not a.run.shortcut_moe:
        _dropout(a)
    add_adapters(a)
    # FP16 sums are an operator: product and sum in, sum out. BF16 adds in the product's epilogue unless that is off;
    # then a 16-bit product and an FP32 sum come in. A compiled graph has no FP16 sums.
    halves = a.run.precision == "fp16" and "graph_mode" not in a.run.on
    each, of_experts = (a.run.apart if halves or a.run.adds_apart(experts) else 0 for experts in (False, True))
    # A hook for each parameter: norms, attention's products, router or MLP's two; of experts two, or two each.
    own = a.run.group_launches or "grouped_gemm" not in a.run.on
    local = a.run.n_routed_experts / a.d.ep if moe else 0
    summed = a.run.experts_apart and "grouped_gemm" in a.run.on  # a hook and a sum of each
    hooks = 2 + 2 + (1 + (4 * local if summed else 2 * (local if own else 1)) if moe else 2)
    hooks += (2 + 2 + 2) + 2 if a.run.shortcut_moe else 0  # norms and attention once more, two dense MLPs
    hooks += (2 if a.run.shortcut_moe else 1) * hooks_beside(a.run)
    added = each * a.dense_params + of_experts * a.expert_params
    if a.run.lora_rank:
        of_each = local if moe and own else 1
        hooks = sum(2 * (of_each if p in BESIDE_EXPERTS else 1) for p in a.run.lora_targets if p in a.operators)
        added = each * (a.dense_params - a.beside_experts[0]) + of_experts * sum(a.beside_experts)
    a.vector("gradient_accumulation", "mlp", 0, added, 0, calls=(0, hooks))


def _dropout(a: Account) -> None:
    if "dropout" in a.run.on:
        both = 2 * a.local * a.run.hidden_size
        a.vector("hidden_dropout", "mlp", 5 * both, 5 * both, 2)
        a.keep("dropout_masks", both)


def _attention(a: Account, window: int | None) -> None:
    r, tp = a.run, a.d.tp
    heads = (r.sliding_attention_heads if window and r.sliding_attention_heads else r.num_attention_heads) / tp
    if r.kv_lora_rank:
        _latent(a, heads)
    else:
        _grouped(a, heads)
    _core(a, heads, window)
    if r.attention_head_gate:
        a.gemm("head_gate_proj", "attention", a.tokens, heads, r.hidden_size)
        opened = 2 * a.tokens * heads * r.value
        # Backward: gradient and output in, the output's gradient out, their product out and in again.
        a.vector("output_gate", "attention", 2 * opened, (2 + 1 + 2) * opened, 1)
        a.keep("head_gates", 2 * a.tokens * heads)
        a.keep("attention_gated_out", opened)
        a.dense_params += r.hidden_size * heads
    a.gemm("attention_out_proj", "attention", a.tokens, r.hidden_size, heads * r.value)
    a.dense_params += heads * r.value * r.hidden_size
    _context_parallel(a, heads)


def _grouped(a: Account, heads: float) -> None:
    r, tokens = a.run, a.tokens
    keys = max(r.num_key_value_heads / a.d.tp, 1)
    width = heads * r.head_dim + keys * r.head_dim + keys * r.value
    a.gemm("qkv_proj", "attention", tokens, width, r.hidden_size)
    if rotates(r):
        rotary(a, tokens * (heads + keys) * r.head_dim)
    if r.copies_heads:
        a.vector("qkv_split", "attention", (2 + 2) * tokens * width, (2 + 2) * tokens * width, 3)
    slices = not r.copies_heads and "flash_attention" in r.on and rotates(r)
    copied = slices and a.d.cp > 1 and not r.qk_norm and not r.attention_output_gate  # values travel as a copy
    a.keep("qkv", 2 * tokens * (keys * r.value if copied else width))
    if slices:
        a.keep("rotated", 2 * tokens * (heads + keys) * r.head_dim)
    if r.qk_norm:
        normed = 2 * tokens * (heads + keys) * r.head_dim
        a.vector("qk_norm", "attention", 2 * normed, 3 * normed, 2)
        if one_product(r):
            # Queries are an array of their own where groups have several; of keys the whole product is kept, which is
            # there anyway where attention reads slices of it.
            normed = 2 * tokens * heads * r.head_dim if heads > keys else 0
            normed += 2 * tokens * width if r.copies_heads else 0
        a.keep("qk_norm_in", normed)
    if rotates(r):
        tables(a, r.head_dim)
    a.dense_params += r.hidden_size * width
    if r.qk_norm:
        a.dense_params += 2 * r.head_dim


def _latent(a: Account, heads: float) -> None:
    r, tokens, local = a.run, a.tokens, a.local
    q_rank, kv_rank = r.q_lora_rank or 0, r.kv_lora_rank
    nope, rope, value, h = r.qk_nope_head_dim, r.qk_rope_head_dim, r.value, r.hidden_size
    a.gemm("latent_down_proj", "attention", local, q_rank + kv_rank + rope, h, launches=2)
    moved = 2 * 2 * local * (q_rank + kv_rank)
    a.vector("latent_norm", "attention", moved, 2 * moved, 2)
    a.gemm("q_up_proj", "attention", tokens, heads * (nope + rope), q_rank or h)
    a.gemm("kv_up_proj", "attention", tokens, heads * (nope + value), kv_rank)
    rotary(a, tokens * (heads + 1) * rope)
    if "rect_fa" not in r.on:
        pad(a, heads)
    # Before their norms, in its precision; after them, with the rotary key, as the projections up read them.
    rows = tokens if keeps_gathered(r) else local
    read = 0 if r.lora_rank else rows * (q_rank + kv_rank + rope) * 2  # frozen, they read nothing again
    a.keep("latents", local * (q_rank + kv_rank) * r.norm_bytes)
    a.keep("latents_normed", read)
    tables(a, rope, "latent_tables")
    wide, wide_value = widths(r)
    a.keep("latent_q", 2 * tokens * heads * wide)
    a.keep("latent_kv", 2 * tokens * heads * (wide + wide_value))
    _latent_messages(a, {"q": q_rank, "kv": kv_rank}, rope)
    # Down projections and the norms of the latents are whole on every rank.
    a.dense_params += h * (q_rank + kv_rank + rope) + q_rank + kv_rank
    a.dense_params += (q_rank or h) * heads * (nope + rope) + kv_rank * heads * (nope + value)


def _latent_messages(a: Account, ranks: dict[str, int], rope: int) -> None:
    """Each latent of a rank's own tokens goes to the whole group, as does the rotary key, which no weight multiplies.

    Without sequence parallelism only the latents' gradients do. Where every product of a recomputed projection gathers
    although its input was gathered beside: of a latent three times ahead, three in the replay and two back are six more
    than the two of a projection that is kept, one of which is the replay's own.
    """
    tp, wasted = a.groups["tp"], "regathers_latents" in a.run.on
    sp = 1 if a.d.sequence_parallel and len(tp) > 1 else 0
    plain = 1 if not a.d.sequence_parallel and len(tp) > 1 else 0
    for name, rank in ranks.items():
        if not rank:
            continue
        product, size = f"{name}_up_proj", 2 * a.tokens * rank
        up, (m, n, k) = a.operators[product], a.shapes[product]
        gather, reduce = a.machine.all_gather(size, tp), a.machine.all_reduce(size, tp)
        ahead = chunked(a, up.busy[0], (m, n, k), (m * n,))
        a.message(f"latent_{name}_gather", "tp", gather, sp, 0, hide_forward=ahead)
        again = 0 if a.run.lora_rank or "torch_fsdp2" in a.run.on else sp
        a.message(f"latent_{name}_regather", "tp", gather, 0, again, hide_backward=behind(a, up.busy[1]))
        scattered, reduced = returned(a, product)
        a.message(f"latent_{name}_gradient_scatter", "tp", gather, 0, sp, hide_backward=scattered)
        a.message(f"latent_{name}_gradient_reduce", "tp", reduce, 0, plain, hide_backward=reduced)
        if wasted:
            a.replayed_messages[f"split_{name}"] = sp * (3 + 3 + 2 - 2 - 1 + 1) * gather
    key = a.machine.all_gather(2 * a.tokens * rope, tp)
    a.message("latent_key_gather", "tp", key, sp, 0)
    a.message("latent_key_scatter", "tp", key, 0, sp)
    if wasted:
        a.replayed_messages["split_key"] = sp * key


def _core(a: Account, heads: float, window: int | None) -> None:
    r, s = a.run, a.run.seq
    a.keep("attention_out", 2 * a.tokens * heads * r.value)
    if a.d.ulysses > 1:  # once as the kernel left it, once as the projection takes it
        a.keep("attention_out_exchanged", 2 * a.tokens * heads * r.value)
    if "flash_attention" not in r.on:
        pairs = a.d.micro_batch_size * r.sequences * heads / a.d.cp
        scores = pairs * s * s
        a.gemm("scores", "attention", s, s, r.qk, groups=pairs, weighted=False)
        each = 9 if "dropout" in r.on else 4
        # Product scaled and biases added, in 16 bits; backward scaled again.
        ahead, back = (2 + 2 + 2 + 2, 2 + 2) if r.alibi else (0, 0)
        a.vector("softmax_dropout", "attention", (each + ahead) * scores, (each + 4 + back) * scores, 2)
        a.gemm("weighted_values", "attention", s, r.value, s, groups=pairs, weighted=False)
        a.keep("scores", (5 if "dropout" in r.on else 2) * scores)
        return
    seen = s / 2 if window is None or window >= s else window - window**2 / (2 * s)
    qk, value = widths(r)
    seen = seen if r.keys is None else min(seen, r.keys)
    product = {width: 2 * a.tokens * seen * heads * width for width in (qk, value)}
    ring = a.d.cp // a.d.ulysses
    # Forward S = Q K, O = P V; backward S, dQ and dK as wide as Q, dP and dV as V.
    flops = (product[qk] + product[value], 3 * product[qk] + 2 * product[value])

    # The kernel sees documents one by one, each twice as long as a query's keys in the mean.
    length = (s if r.keys is None else min(s, 2 * r.keys)) / ring

    def times(factor: float) -> tuple[float, float]:
        both = zip(flops, (False, True), strict=True)
        return tuple(a.machine.attention(w * factor, (qk + value) / 2, length, backward=b) for w, b in both)

    a._operator("core_attention", "attention", (*times(1.0), 0.0), (*times(r.slow_attention), 0.0), 1, 1)
    a.keep("softmax_stats", r.stats_bytes * a.tokens * heads)
    if value != r.value:
        a.keep("attention_out_padded", 2 * a.tokens * heads * value)


def _context_parallel(a: Account, heads: float) -> None:
    r = a.run
    if r.kv_lora_rank:
        key_value = heads * r.qk + heads * r.value
    else:
        key_value = max(r.num_key_value_heads / a.d.tp, 1) * (r.head_dim + r.value)
    join(a, heads, key_value)
    ring = len(a.groups["ring"])
    hop = a.machine.ring_step(2 * a.tokens * key_value, a.groups["ring"])
    core = a.operators.get("core_attention")

    def beside(seconds: float) -> Hide:
        return lambda t: max(0.0, t - seconds / ring)

    hide = (beside(core.busy[0]), beside(core.busy[1] / 2)) if core else (lambda t: t, lambda t: t)
    a.message("ring", "cp", hop, ring - 1, 2 * (ring - 1), hide_forward=hide[0], hide_backward=hide[1])
    whole = 2 * a.tokens * (heads * r.qk + heads * r.value + key_value)
    exchanged = a.machine.all_to_all(whole, 1, a.groups["heads"], fixed=4 * a.machine.comm_op_s)
    a.message("heads", "cp", exchanged, 1, 1)


def _tensor_region(a: Account, window: str, first: str, last: str, *, gathers_input: bool = True) -> None:
    """Collectives between a column-cut and a row-cut multiplication (Korthikanti, arXiv:2205.05198)."""
    tp, size = a.groups["tp"], 2 * a.tokens * a.run.hidden_size
    gather, reduce = a.machine.all_gather(size, tp), a.machine.all_reduce(size, tp)
    sp = 1 if a.d.sequence_parallel and len(tp) > 1 else 0
    plain = 1 if not a.d.sequence_parallel and len(tp) > 1 else 0
    head, tail = a.operators[first], a.operators[last]
    m, n, k = a.shapes[first]
    if gathers_input:
        hide = chunked(a, head.busy[0], (m, n, k), (m * n,), of=first)
        a.message(f"{window}_gather", "tp", gather, sp, 0, hide_forward=hide)
        again = 0 if a.run.lora_rank or "torch_fsdp2" in a.run.on else sp
        a.message(f"{window}_regather", "tp", gather, 0, again, hide_backward=behind(a, head.busy[1]))
        scattered, reduced = returned(a, first)
        a.message(f"{window}_gradient_scatter", "tp", gather, 0, sp, hide_backward=scattered)
        a.message(f"{window}_gradient_reduce", "tp", reduce, 0, plain, hide_backward=reduced)
    m, n, k = a.shapes[last]
    out = chunked(a, tail.busy[0], (m, n, k), (m * k,), of=last)
    back = chunked(a, tail.busy[1], (m, k, n), (m * k, m * n), of=last)
    a.message(f"{window}_scatter", "tp", gather, sp, 0, hide_forward=out)
    a.message(f"{window}_gradient_gather", "tp", gather, 0, sp, hide_backward=back)
    a.message(f"{window}_reduce", "tp", reduce, plain, 0, hide_forward=chunked(a, tail.busy[0], (m, n, k), of=last))
