"""Facts of a spec that legality rules read beside the axes of a candidate."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Required, TypedDict, Unpack

from autodeploy.space.candidates import DISPATCHERS
from autodeploy.space.rules import FACT, LAUNCHED, launched_choices
from autodeploy.specs.attention import ATTENTION_KINDS
from autodeploy.specs.launched import network_of
from autodeploy.specs.tuning import TUNINGS, Tuning
from autodeploy.stack.features import FEATURES, mechanisms, variants_of
from autodeploy.stack.padding import pairs_take_padding
from autodeploy.stack.schedules import variant_of
from cost_models.optimizers import ADAM, Optimizer
from cost_models.schedule import SCHEDULES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autodeploy.specs.model import ModelSpec
    from autodeploy.stack.releases import Release

# Dispatchers of a configuration file. Source: mindformers @f52743ca, moe/token_dispatcher.py.
FILE_DISPATCHERS = frozenset({"alltoall", "allgather"})
# What `placed_facts` says, where layers are not placed yet.
NOT_PLACED: dict[str, Any] = {"empty_chunks": 0, "bare_chunks": 0, "padded_layers": 0}
# The same of what layers recompute, and of states that the framework itself keeps on the host.
NOT_CHOSEN: dict[str, Any] = {"recomputes_all": False, "updates_on_host": False, "predictors_apart": False}


class Launched(TypedDict, total=False):
    """A training as rules read it beside its model.

    world : ranks. node_ranks : ranks of a node. tp_limit : largest tensor parallel group inside one node.
    features : names of the features that are on.
    exact_numerics : sums in the order of the plain model only. deterministic : the same sums in every run.
    asked : features that the spec switches on, not merely leaves at auto: a strategy has to use them.
    precision : number format of the run. shards_states : replicas share optimizer states.
    optimizer : that trains it. tunings : what is trained beside a frozen model.
    packed : sequences hold several documents.
    unlaunched : the field of the model or the training that the release has no launch of; empty where there is none.
    release : what the plan is launched with; None launches everything.
    """

    world: Required[int]
    seq_length: Required[int]
    global_batch: Required[int]
    node_ranks: Required[int]
    tp_limit: Required[int]
    features: Required[set[str]]
    exact_numerics: bool
    deterministic: bool
    asked: frozenset[str]
    precision: str
    shards_states: bool
    optimizer: Optimizer
    tunings: tuple[Tuning, ...]
    packed: bool
    unlaunched: str
    release: Release | None


# Of `Launched` what rules read as it is, by what it is where it is not said.
SAID: dict[str, Any] = {
    "exact_numerics": False,
    "deterministic": False,
    "shards_states": True,
    "packed": False,
    "unlaunched": "",
}
SIZES = ("world", "seq_length", "global_batch", "node_ranks", "tp_limit")


def facts_of(model: ModelSpec, **run: Unpack[Launched]) -> dict[str, Any]:
    """Names and values that rules may read."""
    release, features, optimizer = run.get("release"), run["features"], run.get("optimizer", ADAM)
    tunings, asked = run.get("tunings", ()), run.get("asked", frozenset())
    on_mechanisms, names = mechanisms(features), model.attention_names
    return {
        **SAID,
        **{name: value for name, value in run.items() if name in SAID or name in SIZES},
        "heads": model.common_heads,
        "kv_heads": model.num_key_value_heads,
        **{kind.name: kind.name in names for kind in ATTENTION_KINDS},
        **{
            name: of_model(model) if kind.name in names else otherwise
            for kind in ATTENTION_KINDS
            for name, (otherwise, of_model) in kind.facts.items()
        },
        "own_keys": model.attention.own_keys,
        "moe": model.is_moe,
        "tied": model.tie_word_embeddings,
        "experts": model.n_routed_experts or 1,
        "expert_width": model.moe_intermediate_size or 0,
        "layers": model.num_hidden_layers,
        "windowed": _is_windowed(model, run["seq_length"]),
        "hashed_layers": model.num_hash_layers,
        "predicts_tokens": model.num_nextn_predict_layers > 0,
        "mindformers_network": network_of(model) is not None,
        "fp16": run.get("precision") == "fp16",
        **{each.fact: each in tunings for each in TUNINGS},
        "updates_matrices": optimizer.matrix_s is not None,
        "launches_training": not run.get("unlaunched"),
        "index_groups": len(model.index_starts),
        "shortcut": model.shortcut_moe,
        "zero_experts": model.n_zero_experts,
        "dense_layers": model.first_k_dense_replace if model.is_moe else 0,
        # Embedding, head and multi-token prediction can fill the first and the last chunk on their own.
        "free_chunks": 2,
        **NOT_PLACED,
        **NOT_CHOSEN,
        "released": release.names | frozenset(release.components) if release is not None else frozenset[str](),
        **launched_facts(release),
        FACT: launched_choices(release),
        LAUNCHED: launched_schedules(release),
        **{f"on_{name}": name in features or name in on_mechanisms for name in FEATURES},
        **{f"asked_{name}": name in asked for name in FEATURES},
    }


def _is_windowed(model: ModelSpec, seq_length: int) -> bool:
    """Whether layers have windows or chunks shorter than the sequence, and nothing beside them."""
    spans = (model.sliding_window, model.attention_chunk_size)
    return not model.attention.types and any(span is not None and span < seq_length for span in spans)


def launched_facts(release: Release | None) -> dict[str, bool]:
    """Features and dispatchers that a release has flags for."""
    found = (
        dict.fromkeys(FEATURES, True)
        if release is None
        else {name: variant is not None for name, variant in variants_of(release).items()}
    )
    for name in DISPATCHERS:
        found.setdefault(name, release is None or launches(release, name))
    return {f"launches_{name}": launched for name, launched in found.items()}


def launched_schedules(release: Release | None) -> frozenset[str] | None:
    """Names of the schedules that a release has flags for; None: every one."""
    return None if release is None else frozenset(name for name in SCHEDULES if variant_of(name, release) is not None)


def launches(release: Release, name: str) -> bool:
    """Whether a release has flags for a dispatcher."""
    if name == "deepep":  # MindSpeed brings no kernels of it
        return release.registers("--moe-token-dispatcher-type", "flex") and not release.has("mindspeed")
    # MindFormers' parser takes any word: what it knows stands in moe_token_dispatcher_type's own table.
    key = "model.model_config.moe_token_dispatcher_type"
    return release.registers("--moe-token-dispatcher-type", name) or (key in release.keys and name in FILE_DISPATCHERS)


def placed_facts(chunks: Sequence[int]) -> dict[str, Any]:
    """Names and values that rules may read where every chunk's layers are known, in the order a token meets them.

    empty_chunks : without a layer. bare_chunks : those of them that paired passes take as no padding, so that only a
        layout says them. padded_layers : layers with padding, 0 where a layout says them.
    """
    padded, empty = pairs_take_padding(chunks), sum(layers == 0 for layers in chunks)
    return {
        "empty_chunks": empty,
        "bare_chunks": 0 if padded else empty,
        "padded_layers": max(chunks) * len(chunks) if padded else 0,
    }
