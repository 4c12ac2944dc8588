"""A whole step: every stage, layer, micro batch and exchange, summed by part; bytes by kind."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tests.support.accounting import ends, muon
from tests.support.accounting import layer as layers
from tests.support.accounting.by_operator import kept_for_nobody, share_of
from tests.support.accounting.choices import RECOMPUTE, SWAP
from tests.support.accounting.compressed import streams_of
from tests.support.accounting.expert_messages import PAIRING
from tests.support.accounting.pairs import left_over, paired, split
from tests.support.accounting.pipeline import Played, Sending, Slot, dual_programme, part_of, peak, play, programme
from tests.support.accounting.ranks import Degrees, groups_of, stage_ranks
from tests.support.accounting.sharded import once_a_step, through_step
from tests.support.accounting.uneven_experts import uneven

if TYPE_CHECKING:
    from tests.support.accounting.layer import Account
    from tests.support.accounting.machine import Numbers
    from tests.support.accounting.run import Run


@dataclass
class Stage:
    """One pipeline stage: its layers chunk by chunk, and the pieces that sit on it."""

    layers: list[list[tuple[str, Account]]]  # chunk -> (kind, account)
    pieces: list[tuple[int, Account, float]]  # chunk, account, how many of it
    choices: list[list[list[str]]]  # chunk -> layer -> memory choices

    def all(self) -> list[tuple[Account, float]]:
        """Everything on the stage, with how many of it."""
        return [(a, 1.0) for chunk in self.layers for _, a in chunk] + [(a, n) for _, a, n in self.pieces]


@dataclass
class Step:
    """What the accounting finds."""

    step_s: float = 0.0
    parts: list[dict[str, float]] = field(default_factory=list)  # per stage, of the schedule
    tails: list[dict[str, float]] = field(default_factory=list)  # per stage, after the schedule
    busy_s: list[float] = field(default_factory=list)
    makespan_s: float = 0.0
    memory: list[dict[str, float]] = field(default_factory=list)
    allocator: list[float] = field(default_factory=list)
    first_step: list[float] = field(default_factory=list)
    forward_s: list[list[float]] = field(default_factory=list)
    backward_s: list[list[float]] = field(default_factory=list)


def account(
    run: Run, d: Degrees, machine: Numbers, per_chunk: list[list[int]], applied: dict[str, list[int]] | None = None
) -> Step:
    """Account for one step.

    per_chunk [stage][chunk]: layers of the chunk. applied: choice -> layers of each stage that use it, the first ones.
    """
    stages = _stages(run, d, machine, per_chunk, applied or {})
    send = _send_s(run, d, machine)
    blocking = send if d.schedule == "1f1b" else 0.0
    step = Step()
    programmes, late = _programmes(d)
    exposed_swap, hidden, exchanged, covering, late_dw = [], [], [], [], []
    for stage in stages:
        times = [_chunk_s(run, machine, stage, c, blocking) for c in range(d.vpp)]
        step.forward_s.append([t.forward for t in times])
        step.backward_s.append([t.backward for t in times])
        exposed_swap.append(sum(t.exposed_swap for t in times))
        pairs = [[_pair_s(d, stage, f, b, times) for b in range(d.vpp)] for f in range(d.vpp)]
        hidden.append([[h for h, _ in row] for row in pairs])
        exchanged.append([[e for _, e in row] for row in pairs])
        covering.append([[_covering_s(stage, f, b) for b in range(d.vpp)] for f in range(d.vpp)])
        late_dw.append([_split_s(stage, c) for c in range(d.vpp)])
    edge = 0.0 if d.schedule == "1f1b" else send
    sending = Sending(edge, covering, late_dw, late)
    played = play(d.schedule, programmes, step.forward_s, step.backward_s, hidden, sending)
    step.makespan_s, step.busy_s = played.makespan, played.busy
    for p, stage in enumerate(stages):
        in_exchange = sum(exchanged[p][f[1]][b[1]] for f, b in programmes[p] if f and b)
        step.parts.append(_parts(run, d, stage, exposed_swap[p], blocking, played, p, in_exchange))
    per_stage = max(1.0, run.num_hidden_layers / d.pp)
    layers_of_model = [a for stage in stages for chunk in stage.layers for _, a in chunk]
    if d.schedule == "dualpipe":  # every layer is on two stages
        layers_of_model = layers_of_model[: len(layers_of_model) // 2]
    step.tails = [_tail(run, d, machine, stage, per_stage, layers_of_model) for stage in stages]
    step.step_s = played.makespan + max(sum(tail.values()) for tail in step.tails)
    for p, stage in enumerate(stages):
        _memory(run, d, machine, stage, step, programmes[p], applied or {}, stages)
    return step


def _programmes(d: Degrees) -> tuple[list[list[Slot]], list[set[int]]]:
    if d.schedule in ("dualpipev", "dualpipe"):
        both = [dual_programme(d.schedule, p, d.pp, d.micro_batches) for p in range(d.pp)]
        return [slots for slots, _ in both], [late for _, late in both]
    return [programme(d.schedule, p, d.pp, d.vpp, d.micro_batches) for p in range(d.pp)], [set() for _ in range(d.pp)]


def _stages(
    run: Run, d: Degrees, machine: Numbers, per_chunk: list[list[int]], applied: dict[str, list[int]]
) -> list[Stage]:
    stages = []
    part = {(p, c): part_of(d.schedule, p, c, d.pp) for p in range(d.pp) for c in range(d.vpp)}
    # DualPipe's second copy of the model starts over.
    start_of = {
        n: sum(per_chunk[p][c] for (p, c), m in part.items() if m // 1000 == n // 1000 and m < n) for n in part.values()
    }
    first_of = {place: start_of[n] for place, n in part.items()}
    last_of = {n // 1000: n for n in sorted(part.values())}
    copies = len(last_of)
    assert sum(map(sum, per_chunk)) == copies * run.num_hidden_layers
    for p in range(d.pp):
        ranks = stage_ranks(p, d)
        groups = groups_of(ranks[0], d)
        # Every rank of the stage sees the same network: its groups spread over the tiers alike.
        for rank in ranks:
            mine = groups_of(rank, d)
            assert all(machine.together(mine[g]) == machine.together(groups[g]) for g in mine if g != "pp")
        held, choices, used = [], [], dict.fromkeys(applied, 0)
        for chunk in range(d.vpp):
            numbers = range(first_of[p, chunk], first_of[p, chunk] + per_chunk[p][chunk])
            accounts = [layers.transformer_layer(run, d, machine, groups, n) for n in numbers]
            held.append([("moe" if run.is_moe(n) else "dense", a) for n, a in zip(numbers, accounts, strict=True)])
            choices.append([[] for _ in accounts])
        # Dense layers come first, then a chunk's in order: model order wherever the first chunk comes first.
        for kind in ("dense", "moe"):
            for chunk, row in enumerate(held):
                for place, (mine, a) in enumerate(row):
                    if mine == kind:
                        choices[chunk][place] = _choices(a, applied, used, p)
        pieces = []
        for chunk in range(d.vpp):
            if part[p, chunk] % 1000 == 0:
                pieces.append((chunk, ends.embedding(run, d, machine, groups), 1.0))
            if part[p, chunk] in last_of.values():
                pieces.append((chunk, ends.head(run, d, machine, groups), 1.0))
                if run.num_nextn_predict_layers:
                    module = ends.prediction_module(run, d, machine, groups)
                    pieces.append((chunk, module, float(run.num_nextn_predict_layers)))
        stages.append(Stage(held, pieces, choices))
    return stages


def _choices(a: Account, applied: dict[str, list[int]], used: dict[str, int], stage: int) -> list[str]:
    """The choices of the stage's next layer: those that free something of it and are not used up yet."""
    mine = []
    for name, counts in applied.items():
        if used[name] < counts[stage] and _freed(a, name) > 0:
            used[name] += 1
            mine.append(name)
    return mine


def _freed(a: Account, name: str, sizes: dict[str, float] | None = None) -> float:
    """Bytes of what a choice frees, of a layer by itself unless other sizes are given."""
    sizes = a.kept if sizes is None else sizes
    if name == "full":
        return sum(size for tensor, size in sizes.items() if tensor != "attention_norm_in")
    tensors = RECOMPUTE[name][0] if name in RECOMPUTE else SWAP[name]
    freed = sum(sizes.get(tensor, 0.0) * share_of(a, name, tensor) for tensor in tensors)
    if name == "by_operator" and freed:
        freed -= kept_for_nobody(a)
    return freed


def _again_s(a: Account, name: str) -> float:
    """Seconds to run again what a choice recomputes; a swap's reads and writes of device memory."""
    if name in SWAP:
        size = _freed(a, name)
        seconds = 2 * size / (a.machine.hbm_bytes_per_s * a.machine.hbm_fraction)
        if name == "swap_attention" and a.d.schedule not in PAIRING:
            # Copied out until the layer ends; copied in from where its backward pass begins to where attention's does.
            transfer = size / a.machine.host_link_bytes_per_s
            own = _own(a)
            for way in ((0,), (1, 2)):
                whole = sum(o.busy[n] for o in own.values() for n in way)
                window = sum(
                    o.busy[n]
                    for name_, o in own.items()
                    for n in way
                    if o.window != "attention" or (n == 0 and name_ == "core_attention")
                )
                seconds += max(0.0, min(transfer, whole) - window)
        return seconds
    wait = a.backward_wait
    if name == "full":
        work = sum(o.busy[0] for o in _own(a).values())
        # Copied weights come once for all that the backward pass does.
        return max(0.0, work - wait) + sum(t for name, t in a.forward_messages.items() if name != "hot_weights")
    _, operators, messages = RECOMPUTE[name]
    work = _work(a, name, operators)
    # Every module that this layer could recompute gets its share of the wait, whether it is recomputed or not.
    rivals = sum(_work(a, other, ops) for other, (_, ops, _) in RECOMPUTE.items() if _freed(a, other) > 0)
    hidden = min(work, wait * work / rivals) if rivals else 0.0
    again = a.forward_messages | a.replayed_messages
    return work - hidden + sum(again.get(m, 0.0) for m in messages)


def _own(a: Account) -> dict[str, layers.Operator]:
    """Operators of the model itself, not of the copy that it is compared with."""
    return {name: o for name, o in a.operators.items() if not name.startswith("reference_")}


def _waits_again_s(a: Account, name: str) -> float:
    """What the host holds up a replay that routes: it is issued again, and learns its split sizes again.

    One that permutes without routing selects its rows again; any other waits until its operators are issued.
    """
    if name in ("full", "moe"):
        return a.forward.host
    if name in SWAP or "graph_mode" in a.run.on:
        return 0.0
    ran = [o for o in RECOMPUTE[name][1] if o in a.operators]
    issued = sum(a.launched[o] * share_of(a, name, o) for o in ran) * a.issue_s
    late = max(0.0, issued - _again_s(a, name))
    free = {"host_sync_free", "graph_mode"} & a.run.on
    permutes = name in ("permute", "moe_zero_memory_level0", "moe_zero_memory_level1")
    return late + (a.waits_again * a.machine.sync_s if permutes and not free else 0.0)


def _work(a: Account, choice: str, operators: tuple[str, ...]) -> float:
    return sum(a.operators[o].busy[0] * share_of(a, choice, o) for o in operators if o in a.operators)


def _send_s(run: Run, d: Degrees, machine: Numbers) -> float:
    """One micro batch's activations to the next stage."""
    if d.pp == 1:
        return 0.0
    cut = d.sequence_parallel or "scatter_gather_sends" in run.on
    tokens = d.micro_batch_size * run.seq / d.cp / (d.tp if cut else 1)
    tokens *= 2 * 2 if run.pairs else 1  # chosen and rejected, of both models
    size, pipelines = (
        2 * tokens * run.hidden_size * streams_of(run),
        [groups_of(rank, d)["pp"] for rank in stage_ranks(0, d)],
    )
    # Stages outside the replicas are far apart, and their first hop stands for all.
    hops = d.pp - 1 if d.replicas_outside else 1
    return max(machine.send(size, *stages[hop : hop + 2], stages) for stages in pipelines for hop in range(hops))


@dataclass(frozen=True)
class Chunk:
    """Seconds of one micro batch in a chunk: its passes with what swapping exposes, that part, and one transfer."""

    forward: float
    backward: float
    exposed_swap: float
    plain: tuple[float, float]
    transfer: float


def _chunk_s(run: Run, machine: Numbers, stage: Stage, chunk: int, blocking: float) -> Chunk:
    held = [(a, 1.0) for _, a in stage.layers[chunk]] + [(a, n) for c, a, n in stage.pieces if c == chunk]
    forward = blocking + sum(n * (a.forward.total + (run.slowest - 1) * a.forward.compute) for a, n in held)
    backward = blocking + sum(n * (a.backward.total + (run.slowest - 1) * a.backward.compute) for a, n in held)
    moved = 0.0
    for (_, a), names in zip(stage.layers[chunk], stage.choices[chunk], strict=True):
        backward += sum(_again_s(a, name) + _waits_again_s(a, name) for name in names)
        moved += sum(_freed(a, name) for name in names if name in SWAP)
    transfer = moved / machine.host_link_bytes_per_s
    out, back = max(0.0, transfer - forward), max(0.0, transfer - backward)
    return Chunk(forward + out, backward + back, out + back, (forward, backward), transfer)


def _pair_s(d: Degrees, stage: Stage, forward: int, backward: int, times: list[Chunk]) -> tuple[float, float]:
    """What a forward of one chunk beside a backward of another hides: all, and expert communication alone.

    The backward begins with the chunk's last layer. Nothing fills that layer's first step, nor any layer's where one
    chunk is longer.
    """
    if d.schedule not in PAIRING:
        return 0.0, 0.0
    one = [a for _, a in stage.layers[forward]]
    other = [a for _, a in reversed(stage.layers[backward])]
    total = exchange = lost = 0.0
    for number, (x, y) in enumerate(zip(one, other, strict=False)):
        gain = paired(x, y)
        total += gain.hidden
        exchange += gain.exchange
        if number == 0 or len(one) != len(other):
            lost += gain.first
    f, b = times[forward], times[backward]
    together = max(f.plain[0] + b.plain[1] - (total - lost), f.transfer, b.transfer)
    return max(0.0, f.forward + b.backward - together), max(0.0, exchange - lost)


def _covering_s(stage: Stage, forward: int, backward: int) -> float:
    """Weight gradients that are left when the backward of a chunk is through its first layer."""
    held = stage.layers[backward]
    return left_over(held[0][1]) if held and len(held) == len(stage.layers[forward]) else 0.0


def _split_s(stage: Stage, chunk: int) -> float:
    held = [(a, 1.0) for _, a in stage.layers[chunk]] + [(a, n) for c, a, n in stage.pieces if c == chunk]
    return sum(n * split(a) for a, n in held)


def _parts(
    run: Run, d: Degrees, stage: Stage, swap: float, blocking: float, played: Played, p: int, in_exchange: float
) -> dict[str, float]:
    parts = dict.fromkeys(
        (
            *("compute_s", "imbalance_s", "exposed_tp_s", "exposed_ep_s", "exposed_cp_s", "host_bound_s"),
            *("exposed_dp_s", "exposed_pp_s", "recompute_s", "exposed_swap_s"),
        ),
        0.0,
    )
    for _ in range(d.micro_batches // (2 if d.schedule == "dualpipe" else 1)):
        for a, n in stage.all():
            for one in (a.forward, a.backward):
                parts["compute_s"] += n * one.compute
                parts["imbalance_s"] += n * (one.imbalance + (run.slowest - 1) * one.compute)
                parts["exposed_tp_s"] += n * one.tp
                parts["exposed_ep_s"] += n * one.ep
                parts["exposed_cp_s"] += n * one.cp
                parts["exposed_dp_s"] += n * one.dp
                parts["host_bound_s"] += n * one.host
        for chunk, names in zip(stage.layers, stage.choices, strict=True):
            for (_, a), mine in zip(chunk, names, strict=True):
                for name in mine:
                    parts["exposed_swap_s" if name in SWAP else "recompute_s"] += _again_s(a, name)
                    parts["host_bound_s"] += _waits_again_s(a, name)
        parts["exposed_swap_s"] += swap
        parts["exposed_pp_s"] += 2 * blocking
    # A pair hides exchanges: beyond their even length, what uneven experts add to them. The rest is the host's.
    in_exchange = min(in_exchange, played.paired[p])
    for seconds, lanes in (
        (in_exchange, ("exposed_ep_s", "imbalance_s")),
        (played.paired[p] - in_exchange, ("exposed_swap_s", "host_bound_s")),
    ):
        mine = min(seconds, parts[lanes[0]])
        parts[lanes[0]] -= mine
        parts[lanes[1]] -= seconds - mine
    parts["pipeline_bubble_s"] = played.idle[p]
    return parts


def _tail(
    run: Run, d: Degrees, machine: Numbers, stage: Stage, per_stage: float, model: list[Account]
) -> dict[str, float]:
    """Gradient reduction, update and gathering that nothing hides."""
    tail = {"exposed_dp_s": 0.0, "optimizer_s": 0.0, "exposed_swap_s": 0.0, "imbalance_s": 0.0}
    last = 1 / per_stage
    in_passes = "fsdp" in run.on
    distributed = run.distributed_optimizer or in_passes
    reduce_beside = "overlap_grad_reduce" in run.on and d.schedule not in PAIRING
    # Gathering rides on the buckets of the overlapped reduction.
    gather_beside = reduce_beside and "overlap_param_gather" in run.on and distributed

    def exposed(seconds: float, window: float, beside: bool) -> float:
        if not beside:
            return seconds
        return min(seconds, max(0.0, seconds * (1 - last) * machine.contention - window) + seconds * last)

    for a, n in stage.all():
        if a.shared_params and not in_passes:  # the first stage's gradients of the embedding, and the last's
            ends = a.groups["pp"]
            tail["exposed_dp_s"] += machine.all_reduce(n * a.shared_params * run.gradient_bytes, [ends[0], ends[-1]])
        if through_step(a):
            tail["exposed_dp_s"] += once_a_step(a, n, last)
        if run.levelled is not None and run.levelled.moved and a.expert_params:
            arriving = n * a.expert_params * run.levelled.moved
            moved = machine.all_to_all((2 + 12) * arriving, 1, a.groups["ep"])
            moved += machine.all_gather(12 * arriving, a.groups["edp"]) if distributed else 0.0
            tail["imbalance_s"] += moved / 50
        for name, params in (("dense", a.dense_params), ("edp", a.expert_params)):
            group = a.groups[name]
            params_n = params * n
            share = params_n / max(n * (a.dense_params + a.expert_params), 1.0)
            gradients = params_n * run.gradient_bytes
            # Megatron-LM: buckets of 40e6 parameters, or of 1e6 a rank, where they leave beside a pass; else one.
            calls = params_n / max(40e6, 1e6 * len(a.groups["dense"])) if reduce_beside else last * (params > 0)
            if distributed:
                collective = machine.all_reduce if "muon" in run.on else machine.all_gather
                reduced = calls * collective(gradients / calls, group) if calls else 0.0
                gathered = calls * machine.all_gather(2 * params_n / calls, group) if calls else 0.0
            else:
                reduced = calls * machine.all_reduce(gradients / calls, group) if calls else 0.0
                gathered = 0.0
            if in_passes:
                reduced = gathered = 0.0
            tail["exposed_dp_s"] += exposed(reduced, n * a.backward.compute * share * machine.overlap, reduce_beside)
            tail["exposed_dp_s"] += exposed(gathered, n * a.forward.compute * share * machine.overlap, gather_beside)
            shards = len(group) if distributed else 1
            # Adam reads gradient, weight and moments and writes weights and moments; norm and clearing touch it whole.
            gradient, master, moments, copy = _state_sizes(run)
            adam = 0 if d.virtual_optimizer else moments
            # BF16 moments become FP32 and back: both copies are written, read, written and read.
            casts = 4 * 8 if "o2_optimizer" in run.on and "quantized_optimizer" not in run.on else 0
            kernel = gradient + 2 * (master + copy + adam) + casts + 2
            if "torch_fsdp2" in run.on:  # the weight itself is read and written
                kernel = gradient + 2 * adam + 2 * 4
            if "unfused_optimizer" in run.on:
                # 11 operators with one operand, 5 with two, 3 assignments, one cast.
                kernel = 11 * (4 + 4) + 5 * (4 + 4 + 4) + 3 * (4 + 4) + (2 + 4)
            moved = params_n * (kernel + 2 * gradient) / shards if in_passes else 0.0
            if not in_passes:
                moved = params_n * (kernel / shards + 2 * gradient)
            orthogonal = 0.0
            if "muon" in run.on:
                owned = muon.busiest_share(run, d, model, len(group), name)
                end = n * a.end_params if name == "dense" else 0.0
                moved = (params_n - end) * (muon.update_bytes() * owned + 2 * gradient)
                moved += end * (gradient + 2 * (4 + 8) + 2 + 2 * gradient)
                orthogonal = n * owned * muon.orthogonal_s(a, name)
            update = moved / (machine.hbm_bytes_per_s * machine.hbm_fraction) + orthogonal
            if d.swap_optimizer and run.adam_s is not None:  # updated where its states lie
                tail["optimizer_s"] += params_n / shards * run.adam_s
                continue
            tail["optimizer_s"] += update
            if d.swap_optimizer or d.virtual_optimizer:
                away = moments + (master if d.swap_optimizer else 0)
                transfer = params_n * away / shards / machine.host_link_bytes_per_s
                tail["exposed_swap_s"] += max(0.0, transfer - update)
    return tail


def _state_sizes(run: Run) -> tuple[int, int, int, int]:
    """Bytes a parameter of the accumulated gradient, of the master copy, of both moments, of the gradient in FP32."""
    if "torch_fsdp2" in run.on:  # the shard that is gathered is the master
        return 4, 0, 8, 0
    quantized = "quantized_optimizer" in run.on
    scaled = run.precision == "fp16" and "graph_mode" not in run.on
    moments = 2 if quantized else 4 if "o2_optimizer" in run.on else 8
    return 2 if quantized or scaled else 4, 4, moments, 4 if scaled and not quantized else 0


def _memory(
    run: Run,
    d: Degrees,
    machine: Numbers,
    stage: Stage,
    step: Step,
    slots: list[Slot],
    applied: dict[str, list[int]],
    stages: list[Stage],
) -> None:
    kinds = dict.fromkeys(("weights", "gradients", "optimizer"), 0.0)
    moments = 0.0
    for a, n in stage.all():
        kinds["weights"] += n * a.frozen_params * 2
        for name, params in (("dense", a.dense_params), ("edp", a.expert_params)):
            everything = "fsdp" in run.on
            shards = len(a.groups[name]) if run.distributed_optimizer or everything else 1
            each = 4 if "torch_fsdp2" in run.on else 2
            kinds["weights"] += n * params * each / (shards if everything else 1)
            kinds["weights"] += n * params * 2 if d.keep_gathered or through_step(a) else 0
            # A compiled step without a pipeline splits a gradient as soon as it exists.
            split = shards if everything or ("graph_mode" in run.on and d.pp == 1) else 1
            gradient, master, adam, copy = _state_sizes(run)
            if through_step(a):  # whole, in the format of their reduction
                apart = name == "edp" and d.ep > 1
                gradient, split = (4 if apart else run.gradient_bytes), 1
            kinds["gradients"] += n * params * gradient / split
            if d.reuse_fp32:
                master = max(0, master - 2)
            if d.virtual_optimizer:
                adam = 0
            if "muon" in run.on:
                held_layers = [layer for s in stages for chunk in s.layers for _, layer in chunk]
                if d.schedule == "dualpipe":
                    held_layers = held_layers[: len(held_layers) // 2]
                owned = muon.busiest_share(run, d, held_layers, len(a.groups[name]), name)
                end = a.end_params if name == "dense" else 0.0
                kinds["optimizer"] += n * ((params - end) * (4 + muon.MOMENTUM) * owned + end * (4 + 8))
                moments += n * ((params - end) * muon.MOMENTUM * owned + end * 8)
                continue
            states = (master + copy + adam) / shards
            kinds["optimizer"] += n * params * (states / 16 if d.swap_optimizer else states)
            moments += 0.0 if d.swap_optimizer else n * params * adam / shards
    held = []
    for number, (chunk, names) in enumerate(zip(stage.layers, stage.choices, strict=True)):
        size = sum(sum(a.among.values()) for _, a in chunk) + sum(
            n * sum(a.kept.values()) for c, a, n in stage.pieces if c == number
        )
        size -= sum(_freed(a, name, a.among) for (_, a), mine in zip(chunk, names, strict=True) for name in mine)
        held.append(size)
    activations = peak(slots, held)
    widest = max(sum(a.kept.values()) for s in stages for chunk in s.layers for _, a in chunk)
    hands_over = d.schedule in ("adaptive_pipe", "dualpipe", "dualpipev")
    workspace = widest * (1.25 if hands_over or any(applied.get("full", ())) else 0.25)
    ends = [a for _, a, _ in stage.pieces if a.loss_done]
    if ends:
        workspace = max(workspace - ends[0].loss_done, ends[0].loss_beside)
    if "fsdp" in run.on:
        # The unit at work and the next one are whole, and a gradient until it is reduced.
        unit = max(n * (a.dense_params + a.expert_params) for s in stages for a, n in s.all())
        # Or it stays whole; FSDP2 has the gradient once more, as it comes and as it is reduced.
        stays = d.keep_gathered or through_step(stage.all()[0][0])
        whole = 0 if stays else 2 + 2
        workspace += (whole + (2 if "torch_fsdp2" in run.on else 0) + run.gradient_bytes) * unit
    static = sum(kinds.values())
    allocator = static + activations + workspace
    step.allocator.append(allocator)
    step.first_step.append(max(static, static - moments + activations + workspace))
    buffers = _buffers(run, d, machine)
    step.memory.append(
        kinds
        | {
            "activations": activations,
            "workspace": workspace + machine.fragmentation * allocator,
            "communication_buffers": buffers,
            "runtime": machine.runtime_bytes,
        }
    )


def _buffers(run: Run, d: Degrees, machine: Numbers) -> float:
    """A send and a receive buffer for each group of more than one rank that a rank is in, the world's always."""
    tokens = d.micro_batch_size * run.sequences * run.seq / d.cp
    whole = 2 * tokens * run.hidden_size
    mine = whole / (d.tp if d.sequence_parallel else 1)
    around = whole / d.tp if d.ulysses > 1 else 0
    if d.cp > d.ulysses:
        keys = (run.num_key_value_heads or run.num_attention_heads) * run.qk if run.kv_lora_rank else 0
        keys = keys or run.num_key_value_heads * run.head_dim
        around += 2 * 2 * tokens * keys / d.tp
    most = run.capacity_factor or (uneven(run, d, run.peak_imbalance) if run.num_experts_per_tok else 1.0)
    rows = mine * (run.chosen if run.num_experts_per_tok else 0) * most
    groups: list[tuple[int, float | None]] = [
        *[
            (2, None),
            (d.dp, None),
            (d.dp * d.cp, None),
            (d.tp, whole),
            *[(d.pp, mine * streams_of(run) * run.sequences)] * 3,
        ],
        *[(d.cp, around), (d.tp * d.pp, 10 * 2**20), (d.ep, rows), (d.ep, None), (d.etp, whole)],
        *[(d.dp_replicate, None), (d.dp_replicate if d.ep > 1 else 1, None)],
    ]
    default = [machine.communicator_bytes for size, _ in groups if size > 1]
    if "adaptive_comm_buffers" not in run.on:
        return sum(default)
    sized = [
        machine.communicator_bytes if message is None else 2 * math.ceil(message / 2**20) * 2**20
        for size, message in groups
        if size > 1
    ]
    return min(sum(default), sum(sized))
