"""A small real training run in plain torch: GPT on random tokens, FP32, gloo data parallelism.

Runs without this project, launched by torchrun, one process a rank: `small_training.py RUN_JSON OUT.json`. Writes the
seconds of every step and the process's memory. AdamW is one operator, gradients live in the buckets of DDP.
"""

import importlib
import json
import os
import sys
import time
from pathlib import Path

torch = importlib.import_module("torch")
nn, functional = torch.nn, torch.nn.functional


def resident_bytes(name="VmRSS"):
    """Resident memory of this process, now or (VmHWM) at its peak."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1]) * 1024
    return 0


class Block(nn.Module):
    """Attention and MLP with residuals, norms before both."""

    def __init__(self, width, heads, inner):
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(nn.LayerNorm(width, bias=False) for _ in range(2))
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.up = nn.Linear(width, inner, bias=False)
        self.down = nn.Linear(inner, width, bias=False)

    def forward(self, x):
        batch, length, width = x.shape
        heads = (batch, length, self.heads, width // self.heads)
        query, key, value = (part.view(heads).transpose(1, 2) for part in self.qkv(self.norms[0](x)).chunk(3, dim=-1))
        attended = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(functional.gelu(self.up(self.norms[1](x))))


class Gpt(nn.Module):
    """A decoder with learned positions and an output head of its own."""

    def __init__(self, model):
        super().__init__()
        width, inner = model["hidden_size"], model["intermediate_size"]
        self.tokens = nn.Embedding(model["vocab_size"], width)
        self.positions = nn.Embedding(model["learned_position_embeddings"], width)
        blocks = (Block(width, model["num_attention_heads"], inner) for _ in range(model["num_hidden_layers"]))
        self.blocks = nn.Sequential(*blocks)
        self.norm = nn.LayerNorm(width, bias=False)
        self.head = nn.Linear(width, model["vocab_size"], bias=False)

    def forward(self, ids, labels):
        x = self.tokens(ids) + self.positions.weight[: ids.shape[1]]
        x = self.norm(self.blocks(x))
        return functional.cross_entropy(self.head(x).flatten(0, 1), labels.flatten())


def main(run, output):
    """Trains `run["steps"]` steps after two to warm up."""
    after_import = resident_bytes()
    world, rank = int(os.environ["WORLD_SIZE"]), int(os.environ["RANK"])
    torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // world))
    torch.distributed.init_process_group("gloo")
    torch.manual_seed(0)
    network = Gpt(run["model"])
    model = nn.parallel.DistributedDataParallel(network, gradient_as_bucket_view=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    shape = (run["micro_batch_size"], run["seq_length"])
    seconds = []
    for _ in range(run["steps"] + 2):
        ids = torch.randint(run["model"]["vocab_size"], shape)
        torch.distributed.barrier()
        begun = time.perf_counter()
        loss = model(ids, ids.roll(-1, 1))
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        seconds.append(time.perf_counter() - begun)
    mine = {
        "seconds": seconds[2:],
        "after_import": after_import,
        "peak": resident_bytes("VmHWM"),
        "now": resident_bytes(),
    }
    mine["parameters"] = sum(p.numel() for p in network.parameters())
    everyone = [None] * world
    torch.distributed.all_gather_object(everyone, mine)
    if rank == 0:
        Path(output).write_text(json.dumps({"torch": torch.__version__, "ranks": everyone}) + "\n", encoding="utf-8")
    torch.distributed.barrier()  # gloo aborts a rank whose peer leaves while it still answers
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]), sys.argv[2])
