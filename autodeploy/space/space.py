"""The space of strategies: every combination of axis values, as arrays, and the axes that features add."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from autodeploy.messages import Message, joined
from autodeploy.space.candidates import CHOICES, CP_ALGOS, DISPATCHERS
from autodeploy.specs.derived_fields import OPTIMIZER_MEMORY
from cost_models.schedule import SCHEDULES, searched

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from autodeploy.specs.model import ModelSpec
    from autodeploy.specs.search import AxisValue, SearchSpec


@dataclass(frozen=True, slots=True)
class Knob:
    """One thing to turn: the columns of `Candidates` that it sets. A column that `matters_with` names must exceed 1."""

    name: str
    columns: tuple[str, ...]
    is_degree: bool = False
    matters_with: str | None = None


def _degree(name: str) -> Knob:
    return Knob(name, (name,), is_degree=True)


KNOBS: tuple[Knob, ...] = (
    *(_degree(name) for name in ("tp", "pp", "vpp", "cp")),
    Knob("cp_algo", ("cp_algo", "ulysses"), matters_with="cp"),
    *(_degree(name) for name in ("ep", "etp", "micro_batch_size")),
    Knob("schedule", ("schedule",)),
    Knob("moe_dispatcher", ("moe_dispatcher",), matters_with="ep"),
    Knob("keep_gathered", ("keep_gathered",)),
    _degree("dp_replicate"),
    Knob("tp_pp_dp_mapping", ("tp_pp_dp_mapping",), matters_with="pp"),
    Knob("optimizer_memory", OPTIMIZER_MEMORY),
)


def log2_ratio(first: int, second: int) -> float:
    """|log2| of a ratio of two degrees: how often one has to be doubled to become the other."""
    return abs(math.log2(first / second))


def encode(axis: str, value: AxisValue) -> int:
    """A value of an axis as arrays hold it.

    Raises ValueError for a word that names no choice of the axis.
    """
    return CHOICES[axis].index(str(value)) if axis in CHOICES else int(value)


def decode(axis: str, value: int) -> int | str:
    """A value of an axis as documents write it."""
    return CHOICES[axis][value] if axis in CHOICES else int(value)


def pin_text(search: SearchSpec, axis: str) -> str:
    """Text of a pinned axis: `search.fix.tp: 3`."""
    parts: list[str] = []
    for field in ("fix", "allow", "forbid"):
        said = getattr(search, field)
        if axis in said:
            value = said[axis]
            shown = str(value) if not isinstance(value, tuple) else f"[{', '.join(map(str, value))}]"
            parts.append(Message("strategies.search_pin", field=field, axis=axis, value=shown))
    return parts[0] if len(parts) == 1 else joined(parts, "semicolon")


def allowed_values(search: SearchSpec, axis: str, values: Sequence[int]) -> list[int]:
    """The values that `fix`, `allow` and `forbid` leave of an axis that follows from others."""
    left = list(values)
    if axis in search.fix:
        left = [v for v in left if v == encode(axis, search.fix[axis])]
    if axis in search.allow:
        wanted = {encode(axis, v) for v in search.allow[axis]}
        left = [v for v in left if v in wanted]
    if axis in search.forbid:
        unwanted = {encode(axis, v) for v in search.forbid[axis]}
        left = [v for v in left if v not in unwanted]
    return left


LEAST_TOKENS = 4096  # of a sequence on a context-parallel rank; MindSpeed auto-settings prunes below 4K (A3) or 8K (A2)

RESTRICTED = (
    *("tp", "pp", "vpp", "cp", "ep", "micro_batch_size", "cp_algo", "schedule", "moe_dispatcher", "dp_replicate"),
)


@dataclass(frozen=True)
class Space:
    """Values of each axis before rules, and the limits of the spec on them."""

    tp: Sequence[int]
    pp: Sequence[int]
    vpp: Sequence[int]
    cp: Sequence[int]
    ep: Sequence[int]
    micro_batch_size: Sequence[int]
    cp_algo: Sequence[int]
    schedule: Sequence[int]
    moe_dispatcher: Sequence[int]
    etp_modes: Sequence[str]
    memory_modes: Sequence[str]
    keep_gathered: Sequence[int] = (0,)
    dp_replicate: Sequence[int] = (1,)
    tp_pp_dp_mapping: Sequence[bool] = (False,)


def divisors(number: int) -> list[int]:
    """All divisors of a number, ascending."""
    small = [d for d in range(1, int(number**0.5) + 1) if number % d == 0]
    return sorted({*small, *(number // d for d in small)})


def default_space(
    model: ModelSpec,
    world: int,
    node_ranks: int,
    seq_length: int,
    batch: int,
    features: Mapping[str, str],
    *,
    deepep: bool = False,
) -> Space:
    """Every value worth a look: what the arithmetic of model and cluster can admit at all.

    Tensor parallel groups stay inside a node: across nodes one layer's collectives would cross the scale-out network
    many times. Context parallelism leaves a rank at least 4K tokens of a sequence, but where it is asked for.

    deepep : the release launches this dispatcher.
    """
    tp = [t for t in divisors(node_ranks) if model.common_heads % t == 0]
    chunks = model.num_hidden_layers + 2
    pp = [p for p in divisors(world) if p <= min(chunks, 128)]
    asked = any(features.get(name) == "on" for name in ("ring", "ulysses", "hybrid_cp"))
    least = 1 if asked else LEAST_TOKENS
    cp = [c for c in divisors(world) if c == 1 or (seq_length >= c * least and seq_length % c == 0 and c <= 64)]
    ep = [e for e in divisors(model.n_routed_experts or 1) if e <= world]
    off = {name for name, switch in features.items() if switch == "off"}
    dispatchers = [DISPATCHERS.index("alltoall")]
    if model.is_moe:
        dispatchers += [DISPATCHERS.index("alltoall_seq"), DISPATCHERS.index("allgather")]
        if "hierarchical_a2a" not in off:
            dispatchers.append(DISPATCHERS.index("hierarchical"))
        if deepep:
            dispatchers.append(DISPATCHERS.index("deepep"))
    algos = [
        CP_ALGOS.index(name)
        for name, feature in (("ring", "ring"), ("ulysses", "ulysses"), ("hybrid", "hybrid_cp"))
        if feature not in off
    ]
    if not algos:
        cp = [1]
    memory = ["", *(name for name in OPTIMIZER_MEMORY if name not in off)]
    return Space(
        tp=tp,
        pp=pp,
        vpp=[v for v in range(1, 9) if v <= chunks],
        cp=cp,
        ep=ep,
        micro_batch_size=[b for b in (1, 2, 4, 8, 16) if batch % b == 0],
        cp_algo=algos or [0],
        schedule=_schedules(model, off),
        moe_dispatcher=dispatchers,
        etp_modes=("whole", "as_tp") if model.is_moe else ("as_tp",),
        memory_modes=memory,
        keep_gathered=(0, 1) if features.get("keep_gathered", "off") != "off" else (0,),
        # Shards of less than a node would leave the fast links to what replicas have to say to each other.
        dp_replicate=divisors(max(1, world // node_ranks)) if features.get("hsdp", "off") != "off" else (1,),
        tp_pp_dp_mapping=(False,) if "tp_pp_dp_mapping" in off else (False, True),
    )


def _schedules(model: ModelSpec, off: set[str]) -> list[int]:
    """Places of the schedules that are worth a search: those that pair passes hide expert communication, or nothing.

    A schedule that is a feature too can be switched off by that.
    """
    worth = [each for each in searched() if (model.is_moe or not each.pairs) and each.name not in off]
    return [SCHEDULES.index(each.name) for each in worth]


def restrict(space: Space, search: SearchSpec) -> Space:
    """The space under the spec's `fix`, `allow` and `forbid`."""
    changed = {axis: values_left(search, axis, getattr(space, axis)) for axis in RESTRICTED}
    if not all(changed.values()):
        return Space(**{**space.__dict__, "tp": []})  # an axis without a value leaves no strategy
    return Space(**{**space.__dict__, **changed})


def values_left(search: SearchSpec, axis: str, values: Sequence[int]) -> list[int]:
    """The values of an axis under the spec; a value that is asked for is looked at wherever it lies."""
    encode = _encoder(axis)
    left = list(values)
    if axis in search.fix:
        left = [encode(search.fix[axis])]
    if axis in search.allow:
        allowed = {encode(v) for v in search.allow[axis]}
        left = [v for v in left if v in allowed] or sorted(allowed)
    if axis in search.forbid:
        forbidden = {encode(v) for v in search.forbid[axis]}
        left = [v for v in left if v not in forbidden]
    return left


def _encoder(axis: str) -> Any:
    if axis in CHOICES:
        return lambda value: CHOICES[axis].index(str(value))
    return int
