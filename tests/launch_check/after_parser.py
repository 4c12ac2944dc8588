"""What Megatron core refuses right after its arguments are valid, in code that needs torch: the same arithmetic."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import argparse


def after_the_parser(args: argparse.Namespace, world: int, *, copies_groups: bool) -> str | None:
    """The refusal, with where it stands in Megatron-LM; None where there is none.

    Parameters
    ----------
    copies_groups : whether ranks hold copies of query groups where there are more of them (attention.py of main).
    """
    experts = getattr(args, "expert_tensor_parallel_size", None) or args.tensor_model_parallel_size
    replicas, micro_batch = args.data_parallel_size, args.micro_batch_size
    model = experts * args.expert_model_parallel_size * args.pipeline_model_parallel_size
    if args.num_experts and world % model:
        return (
            f"world size {world} is not divisible by expert tensor x expert x pipeline size {model} "
            "(megatron/core/parallel_state.py)"
        )
    # `replicas` of attention, world / (tp x cp x pp); without experts the group of theirs is cut over tp alone.
    if (
        getattr(args, "use_tp_pp_dp_mapping", False)
        and args.pipeline_model_parallel_size > 1
        and world // model != replicas
    ):
        return (
            "When not using pp-last rank ordering, the data parallel size of the attention and moe layers must be the "
            "same (megatron/core/parallel_state.py)"
        )
    if args.global_batch_size % (micro_batch * replicas):
        return (
            f"global batch size {args.global_batch_size} is not divisible by micro batch {micro_batch} x data parallel "
            f"{replicas} (megatron/core/num_microbatches_calculator.py)"
        )
    heads, groups, tensor = args.num_attention_heads, args.num_query_groups, args.tensor_model_parallel_size
    grouped = args.group_query_attention and not getattr(args, "multi_latent_attention", False)
    if heads % tensor or (grouped and groups % tensor and (tensor % groups or not copies_groups)):
        return (
            f"heads {heads}, query groups {groups}: not a multiple of tensor parallel {tensor} "
            "(megatron/core/transformer/transformer_config.py)"
        )
    return None
