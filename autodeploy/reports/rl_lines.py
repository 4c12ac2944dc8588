"""A step of reinforcement learning in words: where both run, its phases, generation, tokens by each counting rule."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autodeploy.figures.labels import phase_name
from autodeploy.reports.texts import report_text
from autodeploy.reports.wording import percent, quantity, seconds

if TYPE_CHECKING:
    from autodeploy.messages import Language
    from autodeploy.specs.planset import Plan
    from autodeploy.specs.rl import RlStrategy
    from autodeploy.specs.rl_plan import RlPlan
    from autodeploy.specs.spec import Spec


def rl_workload(spec: Spec, lang: Language) -> str:
    """Prompts, responses and their lengths."""
    rl = spec.training.rl
    assert rl is not None
    return report_text(
        lang,
        "rl_workload",
        algorithm=rl.algorithm.upper(),
        prompts=f"{rl.prompts_per_step:,}",
        responses=rl.responses_per_prompt,
        prompt=f"{rl.prompt_length.mean_tokens:,.0f}",
        response=f"{rl.response_length.distribution().mean:,.0f}",
        longest=f"{rl.response_length.max_tokens:,}",
        precision=spec.training.precision.upper(),
    )


def generation_in_words(layout: RlStrategy) -> str:
    """TP4 DP16 EP64, vllm-ascend graph, bf16."""
    generation = layout.generation
    degrees = (
        [f"TP{generation.tp}"]
        + [f"DP{generation.dp}"] * (generation.dp > 1)
        + [f"EP{generation.ep}"] * (generation.ep > 1)
    )
    engine = generation.engine if generation.mode is None else f"{generation.engine} {generation.mode}"
    return f"{' '.join(degrees)}, {engine}, {generation.precision}"


def rl_lines(plan: Plan, lang: Language) -> list[str]:
    """What a plan says beyond one of pre-training; nothing for others."""
    rl, layout = plan.rl, plan.strategy.rl
    if rl is None or layout is None:
        return []
    return [_where(rl, layout, lang), _phases(rl, plan.step_time_s, lang), _generation(rl, lang), _rates(rl, lang)]


def _where(rl: RlPlan, layout: RlStrategy, lang: Language) -> str:
    generation = generation_in_words(layout)
    if layout.placement == "colocated":
        leaves = ", ".join(layout.offload) or report_text(lang, "none")
        return report_text(lang, "rl_colocated", layout=generation, offload=leaves)
    key = "rl_separate" if layout.placement == "separate" else "rl_async"
    return report_text(
        lang,
        key,
        layout=generation,
        generating=f"{rl.generation_npus:,}",
        training=f"{rl.training_npus:,}",
        staleness=layout.staleness,
    )


def _phases(rl: RlPlan, step_s: float, lang: Language) -> str:
    parts = [
        f"{phase_name(phase.name, lang)} {seconds(phase.exposed_s)} s"
        for phase in rl.phases
        if phase.exposed_s >= 0.001 * step_s
    ]
    return report_text(lang, "rl_phases", phases=" | ".join(parts))


def _generation(rl: RlPlan, lang: Language) -> str:
    generation = rl.generation
    return report_text(
        lang,
        "rl_generation",
        tpot=f"{generation.tpot_ms:.1f}",
        batch=f"{generation.batch_per_replica:,.0f}",
        waves=f"{generation.waves:.1f}",
        longest=seconds(generation.longest_s),
        tail=percent(generation.tail_share),
        kv=f"{generation.kv_gib:.1f}",
    )


def _rates(rl: RlPlan, lang: Language) -> str:
    rates, peak = rl.tokens_per_s, rl.peak_memory_gib
    return report_text(
        lang,
        "rl_rates",
        mean=quantity(rates.mean),
        longest=quantity(rates.max),
        response=quantity(rates.response),
        generation=f"{peak.generation:.1f}",
        update=f"{peak.update:.1f}",
    )
