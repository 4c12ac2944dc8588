"""Objective of a search, strategies that it may choose and its effort."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, cast, get_args

from pydantic import (
    BeforeValidator,
    Discriminator,
    Field,
    Tag,
    TypeAdapter,
    ValidationError,
    ValidationInfo,
    WithJsonSchema,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticKnownError

from autodeploy.messages import Message
from autodeploy.messages.field_faults import FieldFault, one_of
from autodeploy.specs.base import Document, omitted
from autodeploy.specs.rl import GenerationLayout, Offload, RlStrategy
from autodeploy.specs.strategy import CpAlgo, Dispatcher, either
from autodeploy.stack.features import Numerics
from autodeploy.stack.frameworks import DEFAULT, FRAMEWORKS
from autodeploy.stack.releases import Release, release_of, releases
from cost_models.schedule import SCHEDULES
from hardware_profiles.magnitudes import Gibibytes, Seconds, Work

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pydantic.fields import FieldInfo


# The axes of a search over generation that a spec can pin, allow and forbid, and what values each takes.
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
    "rl.generation.memory_fraction": Message("specs.share_range"),
    "rl.partial_rollout": Message("field_fault.a_truth_value"),
}


def offload_text(states: tuple[Offload, ...]) -> str:
    """States that leave the device, as an axis writes them: `optimizer+gradients`, or `none`."""
    return "+".join(each for each in _STATES if each in states) or NOTHING_OFFLOADED


def offloaded(text: str) -> tuple[Offload, ...]:
    """The states of an `offload_text`."""
    return tuple(each for each in _STATES if each in text.split("+"))


def no_value(axis: str, value: object) -> Message:
    """That an axis has no such value."""
    return Message("specs.axis_has_no_value", axis=axis, value=repr(str(value)[:40]))


def rl_axis_value(axis: RlAxis, value: float | str) -> float | str:
    """The value, as the strategy has it; what is offloaded as one word.

    Raises ValueError where the axis has no such value.
    """
    if isinstance(value, bool) != (axis == "rl.partial_rollout"):
        raise FieldFault(no_value(axis, value), _KINDS.get(axis, Message("specs.word_or_whole_number")))
    if axis == "rl.offload":
        words = () if value == NOTHING_OFFLOADED else tuple(str(value).split("+"))
        states = tuple(each for each in _STATES if each in words)
        if len(states) == len(words):
            return offload_text(states)
        hint = Message("specs.joined_names", none=NOTHING_OFFLOADED, names=", ".join(_STATES))
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
    """A strategy's value of an axis, as a spec would write it."""
    if axis == "rl.offload":
        return offload_text(strategy.offload)
    name = axis.removeprefix("rl.")
    inner = name.removeprefix("generation.")
    axis_value = getattr(strategy.generation, inner) if inner != name else getattr(strategy, name)
    return axis_value if axis_value is None or isinstance(axis_value, int | float | str) else str(axis_value)


Objective = Literal["step_time", "tokens_per_s_per_npu", "peak_memory", "npu_hours", "time_to_train"]


def _framework(value: Any) -> Any:
    """The name of a known framework; the complaint is that of a choice between fixed words."""
    if isinstance(value, str) and value in FRAMEWORKS:
        return value
    names = [repr(name) for name in FRAMEWORKS]
    raise PydanticKnownError("literal_error", {"expected": either(names)})


Target = Annotated[
    str,
    BeforeValidator(_framework),
    WithJsonSchema({"enum": list(FRAMEWORKS), "title": "Target", "type": "string"}),
]
Effort = Literal["fast", "default", "deep"]
Switch = Literal["on", "off", "auto"]
Axis = Literal[
    "tp",
    "pp",
    "vpp",
    "dp",
    "cp",
    "cp_algo",
    "ep",
    "etp",
    "micro_batch_size",
    "schedule",
    "moe_dispatcher",
    "dp_replicate",
]
AxisValue = bool | int | float | str
AnyAxis = Annotated[Axis | RlAxis, WithJsonSchema({"type": "string", "enum": [*get_args(Axis), *get_args(RlAxis)]})]
# The axes whose values are words; those of the others are whole numbers.
_WORDS: Final[dict[str, Sequence[str]]] = {
    "schedule": SCHEDULES,
    "cp_algo": get_args(CpAlgo),
    "moe_dispatcher": get_args(Dispatcher),
}
_MOST_DIGITS = 9


def _axis_value(axis: AnyAxis, value: AxisValue) -> AxisValue:
    """The value, a number also where it was written as text; ValueError where the axis has no such value."""
    if axis.startswith("rl."):
        return rl_axis_value(cast("RlAxis", axis), value)
    if axis in _WORDS:
        if value in _WORDS[axis]:
            return value
        raise FieldFault(no_value(axis, value), Message("common.one_of", names=", ".join(_WORDS[axis])))
    text = str(int(value) if isinstance(value, float) and value.is_integer() else value)
    if text.isascii() and text.isdecimal() and len(text) <= _MOST_DIGITS and int(text) > 0:
        return int(text)
    raise FieldFault(no_value(axis, text), Message("field_fault.at_least", bound=1))


RETIRED_ROBUST: Final = {"off": "neutral", "regret": "averse", "worst_time": "averse", False: "neutral", True: "averse"}
"""What `robust` of earlier versions says of `risk`."""


def _switch(value: Any) -> Any:
    return {True: "on", False: "off"}.get(value, value) if isinstance(value, bool) else value


Rule = Literal["averse", "neutral"]


class RiskTerms(Document):
    """Costs of risks. P(fits) has two parts: whether a plan starts, which one launch shows, and whether it runs out of
    memory later, by chance.
    """

    rule: Annotated[
        Rule,
        Field(description="averse: the least expected cost; neutral: the predicted objective alone"),
    ] = "averse"
    floor: Annotated[
        float, Field(ge=0, lt=1, description="P(fits) below which no plan is recommended while another one is above")
    ] = 0.75
    failed_launch_hours: Annotated[
        float, Field(ge=0, le=10_000, description="of the whole cluster, for a plan that does not start")
    ] = 1.0
    restart_hours: Annotated[
        float, Field(ge=0, le=10_000, description="for an out-of-memory later, with the work that is lost")
    ] = 1.0
    run_days: Annotated[
        float, Field(ge=1e-3, le=10_000, description="length of the run where the spec has no tokens")
    ] = 30.0


def _risk_branch(value: Any) -> str:
    """Whether a rule is named or a document of terms given, as the labels of branches that pointers leave out."""
    return "dict[terms]" if isinstance(value, dict | RiskTerms) else "literal[word]"


class SearchSpec(Document):
    """The search. Defaults suit a launch with MindSpeed-LLM."""

    objective: Objective = "step_time"
    target: Annotated[
        Target, Field(description="absent: the first framework that has a release for the cluster's chips")
    ] = DEFAULT
    target_release: (
        Annotated[
            str,
            omitted(
                "release of the target framework; absent: its default",
                min_length=1,
                max_length=100,
                examples=["mindspeed-llm-26.0.0"],
            ),
        ]
        | None
    ) = None
    top_k: Annotated[int, Field(ge=1, le=100)] = 5
    distinct: Annotated[
        Literal["strategies", "placements"],
        Field(
            description="plans differ in degrees, schedule or dispatcher, or may differ in placement or memory alone"
        ),
    ] = "strategies"
    fix: dict[AnyAxis, AxisValue] = {}
    allow: dict[AnyAxis, tuple[AxisValue, ...]] = {}
    forbid: dict[AnyAxis, tuple[AxisValue, ...]] = {}
    features: dict[str, Annotated[Switch, BeforeValidator(_switch)]] = {}
    numerics: Numerics = "reordered"
    deterministic_training: bool = False
    off_policy: Annotated[
        bool,
        omitted(
            "also plans that train on responses of older policies (asynchronous generation), which changes "
            "training; absent: synchronous ones alone, but for what fix and allow name",
            at=False,
        ),
    ] = False
    memory_limit_gib: Annotated[Gibibytes, Field(le=4096)] | None = None
    host_memory_reserved_gib: Annotated[float, Field(ge=0, le=65_536)] = 128.0
    gap: Annotated[float, Field(ge=0, le=1)] = 0.02
    effort: Effort | Work = "default"
    time_limit_s: Annotated[Seconds, Field(le=86_400)] = 120.0
    mode: Literal["reproducible", "fast"] = "reproducible"
    risk: Annotated[
        Annotated[Rule, Tag("literal[word]")] | Annotated[RiskTerms, Tag("dict[terms]")],
        Discriminator(_risk_branch),
        Field(
            description="averse: by the expected cost, failed launches and restarts included; neutral: by the "
            "predicted objective alone; a document also says what these cost"
        ),
    ] = "averse"
    spare_nodes: Annotated[
        tuple[Annotated[int, Field(ge=1, le=10_000)], ...],
        omitted(
            "also plan with this many fewer nodes, and say whether today's checkpoint loads there", at=(), max_length=8
        ),
    ] = ()

    @model_validator(mode="before")
    @classmethod
    def _of_earlier_versions(cls, document: Any) -> Any:
        robust = document.get("robust") if isinstance(document, dict) else None
        if not isinstance(robust, bool | str) or robust not in RETIRED_ROBUST:
            return document
        others = {name: value for name, value in document.items() if name != "robust"}
        return {"risk": RETIRED_ROBUST[robust], **others}

    @field_validator("fix")
    @classmethod
    def _fixed_values_exist(cls, axes: dict[AnyAxis, AxisValue]) -> dict[AnyAxis, AxisValue]:
        return {axis: _axis_value(axis, value) for axis, value in axes.items()}

    @field_validator("allow", "forbid")
    @classmethod
    def _listed_values_exist(cls, axes: dict[AnyAxis, tuple[AxisValue, ...]]) -> dict[AnyAxis, tuple[AxisValue, ...]]:
        return {axis: tuple(_axis_value(axis, value) for value in values) for axis, values in axes.items()}

    @field_validator("target_release")
    @classmethod
    def _release_is_of_target(cls, name: str | None, info: ValidationInfo) -> str | None:
        target = info.data.get("target")
        names = [release.name for release in releases() if release.framework == target]
        if name is not None and target is not None and name not in names:
            hint = Message("common.one_of", names=", ".join(names)) if names else Message("common.leave_it_out")
            raise FieldFault(Message("stack.has_no_such_release", framework=target, name=repr(name)), hint)
        return name

    @property
    def asks_off_policy(self) -> bool:
        """Whether plans may train on responses of older policies: by the switch, or by an axis that says so."""
        asked = {axis: (self.fix.get(axis), *self.allow.get(axis, ())) for axis in ("rl.placement", "rl.staleness")}
        return self.off_policy or "async" in asked["rl.placement"] or any(asked["rl.staleness"])

    @property
    def risk_terms(self) -> RiskTerms:
        """Costs of risks; of a word, the defaults."""
        return self.risk if isinstance(self.risk, RiskTerms) else RiskTerms(rule=self.risk)

    def release(self, vendor: str | None, framework: str | None = None) -> Release | None:
        """The release that a plan on this vendor's chips is for; None where no framework is meant.

        vendor : None where it isn't known.
        framework : another one than the target, for a plan that is exported to it: its default release.

        Raises SpecError when the release does not run on these chips.
        """
        target = framework or self.target
        if all(release.framework != target for release in releases()):
            return None
        return release_of(target, vendor, self.target_release if target == self.target else None)


# A search for one good plan, not for its proof: raising bounds takes longer than finding plans. Nothing is faster by
# more than the gap; on the examples the plan is that of a gap of 2 %, in half the time.
SHORT_SEARCH: Final[dict[str, Any]] = {"effort": "fast", "top_k": 1, "gap": 0.1}
