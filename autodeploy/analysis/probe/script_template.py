"""Measures what AutoDeploy's cost model reads, on this machine: `python probe.py` or `torchrun ... probe.py`.

Self-contained: the standard library and torch, plus torch_npu where the chip is Ascend. Writes one JSON file, by
default autodeploy_probe.json, that `autodeploy calibrate` reads. Nothing leaves the machine.

Every rank measures the same list at the same time, so that what ranks share (memory, cores, links) is shared as in
training. Operands are rotated through more memory than caches hold, and results are allocated anew, as training does.

Sources of the names used: torch.nn.functional.grouped_mm and scaled_dot_product_attention, docs.pytorch.org;
torch_npu.npu_grouped_matmul, npu_fusion_attention and npu_moe_token_permute, Ascend Extension for PyTorch, API list,
with the arguments that MindSpeed gives them (core/transformer/moe/grouped_matmul_util.py, dot_product_attention.py).
"""

import argparse
import contextlib
import importlib
import itertools
import json
import math
import os
import platform
import socket
import statistics
import sys
import time
from pathlib import Path

SCHEMA = "autodeploy-probe/1"

# What to measure, as `autodeploy probe` puts it here.
REQUEST_JSON = r"""{"dtype": "float32", "measurements": []}"""

SAMPLE_S = 0.004  # a sample repeats what is shorter
LEAST, MOST = 5, 41  # samples of a measurement
ROTATED_BYTES = {"cpu": 192 << 20, "cuda": 512 << 20, "npu": 512 << 20}
CAUSAL_MASK = 2048  # side of the compressed causal mask of npu_fusion_attention, sparse_mode 2


def note(text):
    """A word to the person who waits."""
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def resident_bytes():
    """Resident memory of this process; 0 where the system does not say."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except (OSError, ValueError, IndexError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


class Machine:
    """The device of this rank and the ranks beside it."""

    def __init__(self, device=""):
        self.torch = importlib.import_module("torch")
        self.npu = None
        with contextlib.suppress(ImportError):
            self.npu = importlib.import_module("torch_npu")
        self.after_import = resident_bytes()
        self.rank = int(os.environ.get("RANK", "0"))
        self.world = int(os.environ.get("WORLD_SIZE", "1"))
        self.local_rank = int(os.environ.get("LOCAL_RANK", "0"))
        self.local_world = int(os.environ.get("LOCAL_WORLD_SIZE", str(self.world)))
        self.kind = device or self._present()
        self.asynchronous = self.kind != "cpu"
        self.device = f"{self.kind}:{self.local_rank}" if self.asynchronous else "cpu"
        self.control = None
        self.groups = {}
        if self.asynchronous:
            self.api.set_device(self.local_rank)
        else:
            cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
            self.torch.set_num_threads(max(1, cores // self.local_world))

    def _present(self):
        if self.npu is not None and self.torch.npu.is_available():
            return "npu"
        return "cuda" if self.torch.cuda.is_available() else "cpu"

    @property
    def api(self):
        """torch.cuda or torch.npu."""
        return getattr(self.torch, self.kind)

    @property
    def dist(self):
        """torch.distributed."""
        return self.torch.distributed

    def join(self):
        """Joins the other ranks, with a second group over host memory that agrees on what comes next."""
        if "RANK" not in os.environ:
            return
        backend = {"npu": "hccl", "cuda": "nccl", "cpu": "gloo"}[self.kind]
        self.dist.init_process_group(backend)
        self.control = self.dist.group.WORLD if backend == "gloo" else self.dist.new_group(backend="gloo")

    def agree(self, value):
        """Rank 0's value, on every rank."""
        if self.world == 1:
            return value
        box = [value]
        self.dist.broadcast_object_list(box, src=0, group=self.control)
        return box[0]

    def gather(self, value):
        """The values of all ranks, on every rank."""
        if self.world == 1:
            return [value]
        gathered = [None] * self.world
        self.dist.all_gather_object(gathered, value, group=self.control)
        return gathered

    def wait(self):
        """Until the device has done all that it was given."""
        if self.asynchronous:
            self.api.synchronize()

    def group(self, size, stride):
        """This rank's group of `size` ranks `stride` apart, (None, reason) where there are too few ranks."""
        if size * stride > self.world or self.world % (size * stride):
            return None, f"needs a multiple of {size * stride} ranks, there are {self.world}"
        if (size, stride) not in self.groups:
            group = None
            for block, first in itertools.product(range(0, self.world, size * stride), range(stride)):
                ranks = [block + first + stride * i for i in range(size)]
                made = self.dist.new_group(ranks)
                if self.rank in ranks:
                    group = made, ranks
            self.groups[size, stride] = group
        return self.groups[size, stride], ""

    def runtime_bytes(self):
        """Memory that torch and its runtime take beside tensors, after work has begun."""
        if not self.asynchronous:
            return max(0, resident_bytes() - self.after_import)
        free, total = self.api.mem_get_info()
        return max(0, total - free - self.api.memory_reserved())

    def facts(self):
        """Facts of this machine."""
        name, memory, driver = platform.processor() or platform.machine(), 0, ""
        if self.asynchronous:
            properties = self.api.get_device_properties(self.local_rank)
            name, memory = self.api.get_device_name(self.local_rank), properties.total_memory
            driver = str(self.torch.version.cuda if self.kind == "cuda" else getattr(self.torch.version, "cann", ""))
        else:
            with contextlib.suppress(OSError):
                lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
                name = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), name)
            with contextlib.suppress(ValueError, OSError):
                memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        return {
            "kind": self.kind,
            "name": name,
            "memory_bytes": memory,
            "driver": driver,
            "threads": self.torch.get_num_threads(),
            "cores": os.cpu_count() or 1,
            "asynchronous": self.asynchronous,
        }


class Operands:
    """Tensors of a measurement, enough copies of each that caches hold no operand of the next run."""

    def __init__(self, machine, dtype, *shapes):
        torch = machine.torch
        size = 2 if dtype != "float32" else 4
        one = max(1, sum(size * math.prod(shape) for shape in shapes))
        copies = max(2, min(64, math.ceil(ROTATED_BYTES[machine.kind] / one)))
        kind = getattr(torch, dtype)
        first = [torch.randn(*shape, device=machine.device, dtype=torch.float32).to(kind) for shape in shapes]
        self.sets = [tuple(first), *(tuple(each.clone() for each in first) for _ in range(copies - 1))]
        self.turn = 0

    def next(self):
        """The next copy."""
        self.turn = (self.turn + 1) % len(self.sets)
        return self.sets[self.turn]


def gemm(machine, dtype, shape, part):
    """C[m, n] = A[m, k] W[n, k]^T, its input's gradient or its weight's, as torch.nn.Linear multiplies them."""
    torch = machine.torch
    m, n, k, g = (int(shape[name]) for name in ("m", "n", "k", "groups"))
    lead = (g,) if g > 1 else ()
    operands = Operands(machine, dtype, (*lead, m, k), (*lead, n, k), (*lead, m, n))
    if part == "forward":
        return lambda: _forward(torch, *operands.next()[:2]), "torch.matmul"
    if part == "input_gradient":
        return lambda: torch.matmul(*operands.next()[2:0:-1]), "torch.matmul"

    def weight_gradient():
        x, _, dy = operands.next()
        return torch.matmul(dy.transpose(-1, -2), x)

    return _accumulated(machine, dtype, weight_gradient, (*lead, n, k), "torch.matmul")


def _forward(torch, x, w):
    return torch.matmul(x, w.transpose(-1, -2))


def _accumulated(machine, dtype, product, shape, kernel):
    """The product added into an FP32 gradient where the run has 16 bits; the product itself in FP32."""
    if dtype == "float32":
        return product, kernel
    gradient = machine.torch.zeros(*shape, device=machine.device, dtype=machine.torch.float32)
    return lambda: gradient.add_(product()), f"{kernel}, added into FP32 by an operator of its own"


def grouped_gemm(machine, dtype, shape, part):
    """`groups` products of m rows each in one operator, where the device has one."""
    torch = machine.torch
    g, n, k = (int(shape[name]) for name in ("groups", "n", "k"))
    m = max(1, round(shape["m"]))
    rows = g * m
    operands = Operands(machine, dtype, (rows, k), (g, k, n), (rows, n))
    ends = torch.arange(m, rows + 1, m, device=machine.device)
    multiply, kernel = _grouped_kernel(machine, ends, m)
    if part == "forward":
        return lambda: multiply(*operands.next()[:2], False), kernel
    if part == "input_gradient":

        def input_gradient():
            _, w, dy = operands.next()
            return multiply(dy, w.transpose(1, 2), False)

        return input_gradient, kernel

    def weight_gradient():
        x, _, dy = operands.next()
        return multiply(x.t(), dy, True)

    return _accumulated(machine, dtype, weight_gradient, (g, k, n), kernel)


def _grouped_kernel(machine, ends, m):
    """multiply(a, b, by_depth) over groups that end at `ends`, and its name."""
    torch = machine.torch
    if machine.kind == "npu":
        ends = ends.to(torch.int64)

        def on_npu(a, b, by_depth):
            return machine.npu.npu_grouped_matmul(
                [a],
                [b],
                bias=None,
                group_list=ends,
                split_item=3,
                group_type=2 if by_depth else 0,
                group_list_type=0,
            )[0]

        return on_npu, "torch_npu.npu_grouped_matmul"
    if machine.kind == "cuda":
        public = getattr(torch.nn.functional, "grouped_mm", None)
        one = public or getattr(torch, "_grouped_mm", None)
        if one is not None:
            ends = ends.to(torch.int32)
            return lambda a, b, _: one(a, b, offs=ends), "grouped_mm"

    def loop(a, b, by_depth):
        if by_depth:
            return torch.stack([x @ y for x, y in zip(a.split(m, 1), b.split(m, 0), strict=True)])
        return torch.cat([x @ y for x, y in zip(a.split(m, 0), b, strict=True)])

    return loop, "loop"


def attention(machine, dtype, shape, part):
    """Flash attention of `batch` sequences under a causal mask; backward by autograd."""
    torch = machine.torch
    b, a, kv, s, d, v = (int(shape[name]) for name in ("batch", "heads", "kv_heads", "seq", "qk_dim", "v_dim"))
    sets = Operands(machine, dtype, (b, a, s, d), (b, kv, s, d), (b, kv, s, v), (b, a, s, v))
    backward = part == "backward"
    for tensors in sets.sets if backward else ():
        for tensor in tensors[:3]:
            tensor.requires_grad_(True)
    if machine.kind == "npu":
        mask = torch.ones(CAUSAL_MASK, CAUSAL_MASK, device=machine.device, dtype=torch.bool).triu(1)

        def forward(q, key, value):
            return machine.npu.npu_fusion_attention(
                q,
                key,
                value,
                a,
                "BNSD",
                atten_mask=mask,
                scale=d**-0.5,
                pre_tockens=s,
                next_tockens=0,
                keep_prob=1.0,
                sparse_mode=2,
            )[0]

        kernel = "torch_npu.npu_fusion_attention"
    else:
        grouped = {"enable_gqa": True} if kv != a else {}

        def forward(q, key, value):
            return torch.nn.functional.scaled_dot_product_attention(q, key, value, is_causal=True, **grouped)

        kernel = "scaled_dot_product_attention"
    if not backward:
        return lambda: forward(*sets.next()[:3]), kernel
    outs = [(forward(*tensors[:3]), tensors) for tensors in sets.sets]
    turns = itertools.cycle(outs)

    def gradients():
        out, tensors = next(turns)
        return torch.autograd.grad(out, tensors[:3], tensors[3], retain_graph=True)

    return gradients, kernel


def vector(machine, dtype, shape, part):
    """An operator of the layer that streams memory: a copy, a norm, an activation, the loss, the optimizer's update."""
    torch = machine.torch
    rows, columns, what = int(shape["rows"]), int(shape["columns"]), shape["operator"]
    if what == "adam":
        return _adam(machine, dtype, rows * columns)
    backward = part == "backward"
    number = torch.nn.functional
    width = 2 * columns if what == "swiglu" else columns
    operands = Operands(machine, "float32" if what == "cross_entropy" else dtype, (rows, width), (rows, columns))
    scale = torch.ones(columns, device=machine.device, dtype=getattr(torch, dtype)).requires_grad_(backward)
    labels = torch.zeros(rows, device=machine.device, dtype=torch.int64)

    def normed(norm):
        """A residual addition and the norm of its sum: both go on."""

        def run(x, other):
            total = x + other
            return norm(total), total

        return run

    apply = {
        "copy": lambda x, _: (x * 2.0,),
        "gelu": lambda x, _: (number.gelu(x),),
        "swiglu": lambda x, _: (number.silu(x[:, :columns]) * x[:, columns:],),
        "layer_norm": normed(lambda x: number.layer_norm(x, (columns,), scale)),
        "rms_norm": normed(lambda x: _rms_norm(torch, machine, x, scale)),
        "cross_entropy": lambda x, _: (number.cross_entropy(x, labels),),
    }[what]
    if not backward:
        return lambda: apply(*operands.next()), what
    outs = []
    for x, other in operands.sets:
        found = apply(x.requires_grad_(True), other)
        outs.append((found, x, tuple(other if out.dim() else torch.ones_like(out) for out in found)))
    turns = itertools.cycle(outs)

    def gradients():
        found, x, coming = next(turns)
        return torch.autograd.grad(found, x, coming, retain_graph=True)

    return gradients, what


def _rms_norm(torch, machine, x, scale):
    if machine.kind == "npu":
        return machine.npu.npu_rms_norm(x, scale)[0]
    return torch.nn.functional.rms_norm(x, (x.shape[-1],), scale)


def _adam(machine, dtype, count):
    """The update of torch.optim.AdamW, in one operator where the device has it, on FP32 states."""
    torch = machine.torch
    weight = torch.nn.Parameter(torch.zeros(count, device=machine.device, dtype=torch.float32))
    weight.grad = torch.ones(count, device=machine.device, dtype=torch.float32)
    try:
        optimizer = torch.optim.AdamW([weight], lr=1e-4, fused=True)
        optimizer.step()
    except (RuntimeError, TypeError):
        optimizer = torch.optim.AdamW([weight], lr=1e-4)
    return optimizer.step, "torch.optim.AdamW"


def movement(machine, dtype, shape, part):
    """Rows of tokens into the order of their experts, `copies` times each, or back and summed."""
    torch = machine.torch
    tokens, copies, hidden = (int(shape[name]) for name in ("tokens", "copies", "hidden"))
    rows = tokens * copies
    operands = Operands(machine, dtype, (tokens, hidden), (rows, hidden))
    order = torch.randperm(rows, device=machine.device)
    if part == "forward":
        if machine.kind == "npu" and hasattr(machine.npu, "npu_moe_token_permute"):
            chosen = (order % 64).reshape(tokens, copies).to(torch.int32)
            kernel = "torch_npu.npu_moe_token_permute"
            return lambda: machine.npu.npu_moe_token_permute(operands.next()[0], chosen), kernel
        source = order // copies
        return lambda: operands.next()[0].index_select(0, source), "index_select"
    return lambda: operands.next()[1].index_select(0, order).view(tokens, copies, hidden).sum(1), "index_select, sum"


def launch(machine, dtype, shape, part):
    """One operator on a tensor that costs nothing: what the host needs to issue it."""
    small = machine.torch.zeros(8, device=machine.device)
    return lambda: small.add_(1.0), "add_"


def synchronisation(machine, dtype, shape, part):
    """One operator and its result read by the host, with nothing else queued."""
    small = machine.torch.zeros(1, device=machine.device)
    return lambda: small.add_(1.0).item(), "item"


def host_link(machine, dtype, shape, part):
    """A copy between pinned host memory and the device."""
    if not machine.asynchronous:
        raise RuntimeError("the device is the host")
    torch, count = machine.torch, int(shape["bytes"])
    host = torch.zeros(count, dtype=torch.uint8).pin_memory()
    on_device = torch.zeros(count, device=machine.device, dtype=torch.uint8)
    if part == "to_device":
        return lambda: on_device.copy_(host, non_blocking=True), "copy_"
    return lambda: host.copy_(on_device, non_blocking=True), "copy_"


def collective(machine, dtype, shape, part):
    """One collective over groups of the given size and stride; `bytes` as the cost model counts its message."""
    if machine.world == 1:
        raise RuntimeError("there is one rank")
    found, reason = machine.group(int(shape["ranks"]), int(shape["stride"]))
    if found is None:
        raise RuntimeError(reason)
    group, ranks = found
    dist, torch, size = machine.dist, machine.torch, len(ranks)
    count = max(size, int(shape["bytes"]) // 4 // size * size)
    whole = torch.zeros(count, device=machine.device)
    cut = torch.zeros(count // size, device=machine.device)
    if part == "all_reduce":
        return lambda: dist.all_reduce(whole, group=group), part
    if part == "all_gather":
        return lambda: dist.all_gather_into_tensor(whole, cut, group=group), part
    if part == "reduce_scatter":
        return lambda: dist.reduce_scatter_tensor(cut, whole, group=group), part
    if part == "all_to_all":
        other = torch.zeros(count, device=machine.device)
        return lambda: dist.all_to_all_single(other, whole, group=group), part
    place = ranks.index(machine.rank)
    if place > 1:
        return lambda: None, part
    peer = ranks[1 - place]
    if place == 0:
        return lambda: dist.send(whole, peer, group=group), part
    return lambda: dist.recv(whole, peer, group=group), part


MEASURES = {
    each.__name__: each
    for each in (gemm, grouped_gemm, attention, vector, movement, launch, synchronisation, host_link, collective)
}


def sampled(machine, run, share_s):
    """Seconds of one run: (samples, host's share of them), the same number on every rank."""
    for _ in range(2):
        run()
    machine.wait()
    begun = time.perf_counter()
    run()
    machine.wait()
    once = max(time.perf_counter() - begun, 1e-7)
    if machine.world > 1:
        once = machine.agree(once)
    inner = max(1, min(2000, math.ceil(SAMPLE_S / once)))
    count = max(LEAST, min(MOST, int(share_s / (inner * once))))
    samples, issued = [], []
    for _ in range(count):
        machine.wait()
        begun = time.perf_counter()
        for _ in range(inner):
            run()
        issued.append((time.perf_counter() - begun) / inner)
        machine.wait()
        samples.append((time.perf_counter() - begun) / inner)
    return samples, statistics.median(issued) / max(statistics.median(samples), 1e-12)


def measured(machine, dtype, wanted, share_s):
    """The entry of one measurement, or (None, why it was left out)."""
    kind, part, shape = wanted["kind"], wanted.get("pass", ""), wanted.get("shape", {})
    failure, samples, host_share, kernel = "", [], 0.0, ""
    try:
        run, kernel = MEASURES[kind](machine, wanted.get("dtype", dtype), shape, part)
    except Exception as error:  # the others are still worth having
        failure = f"{type(error).__name__}: {error}"[:300]
    failures = [each for each in machine.gather(failure) if each]
    if failures:
        return None, failures[0]
    try:
        samples, host_share = sampled(machine, run, share_s)
    except Exception as error:
        if machine.world > 1:
            raise  # the other ranks wait in a collective
        return None, f"{type(error).__name__}: {error}"[:300]
    medians = machine.gather(statistics.median(samples))
    quarters = statistics.quantiles(samples, n=4)
    middle = statistics.median(medians)
    entry = dict(wanted)
    if kind == "launch":
        middle *= host_share  # what the host spends, not what the device does
    entry.update(
        unit="s",
        repetitions=len(samples),
        median=float(f"{middle:.5g}"),
        spread=float(f"{(quarters[2] - quarters[0]) / max(statistics.median(samples), 1e-12):.3g}"),
        slowest_rank=float(f"{max(medians):.5g}"),
        kernel=kernel,
    )
    if machine.asynchronous and kind not in {"launch", "synchronisation"} and host_share > 0.9:
        entry["host_bound"] = True
    return entry, ""


def warm_up(machine):
    """One tiny step of training, after which torch has loaded all that a step needs."""
    torch = machine.torch
    model = torch.nn.Linear(64, 64).to(machine.device)
    trained = torch.nn.parallel.DistributedDataParallel(model) if "RANK" in os.environ else model
    optimizer = torch.optim.AdamW(trained.parameters(), lr=1e-4)
    trained(torch.ones(64, 64, device=machine.device)).sum().backward()
    torch.nn.utils.clip_grad_norm_(trained.parameters(), 1.0)
    optimizer.step()
    machine.wait()


def probe(machine, request, budget_s):
    """The document of all measurements."""
    begun = time.monotonic()
    machine.join()
    wanted = request["measurements"]
    done, skipped = [], []
    warm_up(machine)
    runtime = machine.runtime_bytes()
    for number, each in enumerate(wanted):
        left = machine.agree(budget_s - (time.monotonic() - begun))  # ranks sample alike
        if left <= 0.0:
            skipped.append({**each, "reason": "out of time"})
            continue
        entry, reason = measured(machine, request["dtype"], each, min(1.5, 0.6 * left / (len(wanted) - number)))
        if entry is None:
            skipped.append({**each, "reason": reason})
        else:
            done.append(entry)
        if machine.asynchronous:
            machine.api.empty_cache()
        if machine.rank == 0 and number % 10 == 9:
            note(f"  {number + 1} of {len(wanted)}, {time.monotonic() - begun:.0f} s")
    torch = machine.torch
    return {
        "schema": SCHEMA,
        "request": {name: request[name] for name in request if name != "measurements"},
        "device": {**machine.facts(), "runtime_bytes": runtime},
        "versions": {
            "python": platform.python_version(),
            "torch": str(torch.__version__),
            "torch_npu": str(getattr(machine.npu, "__version__", "")),
        },
        "ranks": machine.world,
        "ranks_per_node": machine.local_world,
        "host": socket.gethostname() if request.get("names_host") else "",
        "seconds": round(time.monotonic() - begun, 1),
        "measurements": done,
        "skipped": skipped,
    }


def main(arguments=None):
    """Runs the request and writes the file on rank 0."""
    parser = argparse.ArgumentParser(description="Measures this machine for `autodeploy calibrate`.")
    parser.add_argument("-o", "--output", default="autodeploy_probe.json", help="JSON file to write")
    parser.add_argument("--seconds", type=float, default=540.0, help="time for all measurements (default 540)")
    parser.add_argument("--device", choices=("npu", "cuda", "cpu"), default="", help="default: what is there")
    chosen = parser.parse_args(arguments)
    machine = Machine(chosen.device)
    document = probe(machine, json.loads(REQUEST_JSON), chosen.seconds)
    if machine.rank == 0:
        Path(chosen.output).write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
        note(f"{chosen.output}: {len(document['measurements'])} measured, {len(document['skipped'])} left out")
    if "RANK" in os.environ:
        machine.dist.barrier(group=machine.control)
        machine.dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main())
