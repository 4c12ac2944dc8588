"""The model of one step of post-training by reinforcement learning."""

from autodeploy.costs.post_training.generation import (
    Case,
    GenerationPart,
    Series,
    generation_part,
    generation_parts,
    generations,
    limited_alike,
)
from autodeploy.costs.post_training.overheads import Overheads, overheads_of
from autodeploy.costs.post_training.rl_step import rl_step, splits
from autodeploy.costs.post_training.samples import (
    InfeasibleRlError,
    Samples,
    lengths_of,
    samples_of,
    update_context,
    update_training,
)
from autodeploy.costs.post_training.step import Note, RlPhase, RlStep, combined, counted, placed
from autodeploy.costs.post_training.update import TrainingPhase, UpdatePart, update_part, update_parts

__all__ = [
    "Case",
    "GenerationPart",
    "InfeasibleRlError",
    "Note",
    "Overheads",
    "RlPhase",
    "RlStep",
    "Samples",
    "Series",
    "TrainingPhase",
    "UpdatePart",
    "combined",
    "counted",
    "generation_part",
    "generation_parts",
    "generations",
    "lengths_of",
    "limited_alike",
    "overheads_of",
    "placed",
    "rl_step",
    "samples_of",
    "splits",
    "update_context",
    "update_part",
    "update_parts",
    "update_training",
]
