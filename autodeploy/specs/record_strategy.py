"""The strategy of a published run in the vocabulary's words, and what its features say of the strategy's fields."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from autodeploy.specs import record_words as words
from autodeploy.specs.strategy import Recompute, Strategy
from autodeploy.stack.features import FEATURES
from autodeploy.stack.gradient_sums import WORDS
from cost_models.schedule import kinds

if TYPE_CHECKING:
    from autodeploy.specs.record_reading import Diagnoses

# Facts about a release that records may name beside the features: mechanisms that cost or save without a switch here.
RELEASE_FACTS = frozenset(
    {
        *("deduplicated_dispatch", "graph_mode", "fused_cross_entropy", "fused_rotary", "unfused_rotary", "dropout"),
        *("fused_gradient_accumulation", *WORDS),
        *("unfused_optimizer", "whole_vocabulary"),
        *("replicated_dispatch", "scatter_gather_sends", "copied_logits", "copied_update", "torch_loss"),
        *("cuda_graphs", "cross_entropy_in_place", "torch_compile", "torch_attention", "weight_casts"),
    }
)
_SIZES = ("tp", "pp", "vpp", "dp", "cp", "ulysses_degree", "ep", "etp", "micro_batch_size")


def read_strategy(strategy: dict[str, Any], log: Diagnoses) -> dict[str, Any]:
    """The strategy's mapping as its document has it: nulls are absent, words are the vocabulary's."""
    fields = {k: v for k, v in strategy.items() if v is not None}
    if "mbs" in fields:
        fields.setdefault("micro_batch_size", fields.pop("mbs"))
    fields = log.without_unknown("/strategy", fields, Strategy.model_fields)
    fields |= {name: words.whole(fields[name]) for name in _SIZES if name in fields}
    features = _features(fields.get("features", ()), log)
    dispatcher = words.key(fields.get("moe_dispatcher", ""))
    if dispatcher in words.DEDUPLICATING:
        fields["moe_dispatcher"] = "alltoall"
        features.append("deduplicated_dispatch")
    _words(fields, log)
    if "recompute" in fields:
        fields["recompute"] = _recompute(fields["recompute"], fields.get("pp", 1), log)
    if "swap" in fields:
        fields["swap"] = _swaps(fields["swap"], log)
    layers = fields.get("layers_per_stage")
    if isinstance(layers, list | tuple) and len(layers) != fields.get("pp", 1):
        log.say("/strategy/layers_per_stage", f"{len(layers)} stages, pp is {fields.get('pp', 1)}; spread evenly")
        del fields["layers_per_stage"]
    fields["features"] = features
    _said_by_features(fields, features)
    return fields


def _words(fields: dict[str, Any], log: Diagnoses) -> None:
    """Schedule, dispatcher and context parallelism by the vocabulary's names; what none is near is left out."""
    tables = {
        "schedule": (words.SCHEDULES, words.NEAREST_SCHEDULES),
        "moe_dispatcher": (words.DISPATCHERS, None),
        "cp_algo": (words.CP_ALGOS, words.NEAREST_CP_ALGOS),
    }
    for name, (same, nearest) in tables.items():
        if name not in fields:
            continue
        fields[name] = log.word(f"/strategy/{name}", fields[name], same, nearest)
        if fields[name] not in same.values():
            log.say(f"/strategy/{name}", f"{fields[name]!r} is not known; read as if it were not said")
            del fields[name]


def _features(given: Any, log: Diagnoses) -> list[str]:
    """Names of features, each once, in order. What nobody knows keeps its name: no record vouches for it."""
    if isinstance(given, str):
        given = given.replace(";", ",").split(",")
    if not isinstance(given, list | tuple):
        log.say("/strategy/features", f"{given!r} is no list of names; read as none")
        return []
    features: dict[str, None] = {}
    for each in given:
        raw = each.get("name") if isinstance(each, Mapping) else each
        name = words.key(raw).removeprefix("use_").removeprefix("enable_") if isinstance(raw, str) else ""
        name = words.FEATURES.get(name, name)
        if not name or name in words.SAID_BY_FIELDS:
            continue
        if name not in FEATURES and name not in RELEASE_FACTS:
            log.say("/strategy/features", f"{name!r} is not modelled; predicted without it", widens=False)
        features[name] = None
    return list(features)


def _recompute(given: Any, pp: Any, log: Diagnoses) -> Any:
    """Recomputation from a word, a truth value or a mapping."""
    if isinstance(given, str | bool):
        given = {"granularity": given}
    if not isinstance(given, Mapping):
        return given
    fields = {k: v for k, v in given.items() if v is not None}
    fields = log.without_unknown("/strategy/recompute", fields, Recompute.model_fields)
    path = "/strategy/recompute/granularity"
    granularity = log.word(
        path, fields.get("granularity", "selective" if fields.get("modules") else "none"), words.GRANULARITIES
    )
    if granularity not in words.GRANULARITIES.values():
        log.say(path, f"{granularity!r} is not known; read as none")
        granularity = "none"
    fields["granularity"] = granularity
    if isinstance(fields.get("modules"), list | tuple):
        modules = [log.word("", name, words.RECOMPUTE_MODULES) for name in fields["modules"]]
        readable = [name for name in modules if name in words.RECOMPUTE_MODULES.values()]
        for name in modules:
            if name not in readable:
                log.say("/strategy/recompute/modules", f"recomputing {name!r} is not modelled; predicted without it")
        fields["modules"] = readable
    elif granularity == "selective" and "per_stage" not in fields:
        fields["modules"] = ["core_attn"]  # Megatron-LM's default of --recompute-modules
    for name in ("per_stage", "num_layers_per_stage"):
        if isinstance(fields.get(name), list | tuple) and len(fields[name]) != pp:
            log.say(f"/strategy/recompute/{name}", f"{len(fields[name])} stages, pp is {pp}; read as all layers")
            del fields[name]
    return fields


def _swaps(given: Any, log: Diagnoses) -> list[str]:
    names = [given] if isinstance(given, str) else list(given) if isinstance(given, list | tuple) else []
    readable = []
    for name in names:
        word = log.word("/strategy/swap", name, words.SWAPS)
        if word in words.SWAPS.values():
            readable.append(word)
        else:
            log.say("/strategy/swap", f"swapping {name!r} is not modelled; predicted without it")
    return readable


def _said_by_features(fields: dict[str, Any], features: list[str]) -> None:
    """Fields that a named feature fills: a mechanism named only among the features was on all the same.

    Tensor parallel ranks that join the expert group hold whole experts: ep counts them (MindSpeed moe-tp-extend-ep).
    """
    named = set(features)
    chunks = fields.get("vpp", 1)
    if not kinds.schedule(fields.get("schedule", kinds.plain(1).name)).pairs:
        hides = fields.get("ep", 1) != 1 and (chunks != 1 or fields.get("pp", 1) == 1)
        for kind in kinds.schedules():
            if kind.pairs and kind.name in named and (kind.chunks is not None or hides):
                fields |= {"schedule": kind.name} | ({} if kind.chunks is None else {"vpp": kind.chunks})
                break
    if "hierarchical_a2a" in named:
        fields["moe_dispatcher"] = "hierarchical"
    for name, algo in (("ulysses", "ulysses"), ("ring", "ring"), ("hybrid_cp", "hybrid")):
        if name in named:
            fields.setdefault("cp_algo", algo)
    if "swap_attention" in named:
        fields["swap"] = list(dict.fromkeys([*fields.get("swap", ()), "attention"]))
    for name in ("fsdp", "swap_optimizer", "reuse_fp32_param"):
        if name in named:
            fields[name] = True
    tp, ep = fields.get("tp", 1), fields.get("ep", 1)
    whole = isinstance(tp, int) and isinstance(ep, int)
    if "tp_extend_ep" in named and whole and tp > 1 and fields.get("etp", tp) == tp:
        fields |= {"ep": ep * tp, "etp": 1}
