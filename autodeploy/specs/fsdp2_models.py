"""Models that MindSpeed-LLM's FSDP2 backend has classes of its own for, by what their names begin with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from autodeploy.specs.model import ModelSpec

# Other models are transformers' (MindSpeed-LLM models/model_registry.py).
MODEL_IDS: Final = (
    ("qwen3-next", "qwen3_next"),
    ("qwen3", "qwen3"),
    ("gpt-oss", "gpt_oss"),
    ("minimax-m2", "minimax_m27"),
    ("step-3.5", "step35"),
    ("glm-5", "glm52"),
)
OF_EXPERTS: Final = {"qwen3": "qwen3_moe"}


def model_id_of(model: ModelSpec) -> str | None:
    """The backend's own class for a model; None where it runs transformers'."""
    name = model.name.lower()
    model_id = next((id_ for start, id_ in MODEL_IDS if name.startswith(start)), None)
    return OF_EXPERTS.get(model_id, model_id) if model_id and model.is_moe else model_id
