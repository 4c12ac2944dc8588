"""What stays the same for all candidates of one spec: model, run, machine and the features that are on."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from autodeploy.evaluation.options import FLAT, SEQUENTIAL, ExchangeFeatures
from autodeploy.strategies.candidates import PAIRED, Candidates

if TYPE_CHECKING:
    from autodeploy.evaluation.machine import Machine
    from autodeploy.specs.model import ModelSpec
    from autodeploy.workload.operators import OperatorFeatures

MC2_CHUNKS = 8.0  # the fused kernel splits rows into about this many pieces
COC_CHUNKS = 4.0  # --coc-parallel-num


@dataclass(frozen=True)
class Context:
    """One spec, lowered to what the formulas read.

    limit_bytes : what the framework may use of a card, buffers and runtime included.
    gradient_bytes : of one gradient element in the data-parallel reduction.
    """

    model: ModelSpec
    machine: Machine
    operators: OperatorFeatures
    features: frozenset[str]
    target: str
    world: int
    num_npus: int
    seq_length: int
    global_batch: int
    imbalance: float
    peak_imbalance: float
    slowest_device_factor: float
    limit_bytes: float
    host_bytes_per_device: float
    gradient_bytes: float
    distributed_optimizer: bool = True
    deduplicate: bool = False
    precision: str = "bf16"
    family: str = ""
    facts: dict[str, object] = field(default_factory=dict)

    @property
    def graph_mode(self) -> bool:
        """Whether the framework compiles the step: without a pipeline it splits each gradient as soon as it exists."""
        return "graph_mode" in self.features or self.target == "mindformers"

    @property
    def cuts_sends(self) -> bool:
        """Whether stages send 1/tp each and gather it inside the node (Megatron-LM scatter-gather, before SP)."""
        return "scatter_gather_sends" in self.features

    def exchange_features(self, candidates: Candidates) -> ExchangeFeatures:
        """Communication switches of each candidate, where they are legal together."""
        on, n = self.features, len(candidates)
        paired = np.isin(candidates.schedule, PAIRED)
        flat = np.isin(candidates.moe_dispatcher, [FLAT, SEQUENTIAL])
        fused = (candidates.tp > 1) & (not self.model.is_moe)
        chunks = np.ones(n)
        if "mc2" in on:
            chunks = np.where(fused & candidates.sequence_parallel, MC2_CHUNKS, chunks)
        elif "coc" in on:
            chunks = np.where(fused, COC_CHUNKS, chunks)
        overlap = flat & ~paired & (candidates.ep > 1)
        return ExchangeFeatures(
            dispatcher=candidates.moe_dispatcher,
            tp_fusion=chunks,
            alltoall_overlap=overlap & ("moe_alltoall_overlap" in on),
            shared_expert_overlap=overlap & ("shared_expert_overlap" in on),
            paired=paired,
            deduplicate=self.deduplicate,
            sync_free="host_sync_free" in on,
            imbalance=self.imbalance,
            groups_limit=float(self.model.topk_group) if self.model.topk_group else None,
        )
