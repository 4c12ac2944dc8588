"""The strategy of a launch of MindSpeed-LLM's FSDP2 backend: degrees, units, recompute and what is switched on."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from autodeploy.messages import Message
from autodeploy.stack.features import FEATURES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from autodeploy.importers.key_reader import KeyReader

MUON: Final = "muon"
# What FSDP2 always does, and what transformers' attention is on this chip.
ALWAYS: Final = (
    *("fsdp", "torch_fsdp2", "overlap_grad_reduce", "overlap_param_gather", "flash_attention", "transformers_loss"),
)
CP_ALGORITHMS: Final = {"ulysses": "ulysses", "ring": "ring", "kvallgather": "ring"}
BATCH: Final = 8  # per_device_train_batch_size, where the file has none
_LAYERS: Final = re.compile(r"model\.layers\.(?:\{\*\}|\{(\d+)-(\d+)\})")


def read_strategy(reader: KeyReader, model: Mapping[str, Any], ranks: int | None) -> dict[str, Any]:
    """The `strategy` of a spec. ranks : of the launch, where they are known."""
    moe = "n_routed_experts" in model
    batch = reader.number("/strategy/micro_batch_size", "training.per_device_train_batch_size", least=1)
    if batch is None:
        reader.log.default(
            "/strategy/micro_batch_size", BATCH, Message("importers.default_of", framework="MindSpeed-LLM FSDP2")
        )
    strategy: dict[str, Any] = {
        "tp": reader.number("/strategy/tp", "parallel.tp_size", least=1) or 1,
        "cp": reader.number("/strategy/cp", "parallel.cp_size", least=1) or 1,
        "micro_batch_size": batch or BATCH,
        "fsdp": True,
        "distributed_optimizer": True,
    }
    if strategy["cp"] > 1:
        strategy["cp_algo"] = _context(reader)
    strategy |= _experts(reader, ranks) if moe else {}
    features = {*ALWAYS, *_switches(reader, moe=moe, ep=int(strategy.get("ep", 1)))}
    strategy["recompute"] = _recompute(reader, int(model["num_hidden_layers"]))
    return strategy | {"features": sorted(features)}


def _context(reader: KeyReader) -> str:
    given = reader.take("/strategy/cp_algo", "parallel.cp_type") or "ulysses"
    if given not in CP_ALGORITHMS:
        reader.fail(
            "parallel.cp_type",
            Message("field_fault.is_invalid", value=repr(str(given)[:40])),
            ", ".join(CP_ALGORITHMS),
        )
    if CP_ALGORITHMS[given] != given:
        reader.log.unmodelled("/parallel/cp_type", given, Message("importers.predicted_as", what="ring"))
    return CP_ALGORITHMS[given]


def _experts(reader: KeyReader, ranks: int | None) -> dict[str, Any]:
    """Whole experts over ep ranks, sharded over the others: ep x ep_fsdp are all ranks."""
    ep = reader.number("/strategy/ep", "parallel.ep_size", least=1) or 1
    shards = reader.number("/strategy/ep", "parallel.ep_fsdp_size", least=1) or 1
    if ep > 1 and ranks is not None and ep * shards != ranks:
        reason = Message("importers.predicted_as", what=ranks // ep)
        reader.log.contradict("/parallel/ep_fsdp_size", "/strategy/ep", shards, reason)
    dispatcher = reader.take("/strategy/moe_dispatcher", "parallel.ep_dispatcher") or "eager"
    if dispatcher == "mc2":
        reason = Message("importers.predicted_as", what="All-to-All")
        reader.log.unmodelled("/parallel/ep_dispatcher", dispatcher, reason)
    return {"ep": ep, "etp": 1, "moe_dispatcher": "alltoall"}


def _switches(reader: KeyReader, *, moe: bool, ep: int) -> set[str]:
    """Features and facts of the run; the backend's own models alone have its fused operators."""
    own = reader.raw("model.model_id") is not None
    switches = (
        {"keep_gathered"} if reader.take("/strategy/features", "parallel.reshard_after_forward") is False else set()
    )
    if reader.take("/strategy/features", "parallel.reduce_dtype") in ("bf16", "fp16"):
        switches.add("bf16_gradients")
    norm = reader.switch("/strategy/features", "optimization.use_fused_rmsnorm")
    rotary = reader.switch("/strategy/features", "optimization.use_fused_rotary_pos_emb")
    grouped = reader.switch("/strategy/features", "optimization.moe_grouped_gemm")
    reader.switch("/strategy/features", "optimization.use_flash_attn")
    switches |= {"fused_rmsnorm"} if own and norm else set()
    chunk = reader.number("/strategy/features", "optimization.chunk_loss_size", least=0)
    if chunk and reader.raw("training.stage") == "pt":
        switches.add("chunked_loss")
        if chunk != int(FEATURES["chunked_loss"].values["chunk_tokens"]):
            planned = int(FEATURES["chunked_loss"].values["chunk_tokens"])
            reader.log.unmodelled(
                "/optimization/chunk_loss_size",
                chunk,
                Message("importers.predicted_as", what=planned),
            )
    switches |= set() if own and rotary else {"unfused_rotary"}
    if moe and own and grouped:
        switches |= {"grouped_gemm", "fused_swiglu"}
        fused = reader.raw("parallel.ep_dispatcher") == "fused" or ep == 1
        switches |= {"fused_operators"} if fused else set()
    return switches


def _recompute(reader: KeyReader, layers: int) -> dict[str, Any]:
    """Whole layers by pattern: all of them, or as many as ranges name."""
    patterns = reader.take("/strategy/recompute", "parallel.recompute_modules")
    if not reader.switch("/strategy/recompute", "parallel.recompute"):
        return {"granularity": "none"}
    count = 0
    for pattern in patterns if isinstance(patterns, list) else ["model.layers.{*}"]:
        match = _LAYERS.fullmatch(str(pattern))
        if match is None:
            reader.log.unmodelled("/parallel/recompute_modules", pattern, Message("importers.not_predicted"))
        elif match[1] is None:
            count = layers
        else:
            count += max(0, min(int(match[2]), layers - 1) - int(match[1]) + 1)
    if not count:
        return {"granularity": "none"}
    return {"granularity": "full"} | ({"num_layers": min(count, layers)} if count < layers else {})
