"""Measured training runs, published or own, and the reading of their documents."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, ValidationError, model_validator

from autodeploy.kit.errors import SpecError
from autodeploy.messages import Message
from autodeploy.specs import record_words as words
from autodeploy.specs.base import Document, omitted
from autodeploy.specs.cluster import ClusterSpec
from autodeploy.specs.field_errors import field_errors
from autodeploy.specs.model import PATTERNS, ModelSpec
from autodeploy.specs.record_words import device_named, profile_named, profile_of_device
from autodeploy.specs.software import RELEASE_FACTS, SoftwareField
from autodeploy.specs.strategy import Recompute, Strategy
from autodeploy.specs.training import TrainingSpec
from autodeploy.stack.features import FEATURES
from cost_models.schedule import kinds
from hardware_profiles.loader import list_profiles, load_profile
from hardware_profiles.magnitudes import Gibibytes, Seconds, Share, Teraflops, TokensPerSecond

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path


# The strategy of a published run in the vocabulary's words, and what its features say of the strategy's fields.
DEEPEP = "deepep"
_SIZES = ("tp", "pp", "vpp", "dp", "cp", "ulysses_degree", "ep", "etp", "micro_batch_size")


def read_strategy(strategy: dict[str, Any], log: Diagnoses) -> dict[str, Any]:
    """The strategy's mapping as its document has it: nulls are absent, words are the vocabulary's."""
    fields = {k: v for k, v in strategy.items() if v is not None}
    if "mbs" in fields:
        fields.setdefault("micro_batch_size", fields.pop("mbs"))
    fields = log.without_unknown("/strategy", fields, Strategy.model_fields)
    fields |= {name: words.whole(fields[name]) for name in _SIZES if name in fields}
    features = _features(fields.get("features", ()), log)
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
        if name not in FEATURES and name not in RELEASE_FACTS and name != DEEPEP:
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
    if DEEPEP in named:
        fields["moe_dispatcher"] = DEEPEP
        features.remove(DEEPEP)
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


ASSUMED_MICRO_BATCHES = 32  # a replica, where a run does not say its batch: what its pipeline fills and drains is small


class Diagnosis(Document):
    """Fields that were read otherwise than they were written.

    widens : whether the prediction may be further off for it.
    """

    path: str
    text: str
    widens: bool = True


ReadOtherwise = Annotated[
    tuple[Diagnosis, ...],
    Field(description="how the record was read where that differs from its text; set on reading"),
]


class Diagnoses:
    """The diagnoses of one record, in the order they were found."""

    def __init__(self) -> None:
        self.found: list[Diagnosis] = []

    def say(self, path: str, text: str, *, widens: bool = True) -> None:
        """Adds one."""
        self.found.append(Diagnosis(path=path, text=text, widens=widens))

    def word(self, path: str, given: Any, same: Mapping[str, str], nearest: Mapping[str, str] | None = None) -> Any:
        """The vocabulary's word for what is given; what no table has stays as it is."""
        if not isinstance(given, str | bool):
            return given
        name = words.key(given)
        if name in same:
            return same[name]
        if nearest and name in nearest:
            self.say(path, Message("specs.read_as_nearest", name=repr(given), word=nearest[name]))
            return nearest[name]
        return given

    def without_unknown(self, path: str, section: Mapping[str, Any], fields: Iterable[str]) -> dict[str, Any]:
        """The section without keys that no document has."""
        kept = {}
        for name, value in section.items():
            if name in fields:
                kept[name] = value
            elif name not in words.IDLE:
                self.say(f"{path}/{name}", f"unknown key {name!r} is not read", widens=value not in (None, False))
        return kept


def read_record(value: Any, fields: Iterable[str], measured: Iterable[str]) -> Any:
    """A record's mapping in the words of the documents, with its diagnoses; anything but a mapping as it is.

    fields : of a record. measured : of what it measured.
    """
    if not isinstance(value, Mapping) or "diagnoses" in value:
        return value
    log = Diagnoses()
    record = {str(k): v for k, v in value.items() if v is not None or k in {"strategy"}}
    record = {k: v for k, v in record.items() if k in fields} | {"id": str(record.get("id", "unnamed"))}
    record.setdefault("source", "not stated")
    for name in ("source", "date", "confidence", "framework", "notes"):
        if name in record and not isinstance(record[name], str):
            record[name] = str(record[name])
    if record.get("memory_regime") not in {None, "steady", "first_step"}:
        log.say("/memory_regime", f"{record.pop('memory_regime')!r} is not known; read as steady")
    if record.get("strategy") is None:
        log.say("/strategy", "absent; read as data parallel only")
        record["strategy"] = {}
    readers = {"model": _model, "cluster": _cluster, "training": _training, "strategy": read_strategy}
    for name, reader in readers.items():
        if isinstance(record.get(name), Mapping):
            record[name] = reader(dict(record[name]), log)
    if isinstance(record.get("measured"), Mapping):
        record["measured"] = _measured(dict(record["measured"]), record, measured, log)
    _cards(record, log)
    _batch(record, log)
    record["diagnoses"] = tuple(log.found)
    return record


def _model(model: dict[str, Any], log: Diagnoses) -> dict[str, Any]:
    """The model under its own fields' names."""
    named: dict[str, Any] = {}
    for name, value in model.items():
        own = words.MODEL_FIELDS.get(name, name) if name not in ModelSpec.model_fields else name
        if value is not None and (own == name or own not in model):
            named[own] = value
    named.setdefault("name", "unnamed")
    named = log.without_unknown("/model", named, ModelSpec.model_fields)
    if "hidden_act" in named:
        named["hidden_act"] = log.word("/model/hidden_act", named["hidden_act"], words.ACTIVATIONS)
    if "layer_types" in named and (problem := _types_problem(named)):
        log.say("/model/layer_types", f"{problem}; every layer is read alike")
        del named["layer_types"]
    shape = tuple(named.get(name) for name in ("hidden_size", "num_attention_heads", "intermediate_size"))
    if "tie_word_embeddings" not in named and shape in words.TIED_EMBEDDINGS:
        log.say("/model/tie_word_embeddings", "absent; the published model of this shape ties them", widens=False)
        named["tie_word_embeddings"] = True
    return named


def _types_problem(model: Mapping[str, Any]) -> str:
    """Why the layers' attention can't be told from the model's list or pattern; "" if it can."""
    types, layers = model["layer_types"], model.get("num_hidden_layers")
    if isinstance(types, str) and types.strip().lower().replace("_", " ") not in PATTERNS:
        return Message("field_fault.is_invalid", value=repr(types[:60]))
    if isinstance(types, list | tuple) and len(types) != layers:
        return Message("common.entries_expected", count=layers, found=len(types))
    if model.get("sliding_window") is None and "sliding" in str(types):
        return Message("common.is_required", name="sliding_window")
    return ""


def _cluster(cluster: dict[str, Any], log: Diagnoses) -> dict[str, Any]:
    """The cluster on a shipped profile and one of its devices."""
    fields = {k: v for k, v in cluster.items() if v is not None}
    for name in ("num_gpus", "num_devices", "num_cards"):
        if name in fields:
            fields.setdefault("num_npus", fields[name])
            del fields[name]
    fields = log.without_unknown("/cluster", fields, ClusterSpec.model_fields)
    if "num_npus" in fields:
        fields["num_npus"] = words.whole(fields["num_npus"])
    given, device = fields.get("profile"), fields.get("device")
    if given is None and isinstance(device, str) and (of_device := profile_of_device(device)):
        fields["profile"] = of_device
    elif isinstance(given, str):
        profile, same = profile_named(given)
        if profile is not None:
            fields["profile"] = profile
        if profile is not None and not same:
            log.say("/cluster/profile", f"there is no profile of {given}; {profile} is the nearest")
    if isinstance(device, str) and isinstance(fields.get("profile"), str):
        _device(fields, device, log)
    return fields


def _device(cluster: dict[str, Any], device: str, log: Diagnoses) -> None:
    """The named device, the profile that has it, or the nearest device."""
    grade, same = device_named(cluster["profile"], device)
    if not same and (other := profile_of_device(device)):
        grade, same = device_named(other, device)
        log.say("/cluster/profile", f"{cluster['profile']} has no {device}; {other} has it", widens=False)
        cluster["profile"] = other
    if grade is None:
        del cluster["device"]
    else:
        cluster["device"] = grade
    if not same:
        text = f"there is no device {device!r}; {grade or 'the default of ' + cluster['profile']} is the nearest"
        log.say("/cluster/device", text)


def _training(training: dict[str, Any], log: Diagnoses) -> dict[str, Any]:
    """The run's sizes; published runs state no imbalance: one of pre-training without means balanced experts."""
    fields = {k: v for k, v in training.items() if v is not None}
    for other, name in (("sequence_length", "seq_length"), ("seq_len", "seq_length"), ("gbs", "global_batch_size")):
        if other in fields:
            fields.setdefault(name, fields[other])
            del fields[other]
    fields = log.without_unknown("/training", fields, TrainingSpec.model_fields)
    fields |= {name: words.whole(fields[name]) for name in ("seq_length", "global_batch_size") if name in fields}
    if "precision" in fields:
        fields["precision"] = log.word(
            "/training/precision", fields["precision"], words.PRECISIONS, words.NEAREST_PRECISIONS
        )
    if "routing_imbalance" not in fields and fields.get("kind", "pretrain") == "pretrain":
        fields |= {"routing_imbalance": 1.0, "routing_imbalance_peak": 1.0}
    return fields


def _cards(record: dict[str, Any], log: Diagnoses) -> None:
    """Cards of a run that states all its degrees and no number of cards."""
    cluster, strategy = record.get("cluster"), record.get("strategy")
    if not isinstance(cluster, dict) or not isinstance(strategy, dict) or {"num_npus", "blocks"} & cluster.keys():
        return
    sizes = [strategy.get(name, 1) for name in ("tp", "pp", "cp", "dp")]
    if "dp" in strategy and all(isinstance(size, int) and size > 0 for size in sizes):
        ranks = math.prod(sizes)
        profile = cluster.get("profile")
        dies = load_profile(profile, calibrated=False).devices_per_npu if profile in list_profiles() else 1
        cluster["num_npus"] = -(-ranks // dies)
        log.say("/cluster/num_npus", f"absent; {cluster['num_npus']} hold tp x pp x cp x dp", widens=False)


def _batch(record: dict[str, Any], log: Diagnoses) -> None:
    """A batch for a run that states a speed and no batch: one whose pipelines are mostly full."""
    training, cluster, strategy = (record.get(name) for name in ("training", "cluster", "strategy"))
    if not all(isinstance(s, Mapping) for s in (training, cluster, strategy)):
        return
    assert isinstance(training, dict)
    assert isinstance(cluster, dict)
    assert isinstance(strategy, dict)
    sizes = [strategy.get(name) or 1 for name in ("tp", "pp", "cp", "micro_batch_size")]
    cards = cluster.get("num_npus")
    if "global_batch_size" in training or not all(isinstance(n, int) and n > 0 for n in (*sizes, cards)):
        return
    tp, pp, cp, micro = sizes
    assert isinstance(cards, int)
    training["global_batch_size"] = max(1, cards // (tp * pp * cp)) * micro * max(ASSUMED_MICRO_BATCHES, 4 * pp)
    log.say("/training/global_batch_size", f"absent; {training['global_batch_size']} sequences are assumed")


def _measured(
    measured: dict[str, Any], record: Mapping[str, Any], fields: Iterable[str], log: Diagnoses
) -> dict[str, Any]:
    """The measurements, in the units of the document."""
    figures = {k: v for k, v in measured.items() if v is not None}
    training, cluster = record.get("training"), record.get("cluster")
    cards = cluster.get("num_npus") if isinstance(cluster, Mapping) else None
    seq = training.get("seq_length") if isinstance(training, Mapping) else None
    if not all(isinstance(size, int) and size > 0 for size in (cards, seq)):
        cards = seq = None
    if isinstance(peaks := figures.get("peak_memory_gib"), list) and all(isinstance(p, int | float) for p in peaks):
        figures["peak_memory_gib"] = max(peaks, default=None)  # one a rank: the fullest decides
    for name, (own, factor) in _UNITS.items():
        if isinstance(value := figures.get(name), int | float) and not isinstance(value, bool):
            figures.setdefault(own, value * factor)
            figures.pop(name)
    for name, own, size in (
        ("tokens_per_s", "tokens_per_s_per_npu", cards and 1.0 / cards),
        ("samples_per_s", "tokens_per_s_per_npu", cards and seq and seq / cards),
        ("samples_per_s_per_npu", "tokens_per_s_per_npu", seq),
    ):
        if isinstance(value := figures.get(name), int | float) and isinstance(size, int | float) and size:
            figures.setdefault(own, value * size)
            figures.pop(name)
    for name in [name for name in figures if name not in fields]:
        log.say(f"/measured/{name}", f"unknown key {name!r} is not read", widens=False)
        del figures[name]
    return figures


_UNITS = {
    **dict.fromkeys(("tokens_per_s_per_gpu", "tokens_per_s_per_device"), ("tokens_per_s_per_npu", 1.0)),
    "tokens_per_day": ("tokens_per_s", 1.0 / 86_400.0),
    **dict.fromkeys(("step_time_ms", "iteration_ms"), ("step_time_s", 1e-3)),
    **dict.fromkeys(("iteration_time_s", "iter_time_s"), ("step_time_s", 1.0)),
    **dict.fromkeys(("peak_memory_mib", "peak_memory_mb"), ("peak_memory_gib", 1.0 / 1024.0)),
    "peak_memory_gb": ("peak_memory_gib", 1e9 / 2**30),
    **dict.fromkeys(("tflops_per_gpu", "tflops_per_device", "tflops"), ("tflops_per_npu", 1.0)),
    "mfu_pct": ("mfu", 0.01),
    "samples_per_s_per_gpu": ("samples_per_s_per_npu", 1.0),
}

MAX_NAME = 200
MemoryCounts = Literal["allocated", "reserved", "card"]


class Measured(Document):
    """Measurements of a run. Throughput per card; memory of the fullest rank."""

    tokens_per_s_per_npu: TokensPerSecond | None = None
    step_time_s: Seconds | None = None
    peak_memory_gib: Gibibytes | None = None
    memory_counts: Annotated[
        MemoryCounts | None,
        omitted(
            "what peak_memory_gib counts: bytes in tensors, bytes reserved by the allocator, or all on the "
            "card as the driver shows it; absent: as the framework's own figures do"
        ),
    ] = None
    tflops_per_npu: Annotated[
        Teraflops | None, Field(description="model FLOPs with full attention, without recomputation")
    ] = None
    mfu: Annotated[Share | None, Field(le=2, description="of the cards' peak, FLOPs as tflops_per_npu")] = None


class Record(Document):
    """One run that somebody measured."""

    id: str
    source: str
    date: str | None = None
    confidence: str = "unknown"
    framework: str = "unknown"
    software: SoftwareField = None
    model: ModelSpec
    cluster: ClusterSpec
    training: TrainingSpec
    strategy: Strategy
    measured: Measured
    memory_regime: Literal["steady", "first_step"] | None = None
    short_run: bool | None = None
    notes: str = ""
    diagnoses: ReadOtherwise = ()

    @model_validator(mode="before")
    @classmethod
    def _in_our_words(cls, value: Any) -> Any:
        return read_record(value, cls.model_fields, Measured.model_fields)


@dataclass(frozen=True, slots=True)
class Unread:
    """A line that is no record, with the errors of its fields."""

    name: str
    error: SpecError


def read_records(path: Path) -> Iterator[Record]:
    """Records of a JSON Lines file.

    Raises SpecError with the line number in the path of each bad field.
    """
    for record in read_lines(path):
        if isinstance(record, Unread):
            raise record.error
        yield record


def read_lines(path: Path) -> Iterator[Record | Unread]:
    """Every line of a JSON Lines file that isn't blank: a record, or why it is none."""
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        if line.strip():
            yield record_of(number, line)


def record_of(number: int, line: str) -> Record | Unread:
    """The measured run of training that a line is, or why it is none."""
    name = f"line {number}"
    try:
        value = json.loads(line)
        name = str(value["id"])[:MAX_NAME] if isinstance(value, dict) and value.get("id") else name
        return Record.model_validate(value)
    except json.JSONDecodeError as error:
        return Unread(
            name,
            SpecError(
                Message(
                    "common.line", line=number, message=Message("common.not_of_format", format="JSON", reason=error.msg)
                ),
                path=f"/{number}",
            ),
        )
    except ValidationError as error:
        return Unread(name, SpecError(errors=field_errors(error, prefix=f"/{number}")))
    except (RecursionError, ValueError) as error:
        return Unread(name, SpecError(Message("common.line", line=number, message=str(error)), path=f"/{number}"))
