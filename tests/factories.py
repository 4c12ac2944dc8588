"""Realistic documents for tests: DeepSeek-V3 on CloudMatrix 384, its plans and PlanSets.

Every function is pure and deterministic. Figures are plausible, not predictions: they keep the identities that real
plans keep (parts sum to the step time, tokens follow from the batch, ranks are tp * pp * dp).
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any, Literal

from autodeploy.specs.planset import (
    PARTS,
    Bet,
    BoxNumber,
    Breakdown,
    Counterfactual,
    Counts,
    Evidence,
    Fastest,
    Hidden,
    Infeasible,
    MemoryInterval,
    NearestChange,
    Optimality,
    Plan,
    PlanSet,
    RiskRanking,
    SearchInfo,
    Stage,
    StageMemory,
    Status,
    Timing,
    Uncertainty,
    Unrestricted,
    Valley,
)
from autodeploy.specs.spec import Spec, canonical_json, spec_hash
from autodeploy.specs.strategy import Recompute, Strategy

if TYPE_CHECKING:
    from collections.abc import Mapping

    from autodeploy.costs.training_run.run_estimate import Step

SEARCH_ID = "srch_06f2qk8v4w3t0001"
CREATED_AT = "2026-11-20T12:00:00Z"
PROFILE_HASH = hashlib.sha256(b"cloudmatrix-384").hexdigest()
ENGINE_VERSION = "0.1.0"
PEAK_FLOPS_PER_NPU = 2 * 353.9e12

DEEPSEEK_V3: dict[str, Any] = {
    "name": "DeepSeek-V3",
    "hidden_size": 7168,
    "num_hidden_layers": 61,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "vocab_size": 129_280,
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "intermediate_size": 18_432,
    "n_routed_experts": 256,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 2048,
    "n_shared_experts": 1,
    "first_k_dense_replace": 3,
    "n_group": 8,
    "topk_group": 4,
    "num_nextn_predict_layers": 1,
}

_LAYOUTS: tuple[dict[str, Any], ...] = (
    {"tp": 2, "pp": 16, "vpp": 2, "ep": 32, "schedule": "adaptive_pipe"},
    {"tp": 1, "pp": 16, "vpp": 2, "ep": 48, "schedule": "adaptive_pipe"},
    {"tp": 4, "pp": 8, "vpp": 1, "ep": 32, "schedule": "dualpipev"},
    {"tp": 4, "pp": 16, "vpp": 1, "ep": 16, "schedule": "1f1b"},
    {"tp": 8, "pp": 8, "vpp": 2, "ep": 64, "schedule": "interleaved"},
)
# Shares of the step in the order of Breakdown's fields; they sum to 1.
_SHARES = (0.62, 0.03, 0.06, 0.0, 0.01, 0.01, 0.09, 0.05, 0.01, 0.04, 0.02, 0.06)


def spec_document(
    *,
    model: str | Mapping[str, Any] | None = None,
    num_npus: int = 384,
    seq_length: int = 4096,
    global_batch_size: int = 15_360,
    **search: Any,
) -> dict[str, Any]:
    """A spec as a user writes it; `model` defaults to DeepSeek-V3 inline."""
    return {
        "model": dict(DEEPSEEK_V3) if model is None else model,
        "cluster": {"profile": "cloudmatrix-384", "num_npus": num_npus},
        "training": {"seq_length": seq_length, "global_batch_size": global_batch_size, "tokens": 14.8e12},
        "search": search,
    }


def spec(**changes: Any) -> Spec:
    """A validated spec; takes what `spec_document` takes."""
    return Spec.model_validate(spec_document(**changes))


def strategy(rank: int = 1, *, ranks: int = 768, **changes: Any) -> Strategy:
    """The strategy of the plan with that rank; layouts repeat with another micro batch after the fifth."""
    layout = _LAYOUTS[(rank - 1) % len(_LAYOUTS)]
    layers = _split_layers(61, layout["pp"])
    return Strategy.model_validate(
        layout
        | {
            "dp": max(1, ranks // (layout["tp"] * layout["pp"])),
            "etp": 1,
            "micro_batch_size": 1 + (rank - 1) // len(_LAYOUTS),
            "sequence_parallel": layout["tp"] > 1,
            "layers_per_stage": layers,
            "moe_dispatcher": "alltoall",
            "recompute": Recompute(granularity="selective", modules=("mla_up_proj", "activation")),
            "swap": ("unpermute",),
            "features": ("flash_attention", "grouped_gemm", "overlap_grad_reduce"),
        }
        | changes
    )


def plan(rank: int = 1, *, spec: Spec | None = None, **changes: Any) -> Plan:
    """One plan; each rank is 3.7 % slower than the one before."""
    spec = spec if spec is not None else _default_spec()
    npus = spec.cluster.num_npus or 384
    chosen = strategy(rank, ranks=2 * npus)
    step_time_s = 134.234567 * 384 / npus * 1.037 ** (rank - 1)
    batch = spec.training.global_batch_size.value
    tokens_per_s = batch * spec.training.seq_length / step_time_s
    days = None if spec.training.tokens is None else spec.training.tokens / tokens_per_s / 86_400
    values: dict[str, Any] = {
        "rank": rank,
        "plan_id": plan_id(spec, chosen),
        "strategy": chosen,
        "step_time_s": step_time_s,
        "tokens_per_s": tokens_per_s,
        "tokens_per_s_per_npu": tokens_per_s / npus,
        "mfu": tokens_per_s / npus * 6 * 36.7e9 / PEAK_FLOPS_PER_NPU,
        "mfu_convention": "causal attention, no recompute, 353.9 TFLOP/s a die",
        "peak_memory_gib": 55.1 + 0.4 * rank,
        "allocator_peak_gib": 50.3 + 0.4 * rank,
        "memory_limit_gib": 61.0,
        "oom_imbalance": 2.4 - 0.05 * rank,
        "num_npus_used": npus,
        "micro_batches": max(1, batch // (chosen.dp or 1) // chosen.micro_batch_size),
        "days": days,
        "npu_hours": None if days is None else days * 24 * npus,
        "breakdown": Breakdown(
            **{part: step_time_s * share for part, share in zip(PARTS[: len(_SHARES)], _SHARES, strict=True)}
        ),
        "hidden": Hidden(ep_share_steady=0.93, ep_share_step=0.86, tp_share=0.2, dp_share=0.75),
        "stages": tuple(_stages(chosen)),
        "uncertainty": Uncertainty(
            low_s=step_time_s * 0.88,
            high_s=step_time_s * 1.15,
            basis="80 % of errors on published runs",
            nearest_record="pangu-ultra-moe-718b-6144",
            extrapolated=("ranks", "ep"),
        ),
        "gap": 0.013,
        "tie_with": 1 if rank == 2 else None,
        "explanation": f"TP{chosen.tp} PP{chosen.pp} keeps expert traffic inside the supernode.",
        "provenance": "assumed",
    }
    found = Plan.model_validate(values | changes)
    if "run" in changes:
        return found
    from autodeploy.costs.training_run.run_estimate import planned_run  # with numpy; processes start without it

    return found.model_copy(update={"run": planned_run(spec, found, step_elsewhere, host_link_bytes_per_s=40e9)})


def step_elsewhere(plan: Plan, seq_length: int, global_batch: int) -> Step:
    """A step at another sequence length and batch, in proportion to both."""
    from autodeploy.costs.training_run.run_estimate import Step

    tokens = plan.tokens_per_s * plan.step_time_s
    return Step(plan.step_time_s * seq_length * global_batch / tokens, plan.peak_memory_gib * seq_length / 4096)


def plan_set(
    n_plans: int = 3,
    status: Status = "optimal",
    search_id: str = SEARCH_ID,
    *,
    spec: Spec | None = None,
    created_at: str = CREATED_AT,
    **changes: Any,
) -> PlanSet:
    """A PlanSet with `n_plans` ranked plans and a plain 1F1B as reference."""
    spec = spec if spec is not None else _default_spec()
    plans = tuple(plan(rank, spec=spec) for rank in range(1, n_plans + 1))
    proved = status == "optimal"
    values: dict[str, Any] = {
        "search": search_info(spec, search_id=search_id, created_at=created_at),
        "status": status,
        "optimality": Optimality(
            objective=spec.search.objective,
            bound=plans[0].step_time_s * 0.987 if plans else None,
            relaxation="fractional layers per stage",
            gap=0.013 if plans else None,
            proved=proved and bool(plans),
        ),
        "counts": Counts(
            enumerated=184_320,
            rejected={"ranks_divide_by_tp_pp_cp": 120_000, "experts_divide_by_ep": 21_504, "heads_divide_by_tp": 9_216},
            too_big=30_111,
            pruned=3_401,
            solved=88,
        ),
        "timing": Timing(enumerate_s=0.81, solve_s=4.02, total_s=4.97),
        "plans": plans,
        "reference": plan(4, spec=spec, label="1F1B") if plans else None,
        "unrestricted": Unrestricted(best_step_time_s=plans[0].step_time_s / 1.02 if plans else None, price_pct=2.0),
        "warnings": ("global batch 15,360 is not a multiple of dp 28",),
    }
    return PlanSet.model_validate(values | changes)


def cautious(found: PlanSet) -> PlanSet:
    """The PlanSet as an averse search answers: P(fits), regret and evidence of each plan, and the fastest.

    The first plan rests on EP alone without a run, each later one on its schedule too and fits less surely.
    """
    if not found.plans:
        return found
    plans = []
    for number, each in enumerate(found.plans):
        peak_gib = each.peak_memory_gib
        plans.append(
            each.model_copy(
                update={
                    "p_fits": (0.97, 0.94, 0.92, 0.71, 0.38)[number % 5],
                    "memory_interval": MemoryInterval(low_gib=0.94 * peak_gib, high_gib=1.05 * peak_gib, basis="peaks"),
                    "expected_step_time_s": each.step_time_s * (1.0 + 0.011 * number),
                    "regret_p80_pct": 0.8 + 2.1 * number,
                    "evidence": evidence(each.strategy, schedule_runs=0 if number else 2),
                }
            )
        )
    faster = strategy(3, ep=64)
    fastest = Fastest(
        plan_id=plan_id(spec(), faster),
        step_time_s=found.plans[0].step_time_s / 1.031,
        p_fits=0.71,
        strategy=faster,
        bets=(
            Bet(kind="unproven", name="ep", text="EP 64", cost_pct=6.2),
            Bet(kind="memory", name="memory", text="60.8 of 61.0 GiB", cost_pct=3.4),
            Bet(kind="number", name="imbalance_growth", text="imbalance and its growth with EP", cost_pct=9.8),
        ),
    )
    risk = RiskRanking(
        risk="averse",
        compared=38,
        draws=200,
        least_p_fits=0.9,
        proven_share=0.62,
        proven_share_sigma=0.24,
        box=(
            BoxNumber(
                name="expert_rate",
                meaning="rate of experts' software",
                low=0.86,
                high=1.16,
                basis="residuals of 11 held-out configurations",
                influence=0.021,
            ),
            BoxNumber(
                name="imbalance_growth",
                meaning="growth of imbalance with EP",
                low=0.7,
                high=1.45,
                basis="prior: two published routers",
                influence=0.084,
            ),
        ),
    )
    valley = Valley(layouts=41, within=0.03, shared={"tp": 2, "pp": 16}, fewest_unproven=plans[0].plan_id)
    dearer = Counterfactual(
        axes={"tp": 2, "pp": 16, "ep": 64},
        strategy=strategy(1, ep=64),
        step_time_s=1.98 * found.plans[0].step_time_s,
        change="EP64 instead of EP32",
        effect="+98.0 %",
        why="adds 41.00 s of EP",
    )
    ranked = {"plans": tuple(plans), "risk": risk, "fastest": fastest, "valley": valley, "counterfactuals": (dearer,)}
    return found.model_copy(update=ranked)


def evidence(chosen: Strategy, *, schedule_runs: int) -> tuple[Evidence, ...]:
    """What made-up runs say of a strategy: none has its EP."""
    return (
        Evidence(axis="tp", value=chosen.tp, runs=14, nearest_record="mixtral-8x7b-64", error=-0.021),
        Evidence(axis="ep", value=chosen.ep, runs=0, nearest_record="pangu-ultra-moe-718b-6144", error=0.082),
        Evidence(
            axis="schedule", value=chosen.schedule, runs=schedule_runs, nearest_record="telechat2-512", error=None
        ),
        Evidence(axis="feature", value="grouped_gemm", runs=9, nearest_record="mixtral-8x7b-64", error=0.013),
    )


def infeasible_plan_set(
    search_id: str = SEARCH_ID, *, spec: Spec | None = None, created_at: str = CREATED_AT
) -> PlanSet:
    """A PlanSet that says why nothing fits and what would."""
    return plan_set(
        0,
        "infeasible",
        search_id,
        spec=spec,
        created_at=created_at,
        unrestricted=Unrestricted(),
        warnings=(),
        infeasible=Infeasible(
            binding_rules=("memory_fits", "experts_divide_by_ep"),
            nearest=(
                NearestChange(change="/cluster/num_npus: 64", effect="peak memory 58.2 of 61.0 GiB"),
                NearestChange(change="/search/features/swap_optimizer: on", effect="peak memory 60.4 of 61.0 GiB"),
            ),
        ),
    )


def search_info(spec: Spec, *, search_id: str = SEARCH_ID, created_at: str = CREATED_AT) -> SearchInfo:
    """The search block of a PlanSet."""
    return SearchInfo(
        id=search_id,
        spec=spec.model_dump(mode="json"),
        spec_hash=spec_hash(spec),
        profile_hash=PROFILE_HASH,
        engine_version=ENGINE_VERSION,
        created_at=created_at,
    )


def plan_id(spec: Spec, strategy: Strategy) -> str:
    """`p_` and 8 base32 characters: equal specs and strategies have equal ids."""
    text = canonical_json([spec_hash(spec), PROFILE_HASH, ENGINE_VERSION, strategy.model_dump(mode="json")])
    digest = hashlib.sha256(text.encode()).digest()
    return "p_" + "".join("abcdefghijklmnopqrstuvwxyz234567"[byte & 31] for byte in digest[:8])


def _default_spec() -> Spec:
    return spec()


def _split_layers(layers: int, pp: int) -> tuple[int, ...]:
    return tuple(layers // pp + (stage < layers % pp) for stage in range(pp))


def _stages(chosen: Strategy) -> list[Stage]:
    """Stages whose activations fall with the micro batches in flight."""
    stages = []
    for index, layers in enumerate(_split_layers(61, chosen.pp)):
        in_flight = float(chosen.pp - index)
        parts = {
            "weights": 6.1,
            "gradients": 6.1,
            "optimizer": 8.7,
            "activations": 0.9 * in_flight,
            "workspace": 3.2,
            "communication_buffers": 1.6,
            "runtime": 3.0,
        }
        ends: dict[int, tuple[Literal["embedding", "head"], ...]] = {0: ("embedding",), chosen.pp - 1: ("head",)}
        stages.append(
            Stage(
                layers=(layers,),
                holds=ends.get(index, ()),
                forward_s=0.011 * layers,
                backward_s=0.021 * layers,
                in_flight=in_flight,
                memory_gib=StageMemory(**parts),
                total_gib=sum(parts.values()),
            )
        )
    return stages
