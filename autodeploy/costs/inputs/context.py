"""The context of all candidates of one spec: model, run, machine and the features that are on."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from autodeploy.costs.inputs.expert_balance import ExpertRanks, Loads, placed_balance
from autodeploy.costs.inputs.machine import NO_SOFTWARE, copy_groups, replica_groups
from autodeploy.costs.workload.flops import step_flops_per_token
from autodeploy.costs.workload.layers import layer_kinds, model_matrices
from autodeploy.space.candidates import DISPATCHERS
from autodeploy.space.facts import launches
from autodeploy.space.rules import values_read
from autodeploy.specs.tuning import SEQUENCES_OF_A_PAIR, adapter_params
from autodeploy.stack.expression import evaluate, names
from autodeploy.stack.features import FEATURES, launch_values, mechanisms
from autodeploy.stack.frameworks import FRAMEWORKS
from autodeploy.stack.releases import releases
from cost_models.all_to_all import ExpertGroups
from cost_models.collectives import MOST_PIECES
from cost_models.hbm import OptimizerFormat
from cost_models.sample_packing import MOST_PACKS, attention_imbalance, mean_keys, pack_squares

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    import numpy.typing as npt

    from autodeploy.costs.inputs.expert_balance import ExpertBalance
    from autodeploy.costs.inputs.machine import Machine
    from autodeploy.costs.workload.attention_types import LayerKind
    from autodeploy.costs.workload.operators import OperatorFeatures
    from autodeploy.space.candidates import Candidates
    from autodeploy.specs.model import ModelSpec
    from autodeploy.stack.frameworks import Framework
    from autodeploy.stack.host import HostSoftware
    from autodeploy.stack.releases import Release
    from cost_models.arrays import Bools, Floats
    from cost_models.collectives import Group
    from hardware_profiles.profile import Profile


# How unevenly packed documents load the data-parallel ranks of each candidate.
@dataclass(frozen=True, eq=False)
class Packs:
    """Packs of a global batch: sum of squared document lengths of each, the mean keys that a query attends to, and the
    mean number of documents of a pack.
    """

    squares: Floats
    keys: float
    documents: float


def packs_of(histogram: Mapping[str, float], seq_length: int, global_batch: int) -> Packs:
    """Documents drawn from a histogram {length: share}, packed; longer ones are cut into full sequences."""
    weights = tuple(sorted((int(length), share) for length, share in histogram.items() if share > 0.0))
    return _packs(weights, seq_length, min(global_batch, MOST_PACKS))


@lru_cache(maxsize=16)
def _packs(weights: tuple[tuple[int, float], ...], seq_length: int, packs: int) -> Packs:
    squares = pack_squares(dict(weights), seq_length, packs)
    mean = sum(length * share for length, share in weights) / sum(share for _, share in weights)
    return Packs(squares, mean_keys(squares, seq_length), max(1.0, seq_length / mean))


def attention_factor(packs: Packs | None, candidates: Candidates, *, rearranged: bool) -> Floats:
    """Time of attention on the ranks that set the pace, against the mean [n]; 1 where sequences are full.

    Ranks whose experts lie on each other wait for each other in every micro batch; the others at the end of a step.
    A pipeline's bubble is that of equal micro batches. rearranged : similar packs share a micro batch.
    """
    if packs is None:
        return np.ones(len(candidates))
    c = candidates
    spread = np.where(c.ep > 1, c.ep * c.etp // np.maximum(c.tp * c.cp, 1), 1)
    ranks = np.gcd(np.clip(spread, 1, np.maximum(c.dp, 1)), c.dp)
    keys = np.stack([c.dp // ranks, ranks, c.micro_batch_size, c.micro_batches], axis=1)
    distinct, inverse = np.unique(keys, axis=0, return_inverse=True)
    factors = [_factor(packs, *(int(value) for value in row), rearranged) for row in distinct]
    return np.asarray(factors)[inverse.ravel()]


@lru_cache(maxsize=65_536)
def _factor(
    packs: Packs, groups: int, ranks: int, micro_batch_size: int, micro_batches: int, rearranged: bool
) -> float:
    return attention_imbalance(
        packs.squares,
        groups=groups,
        ranks=ranks,
        micro_batch_size=micro_batch_size,
        micro_batches=micro_batches,
        rearranged=rearranged,
    )


PRETRAINING = "pretraining"
FLAT, SEQUENTIAL, ALL_GATHER, HIERARCHICAL, DEEPEP = range(len(DISPATCHERS))


@dataclass(frozen=True, slots=True)
class Sharded:
    """Fully sharded data parallelism: the ranks that share dense and expert parameters, and what runs beside work.

    gradient_bytes : of one gradient element in the reduction; expert_gradient_bytes : of an expert's [n].
    dense_copies, expert_copies_group : the ranks that hold the same shard and add up its gradients (HSDP).
    keeps_gathered : weights stay whole from the forward to the backward pass [n].
    copies, expert_copies : of weights out of what is gathered, and of gradients into what is reduced [n].
    through_step : weights stay whole from the first micro batch to the last, and gradients until they are reduced once
        [n].
    """

    dense: Group
    expert: Group
    dense_copies: Group
    expert_copies_group: Group
    gradient_bytes: float
    expert_gradient_bytes: Floats
    overlap_gather: bool
    overlap_reduce: bool
    keeps_gathered: Bools
    copies: float
    expert_copies: Floats
    through_step: Bools


@dataclass(frozen=True, slots=True)
class ExchangeFeatures:
    """Features of the communication, one entry per candidate.

    tp_fusion : chunks of a fused or chunked matrix multiplication with its collective (1 = none).
    dispatcher : index into DISPATCHERS. balance : how evenly experts load the ranks.
    paired : the schedule runs the forward of one micro batch against the backward of another.
    recompute_in_bubbles : what the backward pass recomputes may run while it waits for an exchange.
    attention_imbalance : time of attention on the ranks that set the pace, against the mean.
    async_gathers : an all-gather dispatcher issues its gathers before the host waits. captured : what does not depend
    on the router's sizes is launched as a graph.
    compiled : the device runs a whole graph, and no host issues its operators.
    groups : group-limited routing. pipelined : the two steps of a hierarchical exchange run at the same time.
    """

    dispatcher: npt.NDArray[np.int64]
    tp_fusion: npt.NDArray[np.float64]
    tp_fused_kernel: bool
    alltoall_overlap: Bools
    shared_expert_overlap: Bools
    shortcut_overlap: Bools
    paired: Bools
    recompute_in_bubbles: Bools
    balance: ExpertBalance
    attention_imbalance: npt.NDArray[np.float64]
    deduplicate: Bools | bool = False
    sync_free: bool = False
    compiled: bool = False
    host_reorder: bool = False
    async_gathers: bool = False
    captured: bool = False
    vector_parallel: bool = False
    pipelined: bool = True
    groups: ExpertGroups | None = None
    sharded: Sharded | None = None  # None: every rank holds its parameters whole


# Mechanisms that change nothing but which rank holds which experts.
LEVELLING = frozenset({"expert_migration", "mutual_routing"})


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
    stack: Release | None  # of the target; None where no framework is meant
    world: int
    num_npus: int
    seq_length: int
    global_batch: int
    loads: Loads
    slowest_device_factor: float
    limit_bytes: float
    host_bytes_per_device: float
    gradient_bytes: float
    distributed_optimizer: bool = True
    packs: Packs | None = None  # documents of different lengths; None: every sequence is full
    precision: str = "bf16"
    family: str = ""
    profile: Profile | None = None  # the machine's
    host: HostSoftware = NO_SOFTWARE  # what the stack asks of the host
    release: str | None = None  # band of the framework's release; None is the current one
    facts: dict[str, object] = field(default_factory=dict)
    alternatives: tuple[Context, ...] = ()  # the same under other features, of which a candidate may use the fastest

    @cached_property
    def matrices(self) -> tuple[float, float]:
        """As of `model_matrices`."""
        return model_matrices(self.model, self.operators)

    @cached_property
    def layer_kinds(self) -> list[tuple[LayerKind, int]]:
        """As of `layer_kinds`."""
        return layer_kinds(self.model)

    @property
    def node_ranks(self) -> int:
        """Ranks of one node."""
        return int(str(self.facts["node_ranks"]))

    @cached_property
    def mechanisms(self) -> frozenset[str]:
        """Mechanisms of the features, by which formulas know them."""
        return mechanisms(self.features)

    @property
    def framework(self) -> Framework:
        """Capabilities of the target framework."""
        return FRAMEWORKS[self.target]

    @property
    def graph_mode(self) -> bool:
        """Whether the framework compiles the step: without a pipeline it splits each gradient as soon as it exists."""
        return "graph_mode" in self.features or self.framework.graph_mode

    @property
    def sequences_per_sample(self) -> int:
        """Sequences that one of the global batch is: two where a chosen and a rejected one are compared."""
        return SEQUENCES_OF_A_PAIR if self.operators.reference else 1

    @property
    def sample_tokens(self) -> int:
        """Tokens of one of the global batch."""
        return self.seq_length * self.sequences_per_sample

    @property
    def adapter_params(self) -> int | None:
        """Parameters of the adapters that a token uses; None where the whole model is trained."""
        on = self.operators
        if not on.frozen:
            return None
        return adapter_params(self.model, on.lora_rank, on.lora_targets, active=True)

    def mfu(self, tokens_per_s_per_rank: float) -> float:
        """Share of the peak that the FLOPs of the model, its adapters and its reference reach."""
        return self._flops_per_token * tokens_per_s_per_rank / self.machine.peak_flops

    @cached_property
    def _flops_per_token(self) -> float:
        return step_flops_per_token(
            self.model,
            self.seq_length,
            adapter_params=self.adapter_params,
            reference=self.operators.reference,
            keys=self.operators.mean_keys,
        )

    @property
    def fsdp(self) -> bool:
        """Whether data-parallel ranks hold weights and gradients in shards, beside optimizer states."""
        return "fsdp" in self.mechanisms

    @property
    def each_parameter_sharded(self) -> bool:
        """Whether shards are FP32 ones of each parameter (PyTorch FSDP2), cast and copied as they are gathered."""
        return "torch_fsdp2" in self.mechanisms

    @property
    def prefetched_units(self) -> float:
        """Units whose weights are gathered ahead of the one at work."""
        return float(launch_values(self.features, "torch_fsdp2")["prefetch"])

    @property
    def kind_of_run(self) -> str:
        """The kind of run that records of it are, as the coverage table tells them apart."""
        if self.host.changing_shapes:
            return "updates"
        if self.operators.lora_rank or self.operators.reference:
            return "tuning"
        return "sharded" if self.fsdp else PRETRAINING

    @property
    def splits_states(self) -> bool:
        """Whether data-parallel ranks share the optimizer's states."""
        return self.distributed_optimizer or self.fsdp

    @property
    def cuts_by_replicas(self) -> bool:
        """Whether a layer's cost depends on the number of replicas and of micro batches too: documents of different
        lengths spread over them, and parameters are sharded over them.
        """
        return self.packs is not None or self.fsdp

    @property
    def launches_deepep(self) -> bool:
        """Whether the release of the plan has this dispatcher; of none, whether one that runs on these chips has."""
        if self.stack is not None:
            return bool(self.facts["launches_deepep"])
        vendor = self.machine.vendor
        return any(launches(release, DISPATCHERS[DEEPEP]) for release in releases() if release.runs_on(vendor))

    @property
    def optimizer(self) -> OptimizerFormat:
        """Bytes of the optimizer's states."""
        return OptimizerFormat.of(self.mechanisms, self.precision)

    def exchange_features(self, candidates: Candidates) -> ExchangeFeatures:
        """Communication switches of each candidate, where they are legal together."""
        on, n = self.mechanisms, len(candidates)
        paired = candidates.paired
        flat = np.isin(candidates.moe_dispatcher, [FLAT, SEQUENTIAL, DEEPEP])
        chunks, cut = np.ones(n), candidates.tp > 1
        if "mc2" in on:
            chunks = np.where(cut & candidates.sequence_parallel, MOST_PIECES, chunks)
        elif "coc_kernel" in on:
            chunks = np.where(cut, MOST_PIECES, chunks)
        elif "coc" in on:
            chunks = np.where(cut, launch_values(self.features, "coc")["chunks"], chunks)
        overlap = flat & ~paired & (candidates.ep > 1)
        return ExchangeFeatures(
            dispatcher=candidates.moe_dispatcher,
            tp_fusion=chunks,
            tp_fused_kernel=not on.isdisjoint({"mc2", "coc_kernel"}),
            # Source: MindSpeed @028de58c moe_alltoall_overlap.py:24, without DeepEP; Megatron-LM @d98e8a64
            # transformer_config.py:1820, with it.
            alltoall_overlap=overlap & (candidates.moe_dispatcher != DEEPEP) & ("moe_alltoall_overlap" in on),
            shared_expert_overlap=overlap & ("shared_expert_overlap" in on),
            shortcut_overlap=overlap & ("shortcut_overlap" in on),
            # A pair of passes has filled its waits already, and no public release replays ahead of the gradient.
            recompute_in_bubbles=~paired & ("selective_recompute" in on and self.framework.recomputes_in_waits),
            balance=placed_balance(self.loads, self.expert_ranks(candidates)),
            attention_imbalance=attention_factor(self.packs, candidates, rearranged="sample_rearrangement" in on),
            paired=paired,
            deduplicate=candidates.moe_dispatcher == DEEPEP,
            # A compiled graph has fixed sizes and runs without the host.
            sync_free="host_sync_free" in on or self.graph_mode,
            compiled=self.graph_mode,
            host_reorder="host_reorder" in on,
            async_gathers="async_permutation" in on,
            captured="cuda_graphs" in on,
            vector_parallel="cube_vector_parallel" in on,
            pipelined=self.framework.pipelined_exchange,
            groups=_expert_groups(self.model),
            sharded=self.sharded(candidates) if self.fsdp else None,
        )

    def whole_through_step(self, candidates: Candidates) -> Bools:
        """Candidates that gather weights once a step, and keep gradients whole until they are reduced once [n].

        FSDP2 under a pipeline: PyTorch's stages neither reshard nor reduce before the last micro batch, for in every
        one exchanges would be exposed. Source: torch/distributed/pipelining/stage.py, backward_maybe_with_nosync;
        torchtitan 9dec370, parallelize_llama.py, apply_fsdp; v0.2.2, get_fsdp_reshard_after_forward_policy.
        """
        return np.asarray((candidates.pp > 1) & self.each_parameter_sharded)

    def _experts_apart(self, candidates: Candidates) -> Bools:
        """Candidates whose experts are a unit of their own that is sharded [n]."""
        return np.asarray((candidates.ep > 1) & self.each_parameter_sharded)

    def expert_gradient_bytes(self, candidates: Candidates) -> Floats:
        """Of a gradient of experts while replicas sum it [n]."""
        return np.where(self._experts_apart(candidates), self.optimizer.gradient, self.gradient_bytes)

    def sharded(self, candidates: Candidates) -> Sharded:
        """The groups over which parameters are sharded: dp x cp ranks, and the expert data parallel ranks."""
        dense, expert = replica_groups(candidates, self.machine, self.world, candidates.dp_replicate)
        dense_copies, expert_copies = copy_groups(candidates, self.machine, self.world)
        reduce = "overlap_grad_reduce" in self.mechanisms
        apart = self._experts_apart(candidates)
        return Sharded(
            dense=dense,
            expert=expert,
            dense_copies=dense_copies,
            expert_copies_group=expert_copies,
            gradient_bytes=self.gradient_bytes,
            expert_gradient_bytes=self.expert_gradient_bytes(candidates),
            overlap_gather=reduce and "overlap_param_gather" in self.mechanisms,
            overlap_reduce=reduce,
            keeps_gathered=candidates.keep_gathered,
            copies=1.0 if self.each_parameter_sharded else 0.0,
            expert_copies=np.where(apart, 2.0, 1.0) if self.each_parameter_sharded else np.zeros(1),
            through_step=self.whole_through_step(candidates),
        )

    def levels_experts(self, candidates: Candidates) -> Bools:
        """Candidates whose experts can be moved or copied [n], as the release launches it."""
        levels = candidates.ep > 1
        for name in sorted(self.features & FEATURES.keys()):
            feature = FEATURES[name]
            when = feature.condition(self.stack) if feature.mechanism in LEVELLING else ""
            if when:
                levels = levels & np.asarray(evaluate(when, self.condition_values(candidates, names(when))), dtype=bool)
        return np.asarray(levels)

    def condition_values(self, candidates: Candidates, read: Iterable[str]) -> dict[str, Any]:
        """Names of conditions in features' records: of axes and facts what is read, and what follows."""
        return {
            **values_read(candidates, self.facts, read),
            "paired": candidates.paired,
            "packed": self.packs is not None,
            "distributed_optimizer": self.distributed_optimizer,
        }

    def expert_ranks(self, candidates: Candidates) -> ExpertRanks:
        """The expert groups of candidates: ranks of one are next to each other, so that they share sequences.

        A group of fewer ranks than a sequence is split over has a part of each of them.
        """
        c = candidates
        split, size = (c.tp * c.cp).astype(np.float64), c.micro_batch_size.astype(np.float64)
        chosen = self.model.computing_experts_per_tok or 1.0
        return ExpertRanks(
            ranks=c.ep.astype(np.float64),
            nodes=self.machine.group(c.etp.astype(np.float64), c.ep.astype(np.float64)).fan_out[-1],
            sequences=size * np.maximum(1.0, c.ep * c.etp / split),
            copies=chosen * self.seq_length * size * c.etp / split,
        )


def _expert_groups(model: ModelSpec) -> ExpertGroups | None:
    if not model.n_group or not model.topk_group:
        return None
    return ExpertGroups(model.n_group, model.topk_group)
