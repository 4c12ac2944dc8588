"""Small plans of frameworks that shard parameters and have no pipelines."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from autodeploy.search.planner import plan
from autodeploy.specs.reading import read_spec_document

if TYPE_CHECKING:
    from autodeploy.specs.planset import PlanSet


@cache
def sharded_plan_set(target: str, model: str = "qwen3-0.6b", num_npus: int = 8) -> PlanSet:
    """The best plan of a model on one profile's cards."""
    return plan(
        read_spec_document(
            {
                "model": model,
                "cluster": {"profile": "ascend-800t-a2", "num_npus": num_npus},
                "training": {"seq_length": 4096, "global_batch_size": num_npus},
                "search": {"target": target, "effort": "fast", "top_k": 1, "risk": "neutral"},
            }
        ),
        alone=True,
    )
