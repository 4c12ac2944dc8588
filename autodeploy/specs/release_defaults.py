"""What a framework release switched on by default, and its software band.

A record names what its script says. On Ascend and before 2024 an absent feature is off; later NVIDIA stacks switch
fusions and data-parallel overlap on by default, and their scripts don't say so.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from autodeploy.stack.frameworks import FRAMEWORKS
from autodeploy.stack.gradient_sums import EXPERTS_FUSED, PLAIN_APART, in_mindspeed
from hardware_profiles.errors import ProfileError
from hardware_profiles.loader import load_profile

if TYPE_CHECKING:
    from autodeploy.specs.record import Record

# Release and date of 2.1.0_core_r0.12.1, the first whose dispatchers are Megatron-LM's own again.
MINDSPEED_2_1 = (2, 1), (2025, 6, 1)
RELEASE_1_0_0 = (2024, 10, 30)  # MindSpeed-LLM 1.0.0; tables of its release candidates were measured before
# Later tables of 1.0 and 2.0, whose software for experts is not today's: dispatchers, permutation and grouped kernels
# were written again for 2.3 and 26.0 (Ascend/MindSpeed, core/transformer/moe).
OF_TODAY = 2026
CANDIDATES = {"1": (2024, 3, 30), "2": (2024, 6, 30), "3": (2024, 9, 30)}  # MindSpeed-LLM 1.0.RC1 to RC3
# Until then the scripts of all records say --no-gradient-accumulation-fusion, and none after it
# (Ascend/MindSpeed-LLM, examples at the commits that the records name).
FUSED_ACCUMULATION = (2024, 11, 18)
# Two of 21 example scripts of 1.0.RC1 fuse the rotary embedding, half of those of 1.0.RC3.
FUSED_ROTARY = (2024, 6, 1)
# MindSpeed's loss works in place since then (Ascend/MindSpeed @55859a22, released with 2.2).
LOSS_IN_PLACE = (2, 2), (2025, 8, 9)
# Adam's operator updates in place in all CI baselines of MindSpeed-LLM 26.0 and 26.1, and in none before.
UPDATE_IN_PLACE = (26, 0), (2026, 1, 1)
FLASH_ATTENTION_IN_MEGATRON = (2023, 1, 1)
NVIDIA = "nvidia"
OF_2021 = "Ampere"  # the chips of the runs of 2021 and 2022
MINDFORMERS_1_5 = (1, 5), (2025, 4, 30)  # built on the operators of the current band
# Features whose presence says that what an early release leaves out was on.
CANCELS = {
    "fused_rotary": "unfused_rotary",
    "fused_gradient_accumulation": "unfused_gradient_accumulation",
}
# Frameworks by the stack whose operators and defaults they have; names without the marks between words.
STACKS = {
    **{alias: framework.name for framework in FRAMEWORKS.values() for alias in framework.runs_as},
    **dict.fromkeys(("torchtitan", "torchtitannpu", "fsdp", "pytorchfsdp", "torchfsdp"), "torchtitan"),
}


@dataclass(frozen=True, slots=True)
class ReleaseDefaults:
    """Features that were on without being named, and the band of the software factor.

    memory : facts that change memory alone.
    """

    features: frozenset[str]
    band: str = "current"
    dispatcher: str = "alltoall"
    memory: frozenset[str] = frozenset()


_MODERN_NVIDIA = frozenset(
    {
        "flash_attention",
        "fused_swiglu",
        "fused_rmsnorm",
        "grouped_gemm",
        "fused_operators",
        "rect_fa",
        "overlap_grad_reduce",
        "overlap_param_gather",
        "fused_cross_entropy",
    }
)
_MEGATRON_2021 = frozenset({"fused_rmsnorm", "fused_swiglu", "dropout", "scatter_gather_sends"})
# Graph mode: norms are one operator and collectives are issued as soon as their inputs exist; the gate's activation and
# its product are two operators (LlamaSiLU in mindformers/models/llama/llama_layer.py), and Adam is a chain of them.
_GRAPH_MODE = frozenset(
    {"graph_mode", "fused_rmsnorm", "overlap_grad_reduce", "overlap_param_gather", "unfused_optimizer"}
)

# Fully sharded by PyTorch, FP32 shards of each parameter: the next layer's weights arrive and the last one's gradients
# leave beside the passes. Source: torchtitan, fully_shard with its default prefetch.
_TORCH_NATIVE = frozenset(
    {"flash_attention", "grouped_gemm", "overlap_grad_reduce", "overlap_param_gather", "torch_fsdp2"}
)
# Attention takes FlashAttention-2 before cuDNN but on B200 (torchtitan 820504e, models/attention.py, _init_backend).
# torchao casts each weight to 8 bits where it is multiplied (float8/float8_linear.py).
_TORCH_ON_GPU = frozenset({"torch_attention", "weight_casts"})
# Eager, every operator of a norm, a gate, the rotary embedding and the loss is a kernel; torch.compile makes each chain
# one kernel (torchtitan b5bcd76c6: models/common/{nn_modules,feed_forward,rope}.py; blocks in distributed/compile.py,
# the loss in components/loss.py).
_TORCH_EAGER = frozenset({"unfused_rotary"})
_TORCH_COMPILED = frozenset({"fused_swiglu", "fused_rmsnorm", "fused_cross_entropy"})


def release_of(record: Record) -> ReleaseDefaults:
    """Defaults and band of the release that a record ran on."""
    nvidia = _vendor(record.cluster.profile) == NVIDIA
    if nvidia and _before_flash_attention(record):
        return ReleaseDefaults(_MEGATRON_2021)
    if stack_of(record) == "torchtitan":
        kernels = _TORCH_COMPILED if "torch_compile" in record.strategy.features else _TORCH_EAGER
        features = _TORCH_NATIVE | _TORCH_ON_GPU | kernels if nvidia else _TORCH_NATIVE
        return ReleaseDefaults(features, memory=frozenset({"torch_loss"}))
    if nvidia:
        return ReleaseDefaults(_MODERN_NVIDIA, memory=_nvidia_formats(record))
    if in_graph_mode(record):
        return _mindformers(record)
    return _mindspeed(record)


def _mindspeed(record: Record) -> ReleaseDefaults:
    released = _released(record)
    fused = {"unfused_gradient_accumulation": FUSED_ACCUMULATION, "unfused_rotary": FUSED_ROTARY}
    unfused = frozenset(name for name, first in fused.items() if released < first)
    in_place = {"copied_logits": LOSS_IN_PLACE, "copied_update": UPDATE_IN_PLACE}
    copied = frozenset(name for name, first in in_place.items() if _older(record, *first))
    band = "current"
    if released < RELEASE_1_0_0:
        band = "early_2024" if released < (2024, 6) else "mid_2024"
    elif released[0] < OF_TODAY and re.match(r"20\d\d", record.date or ""):
        band = "2025"
    # Megatron-LM dispatches by all-gather unless a script says otherwise.
    return ReleaseDefaults(unfused, band, "allgather", memory=copied)


def stack_of(record: Record) -> str:
    """The stack of a record's framework, whatever the spelling; an unknown framework on Ascend is MindSpeed-LLM's."""
    return STACKS.get(re.sub("[^a-z0-9]", "", record.framework.lower()), record.framework)


def in_graph_mode(record: Record) -> bool:
    """Whether the stack of a record compiles the step."""
    stack = stack_of(record)
    return stack in FRAMEWORKS and FRAMEWORKS[stack].graph_mode


def _before_flash_attention(record: Record) -> bool:
    """Whether a run on NVIDIA used a stack of 2021 and 2022: on A100, in no format that came later, and neither naming
    flash attention nor experts' products in groups nor a later date.
    """
    chip = load_profile(record.cluster.profile, calibrated=False)
    if chip.generation != OF_2021 or record.training.precision == "fp8":
        return False
    if {"flash_attention", "grouped_gemm", "fused_operators"} & {*record.strategy.features}:
        return False
    return record.date is None or _released(record) < FLASH_ATTENTION_IN_MEGATRON


def _mindformers(record: Record) -> ReleaseDefaults:
    """Graph mode; micro batches of a pipeline add their gradients in operators of their own, a single one has none.

    Every rank of an expert's tensor-parallel group dispatches all tokens of the group: the arrays of MoEV2 are cut over
    data and expert parallel ranks only, unless group_wise_a2a is set (mindformers/modules/transformer/moe.py).
    """
    features = _GRAPH_MODE
    if record.strategy.pp > 1:
        features |= {"unfused_gradient_accumulation"}
    if record.model.is_moe and (record.strategy.etp or 1) > 1:
        features |= {"replicated_dispatch"}
    dated = re.match(r"mas|dev|20|[rv]?\d{1,2}\.\d", (record.date or "").lower())
    late = dated and not _older(record, *MINDFORMERS_1_5)
    return ReleaseDefaults(features, "current" if late else stack_of(record))


def _nvidia_formats(record: Record) -> frozenset[str]:
    """Number formats of states that NVIDIA's recipes have without a word in a published table.

    NeMo and Megatron-Bridge reduce gradients in BF16 (`grad_reduce_in_fp32 = False` in every recipe for performance)
    and keep weights in 8 bits where they train in 8 (mixed_precision.py, `fp8_param_gather = True`); those of
    DeepSeek's family keep Adam's moments in BF16 (moonlight_16b.py: `exp_avg_dtype = torch.bfloat16`).
    """
    formats = {"bf16_gradients"}
    if record.training.precision == "fp8":
        formats.add("fp8_weights")
    if record.model.is_mla:
        formats.add("precision_aware_optimizer")
    return frozenset(formats)


def _older(record: Record, release: tuple[int, int], date: tuple[int, int, int]) -> bool:
    """Whether a record's stack is older than a release of MindSpeed, or a date; one without a date is of today."""
    text = (record.date or "").lower()
    if match := re.match(r"[vr]?(\d{1,2})\.(\d+)", text):
        return (int(match[1]), int(match[2])) < release
    return text[:2] == "20" and _released(record) < date


def _released(record: Record) -> tuple[int, int, int]:
    """When the software was released, from the record's date or its release name."""
    text = record.date or ""
    if match := re.match(r"(20\d\d)[-./](\d\d?)(?:[-./](\d\d?))?", text):
        return int(match[1]), int(match[2]), int(match[3] or 1)
    if match := re.match(r"[vr]?1\.0\.rc([123])", text.lower()):
        return CANDIDATES[match[1]]
    if match := re.match(r"(20\d\d)\b", text):
        return int(match[1]), (12 if match[1] < "2024" else 7), 30
    return 2025, 1, 1


def features_of(record: Record) -> frozenset[str]:
    """Everything that was on in a record's run."""
    named = frozenset(record.strategy.features)
    # --moe-permutation-async-comm changes something in MindSpeed 2.0.0 and before, on Megatron-LM core_r0.8.0; later
    # releases only ask for it beside other flags.
    if not _older(record, *MINDSPEED_2_1):
        named -= {"async_permutation"}
    off = {CANCELS[name] for name in named & CANCELS.keys()}
    on = (named | release_of(record).features) - off
    if _vendor(record.cluster.profile) != NVIDIA and not in_graph_mode(record):
        on = on - {EXPERTS_FUSED} | in_mindspeed(
            "grouped_gemm" in named,
            plain_apart=PLAIN_APART in on,
            experts_fused=bool(named & {EXPERTS_FUSED, "fused_gradient_accumulation"}),
        )
    return on - CANCELS.keys()


def unnamed_features(profile: str) -> frozenset[str]:
    """What a launch of today's software has on without naming it."""
    return _MODERN_NVIDIA if _vendor(profile) == NVIDIA else frozenset()


def _vendor(profile: str) -> str:
    """Who makes the chips of a profile; empty where there is no such profile, which another check says."""
    try:
        return load_profile(profile, calibrated=False).vendor
    except ProfileError:
        return ""
