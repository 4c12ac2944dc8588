"""The form of a new search: its fields, named by their JSON pointers in the spec, and what was typed into them.

Because a field's name is its pointer, a complaint about `/cluster/num_npus` finds its field by itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

from api.ui.formats import product_name
from autodeploy.formats.registry import ROWS
from autodeploy.specs.search import Effort, Objective
from autodeploy.specs.training import Precision
from autodeploy.stack.features import Numerics
from autodeploy.stack.frameworks import DEFAULT, FRAMEWORKS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from autodeploy.kit.errors import FieldError
    from hardware_profiles import Profile

Kind = Literal["choice", "integer", "number", "text"]


@dataclass(frozen=True, slots=True)
class Field:
    """One field: `pointer` names it, `value` is what it starts with, `label` is the key of its text."""

    pointer: str
    label: str
    kind: Kind
    value: str = ""
    options: tuple[tuple[str, str], ...] = ()
    required: bool = False
    help: bool = False
    advanced: bool = False

    @property
    def id(self) -> str:
        """The element's id in the page."""
        return "f" + self.pointer.replace("/", "-")


# The other ways to start: a pasted file, with the endings of its name and how one begins.
_READ = {row.name: row for row in ROWS if row.reads}
_OF_LAUNCHES = dict.fromkeys(suffix for row in _READ.values() if row.launches for suffix in row.suffixes.split(","))
WAYS = (
    (
        "config",
        _READ["config.json"].suffixes,
        '{\n  "model_type": "qwen3_moe",\n  "hidden_size": 2048,\n  "num_hidden_layers": 48,\n  ...\n}',
    ),
    (
        "script",
        ",".join(_OF_LAUNCHES),
        "TP=2\nPP=8\ntorchrun $DISTRIBUTED_ARGS pretrain_gpt.py \\\n"
        "  --tensor-model-parallel-size ${TP} \\\n  --pipeline-model-parallel-size ${PP} ...",
    ),
    (
        "spec",
        _READ["spec"].suffixes,
        "model: deepseek-v3\ncluster: {profile: cloudmatrix-384, num_npus: 384}\n"
        "training: {seq_length: 4096, global_batch_size: 15360}",
    ),
)
# What a cluster starts with: a full supernode, or so many nodes; and sequences a card.
START_NODES = 16
START_SEQUENCES = 40


def choices_of(profile: Profile, words: Mapping[str, str]) -> dict[str, Any]:
    """Choices of the form for a profile: its chip grades, and cards and batch to start with."""
    cards = profile.npus_per_node * (profile.supernode_nodes or START_NODES)
    return {
        "devices": [*profile.devices],
        "device": profile.default_device,
        "cards": cards,
        "batch": START_SEQUENCES * cards,
        "help": words["new.cards_help"].format(
            cards=cards, node=profile.npus_per_node, nodes=cards // profile.npus_per_node
        ),
    }


Section = tuple[str, tuple[Field, ...]]


def sections(
    models: Iterable[tuple[str, str]],
    profiles: Iterable[tuple[str, str]],
    devices: Iterable[tuple[str, str]] = (),
) -> tuple[Section, ...]:
    """The fields by section. `models`, `profiles` and `devices`, the chip grades, are pairs of name and title."""
    return (
        ("model", (Field("/model", "model", "choice", "deepseek-v3", tuple(models), required=True),)),
        ("cluster", _cluster(tuple(profiles), tuple(devices))),
        ("training", _training()),
        ("search", _search()),
        ("run", _run()),
    )


def _cluster(profiles: tuple[tuple[str, str], ...], devices: tuple[tuple[str, str], ...]) -> tuple[Field, ...]:
    return (
        Field("/cluster/profile", "profile", "choice", "cloudmatrix-384", profiles, required=True),
        Field("/cluster/num_npus", "num_npus", "integer", "384", required=True, help=True),
        Field("/cluster/device", "device", "choice", options=devices),
    )


def _training() -> tuple[Field, ...]:
    return (
        Field("/training/seq_length", "seq_length", "integer", "4096", required=True),
        Field("/training/global_batch_size", "global_batch_size", "integer", "15360", required=True),
        Field("/training/tokens", "tokens", "number"),
        Field("/training/precision", "precision", "choice", "bf16", _same(get_args(Precision))),
        Field("/training/routing_imbalance", "routing_imbalance", "number", "1.3", help=True),
        Field("/training/routing_imbalance_peak", "routing_imbalance_peak", "number", "2.0"),
    )


def _search() -> tuple[Field, ...]:
    return (
        Field("/search/objective", "objective", "choice", "step_time", _same(get_args(Objective)), advanced=True),
        Field(
            "/search/target",
            "target",
            "choice",
            DEFAULT,
            _named(tuple(name for name, each in FRAMEWORKS.items() if not each.post_trains)),
            advanced=True,
        ),
        Field("/search/numerics", "numerics", "choice", "reordered", _same(get_args(Numerics)), advanced=True),
        Field("/search/effort", "effort", "choice", "default", _same(get_args(Effort)), advanced=True),
        Field("/search/top_k", "top_k", "integer", "5", advanced=True),
        Field(
            "/search/distinct", "distinct", "choice", "strategies", _same(("strategies", "placements")), advanced=True
        ),
        Field("/search/risk", "risk", "choice", "averse", _same(("averse", "neutral")), help=True, advanced=True),
        Field("/search/memory_limit_gib", "memory_limit_gib", "number", advanced=True),
    )


def _run() -> tuple[Field, ...]:
    numbers = ("failure_interval_h", "restart_s", "storage_gb_per_s", "checkpoint_interval_s")
    prices = ("price_per_npu_hour", "npu_power_w", "price_per_kwh")
    return (
        *(Field(f"/run/{name}", name, "number", advanced=True) for name in numbers),
        Field(
            "/run/checkpoint",
            "checkpoint",
            "choice",
            "",
            (("", "synchronous"), *_same(("asynchronous",))),
            advanced=True,
        ),
        *(Field(f"/run/{name}", name, "number", advanced=True) for name in prices),
        Field("/run/currency", "currency", "text", advanced=True),
    )


def _same(names: Iterable[str]) -> tuple[tuple[str, str], ...]:
    return tuple((name, name.replace("_", " ")) for name in names)


def _named(products: Iterable[str]) -> tuple[tuple[str, str], ...]:
    return tuple((name, product_name(name)) for name in products)


def start_values(form: tuple[Section, ...], given: Mapping[str, str] | None = None) -> dict[str, str]:
    """Values of each field: what was typed, or what it starts with."""
    fields = [field for _, members in form for field in members]
    return {f.pointer: f.value if given is None else str(given.get(f.pointer, "")).strip() for f in fields}


def spec_document(form: tuple[Section, ...], values: Mapping[str, str]) -> dict[str, Any]:
    """The spec that the form says; empty fields are left out, so that defaults hold.

    A number that is none is passed on as typed: reading the spec understands `4k` and `16 nodes`, or names the field.
    """
    document: dict[str, Any] = {}
    for field in (field for _, members in form for field in members):
        text = values.get(field.pointer, "").strip()
        if not text:
            continue
        *parents, name = field.pointer.strip("/").split("/")
        target = document
        for parent in parents:
            target = target.setdefault(parent, {})
        target[name] = _typed(text, field.kind)
    return document


def _typed(text: str, kind: Kind) -> Any:
    bare = text.replace(",", "").replace("_", "")
    try:
        if kind == "integer":
            return int(bare)
        return float(bare) if kind == "number" else text
    except ValueError:
        return text


def errors_by_field(
    form: tuple[Section, ...], errors: Iterable[FieldError]
) -> tuple[dict[str, list[FieldError]], list[FieldError]]:
    """Complaints at the field they are about, and those that are about no field of the form."""
    pointers = {field.pointer for _, members in form for field in members}
    placed: dict[str, list[FieldError]] = {}
    others: list[FieldError] = []
    for error in errors:
        pointer = next((p for p in sorted(pointers, key=len, reverse=True) if _is_at(error.path, p)), None)
        if pointer is None:
            others.append(error)
        else:
            placed.setdefault(pointer, []).append(error)
    return placed, others


def _is_at(path: str, pointer: str) -> bool:
    return path == pointer or path.startswith(pointer + "/")
