"""Features of a plan in launch flags, as a table: flags, or why there are none."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autodeploy.specs.features import LACKING

if TYPE_CHECKING:
    from autodeploy.exporters.arguments import LaunchArguments, Value
    from autodeploy.specs.strategy import Strategy
    from autodeploy.stack.releases import Release

Lines = tuple[tuple[str, str, tuple["Value", ...]], ...]

OPTIMIZE, MOE, OPERATORS = "OPTIMIZE_ARGS", "MOE_ARGS", "OPERATOR_ARGS"

BOTH: dict[str, Lines] = {
    "flash_attention": ((OPERATORS, "--use-flash-attn", ()),),
    "grouped_gemm": ((MOE, "--moe-grouped-gemm", ()),),
    "capacity_drop": ((MOE, "--moe-expert-capacity-factor", (1.5,)),),
    "shared_expert_overlap": ((MOE, "--moe-shared-expert-overlap", ()),),
    "overlap_grad_reduce": ((OPTIMIZE, "--overlap-grad-reduce", ()),),
    "overlap_param_gather": ((OPTIMIZE, "--overlap-param-gather", ()),),
    "fused_operators": ((MOE, "--moe-permute-fusion", ()),),
}
MINDSPEED: dict[str, Lines] = {
    "rect_fa": (("MLA_ARGS", "--mla-fa-without-pad", ()),),
    "fused_swiglu": ((OPERATORS, "--use-fused-swiglu", ()),),
    "fused_rmsnorm": ((OPERATORS, "--use-fused-rmsnorm", ()),),
    "grouped_gemm": ((MOE, "--moe-grouped-gemm", ()), (OPERATORS, "--gemm-gradient-accumulation-fusion", ())),
    "moe_alltoall_overlap": ((MOE, "--moe-alltoall-overlap-comm", ()),),
    "expert_migration": (
        (MOE, "--enable-expert-placement", ()),
        (MOE, "--expert-placement-freq", (50,)),
        (MOE, "--enable-fine-grained-expert-placement", ()),
        (MOE, "--fine-grained-expert-placement-thre", (0.08,)),
        (MOE, "--print-expert-load", ()),
    ),
    "mutual_routing": (
        (MOE, "--balanced-moe-experts", ()),
        (MOE, "--balanced-moe-hot-expert-num", (3,)),
        (MOE, "--trans-hot-expert-group-num", (3,)),
    ),
    "virtual_optimizer": ((OPTIMIZE, "--virtual-optimizer", ("all",)),),
    "adaptive_comm_buffers": ((OPTIMIZE, "--hccl-group-buffer-adaptive", ()),),
    "o2_optimizer": ((OPTIMIZE, "--o2-optimizer", ()),),
    "quantized_optimizer": (
        (OPTIMIZE, "--quant-states", ("fp8",)),
        (OPTIMIZE, "--quant-grads", ()),
        (OPTIMIZE, "--no-gradient-accumulation-fusion", ()),
    ),
    "coc": ((OPTIMIZE, "--use-ascend-coc", ()), (OPTIMIZE, "--coc-parallel-num", (4,))),
    "mc2": ((OPTIMIZE, "--use-ascend-mc2", ()),),
}
# Said by another part of the launch: schedule, placement, dispatcher, recompute and swap flags.
SAID_ELSEWHERE = frozenset(
    {
        "adaptive_pipe",
        "dualpipev",
        "hierarchical_a2a",
        "virtual_pipeline_balance",
        "selective_recompute",
        "selective_swap",
        "swap_attention",
        "reuse_fp32_param",
        "swap_optimizer",
        "tp_extend_ep",
        "ulysses",
        "ring",
        "hybrid_cp",
        "host_core_binding",  # CPU_AFFINITY_CONF of the environment block
    }
)
# What mindformers_model.py says by a key of the model's configuration.
MINDFORMERS_KEYS = frozenset(
    {
        *("flash_attention", "fused_swiglu", "fused_rmsnorm"),
        *("grouped_gemm", "fused_operators", "shared_expert_overlap"),
    }
)
NO_FLAG: dict[str, str] = {
    "ascendp_mm": "comes with the CANN release",
    "vector_sort": "comes with the CANN release",
    "cube_vector_parallel": "comes with the CANN release",
    "host_sync_free": "comes with the torch_npu and MindSpeed release",
    "host_reorder": "comes with the torch_npu and MindSpeed release",
    "sample_rearrangement": "is done by the data pipeline",
}
NO_FLAG_IN_MEGATRON: dict[str, str] = {
    "fused_swiglu": "is Megatron-LM's default",
    "fused_rmsnorm": "comes with Transformer Engine or Apex",
}


def features_without_flags(strategy: Strategy, release: Release) -> list[str]:
    """Features of the plan that no flag of the release says: they come with a release, the data or the layout.

    What the target does not have at all is not among them: whoever reads the file back must not count on it.
    """
    said = {*SAID_ELSEWHERE} - {"virtual_pipeline_balance"}
    if not release.flags:
        said |= MINDFORMERS_KEYS
    for name, lines in (BOTH | (MINDSPEED if release.has("mindspeed") else {})).items():
        said |= {name} if all(release.registers(flag) for _, flag, _ in lines) else set()
    return sorted({*strategy.features} - said - LACKING.get(release.framework, frozenset()))


def add_features(arguments: LaunchArguments, strategy: Strategy, *, is_moe: bool) -> None:
    """Flags of every feature of the plan; a feature without one becomes a note, never silence."""
    mindspeed = arguments.release.has("mindspeed")
    table = BOTH | (MINDSPEED if mindspeed else {})
    reasons = NO_FLAG | ({} if mindspeed else NO_FLAG_IN_MEGATRON)
    for name in strategy.features:
        if name in table and not all(arguments.knows(flag) for _, flag, _ in table[name]):
            arguments.note(f"{name} has no flag in this framework")
        elif name in table:
            for block, flag, values in table[name]:
                if is_moe or block != MOE:
                    arguments.add(block, flag, *values)
        elif name in reasons:
            arguments.note(f"{name} has no flag: it {reasons[name]}")
        elif name not in SAID_ELSEWHERE:
            arguments.note(f"{name} has no flag in this framework")
    _resolve_conflicts(arguments, strategy)


def _resolve_conflicts(arguments: LaunchArguments, strategy: Strategy) -> None:
    """What the frameworks refuse together (validity rules of MindSpeed and Megatron-LM)."""
    overlapped = arguments.has("--moe-fb-overlap")
    if overlapped:
        arguments.add(MOE, "--moe-grouped-gemm")
    for flag in ("--overlap-grad-reduce", "--overlap-param-gather", "--moe-alltoall-overlap-comm"):
        if overlapped and arguments.has(flag):
            arguments.drop(flag)
            arguments.note(f"MindSpeed refuses {flag} with --moe-fb-overlap: it is left out, the plan counts on it")
    if arguments.has("--moe-alltoall-overlap-comm"):
        if strategy.moe_dispatcher == "allgather":
            arguments.drop("--moe-alltoall-overlap-comm")
            arguments.add(MOE, "--moe-allgather-overlap-comm")
        arguments.add(MOE, "--moe-grouped-gemm")
    if arguments.release.has("mindspeed") and strategy.moe_dispatcher == "allgather":
        arguments.drop("--moe-permute-fusion")  # MindSpeed fused_moe_permute.py refuses it
    if not arguments.has("--multi-latent-attention"):
        arguments.drop("--mla-fa-without-pad")
    if arguments.has("--overlap-param-gather") and not arguments.has("--overlap-grad-reduce"):
        arguments.add(OPTIMIZE, "--overlap-grad-reduce")
    if arguments.has("--gemm-gradient-accumulation-fusion") and arguments.has("--no-gradient-accumulation-fusion"):
        arguments.drop("--gemm-gradient-accumulation-fusion")
    if overlapped and (arguments.has("--moe-tp-extend-ep") or strategy.moe_dispatcher in {"hierarchical", "allgather"}):
        arguments.note(
            "the public MindSpeed refuses --moe-fb-overlap with this dispatcher (the plan was made without its launch "
            "rules): plan with target mindspeed-llm for a script that starts as it is"
        )
