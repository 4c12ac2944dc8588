"""The strategy of a launch of torchtitan: degrees, what is recomputed and what is switched on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from autodeploy.importers.torchtitan_stages import read_stages
from autodeploy.messages import Message
from autodeploy.specs.torchtitan_models import CONVERTERS, ROTARY, SPARSE

if TYPE_CHECKING:
    from collections.abc import Mapping

    from autodeploy.importers.key_reader import KeyReader

# What FSDP2 always does, and what attention and loss are on this chip.
ALWAYS: Final = (
    *("fsdp", "torch_fsdp2", "overlap_grad_reduce", "overlap_param_gather", "flash_attention", "transformers_loss"),
)
BATCH: Final = 8  # local_batch_size, where the file has none
EVERY: Final = "2"  # selective_ac_option likewise
# Converters that are predicted as what they are, or change neither time nor memory of what is predicted.
KNOWN_CONVERTERS: Final = frozenset(
    {*(name for _, name in CONVERTERS), ROTARY, SPARSE, "npu_expert_parallel", "npu_fusion_attention"}
)


def read_strategy(reader: KeyReader, model: Mapping[str, Any]) -> tuple[dict[str, Any], int | None]:
    """The `strategy` of a spec, and the ranks of the launch where the file says them.

    Raises
    ------
    SpecError
        where stages can't hold the layers.
    UnsupportedError
        for schedules that are not modelled.
    """
    moe = "n_routed_experts" in model
    degree = _degrees(reader)
    stages = read_stages(reader, degree["pp"], int(model["num_hidden_layers"]))
    strategy: dict[str, Any] = {
        **(stages if degree["pp"] > 1 else {}),
        "tp": degree["tp"],
        "cp": degree["cp"],
        "micro_batch_size": _micro_batch(reader, degree["pp"]),
        "fsdp": True,
        "distributed_optimizer": True,
        "sequence_parallel": degree["tp"] > 1,
    }
    strategy |= {"dp_replicate": degree["replicate"]} if degree["replicate"] > 1 else {}
    if degree["cp"] > 1:
        strategy["cp_algo"] = _context(reader, sparse="sparse_attention" in model)
    strategy |= _experts(reader) if moe else {}
    if reader.switch("/strategy/swap_optimizer", "optimizer.swap_optimizer"):
        strategy["swap_optimizer"] = True
    features = {*ALWAYS, *_switches(reader, moe=moe)} | ({"hsdp"} if degree["replicate"] > 1 else set())
    dense = not moe and "kv_lora_rank" not in model
    strategy["recompute"] = _recompute(reader, int(model["num_hidden_layers"]), by_operator=dense)
    shards = degree["shard"]
    ranks = None if shards is None else shards * degree["replicate"] * degree["tp"] * degree["cp"] * degree["pp"]
    return strategy | {"features": sorted(features)}, ranks


def _micro_batch(reader: KeyReader, stages: int) -> int:
    """Sequences of a micro batch: what a rank takes at once, under a pipeline a part of it."""
    batch = reader.number("/strategy/micro_batch_size", "training.local_batch_size", least=1)
    if batch is None:
        reader.log.default("/strategy/micro_batch_size", BATCH, Message("importers.default_of", framework="torchtitan"))
    batch = batch or BATCH
    if stages == 1:
        return batch
    size = reader.number("/strategy/micro_batch_size", "parallelism.pipeline_parallel_microbatch_size", least=1) or 1
    if batch % size:
        reader.fail(
            "training.local_batch_size",
            Message("common.does_not_divide", part=f"pipeline_parallel_microbatch_size {size}", whole=batch),
        )
    return size


def _degrees(reader: KeyReader) -> dict[str, Any]:
    """Degrees by axis; `shard` None where it is what is left of the ranks."""
    degrees: dict[str, Any] = {}
    for axis, key, field in (
        ("tp", "tensor_parallel_degree", "/strategy/tp"),
        ("pp", "pipeline_parallel_degree", "/strategy/pp"),
        ("cp", "context_parallel_degree", "/strategy/cp"),
        ("replicate", "data_parallel_replicate_degree", "/strategy/dp_replicate"),
    ):
        degrees[axis] = reader.number(field, f"parallelism.{key}", least=1) or 1
    key = "parallelism.data_parallel_shard_degree"
    left = reader.raw(key) in (None, -1)
    degrees["shard"] = None if left else reader.number("/cluster/num_npus", key, least=1)
    return degrees


def _context(reader: KeyReader, *, sparse: bool) -> str:
    if reader.switch("/strategy/cp_algo", "parallelism.enable_custom_context_parallel"):
        if sparse:
            key = "parallelism.enable_custom_context_parallel"
            reader.log.unmodelled(
                "/" + key.replace(".", "/"),
                True,
                Message("importers.predicted_as", what="ulysses"),
            )
        return "ulysses"
    method = reader.raw("parallelism.context_parallel_rotate_method") or "allgather"
    reason = Message("importers.predicted_as", what="ring")
    reader.log.unmodelled("/parallelism/context_parallel_rotate_method", method, reason)
    return "ring"


def _experts(reader: KeyReader) -> dict[str, Any]:
    """Experts over ep ranks, whole or cut as the attention is, sharded over the others."""
    ep = reader.number("/strategy/ep", "parallelism.expert_parallel_degree", least=1) or 1
    etp = reader.number("/strategy/etp", "parallelism.expert_tensor_parallel_degree", least=1) or 1
    return {"ep": ep, "etp": etp, "moe_dispatcher": "alltoall"}


def _switches(reader: KeyReader, *, moe: bool) -> set[str]:
    """Features and facts of the run."""
    given = reader.take("/strategy/features", "model.converters") or []
    converters = {str(each) for each in given} if isinstance(given, list) else {str(given)}
    for name in sorted(converters - KNOWN_CONVERTERS):
        reader.log.unmodelled("/model/converters", name, Message("importers.not_predicted"))
    switches = {feature for feature, name in CONVERTERS if name in converters}
    switches -= set() if moe else {"grouped_gemm", "fused_operators"}
    switches |= {"fused_swiglu"} if "grouped_gemm" in switches else set()
    switches |= set() if ROTARY in converters else {"unfused_rotary"}
    if reader.take("/strategy/features", "parallelism.fsdp_reshard_after_forward") == "never":
        switches.add("keep_gathered")
    if reader.take("/strategy/features", "optimizer.implementation") in ("foreach", "for-loop"):
        switches.add("unfused_optimizer")
    return switches


def _recompute(reader: KeyReader, layers: int, *, by_operator: bool) -> dict[str, Any]:
    """All layers, every n-th one, or by operator.

    by_operator : whether the model's layers are those that this is modelled of (`autodeploy.workload.by_operator`).
    """
    mode = reader.take("/strategy/recompute", "activation_checkpoint.mode") or "selective"
    option = str(reader.take("/strategy/recompute", "activation_checkpoint.selective_ac_option") or EVERY)
    if mode == "full":
        return {"granularity": "full"}
    if mode == "selective" and option.isdigit() and 0 < int(option[:9]) <= layers:
        every = int(option[:9])
        return {"granularity": "full"} | ({"num_layers": layers // every} if every > 1 else {})
    if mode == "selective" and option == "op":
        if by_operator:
            return {"granularity": "selective", "modules": ["by_operator"]}
        reason = Message("importers.predicted_as", what="norm, activation")
        reader.log.unmodelled("/activation_checkpoint/selective_ac_option", option, reason)
        return {"granularity": "selective", "modules": ["norm", "activation"]}
    if mode == "memory_budget":
        reader.log.unmodelled("/activation_checkpoint/mode", mode, Message("importers.predicted_as", what="none"))
    return {"granularity": "none"}
