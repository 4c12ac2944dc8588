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
    found = {k: v for k, v in strategy.items() if v is not None}
    if "mbs" in found:
        found.setdefault("micro_batch_size", found.pop("mbs"))
    found = log.without_unknown("/strategy", found, Strategy.model_fields)
    found |= {name: words.whole(found[name]) for name in _SIZES if name in found}
    features = _features(found.get("features", ()), log)
    dispatcher = words.key(found.get("moe_dispatcher", ""))
    if dispatcher in words.DEDUPLICATING:
        found["moe_dispatcher"] = "alltoall"
        features.append("deduplicated_dispatch")
    _words(found, log)
    if "recompute" in found:
        found["recompute"] = _recompute(found["recompute"], found.get("pp", 1), log)
    if "swap" in found:
        found["swap"] = _swaps(found["swap"], log)
    layers = found.get("layers_per_stage")
    if isinstance(layers, list | tuple) and len(layers) != found.get("pp", 1):
        log.say("/strategy/layers_per_stage", f"{len(layers)} stages, pp is {found.get('pp', 1)}; spread evenly")
        del found["layers_per_stage"]
    found["features"] = features
    _said_by_features(found, features)
    return found


def _words(found: dict[str, Any], log: Diagnoses) -> None:
    """Schedule, dispatcher and context parallelism by the vocabulary's names; what none is near is left out."""
    tables = {
        "schedule": (words.SCHEDULES, words.NEAREST_SCHEDULES),
        "moe_dispatcher": (words.DISPATCHERS, None),
        "cp_algo": (words.CP_ALGOS, words.NEAREST_CP_ALGOS),
    }
    for name, (same, nearest) in tables.items():
        if name not in found:
            continue
        found[name] = log.word(f"/strategy/{name}", found[name], same, nearest)
        if found[name] not in same.values():
            log.say(f"/strategy/{name}", f"{found[name]!r} is not known; read as if it were not said")
            del found[name]


def _features(given: Any, log: Diagnoses) -> list[str]:
    """Names of features, each once, in order. What nobody knows keeps its name: no record vouches for it."""
    if isinstance(given, str):
        given = given.replace(";", ",").split(",")
    if not isinstance(given, list | tuple):
        log.say("/strategy/features", f"{given!r} is no list of names; read as none")
        return []
    found: dict[str, None] = {}
    for each in given:
        raw = each.get("name") if isinstance(each, Mapping) else each
        name = words.key(raw).removeprefix("use_").removeprefix("enable_") if isinstance(raw, str) else ""
        name = words.FEATURES.get(name, name)
        if not name or name in words.SAID_BY_FIELDS:
            continue
        if name not in FEATURES and name not in RELEASE_FACTS:
            log.say("/strategy/features", f"{name!r} is not modelled; predicted without it", widens=False)
        found[name] = None
    return list(found)


def _recompute(given: Any, pp: Any, log: Diagnoses) -> Any:
    """Recomputation from a word, a truth value or a mapping."""
    if isinstance(given, str | bool):
        given = {"granularity": given}
    if not isinstance(given, Mapping):
        return given
    found = {k: v for k, v in given.items() if v is not None}
    found = log.without_unknown("/strategy/recompute", found, Recompute.model_fields)
    path = "/strategy/recompute/granularity"
    granularity = log.word(
        path, found.get("granularity", "selective" if found.get("modules") else "none"), words.GRANULARITIES
    )
    if granularity not in words.GRANULARITIES.values():
        log.say(path, f"{granularity!r} is not known; read as none")
        granularity = "none"
    found["granularity"] = granularity
    if isinstance(found.get("modules"), list | tuple):
        modules = [log.word("", name, words.RECOMPUTE_MODULES) for name in found["modules"]]
        known = [name for name in modules if name in words.RECOMPUTE_MODULES.values()]
        for name in modules:
            if name not in known:
                log.say("/strategy/recompute/modules", f"recomputing {name!r} is not modelled; predicted without it")
        found["modules"] = known
    elif granularity == "selective" and "per_stage" not in found:
        found["modules"] = ["core_attn"]  # Megatron-LM's default of --recompute-modules
    for name in ("per_stage", "num_layers_per_stage"):
        if isinstance(found.get(name), list | tuple) and len(found[name]) != pp:
            log.say(f"/strategy/recompute/{name}", f"{len(found[name])} stages, pp is {pp}; read as all layers")
            del found[name]
    return found


def _swaps(given: Any, log: Diagnoses) -> list[str]:
    names = [given] if isinstance(given, str) else list(given) if isinstance(given, list | tuple) else []
    known = []
    for name in names:
        word = log.word("/strategy/swap", name, words.SWAPS)
        if word in words.SWAPS.values():
            known.append(word)
        else:
            log.say("/strategy/swap", f"swapping {name!r} is not modelled; predicted without it")
    return known


def _said_by_features(found: dict[str, Any], features: list[str]) -> None:
    """Fields that a named feature fills: a mechanism named only among the features was on all the same.

    Tensor parallel ranks that join the expert group hold whole experts: ep counts them (MindSpeed moe-tp-extend-ep).
    """
    named = set(features)
    chunks = found.get("vpp", 1)
    if not kinds.schedule(found.get("schedule", kinds.plain(1).name)).pairs:
        hides = found.get("ep", 1) != 1 and (chunks != 1 or found.get("pp", 1) == 1)
        for kind in kinds.schedules():
            if kind.pairs and kind.name in named and (kind.chunks is not None or hides):
                found |= {"schedule": kind.name} | ({} if kind.chunks is None else {"vpp": kind.chunks})
                break
    if "hierarchical_a2a" in named:
        found["moe_dispatcher"] = "hierarchical"
    for name, algo in (("ulysses", "ulysses"), ("ring", "ring"), ("hybrid_cp", "hybrid")):
        if name in named:
            found.setdefault("cp_algo", algo)
    if "swap_attention" in named:
        found["swap"] = list(dict.fromkeys([*found.get("swap", ()), "attention"]))
    for name in ("fsdp", "swap_optimizer", "reuse_fp32_param"):
        if name in named:
            found[name] = True
    tp, ep = found.get("tp", 1), found.get("ep", 1)
    whole = isinstance(tp, int) and isinstance(ep, int)
    if "tp_extend_ep" in named and whole and tp > 1 and found.get("etp", tp) == tp:
        found |= {"ep": ep * tp, "etp": 1}
