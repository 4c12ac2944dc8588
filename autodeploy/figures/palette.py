"""The one palette: a part of the step or of the memory has the same colour in every picture and on every page.

Families help the eye: computation is blue, communication warm, memory relief violet, idle time grey. The tones are
middling, so that they stand on a white and on a dark ground alike; neighbours in a stack differ in lightness too.
"""

from __future__ import annotations

PART_COLOURS: dict[str, str] = {
    "compute_s": "#3f74b8",
    "imbalance_s": "#93b8e4",
    "recompute_s": "#7c62b3",
    "exposed_swap_s": "#b9a3d9",
    "exposed_tp_s": "#efb45f",
    "exposed_ep_s": "#dd7a3c",
    "exposed_cp_s": "#c4574d",
    "exposed_dp_s": "#b58a55",
    "exposed_pp_s": "#e6a594",
    "pipeline_bubble_s": "#a3a9b3",
    "host_bound_s": "#4a978c",
    "optimizer_s": "#84b676",
    "generation_s": "#56708f",
    "hand_over_s": "#d9c06a",
}
"""Breakdown field to colour, in the order in which the parts are stacked."""

RL_COLOURS: dict[str, str] = {
    "generation": "#56708f",
    "hand_over": "#d9c06a",
    "onload_training": "#b9a3d9",
    "offload_training": "#b9a3d9",
    "preparation": "#a3a9b3",
    "log_probabilities": "#93b8e4",
    "reference": "#84b676",
    "values": "#4a978c",
    "reward": "#efb45f",
    "critic_update": "#7c62b3",
    "update": "#3f74b8",
}
"""Phase of a step of reinforcement learning to colour."""

MEMORY_COLOURS: dict[str, str] = {
    "weights": "#3f74b8",
    "gradients": "#93b8e4",
    "optimizer": "#84b676",
    "activations": "#7c62b3",
    "workspace": "#b9a3d9",
    "communication_buffers": "#dd7a3c",
    "runtime": "#a3a9b3",
}
"""Memory field to colour, in the order in which the parts are stacked."""

LAYER_COLOURS: dict[str, str] = {"dense": "#93b8e4", "moe": "#3f74b8"}
LAYER_INK: dict[str, str] = {"dense": "#1b2430", "moe": "#ffffff"}

SLOT_COLOURS: dict[str, str] = {"forward": "#93b8e4", "backward": "#3f74b8", "pair": "#7c62b3", "after": "#84b676"}

REST = "rgba(128, 134, 144, 0.22)"
"""What is there beside what is told."""

LANE_COLOURS: dict[str, str] = {
    "compute": PART_COLOURS["compute_s"],
    "communication": PART_COLOURS["exposed_ep_s"],
    "host": PART_COLOURS["host_bound_s"],
    "bubble": PART_COLOURS["pipeline_bubble_s"],
}
"""What fills a slot of the pipeline, and what is between slots."""

FATE_COLOURS: dict[str, str] = {
    "rejected": "#a3a9b3",
    "too_big": "#c4574d",
    "pruned": "#efb45f",
    "solved": "#4a978c",
}

BEST = "#3f74b8"
OTHER = "#93b8e4"
REFERENCE = "#a3a9b3"
LIMIT = "#c4574d"
GRID = "rgba(128, 134, 144, 0.28)"
TEXT = "#6b7280"
