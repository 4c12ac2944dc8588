"""The strategy of a MindFormers configuration: degrees, offsets, recompute lists, swap."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from autodeploy.messages import Message
from autodeploy.specs.model import MAX_LAYERS
from autodeploy.stack.features import FEATURES

if TYPE_CHECKING:
    from autodeploy.formats.common.value_readers import KeyReader

CONFIG = "model.model_config"
OFFSET = f"{CONFIG}.offset"
CP_ALGORITHMS = {"colossalai_cp": "ring", "ulysses_cp": "ulysses", "hybrid_cp": "hybrid"}
DISPATCHERS = {
    "alltoall": "alltoall",
    "alltoall_deredundency": "hierarchical",
    "alltoall_zero_redundancy": "hierarchical",
}
DEGREES = {
    "tp": "parallel_config.model_parallel",
    "pp": "parallel_config.pipeline_stage",
    "cp": "parallel_config.context_parallel",
}


def read_strategy(reader: KeyReader, model: dict[str, Any]) -> tuple[dict[str, Any], dict[str, int]]:
    """The `strategy` of a spec, and `dp`, which follows from the cluster there."""
    strategy: dict[str, Any] = {}
    for name, path in DEGREES.items():
        strategy[name] = reader.number(f"/strategy/{name}", path, least=1) or 1
    dp = reader.number("/strategy/dp", "parallel_config.data_parallel", least=1) or 1
    strategy["micro_batch_size"] = reader.number("/strategy/micro_batch_size", "runner_config.batch_size", least=1) or 1
    strategy["sequence_parallel"] = reader.switch("/strategy/sequence_parallel", "parallel_config.use_seq_parallel")
    strategy["distributed_optimizer"] = reader.switch(
        "/strategy/distributed_optimizer", "parallel.enable_parallel_optimizer"
    )
    if strategy["cp"] > 1:
        strategy |= _context(reader)
    features: set[str] = set()
    if "n_routed_experts" in model:
        strategy |= _experts(reader, strategy["tp"])
        features |= {"hierarchical_a2a"} if strategy["moe_dispatcher"] == "hierarchical" else set()
    features |= _features(reader, with_experts="n_routed_experts" in model)
    chunks = _schedule(reader, strategy, model["num_hidden_layers"])
    strategy["recompute"] = _recompute(reader, chunks)
    strategy["swap"] = _swap(reader)
    return strategy | {"features": sorted(features)}, {"dp": dp}


def _features(reader: KeyReader, *, with_experts: bool) -> set[str]:
    """Features whose key is on; keys of experts (`moe_...` first) mean nothing without them."""
    features = set()
    for name, feature in FEATURES.items():
        for keys in (variant.keys for variant in feature.launch if variant.keys):
            of_experts = keys[0].removeprefix(f"{CONFIG}.").startswith("moe_")
            if (with_experts or not of_experts) and reader.switch("/strategy/features", *keys):
                features.add(name)
    return features


def _context(reader: KeyReader) -> dict[str, Any]:
    path = "parallel_config.context_parallel_algo"
    given = reader.take("/strategy/cp_algo", path) or "colossalai_cp"
    if given not in CP_ALGORITHMS:
        reader.fail(path, Message("field_fault.is_invalid", value=repr(str(given)[:40])), ", ".join(CP_ALGORITHMS))
    degree = reader.number("/strategy/ulysses_degree", "parallel_config.ulysses_degree_in_cp", least=1)
    fields: dict[str, Any] = {"cp_algo": CP_ALGORITHMS[given]}
    return fields | ({"ulysses_degree": degree} if degree and fields["cp_algo"] == "hybrid" else {})


def _experts(reader: KeyReader, tp: int) -> dict[str, Any]:
    """mcore models spread experts over data and tensor ranks; older ones keep them tensor parallel, unless
    `ep_extend_tp` lets a tensor-parallel group hold whole experts of its own: ep tp ranks, each expert on one.

    Source: MindFormers modules/transformer/moe.py and research/telechat2/telechat_transformer.py @f52743ca.
    """
    fields: dict[str, Any] = {"ep": reader.number("/strategy/ep", "parallel_config.expert_parallel", least=1) or 1}
    etp = reader.number("/strategy/etp", "moe_config.expert_model_parallel", least=1)
    if etp is None:
        legacy = reader.raw("use_legacy") is not False and reader.raw("moe_config") is not None
        extended = reader.switch("/strategy/ep", "moe_config.ep_extend_tp") and legacy
        if extended:
            fields["ep"] *= tp
        etp, reason = (
            (1, Message("importers.follows_from", what="ep_extend_tp"))
            if extended
            else (tp, Message("importers.follows_from", what="tp"))
        )
        if not legacy:
            etp, reason = 1, Message("importers.default_of", framework="MindFormers")
        reader.log.default("/strategy/etp", etp, reason)
    path = f"{CONFIG}.moe_token_dispatcher_type"
    given = reader.take("/strategy/moe_dispatcher", path) or "alltoall"
    if given not in DISPATCHERS:
        reader.fail(path, Message("field_fault.is_invalid", value=repr(str(given)[:40])), ", ".join(DISPATCHERS))
    dispatcher = DISPATCHERS[given]
    exchange = reader.take("/strategy/moe_dispatcher", "parallel.enable_alltoall")
    reader.raw(f"{CONFIG}.npu_nums_per_device")
    if exchange is False and dispatcher == "alltoall":
        dispatcher = "allgather"
    return fields | {"etp": etp, "moe_dispatcher": dispatcher}


def _schedule(reader: KeyReader, strategy: dict[str, Any], layers: int) -> list[list[int]]:
    """Sets schedule, virtual stages and layers of each stage; returns layers by chunk, `[vpp][pp]`."""
    pp = strategy["pp"]
    scheduler = reader.take("/strategy/schedule", "parallel.pipeline_config.pipeline_scheduler")
    interleaves = reader.raw("parallel.pipeline_config.pipeline_interleave") is True
    turns = reader.number("/strategy/vpp", f"{CONFIG}.pp_interleave_num", least=1) or 1
    if not interleaves or pp == 1:
        turns = 1
    if turns * pp > MAX_LAYERS:
        reader.fail(
            f"{CONFIG}.pp_interleave_num",
            Message("common.exceeds", one=f"{turns} x {pp}", other=MAX_LAYERS),
        )
    dual = scheduler == "zero_bubble_v" and pp > 1
    if dual and turns != 2:
        reader.fail(
            f"{CONFIG}.pp_interleave_num",
            Message("common.needs_it", what="zero_bubble_v"),
            "pp_interleave_num: 2",
        )
    if scheduler not in {None, "1f1b", "zero_bubble_v"}:
        path = "/parallel/pipeline_config/pipeline_scheduler"
        reader.log.contradict(
            path,
            "/strategy/schedule",
            scheduler,
            Message("specs.is_not_modelled_read_as_nearest", name=scheduler, word="1f1b"),
        )
    if dual:
        nearest = Message("specs.is_not_modelled_read_as_nearest", name=scheduler, word="dualpipev")
        reader.log.default("/strategy/schedule", "dualpipev", nearest)
    chunks = _chunks(reader, layers, pp, turns)
    strategy["vpp"] = 1 if dual else turns
    strategy["schedule"] = "dualpipev" if dual else "interleaved" if turns > 1 else "1f1b"
    if len({count for row in chunks for count in row}) > 1:
        rows = [[row[stage] for row in chunks] for stage in range(pp)]
        strategy["layers_per_stage"] = rows if turns > 1 else [row[0] for row in rows]
    return chunks


def _chunks(reader: KeyReader, layers: int, pp: int, turns: int) -> list[list[int]]:
    """layers // (pp * turns) + offset, row by row."""
    offset = reader.take("/strategy/layers_per_stage", OFFSET)
    average, rest = divmod(layers, pp * turns)
    if offset is None or offset == 0:
        if rest:
            reader.fail(
                OFFSET,
                Message("importers.layers_cannot_be_spread_over_chunks", layers=layers, count=pp * turns),
                "offset=[1,0,...,0]",
            )
        return [[average] * pp for _ in range(turns)]
    rows = offset if isinstance(offset, list) and offset and isinstance(offset[0], list) else [offset]
    shaped = len(rows) == turns and all(isinstance(row, list) and len(row) == pp for row in rows)
    if not shaped or not all(type(value) is int and abs(value) <= layers for row in rows for value in row):
        reader.fail(OFFSET, Message("importers.rows_expected", rows=turns, columns=pp))
    chunks = [[average + value for value in row] for row in rows]
    total = sum(map(sum, chunks))
    if total != layers:
        extra = total - layers
        if extra == (reader.raw(f"{CONFIG}.mtp_depth") or 0) and chunks[-1][-1] >= extra:
            chunks[-1][-1] -= extra  # older models count multi-token prediction among the layers
        else:
            reader.fail(OFFSET, Message("importers.it_places_layers_model_has", placed=total, layers=layers))
    if min(map(min, chunks)) < 0:
        reader.fail(OFFSET, Message("field_fault.is_too_small", value=min(map(min, chunks))))
    return chunks


def _per_stage(reader: KeyReader, path: str, chunks: list[list[int]]) -> list[int] | None:
    """`true`, a number of layers for every stage, one a stage, or one a virtual stage; None where it is off."""
    given = reader.take("/strategy/recompute", path)
    pp = len(chunks[0])
    stages = [sum(row[stage] for row in chunks) for stage in range(pp)]
    if given is None or given is False or given == 0:
        return None
    if given is True:
        return stages
    rows = given if isinstance(given, list) and given and isinstance(given[0], list) else [given]
    if isinstance(given, int):
        rows = [[given] * pp]
    if not all(isinstance(row, list) and len(row) == pp for row in rows) or len(rows) not in {1, len(chunks)}:
        reader.fail(path, Message("importers.rows_expected", rows=len(chunks), columns=pp))
    bad = [value for row in rows for value in row if not (isinstance(value, int) and 0 <= value <= MAX_LAYERS)]
    if bad:
        limits = {"value": repr(bad[0])[:40], "least": 0, "most": MAX_LAYERS}
        reader.fail(path, Message("importers.is_not_whole_number_from_to", **limits))
    total = [sum(int(row[stage]) for row in rows) for stage in range(pp)]
    return [min(count, most) for count, most in zip(total, stages, strict=True)]


def _recompute(reader: KeyReader, chunks: list[list[int]]) -> dict[str, Any]:
    full = _per_stage(reader, "recompute_config.recompute", chunks)
    path = "recompute_config.select_recompute"
    selective = None
    if isinstance(reader.raw(path), dict):
        reader.log.unmodelled("/" + path.replace(".", "/"), reader.raw(path), Message("importers.not_predicted"))
        reader.whole(path)
    else:
        selective = _per_stage(reader, path, chunks)
    counts = {name: layers for name, layers in (("full", full), ("activation", selective)) if layers and any(layers)}
    if not counts:
        return {"granularity": "none"}
    modules = [name for name in counts if name != "full"]
    rows = [
        {name: layers[stage] for name, layers in counts.items() if layers[stage]} for stage in range(len(chunks[0]))
    ]
    return {"granularity": "selective" if modules else "full", "modules": modules, "per_stage": rows}


def _swap(reader: KeyReader) -> list[str]:
    if not reader.switch("/strategy/swap", "swap_config.swap"):
        return []
    reader.raw("swap_config.default_prefetch")
    operators = reader.take("/strategy/swap", "swap_config.op_swap")
    entries = operators if isinstance(operators, list) else []
    names = [str(entry.get("op_name", "")) for entry in entries if isinstance(entry, dict)]
    return ["attention"] if any("attention" in name for name in names) else []
