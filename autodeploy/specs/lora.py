"""Low-rank adapters (LoRA): which matrices of a frozen model have one, and what they hold."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final, Literal

from pydantic import Field, field_validator

from autodeploy.specs.base import Document

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from autodeploy.specs.model import ModelSpec

LoraTarget = Literal["linear_qkv", "linear_proj", "linear_fc1", "linear_fc2"]
TARGETS: Final[tuple[LoraTarget, ...]] = ("linear_qkv", "linear_proj", "linear_fc1", "linear_fc2")


class LoraSpec(Document):
    """Adapters of a frozen model: beside a matrix of `in` x `out`, two of `in` x rank and rank x `out`.

    Source: arXiv 2106.09685, section 4.1. Names of targets are Megatron-LM's.
    """

    rank: Annotated[int, Field(ge=1, le=4096, examples=[16], description="inner width of an adapter")]
    alpha: Annotated[
        int | None, Field(ge=1, le=1_000_000, description="adapters count alpha / rank; absent: twice the rank")
    ] = None
    target_modules: Annotated[
        tuple[LoraTarget, ...], Field(min_length=1, description="matrices that have an adapter; absent: all four")
    ] = TARGETS

    @field_validator("target_modules")
    @classmethod
    def _each_once(cls, value: tuple[LoraTarget, ...]) -> tuple[LoraTarget, ...]:
        return tuple(name for name in TARGETS if name in value)

    @property
    def told_alpha(self) -> int:
        """Alpha, or twice the rank."""
        return self.alpha if self.alpha is not None else 2 * self.rank


def adapter_params(model: ModelSpec, rank: int, targets: Iterable[str]) -> int:
    """Parameters of all adapters of a model: rank x (in + out) of each target in each layer."""
    h, heads, keys = model.hidden_size, model.num_attention_heads, model.num_key_value_heads
    width = heads * model.head_dim + keys * (model.head_dim + model.value_head_dim)
    if model.attention_output_gate:
        width += heads * model.value_head_dim
    inner = model.intermediate_size or 0
    sizes = {
        "linear_qkv": h + width,
        "linear_proj": heads * model.value_head_dim + h,
        "linear_fc1": h + (2 if model.is_gated else 1) * inner,
        "linear_fc2": inner + h,
    }
    return model.num_hidden_layers * rank * sum(sizes[name] for name in targets)


# Fields of a model, and what of it no adapters are modelled for where they say something.
_UNMODELLED: Final = {
    "n_routed_experts": "experts",
    "kv_lora_rank": "latent attention",
    "linear_attention": "linear attention",
    "sliding_attention_heads": "sliding layers of other heads",
    "attention_head_gate": "gates of heads",
    "num_nextn_predict_layers": "multi-token prediction",
}


def unmodelled_with_adapters(value_of: Callable[[str], object]) -> str | None:
    """Why no adapters of a model are modelled yet; None where they are. value_of : a field of the model."""
    found = next((what for field, what in _UNMODELLED.items() if value_of(field)), None)
    return found and f"adapters of a model with {found} are not modelled yet"
