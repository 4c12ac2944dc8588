"""One rank of a step of torchtitan 0.3, whose own trainer runs it on the CPU: `python titan_rank.py REQUEST.json`.

The process group is torchtitan's fake one. Stand-ins, each a few lines: attention without FlexAttention's kernel,
routing that gives every expert as many tokens, counts of tokens that no rank sends, data, and a log that is not
written. Nothing of this project is imported: only torchtitan's environment has torch.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch.distributed import ProcessGroup
from torch.distributed.distributed_c10d import _resolve_process_group as resolved
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode

GROUPS = {"fsdp": "dp", "efsdp": "edp", "dp_replicate": "copies", "tp": "tp", "ep": "ep", "cp": "cp"}
KINDS = {
    **{"_allgather_base_": "all_gather", "all_gather_into_tensor": "all_gather"},
    **{"_reduce_scatter_base_": "reduce_scatter", "reduce_scatter_tensor": "reduce_scatter"},
    **{"allreduce_": "all_reduce", "all_reduce": "all_reduce", "all_to_all_single": "all_to_all"},
}


def main(request_file: Path) -> None:
    """Runs the request and writes the answer where it says."""
    torch.set_num_threads(1)
    request = json.loads(request_file.read_text())
    world, rank = str(request["world"]), str(request["rank"])
    os.environ |= {"NGPU": world, "WORLD_SIZE": world, "RANK": rank, "LOCAL_RANK": "0"}
    tools = importlib.import_module("torchtitan.tools.utils")
    tools.device_type, tools.device_module = "cpu", torch.cpu  # before any module takes them
    stand_in()
    trainer = importlib.import_module("torchtitan.trainer").Trainer(configuration(request))
    trainer.step = 1
    with Collectives(trainer.parallel_dims) as collectives:
        trainer.train_step(trainer.batch_generator(trainer.dataloader))
    named = [(name, p) for part in trainer.model_parts for name, p in part.named_parameters()]
    states = [value for one in trainer.optimizers for state in one.state.values() for value in state.values()]
    experts = [p for name, p in named if ".experts." in name or ".inner_experts." in name]
    answer = {
        "torch": torch.__version__,
        "parameters": sum(p.numel() for _, p in named),
        "expert_parameters": sum(p.numel() for p in experts),
        "weight_bytes": sum(here(p) for _, p in named),
        "optimizer_bytes": sum(here(value) for value in states if value.numel() > 1),
        "messages": [[*key, calls] for key, calls in sorted(collectives.seen.items())],
    }
    Path(request["out"]).write_text(json.dumps(answer))
    sys.stdout.flush()
    os._exit(0)


def ranks_of(group: Any) -> tuple[int, ...]:
    """The ranks of a process group."""
    return tuple(torch.distributed.get_process_group_ranks(group))


def here(tensor: Any) -> int:
    """Bytes of a tensor on this rank."""
    local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
    return int(local.numel() * local.element_size())


def stand_in() -> None:
    """Puts stand-ins in the place of what the CPU or a fake group lacks."""

    def attend(self: Any, q_BLNH: Any, k_BLNH: Any, v_BLNH: Any, **_: Any) -> Any:  # torchtitan reads them
        heads = (one.transpose(1, 2) for one in (q_BLNH, k_BLNH, v_BLNH))
        return torch.nn.functional.scaled_dot_product_attention(*heads, is_causal=True, enable_gqa=True).transpose(1, 2)

    def even(self: Any, scores: Any) -> Any:
        batch, length, _ = (scores.to_local() if isinstance(scores, DTensor) else scores).shape
        chosen = torch.arange(batch * length * self.top_k).reshape(batch, length, self.top_k) % self.num_experts
        if isinstance(scores, DTensor):
            chosen = DTensor.from_local(chosen, scores.device_mesh, scores.placements)
        return chosen, scores.gather(dim=-1, index=chosen)

    models = "torchtitan.models.common"
    importlib.import_module(f"{models}.attention").FlexAttention.forward = attend
    dispatcher = importlib.import_module(f"{models}.token_dispatcher").AllToAllTokenDispatcher
    dispatcher._token_count_exchange = lambda self, counts, group, ranks: counts.view(ranks, -1)
    for found in vars(importlib.import_module(f"{models}.moe")).values():
        if isinstance(found, type) and hasattr(found, "_debug_force_load_balance_routing"):
            found._debug_force_load_balance_routing = even


def configuration(request: dict[str, Any]) -> Any:
    """torchtitan's own configuration of the request."""
    titan = importlib.import_module
    config, training = titan("torchtitan.config"), request["training"]
    made = titan("torchtitan.trainer").Trainer.Config(
        model_spec=network(request["model"], training["seq_len"]),
        loss=titan("torchtitan.components.loss").CrossEntropyLoss.Config(
            global_vocab_size=request["model"]["vocab_size"]
        ),
        optimizer=titan("torchtitan.components.optimizer").default_adamw(lr=1e-3),
        training=config.TrainingConfig(**training, steps=1, disable_cuda_graphs=True),
        # The back end that needs no annotation of each module's tensors.
        parallelism=config.ParallelismConfig(**request["parallelism"], spmd_backend="partial_dtensor"),
        activation_checkpoint=(
            titan("torchtitan.distributed.activation_checkpoint").FullAC.Config() if request["full"] else None
        ),
        comm=config.CommConfig(mode="fake_backend"),
        debug=config.DebugConfig(moe_force_load_balance=True),
    )
    memory = SimpleNamespace(max_reserved_gib=0.0, max_reserved_pct=0.0)
    monitor = SimpleNamespace(device_name="NVIDIA H100", get_peak_stats=lambda: memory)
    silent = SimpleNamespace(
        color=SimpleNamespace(blue="", red="", reset=""),
        device_memory_monitor=monitor,
        should_log=lambda step: False,
        ntokens_since_last_log=0,
        data_loading_times=[],
    )
    kept = SimpleNamespace(maybe_wait_for_staging=lambda: None)
    made.metrics = part(silent)
    made.tokenizer = part(None)
    made.dataloader = part(batches(request))
    made.checkpoint = part(kept, enable=False, create_seed_checkpoint=False)
    return made


def part(value: Any, **fields: Any) -> Any:
    """A configuration that builds this value."""
    return SimpleNamespace(build=lambda **_: value, to_dict=dict, **fields)


def batches(request: dict[str, Any]) -> Any:
    """Made-up tokens without end."""
    shape = (request["training"]["local_batch_size"], request["training"]["seq_len"])
    while True:
        tokens = torch.randint(0, request["model"]["vocab_size"], shape)
        yield {"input": tokens, "positions": torch.arange(shape[1]).repeat(shape[0], 1)}, tokens


def network(model: dict[str, Any], length: int) -> Any:
    """A network of torchtitan's Qwen3 classes with these sizes."""
    qwen = importlib.import_module("torchtitan.models.qwen3")
    sizes = {name: model[name] for name in ("n_layers", "dim", "n_heads", "n_kv_heads", "head_dim")}
    rope = qwen.CosSinRoPE.Config(dim=model["head_dim"], max_seq_len=length, theta=1e6)
    sizes |= {"attn_backend": "flex", "rope": rope}
    if "num_experts" in model:
        experts = {name: model[name] for name in ("moe_hidden_dim", "num_experts", "top_k")}
        layers = qwen._build_qwen3_moe_layers(**sizes, **experts, moe_comm_backend="standard")
    else:
        layers = qwen._build_qwen3_layers(**sizes, hidden_dim=model["hidden_dim"])
    width, vocabulary = model["dim"], model["vocab_size"]
    made = qwen.Qwen3Model.Config(
        vocab_size=vocabulary,
        dim=width,
        norm=qwen._qwen3_norm(width),
        enable_weight_tying=False,
        tok_embeddings=qwen.Embedding.Config(
            num_embeddings=vocabulary, embedding_dim=width, param_init=qwen._EMBEDDING_INIT
        ),
        lm_head=qwen.Linear.Config(in_features=width, out_features=vocabulary, param_init=qwen._LINEAR_INIT),
        layers=layers,
    )
    return importlib.import_module("torchtitan.protocols.model_spec").ModelSpec(
        name="qwen3",
        flavor="of the request",
        model=made,
        parallelize_fn=qwen.parallelize_qwen3,
        pipelining_fn=None,
        post_optimizer_build_fn=None,
        state_dict_adapter=None,
    )


class Collectives(TorchDispatchMode):
    """Counts of collectives: group, kind and bytes, of a gather those that come out, of all others those that go in."""

    def __init__(self, dims: Any):
        super().__init__()
        self.seen: Counter[tuple[str, str, int]] = Counter()
        meshes = dims.get_all_one_dimensional_meshes()
        # Experts have groups of their own that hold the same ranks.
        self.names = {ranks_of(mesh.get_group()): GROUPS[name] for name, mesh in meshes.items() if name in GROUPS}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        space, _, name = func.name().partition("::")
        kind = KINDS.get(name.split(".")[0])
        if kind and "c10d" in space:
            self.note(kind, args)
        return func(*args, **(kwargs or {}))

    def note(self, kind: str, args: Any) -> None:
        """Notes a call; `c10d` gives (output, input, group), `_c10d_functional` (input, ..., name of the group)."""
        tensors = [one for arg in args for one in (arg if isinstance(arg, list) else [arg]) if torch.is_tensor(one)]
        group = next((ProcessGroup.unbox(arg) for arg in args if isinstance(arg, torch.ScriptObject)), None)
        ranks = ranks_of(resolved(args[-1]) if group is None else group)
        size = here(tensors[-1])
        if kind == "all_gather":
            size = here(tensors[0]) * (args[1] if group is None else 1)
        self.seen[self.names.get(ranks, "other"), kind, size] += 1


if __name__ == "__main__":
    main(Path(sys.argv[1]))
