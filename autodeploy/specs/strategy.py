"""One parallel strategy: what a launch script would say."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, Self, get_args

from pydantic import BeforeValidator, Field, WithJsonSchema, model_validator
from pydantic_core import PydanticKnownError

from autodeploy.messages import Message
from autodeploy.specs.base import Document, omitted
from autodeploy.specs.rl import RlStrategy
from cost_models.optimizers import OPTIMIZERS
from cost_models.schedule import SCHEDULES

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence


# Which layers a memory choice is counted for, as documents name it.
class ChoiceKey(NamedTuple):
    """A memory choice of all layers or of one class of them; documents write `name` or `name@class`."""

    name: str
    layer_class: str | None = None

    @classmethod
    def of(cls, text: str) -> ChoiceKey:
        """As a document names it."""
        name, _, layer_class = text.partition("@")
        return cls(name, layer_class or None)

    def __str__(self) -> str:
        return self.name if self.layer_class is None else f"{self.name}@{self.layer_class}"


CpAlgo = Literal["ring", "ulysses", "hybrid"]


def one_of(names: Collection[str], value: Any) -> Any:
    """The name of a record among `names`; the complaint is that of a choice between fixed words."""
    if isinstance(value, str) and value in names:
        return value
    raise PydanticKnownError("literal_error", {"expected": either([repr(name) for name in names])})


def either(words: Sequence[str]) -> str:
    """The words as a choice between them."""
    *first, last = words
    return f"{', '.join(first)} or {last}"


Schedule = Annotated[
    str,
    BeforeValidator(partial(one_of, SCHEDULES)),
    WithJsonSchema({"enum": list(SCHEDULES), "title": "Schedule", "type": "string"}),
]
OptimizerName = Annotated[
    str,
    BeforeValidator(partial(one_of, OPTIMIZERS)),
    WithJsonSchema({"enum": list(OPTIMIZERS), "title": "Optimizer", "type": "string"}),
]
Dispatcher = Literal["alltoall", "alltoall_seq", "allgather", "hierarchical", "deepep"]
RecomputeModule = Literal[
    "core_attn",
    "mla_up_proj",
    "mla_kv_up_proj",
    "norm",
    "activation",
    "by_operator",
    "permute",
    "moe_zero_memory_level0",
    "moe_zero_memory_level1",
    "mlp",
    "moe",
    "shared_experts",
]
SwapModule = Literal["attention", "core_attn_out", "unpermute", "layer_input", "moe", "activation"]
WHOLE_LAYER = "full"


def counted(names: Collection[str], value: Any) -> Any:
    """A memory choice among `names`, of all layers or of one class of them; see `ChoiceKey`."""
    one_of(names, ChoiceKey.of(value).name if isinstance(value, str) else value)
    return value


def _choices(names: tuple[str, ...]) -> WithJsonSchema:
    """These memory choices, of all layers or of a class, as a schema of keys."""
    of_a_class = {"pattern": f"^({'|'.join(names)})@"}
    return WithJsonSchema({"type": "string", "anyOf": [{"enum": list(names)}, of_a_class]})


_RECOMPUTED = (*get_args(RecomputeModule), WHOLE_LAYER)
RecomputedLayers = Annotated[str, BeforeValidator(partial(counted, _RECOMPUTED)), _choices(_RECOMPUTED)]
SwappedLayers = Annotated[str, BeforeValidator(partial(counted, get_args(SwapModule))), _choices(get_args(SwapModule))]

Degree = Annotated[int, Field(ge=1, le=131_072)]
Layers = Annotated[int, Field(ge=0, le=4096)]


class _Open(tuple[str, ...]):
    """A list that was not given, which an empty one is not."""

    __slots__ = ()


class Recompute(Document):
    """Recomputation: the part of the forward pass that the backward pass runs again.

    `num_layers` counts layers of each pipeline stage and is capped at the stage's layers; absent means all of
    them. `per_stage` names, for each pipeline stage, how many layers recompute each module ("full" = the layer).
    """

    granularity: Literal["none", "full", "selective"] = "none"
    num_layers: Layers | None = None
    num_layers_per_stage: tuple[Layers, ...] | None = None
    modules: tuple[RecomputeModule, ...] = ()
    per_stage: tuple[dict[RecomputedLayers, Layers], ...] | None = None


class Strategy(Document):
    """Degrees, schedule, placement and memory choices. `dp` follows from the number of ranks that train."""

    tp: Degree = 1
    pp: Degree = 1
    vpp: Degree = 1
    dp: Degree | None = None
    cp: Degree = 1
    cp_algo: CpAlgo | None = None
    ulysses_degree: Degree | None = None
    ep: Degree = 1
    etp: Degree | None = None
    micro_batch_size: Degree = 1
    sequence_parallel: bool | None = None
    distributed_optimizer: bool = True
    fsdp: bool = False
    dp_replicate: Annotated[
        Degree, omitted("replica groups that each hold a full set of shards (HSDP); 1: one set over all ranks", at=1)
    ] = 1
    schedule: Schedule = "1f1b"
    layers_per_stage: tuple[Layers, ...] | tuple[tuple[Layers, ...], ...] | None = None
    predictors_apart: Annotated[
        bool,
        omitted(
            "prediction modules run at the end of the last part but one, their loss with the head on the last, which "
            "has no layer",
            at=False,
        ),
    ] = False
    moe_dispatcher: Dispatcher | None = None
    recompute: Recompute = Recompute()
    swap: tuple[SwapModule, ...] = ()
    swap_per_stage: tuple[dict[SwappedLayers, Layers], ...] | None = None
    swap_optimizer: bool = False
    optimizer_offload_fraction: Annotated[
        float | None,
        omitted(
            "share of the optimizer's states that lie on the host and are updated on its cores; absent: as "
            "swap_optimizer and the software say",
            ge=0.001,
            le=1.0,
        ),
    ] = None
    reuse_fp32_param: bool = False
    features: tuple[str, ...] = Field(
        default_factory=_Open,
        description="exactly those that are on; absent: those that are chosen for the spec",
        exclude_if=lambda value: isinstance(value, _Open),
    )
    rl: Annotated[RlStrategy | None, omitted("rl_post_training only: placement and layout of generation")] = None

    @model_validator(mode="after")
    def _shape_matches(self) -> Self:
        by_stage = {
            "layers_per_stage": self.layers_per_stage,
            "recompute.per_stage": self.recompute.per_stage,
            "recompute.num_layers_per_stage": self.recompute.num_layers_per_stage,
            "swap_per_stage": self.swap_per_stage,
        }
        for field, stages in by_stage.items():
            if stages is not None and len(stages) != self.pp:
                raise ValueError(
                    Message(
                        "common.place",
                        place=field,
                        message=Message("common.entries_expected", count=self.pp, found=len(stages)),
                    )
                )
        return self

    @property
    def named_features(self) -> frozenset[str] | None:
        """The features that are on; None where the strategy leaves them open."""
        return None if isinstance(self.features, _Open) else frozenset(self.features)

    def replicas(self, ranks: int) -> int:
        """Data-parallel degree: as given, else as many as so many ranks hold, at least one."""
        return self.dp or max(1, ranks // (self.tp * self.pp * self.cp))

    @property
    def stages_inside(self) -> bool:
        """Whether ranks are in the order tp, cp, pp, dp: a pipeline's stages next to each other, replicas outside."""
        return "tp_pp_dp_mapping" in self.features

    def stage_stride(self, ranks: int) -> int:
        """Ranks from one stage of a pipeline to the next."""
        return self.tp * self.cp if self.stages_inside else max(1, ranks // self.pp)
