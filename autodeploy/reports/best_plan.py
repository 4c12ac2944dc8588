"""One plan in the words an engineer and a lead both understand."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autodeploy.messages import in_language, joined
from autodeploy.reports.breakdown import breakdown_line, headroom_line
from autodeploy.reports.evidence import evidence_line
from autodeploy.reports.rl_lines import rl_lines, rl_workload
from autodeploy.reports.run_facts import run_facts
from autodeploy.reports.tables import Block
from autodeploy.reports.texts import ACRONYMS, bracketed, check_text, field_name, report_text, titled, valued
from autodeploy.reports.wording import (
    chance,
    choices,
    degrees,
    fullest_stage,
    percent,
    quantity,
    seconds,
    system_title,
)
from autodeploy.stack.frameworks import UNRESTRICTED, title_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from autodeploy.messages import Language
    from autodeploy.specs.broken_rule import BrokenRule
    from autodeploy.specs.planset import Plan
    from autodeploy.specs.spec import Spec


def header(spec: Spec, plan: Plan | None, lang: Language) -> tuple[str, str]:
    """Model and cluster; workload and target."""
    cards = plan.num_npus_used if plan is not None else spec.cluster.num_npus
    where = system_title(spec.cluster.profile)
    if spec.cluster.device is not None:
        where += f" ({spec.cluster.device})"
    title = f"{spec.model.name} {report_text(lang, 'on')} {where}"
    if cards is not None:
        title = titled(lang, title, _card_count(cards, plan, lang))
    target = spec.search.target
    framework = report_text(lang, "any_target") if target == UNRESTRICTED else title_of(target)
    launch = report_text(lang, "for_target", target=framework)
    return title, workload_in_words(spec, lang) + report_text(lang, "comma") + launch


def workload_in_words(spec: Spec, lang: Language) -> str:
    """What a step trains on; for reinforcement learning what it generates."""
    training = spec.training
    if training.rl is not None:
        return rl_workload(spec, lang)
    return report_text(
        lang,
        "workload",
        seq=training.seq_length,
        batch=f"{training.global_batch_size.value:,}",
        precision=training.precision.upper(),
    )


def _card_count(cards: int, plan: Plan | None, lang: Language) -> str:
    ranks = 0
    if plan is not None and plan.strategy.dp is not None:
        ranks = plan.strategy.tp * plan.strategy.pp * plan.strategy.cp * plan.strategy.dp
    if ranks > cards:
        return report_text(lang, "cards_and_dies", cards=f"{cards:,}", ranks=f"{ranks:,}")
    return report_text(lang, "cards", count=f"{cards:,}")


def plan_block(plan: Plan, lang: Language, *, name: str) -> Block:
    """The plan's strategy, below it speed, interval, memory, evidence, cost of the run and breakdown."""
    strategy = plan.strategy
    title = f"{name}  {degrees(strategy)}{report_text(lang, 'comma')}{choices(strategy, lang)}"
    facts: list[str | None] = [*rule_lines(plan.broken_rules, lang), speed_line(plan, lang), *rl_lines(plan, lang)]
    facts += [measured_mfu(plan, lang)]
    facts += [interval_line(plan, lang), memory_line(plan, lang), evidence_line(plan, lang), experts_line(plan, lang)]
    facts += [] if plan.run is None else run_facts(plan.run, lang)
    facts += [breakdown_line(plan, lang), headroom_line(plan, lang)]
    facts += [in_language(text, lang) for text in plan.assumptions]
    return Block(title, [fact for fact in facts if fact is not None])


def rule_lines(broken: Iterable[BrokenRule], lang: Language) -> list[str]:
    """Broken rules with their numbers, a line each."""
    return [
        check_text(
            lang, "allowed_rule" if rule.allowed else "broken_rule", text=in_language(rule.text, lang), rule=rule.rule
        )
        for rule in broken
    ]


def lane_lines(plan: Plan, lang: Language) -> list[str]:
    """What the device's lanes and the host do in a micro batch."""
    operators, host = plan.operators, plan.host
    return [
        report_text(
            lang,
            "operator_line",
            attention=percent(operators.flash_attention),
            matmul=percent(operators.matmul),
            sorting=percent(operators.sorting),
            hidden=percent(operators.sorting_hidden_share),
            vector=percent(operators.vector),
        ),
        report_text(
            lang,
            "host_line",
            operators=f"{host.operators_per_layer:.0f}",
            issue=f"{host.issue_ms_per_layer:.2f}",
            synchronisations=f"{host.synchronisations:.0f}",
            event=f"{host.event_ms:.2f}",
            free=percent(host.free_share),
        ),
    ]


def speed_line(plan: Plan, lang: Language) -> str:
    """Step time, throughput and MFU."""
    parts = [
        step_in_words(plan, lang),
        f"{plan.tokens_per_s_per_npu:,.0f} {report_text(lang, 'tokens_per_s_per_npu')}",
        f"{quantity(plan.tokens_per_s)} tokens/s",
        bracketed(lang, f"MFU {percent(plan.mfu)} %", plan.mfu_convention),
    ]
    return "   ".join(parts)


def step_in_words(plan: Plan, lang: Language) -> str:
    """The step time, and what to expect where unproven gains and the risk not to fit make it another."""
    step = f"{seconds(plan.step_time_s)} s"
    expected = step if plan.expected_step_time_s is None else f"{seconds(plan.expected_step_time_s)} s"
    parts = [valued(lang, "step", step)] + [report_text(lang, "expected", step=expected)] * (expected != step)
    return report_text(lang, "comma").join(parts)


def measured_mfu(plan: Plan, lang: Language) -> str | None:
    """The highest MFU that a published run of the plan's class reached; None where none has one."""
    mfu = plan.best_measured_mfu
    if mfu is None:
        return None
    return report_text(lang, "measured_mfu", runs=mfu.runs, value=percent(mfu.highest), record=mfu.record)


def interval_line(plan: Plan, lang: Language) -> str:
    """The 80 % interval, and the axes in which no measured run is near."""
    given = plan.uncertainty
    text = report_text(lang, "interval", low=seconds(given.low_s), high=seconds(given.high_s))
    if not given.extrapolated:
        return text
    axes = axes_in_words(given.extrapolated, lang)
    return text + report_text(lang, "semicolon") + report_text(lang, "extrapolated", axes=axes)


def axes_in_words(axes: Iterable[str], lang: Language) -> str:
    """Axes and features in which no measured run is near: `device family, EP, adaptive pipe`."""
    translated = [in_language(axis, lang) for axis in axes]
    named = [axis.upper() if axis in ACRONYMS else axis.replace("_", " ") for axis in translated]
    return in_language(joined(named), lang)


def memory_line(plan: Plan, lang: Language) -> str:
    """Peak and limit with the interval, the chance to fit, and the imbalance of experts that it survives."""
    facts = [fits_words(plan, lang)]
    if not plan.fits:
        excess = plan.peak_memory_gib - plan.memory_limit_gib
        facts.append(report_text(lang, "does_not_fit", excess=f"{excess:.1f}"))
    elif plan.oom_imbalance is not None:
        facts.append(report_text(lang, "oom", limit=f"{plan.oom_imbalance:.1f}"))
    return report_text(lang, "semicolon").join(facts)


def fits_words(plan: Plan, lang: Language) -> str:
    """Peak, limit and fullest stage, the interval, and the chance to fit."""
    peak, limit = f"{plan.peak_memory_gib:.1f}", f"{plan.memory_limit_gib:.1f}"
    facts = [report_text(lang, "memory", peak=peak, limit=limit, stage=fullest_stage(plan))]
    if (interval := plan.memory_interval) is not None:
        facts.append(valued(lang, "interval_80", f"{interval.low_gib:.1f}-{interval.high_gib:.1f} GiB"))
    if plan.p_fits is not None:
        facts.append(valued(lang, "p_fits", chance(plan.p_fits)))
    return report_text(lang, "semicolon").join(facts)


def experts_line(plan: Plan, lang: Language) -> str | None:
    """How uneven experts are taken to be, at which group, and why; None where no ranks share them."""
    experts = plan.experts
    if experts is None or experts.ep == 1:
        return None
    router = titled(lang, field_name(lang, "training.router"), experts.router)
    router = report_text(lang, "loads_file") if experts.from_file else router
    factors = experts.time_factor, experts.memory_factor, experts.memory_factor_of_stage
    time, memory, stage = (f"{factor:.2f}" for factor in factors)
    return report_text(lang, "experts", ep=experts.ep, time=time, memory=memory, stage=stage, router=router)
