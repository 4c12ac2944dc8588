"""How the router is kept from sending all tokens to a few experts: what a spec or its model says about it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, TypeAdapter, ValidationError

from autodeploy.messages import Message
from autodeploy.messages.field_faults import FieldFault, fault_of
from autodeploy.specs.base import Document

if TYPE_CHECKING:
    from autodeploy.specs.model import ModelSpec
    from autodeploy.specs.training import TrainingSpec

RouterKind = Literal["auxiliary_loss", "bias", "grouped", "forced"]

# What a plain number is stated for. The published runs that the default is of have 32 expert parallel ranks.
STATED_AT_EP = 32

Factor = Annotated[float, Field(ge=1.0, le=64.0)]


class StatedImbalance(Document):
    """A factor, max / mean tokens over the ranks of an expert group, and the size of the group that it is of."""

    value: Factor
    at_ep: Annotated[int, Field(ge=2, le=8192)]


_FACTOR: TypeAdapter[float] = TypeAdapter(Factor)


def as_imbalance(value: Any) -> Any:
    """A number, or a factor with its group, which can't be above the ranks of that."""
    if isinstance(value, Mapping):
        value = StatedImbalance.model_validate(value)
    if not isinstance(value, StatedImbalance):
        try:
            return _FACTOR.validate_python(value)
        except ValidationError as error:
            raise FieldFault(fault_of(error.errors()[0])[0], Message("specs.n_1_to_64_or_value_at_ep")) from None
    if value.value > value.at_ep:
        raise FieldFault(Message("common.exceeds", one=f"{value.value:g}", other=f"at_ep {value.at_ep}"))
    return value


def stated(given: float | StatedImbalance) -> StatedImbalance:
    """A factor with its group."""
    return given if isinstance(given, StatedImbalance) else StatedImbalance(value=given, at_ep=STATED_AT_EP)


def router_of(model: ModelSpec, training: TrainingSpec) -> RouterKind:
    """The kind of the router: as the run says it, else as the model does.

    Every token takes equally many experts of each group where all groups are reached and no word says that groups only
    limit the choice. Source: mixture of grouped experts, Pangu Pro MoE, arXiv:2505.21411, section 2.
    """
    if training.router is not None:
        return training.router
    groups, topk = model.n_group or 1, model.num_experts_per_tok or 1
    if groups > 1 and model.topk_group == groups and topk % groups == 0 and model.told.topk_method is None:
        return "grouped"
    return "bias" if model.told.has_expert_bias else "auxiliary_loss"


def even_groups(model: ModelSpec, router: RouterKind) -> int:
    """Groups of experts that receive equally many tokens whatever the router prefers: 1, or a grouped router's."""
    if router != "grouped":
        return 1
    return model.n_group or model.n_routed_experts or 1
