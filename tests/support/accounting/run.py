"""What is trained, as plain numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Levelled:
    """Loads after experts were moved or copied, against the mean: what placement leaves is given, not computed.

    compute, arrives: rows and copies of tokens of the busiest rank; home: share of all copies that stays on its rank.
    peak: at the worst moment. moved: share of the busiest rank's experts that are new every 50 steps. hot: experts
    whose weights every rank receives.
    """

    compute: float
    arrives: float
    peak: float
    home: float = 0.0
    moved: float = 0.0
    hot: float = 0.0


@dataclass(frozen=True)
class Run:
    """What is trained and how. `model` holds numbers by their Hugging Face names; `on` the features that are on."""

    model: dict[str, Any]
    seq: int
    on: frozenset[str] = frozenset()
    imbalance: float = 1.0
    peak_imbalance: float = 1.0
    slowest: float = 1.0
    gradient_bytes: float = 4.0
    stats_bytes: float = 64.0
    norm_bytes: float = 2.0
    distributed_optimizer: bool = True
    precision: str = "bf16"
    levelled: Levelled | None = None
    slow_attention: float = 1.0  # of the ranks whose packed documents take longest
    keys: float | None = None  # that a query sees in the mean, where documents are packed
    weighted_activation: bool = False  # experts keep their activation before and after the routing weights
    group_launches: float = 0.0  # calls of the host for each expert inside a grouped multiplication
    copies_heads: bool = False  # slices of the joined projection are copied out
    pairs: bool = False  # of sequences, which a frozen copy of the model reads, too
    lora_rank: int = 0  # of adapters beside a frozen model
    lora_targets: tuple[str, ...] = ()  # products that have one
    experts_apart: bool = False  # each expert has parameters of its own
    scatter: float = 0.0  # of the hosts' time, deviation over mean
    adam_s: float | None = None  # a parameter, of an optimizer on the host's cores with its way there and back

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return self.model.get(name)

    @property
    def sequences(self) -> int:
        """Of one of the global batch."""
        return 2 if self.pairs else 1

    @property
    def gates(self) -> int:
        """Matrices of an MLP that read its input."""
        return 1 if self.hidden_act == "gelu" else 2

    @property
    def qk(self) -> int:
        """Width of a head's query and key."""
        return int(self.qk_nope_head_dim + self.qk_rope_head_dim if self.kv_lora_rank else self.head_dim)

    @property
    def value(self) -> int:
        """Width of a head's value."""
        return int(self.v_head_dim or self.head_dim)

    @property
    def chosen(self) -> float:
        """Experts with matrices that a token reaches: its share of all, where some return what they get."""
        without = self.n_zero_experts or 0
        return (self.num_experts_per_tok or 0) * self.n_routed_experts / (self.n_routed_experts + without)

    def is_moe(self, layer: int) -> bool:
        """Whether a layer has routed experts."""
        return bool(self.n_routed_experts) and layer >= (self.first_k_dense_replace or 0)

    def window(self, layer: int) -> int | None:
        """Keys a query of the layer sees at most."""
        kinds = self.layer_types
        return None if kinds is not None and kinds[layer] == "full_attention" else self.sliding_window

    def adds_apart(self, experts: bool) -> bool:
        """Whether an operator of its own adds a gradient to its sum; experts' products may have a word of their own."""
        if "torch_fsdp2" in self.on:  # shards are added up, after they were reduced
            return False
        plain = "unfused_gradient_accumulation" in self.on
        if not experts:
            return plain
        return "unfused_expert_accumulation" in self.on or (plain and "fused_expert_accumulation" not in self.on)

    @property
    def apart(self) -> float:
        """Bytes a parameter of an operator that adds a gradient to its sum: both in, the sum out; shards are small."""
        if "torch_fsdp2" in self.on:
            return 0
        halves = self.precision == "fp16" and "graph_mode" not in self.on
        return 2 + 2 + 2 if halves else 2 + 4 + 4

    def summed(self, experts: bool = False) -> float:
        """Bytes that a product moves for an element of a weight's gradient: 8 where it adds into an FP32 sum."""
        apart = self.adds_apart(experts)
        apart |= self.precision == "fp16" and "graph_mode" not in self.on
        apart |= "torch_fsdp2" in self.on
        return 2 if apart else 8
