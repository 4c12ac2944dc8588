"""Terms of the field lead to formulas: each is in the name or the first docstring line of the function that has it."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("cost_models", "autodeploy/costs/workload")
# term -> the function that a reader who searches for it has to find
TERMS = {
    "roofline": "compute.gemm_s",
    "grouped GEMM": "compute.grouped_gemm_s",
    "GEMM efficiency": "compute.gemm_efficiency",
    "wave quantization": "compute.tiled_efficiency",
    "flash attention": "compute.attention_flops",
    "flash attention backward": "compute.attention_backward_flops",
    "kernel launch": "host_bound.kernel_launch_s",
    "swap window": "swap.exposed_swap_s",
    "all-gather": "collectives.all_gather_s",
    "reduce-scatter": "collectives.all_gather_s",
    "all-reduce": "collectives.all_reduce_s",
    "point-to-point": "collectives.point_to_point_s",
    "ring attention": "collectives.ring_pass_s",
    "All-to-All": "all_to_all.flat_s",
    "hierarchical All-to-All": "all_to_all.hierarchical_s",
    "gradient reduce-scatter": "data_parallel.synchronisation",
    "weight all-gather": "data_parallel.synchronisation",
    "exposed": "data_parallel.exposed_s",
    "FSDP": "data_parallel.sharded_pass_s",
    "FSDP2": "data_parallel.copy_out_s",
    "optimizer step": "data_parallel.optimizer_s",
    "forward-backward overlap": "windows.pair_time",
    "expert load imbalance": "expert_skew.family_imbalance",
    "MC2": "chunked_overlap.chunked_s",
    "optimizer states": "hbm.state_bytes",
    "imbalance": "load_balance.imbalance_of",
    "capacity factor": "load_balance.capped",
    "expert placement": "expert_migration.greedy_placement",
    "pipeline bubble": "closed_forms.closed_form",
    "makespan": "simulation.simulate",
    "critical path": "critical_path.critical_path",
    "warm-up": "orders.warm_up_slots",
    "micro batches in flight": "in_flight.in_flight",
    "MTBF": "goodput.job_failure_interval_s",
    "goodput": "goodput.run_time",
    "checkpoint interval": "goodput.optimum_checkpoint_interval_s",
    "KV cache": "generation.cache_bytes",
    "prefill": "generation.prefill_s",
    "TPOT": "generation.tpot_s",
    "continuous batching": "rollout.rollout",
    "weight resharding": "hand_over.reshard_s",
    "model FLOPs": "flops.step_flops_per_token",
    "MFU": "flops.mfu",
    "router": "mlp.moe_rows",
    "token permutation": "mlp.permute_rows",
    "SwiGLU": "mlp.activation_bytes_per_element",
    "RMSNorm": "layers._norms",
    "cross-entropy": "layers.head_table",
    "multi-token prediction": "layers.mtp_table",
    "RoPE": "attention._rotary",
    "activation bytes": "attention._latent_projections",
    "MLA": "attention._latent_projections",
    "causal mask": "attention_types.score_columns",
    "sliding window": "attention_types.score_columns",
    "LoRA": "adapters.with_adapters",
}


def words(text: str) -> str:
    """Lower case, with hyphens and underscores as blanks."""
    return re.sub(r"[-_\s]+", " ", text).lower()


@cache
def headlines() -> dict[str, str]:
    """module.function -> its name and the first line of its docstring."""
    found = {}
    for room in ROOMS:
        for path in sorted((ROOT / room).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.FunctionDef):
                    first = (ast.get_docstring(node) or "").partition("\n")[0]
                    found[f"{path.stem}.{node.name}"] = words(f"{node.name} {first}")
    return found


def finds(term: str) -> list[str]:
    """The functions that a search for the term ends at; plurals count."""
    return [name for name, text in headlines().items() if re.search(rf"\b{re.escape(words(term))}(s|es)?\b", text)]


@pytest.mark.parametrize(("term", "function"), TERMS.items())
def test_a_term_leads_to_its_formula(term: str, function: str) -> None:
    assert function in headlines(), f"{function} is gone: name the function that has the formula of {term!r}"
    assert function in finds(term), f"the first line of {function} does not say {term!r}; found: {finds(term)}"


def test_a_term_of_which_nothing_is_modelled_is_not_found() -> None:
    assert finds("speculative decoding") == []
    assert finds("loft") == [], "a part of a word is no term"
