"""Overheads of a framework of post-training, and its defaults: data, each with its ground."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

from hardware_profiles.shipped_yaml import shipped

OTHER = "other"


@dataclass(frozen=True, slots=True)
class Overheads:
    """Overheads of a framework.

    step_s : in which trainers wait for the host each step: rewards, batches, engines that go to sleep and wake [s].
    sequence_s : of the host, for each sequence of a batch and token: sampling, log probabilities, text [s].
    eager_layer : constant of a layer of decoding whose operators the host issues one by one, inside the framework
    against the engine alone (ratio).
    host_copy : rate of moves between device and host against that of the link (fraction). gathers : the hand-over
    brings whole weights to each trainer before they go to the engines.
    """

    step_s: float = 0.0
    sequence_s: float = 0.0
    eager_layer: float = 1.0
    host_copy: float = 1.0
    gathers: bool = False


@cache
def _documents() -> dict[str, dict[str, Any]]:
    documents: dict[str, dict[str, Any]] = shipped("autodeploy.costs.post_training", "framework_defaults.yaml")
    return documents


def defaults_of(framework: str) -> dict[str, Any]:
    """Defaults of a framework, whatever the spelling of its name; of one that is not known, what is usual."""
    name = "".join(c for c in framework.lower() if c.isalnum())
    documents = _documents()
    return documents.get(name, documents[OTHER])


def overheads_of(framework: str) -> Overheads:
    """Overheads of a framework in a step."""
    numbers = {name: each["value"] for name, each in defaults_of(framework)["overheads"].items()}
    return Overheads(**numbers)
