"""Direct preference optimisation: the loss over pairs, and what of a model no reference is modelled for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final, Literal

from pydantic import Field

from autodeploy.messages import Message
from autodeploy.specs.base import Document
from hardware_profiles.magnitudes import EPSILON

if TYPE_CHECKING:
    from collections.abc import Callable

DpoLoss = Literal["sigmoid", "hinge", "ipo"]
DEFAULT_BETA: Final = 0.1
SEQUENCES_OF_A_PAIR: Final = 2  # a chosen one and a rejected one


class DpoSpec(Document):
    """The loss over pairs of a chosen and a rejected sequence, beside a frozen reference model.

    It changes no time or memory. Source: arXiv 2305.18290; its names are MindSpeed-LLM's (features_manager/dpo).
    """

    beta: Annotated[float, Field(ge=EPSILON, le=100, description="weight of the log ratios against the reference")] = (
        DEFAULT_BETA
    )
    loss: Annotated[DpoLoss, Field(description="of the difference of log ratios")] = "sigmoid"


# Fields of a model that no reference is modelled for where they say something.
_UNMODELLED: Final = ("n_routed_experts", "linear_attention", "num_nextn_predict_layers", "tie_word_embeddings")


def unmodelled_with_reference(value_of: Callable[[str], object]) -> str | None:
    """Why preference tuning of a model is not modelled yet; None where it is. value_of : a field of the model."""
    unmodelled = next((field for field in _UNMODELLED if value_of(field)), None)
    return unmodelled and Message("specs.not_modelled_with", one="kind: dpo", other=unmodelled)
