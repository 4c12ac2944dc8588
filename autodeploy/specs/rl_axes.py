"""The axes of a search over generation that a spec can pin, allow and forbid, and what values each takes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, get_args

from pydantic import TypeAdapter, ValidationError

from autodeploy.messages import Message
from autodeploy.messages.field_faults import FieldFault, one_of
from autodeploy.specs.generation_layout import GenerationLayout
from autodeploy.specs.rl import Offload, RlStrategy

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo

RlAxis = Literal[
    "rl.placement",
    "rl.generation_npus",
    "rl.staleness",
    "rl.generation.tp",
    "rl.generation.dp",
    "rl.generation.ep",
    "rl.generation.precision",
    "rl.generation.engine",
    "rl.generation.mode",
    "rl.generation.memory_fraction",
    "rl.generation.max_num_seqs",
    "rl.partial_rollout",
    "rl.offload",
    "rl.pack_tokens",
]
RL_AXES: Final[tuple[RlAxis, ...]] = get_args(RlAxis)
NOTHING_OFFLOADED: Final = "none"
_STATES: Final[tuple[Offload, ...]] = get_args(Offload)


def _field(axis: RlAxis) -> FieldInfo:
    name = axis.removeprefix("rl.")
    inner = name.removeprefix("generation.")
    return GenerationLayout.model_fields[inner] if inner != name else RlStrategy.model_fields[name]


def _adapter(axis: RlAxis) -> TypeAdapter[Any]:
    field = _field(axis)
    annotation: Any = field.annotation
    for limit in field.metadata:
        annotation = Annotated[annotation, limit]
    return TypeAdapter(annotation)


_VALUES: Final = {axis: _adapter(axis) for axis in RL_AXES if axis != "rl.offload"}
_KINDS: Final = {
    "rl.generation.memory_fraction": Message("specs.share_above_0_at_most_1"),
    "rl.partial_rollout": Message("field_fault.a_truth_value"),
}


def offload_text(states: tuple[Offload, ...]) -> str:
    """What leaves the device, as an axis writes it: `optimizer+gradients`, or `none`."""
    return "+".join(each for each in _STATES if each in states) or NOTHING_OFFLOADED


def offloaded(text: str) -> tuple[Offload, ...]:
    """The states of an `offload_text`."""
    return tuple(each for each in _STATES if each in text.split("+"))


def no_value(axis: str, value: object) -> Message:
    """That an axis has no such value."""
    fault = Message("field_fault.is_invalid", value=repr(str(value)[:40]))
    return Message("common.place", place=axis, message=fault)


def rl_axis_value(axis: RlAxis, value: float | str) -> float | str:
    """The value, as the strategy has it; what is offloaded as one word.

    Raises
    ------
    ValueError
        where the axis has no such value.
    """
    if isinstance(value, bool) != (axis == "rl.partial_rollout"):
        raise FieldFault(
            no_value(axis, value),
            _KINDS.get(axis, Message("specs.word_or_whole_number")),
        )
    if axis == "rl.offload":
        words = () if value == NOTHING_OFFLOADED else tuple(str(value).split("+"))
        states = tuple(each for each in _STATES if each in words)
        if len(states) == len(words):
            return offload_text(states)
        hint = Message("specs.or_some_of_with_between_them", none=NOTHING_OFFLOADED, names=", ".join(_STATES))
        raise FieldFault(no_value(axis, value), hint)
    try:
        axis_value = _VALUES[axis].validate_python(value)
    except ValidationError as error:
        complaints = error.errors()
        choices = [str(each["ctx"]["expected"]) for each in complaints if each["type"] == "literal_error"]
        hint = one_of(choices[:1]) if choices else _KINDS.get(axis, Message("field_fault.a_whole_number"))
        raise FieldFault(no_value(axis, value), hint) from None
    if isinstance(axis_value, int | float | str):
        return axis_value
    raise ValueError(no_value(axis, value))


def value_of(strategy: RlStrategy, axis: RlAxis) -> float | str | None:
    """What a strategy has of an axis, as a spec would write it."""
    if axis == "rl.offload":
        return offload_text(strategy.offload)
    name = axis.removeprefix("rl.")
    inner = name.removeprefix("generation.")
    axis_value = getattr(strategy.generation, inner) if inner != name else getattr(strategy, name)
    return axis_value if axis_value is None or isinstance(axis_value, int | float | str) else str(axis_value)
