"""The axes that a user may pin, allow, forbid or change, and how far two values of one are apart."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from autodeploy.messages import Message, joined
from autodeploy.space.candidates import CHOICES

if TYPE_CHECKING:
    from collections.abc import Sequence

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
    Knob("optimizer_memory", ("reuse_fp32_param", "swap_optimizer", "virtual_optimizer")),
)


def log2_ratio(first: int, second: int) -> float:
    """|log2| of a ratio of two degrees: how often one has to be doubled to become the other."""
    return abs(math.log2(first / second))


def encode(axis: str, value: AxisValue) -> int:
    """A value of an axis as arrays hold it.

    Raises
    ------
    ValueError
        for a word that names no choice of the axis.
    """
    return CHOICES[axis].index(str(value)) if axis in CHOICES else int(value)


def decode(axis: str, value: int) -> int | str:
    """A value of an axis as documents write it."""
    return CHOICES[axis][value] if axis in CHOICES else int(value)


def pin_text(search: SearchSpec, axis: str) -> str:
    """What the spec says of an axis: `search.fix.tp: 3`."""
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
