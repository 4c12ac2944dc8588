"""Rows of a report, and the run of weeks in words: days, goodput, what is lost, phases, cost, assumptions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autodeploy.messages import Message, in_language
from autodeploy.messages.catalogue import text_of
from autodeploy.reports.tables import Table
from autodeploy.reports.wording import (
    bracketed,
    chance,
    check_text,
    degrees,
    excess_words,
    part_name,
    percent,
    phase_name,
    quantity,
    recompute_names,
    reference_name,
    report_text,
    schedule_cell,
    seconds,
    swap_names,
    titled,
    valued,
)

if TYPE_CHECKING:
    from collections.abc import Collection

    from autodeploy.messages import Language
    from autodeploy.specs.plan_details import RlPlan, SparePlan
    from autodeploy.specs.planset import Plan, PlanSet
    from autodeploy.specs.rl import RlStrategy
    from autodeploy.specs.spec import Spec
    from autodeploy.specs.strategy import Strategy
    from autodeploy.specs.training_run import Prior, RunPhase, TrainingRun


def run_facts(run: TrainingRun, lang: Language) -> list[str]:
    """One sentence a line."""
    facts = [_total(run, lang)]
    if len(run.phases) > 1 or run.days is None:
        facts += [_phase(number, phase, lang) for number, phase in enumerate(run.phases, start=1)]
    if run.days is None:
        return [*facts, report_text(lang, "run_allow")]
    facts.append(checkpoint_line(run, lang))
    facts += [report_text(lang, f"run_recovery_{run.recovery}")] if run.recovery != "none" else []
    facts += [costs] if (costs := cost_words(run, lang)) else []
    if run.priors:
        assumptions = report_text(lang, "semicolon").join(prior_in_words(each, lang) for each in run.priors)
        facts.append(titled(lang, report_text(lang, "assumptions"), assumptions))
    return facts


def checkpoint_line(run: TrainingRun, lang: Language) -> str:
    """Checkpoints and failures: how large or how often, and what each takes."""
    return report_text(
        lang,
        "run_checkpoint",
        size=size(run.checkpoint_gb),
        interval=duration(run.checkpoint_interval_s),
        pause=duration(run.checkpoint_s),
        failure=duration(3600.0 * run.failure_interval_h),
        restart=duration(run.restart_s),
    )


def prior_in_words(prior: Prior, lang: Language) -> str:
    """An assumption with its source."""
    return text_of(lang, f"prior.{prior.name}", value=f"{prior.value:,g}", source=prior.source)


def prior_note(prior: Prior, lang: Language) -> str:
    """Remark of an assumption; of a shipped one in the reader's language."""
    return in_language(Message.of_record(f"prior_note.{prior.name}", prior.note), lang) if prior.note else ""


def _total(run: TrainingRun, lang: Language) -> str:
    tokens = quantity(sum(phase.tokens for phase in run.phases))
    trained = sum(phase.days or 0.0 for phase in run.phases)
    if run.days is None or run.npu_hours is None or run.goodput is None:
        possible = quantity(sum(phase.tokens for phase in run.phases if phase.days is not None))
        return report_text(lang, "run_part", trained=possible, tokens=tokens, days=days(trained))
    total = report_text(
        lang,
        "run_total",
        tokens=tokens,
        days=days(run.days),
        added=duration(86_400.0 * (run.days - trained)),
        card_hours=quantity(run.npu_hours),
        goodput=percent(run.goodput),
    )
    lost = report_text(
        lang,
        "run_lost",
        checkpoint=percent((run.checkpoint_days or 0.0) / run.days),
        lost=percent((run.lost_work_days or 0.0) / run.days),
        restart=percent((run.restart_days or 0.0) / run.days),
        failures=days(run.failures or 0.0),
    )
    return total + report_text(lang, "semicolon") + lost


def _phase(number: int, phase: RunPhase, lang: Language) -> str:
    first, last = phase.batches
    batch = f"{last:,}" if first == last else f"{first:,}-{last:,}"
    where = {"number": number, "seq": f"{phase.seq_length:,}", "batch": batch}
    if phase.days is None or phase.step_time_s is None:
        return report_text(lang, "run_phase_problem", **where, problem=in_language(phase.problem or "", lang))
    text = report_text(
        lang,
        "run_phase",
        **where,
        tokens=quantity(phase.tokens),
        days=days(phase.days),
        step=seconds(phase.step_time_s),
    )
    if phase.strategy is not None:
        layout = degrees(phase.strategy)
        change = duration(phase.layout_change_s)
        text += report_text(lang, "comma") + report_text(lang, "run_phase_layout", layout=layout, change=change)
    return text


def cost_words(run: TrainingRun, lang: Language) -> str:
    """Price, energy and what it costs, as far as the user gave prices."""
    amounts = {"run_cost": run.cost, "run_energy": run.energy_mwh, "run_energy_cost": run.energy_cost}
    return report_text(lang, "comma").join(
        report_text(lang, key, amount=quantity(amount), currency=run.currency).strip()
        for key, amount in amounts.items()
        if amount is not None
    )


def days(value: float) -> str:
    """365, 3.4: days as a calendar shows them."""
    return f"{value:,.0f}" if value >= 10 else f"{value:.1f}"


def size(gigabytes: float) -> str:
    """9.6 TB, 94 GB."""
    return f"{gigabytes / 1e3:,.1f} TB" if gigabytes >= 1e3 else f"{gigabytes:,.0f} GB"


def duration(time_s: float) -> str:
    """45 s, 13 min, 3.8 h, 5.5 d: whole up to two units of the next."""
    for limit, unit, per in ((120.0, "s", 1.0), (7200.0, "min", 60.0), (172_800.0, "h", 3600.0)):
        if time_s < limit:
            value = time_s / per
            return f"{value:.0f} {unit}" if value >= 10 else f"{value:.1f} {unit}"
    return f"{time_s / 86_400.0:,.1f} d"


# A step of reinforcement learning in words.
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
    """Lines of a plan beyond one of pre-training; none for others."""
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


UNKNOWN = "-"
_COLUMNS = (
    *("plan", "layout", "generation_s", "schedule", "s_per_step", "tokens_per_s_per_npu", "gib", "p_fits"),
    *("versus_best", "regret"),
)
_WIDE = frozenset({"plan", "tokens_per_s_per_npu"})  # step times tell throughput too
_OF_SOME = frozenset({"generation_s", "p_fits", "regret"})
_TEXTS = frozenset({"#", "plan", "layout", "generation_s", "schedule", ""})
_SPARE_COLUMNS = ("nodes", "num_npus", "plan", "batch", "s_per_step", "throughput", "checkpoint")


def plans_table(
    plan_set: PlanSet, lang: Language = "en", *, wide: bool = False, without: Collection[str] = ()
) -> Table:
    """The plans in rank order, then the reference plan, each compared with the best; remarks in the last column.

    Columns of which no plan knows anything are left out; only a wide table has ids and throughput,
    and none has columns that it should be without; the name of that of remarks is empty.
    """
    plans = plan_set.plans
    rows = [_cells(plan, plans[0], lang, before=plans[:index]) for index, plan in enumerate(plans)]
    if plans and plan_set.reference is not None:
        rows.append(_cells(plan_set.reference, plans[0], lang, is_reference=True))
    shown = [name for name in _COLUMNS if name not in _OF_SOME or any(row[name] != UNKNOWN for row in rows)]
    names = ["#", *(name for name in shown if wide or name not in _WIDE), ""]
    names = [name for name in names if name not in without]
    titles = {"#": "#", "": "", "generation_s": part_name(lang, "generation_s")}
    return Table(
        [titles.get(name) or report_text(lang, name) if name else "" for name in names],
        [[row[name] for name in names] for row in rows],
        {place for place, name in enumerate(names) if name == "#" or name not in _TEXTS},
    )


def _cells(
    plan: Plan, best: Plan, lang: Language, *, before: tuple[Plan, ...] = (), is_reference: bool = False
) -> dict[str, str]:
    """The cells of a plan by their column; the remark has no name."""
    remarks = [f"≈ #{plan.tie_with}"] if plan.tie_with is not None and not is_reference else []
    twin = next((other for other in before if looks_like(plan.strategy, other.strategy)), None)
    remarks += [what_differs(plan.strategy, twin.strategy, lang)] if twin is not None else []
    remarks += [reference_name(plan.label, lang)] if is_reference else []
    if not plan.fits:
        remarks.append(excess_words(plan, lang))
    return {
        "#": UNKNOWN if is_reference else str(plan.rank),
        "plan": plan.plan_id,
        "layout": degrees(plan.strategy, with_dp=False),
        "generation_s": generation_cell(plan.strategy),
        "schedule": schedule_cell(plan.strategy, lang),
        "s_per_step": seconds(plan.step_time_s),
        "tokens_per_s_per_npu": f"{plan.tokens_per_s_per_npu:,.0f}",
        "gib": f"{plan.peak_memory_gib:.1f}",
        "p_fits": UNKNOWN if plan.p_fits is None else chance(plan.p_fits),
        "versus_best": UNKNOWN if plan is best else f"{100 * (plan.step_time_s / best.step_time_s - 1):+z.1f} %",
        "regret": UNKNOWN if plan.regret_p80_pct is None else f"{plan.regret_p80_pct:.1f} %",
        "": report_text(lang, "comma").join(remarks),
    }


def looks_like(one: Strategy, other: Strategy) -> bool:
    """Whether a table row would show both the same."""
    same = degrees(one) == degrees(other) and one.schedule == other.schedule
    return same and generation_cell(one) == generation_cell(other)


def generation_cell(strategy: Strategy) -> str:
    """Placement of generation in a plan of post-training: how many cards of their own, and how it is cut."""
    if strategy.rl is None:
        return UNKNOWN
    layout, generation = strategy.rl, strategy.rl.generation
    cards = [] if layout.generation_npus is None else [f"{layout.generation_npus:,}"]
    return " ".join([layout.placement, *cards, f"TP{generation.tp}", *[f"EP{generation.ep}"] * (generation.ep > 1)])


def what_differs(strategy: Strategy, other: Strategy, lang: Language) -> str:
    """The first thing that tells two strategies of equal degrees and schedule apart."""
    if strategy.micro_batch_size != other.micro_batch_size:
        return valued(lang, "micro_batch_size", strategy.micro_batch_size)
    if strategy.moe_dispatcher != other.moe_dispatcher:
        return str(strategy.moe_dispatcher)
    recomputed = recompute_names(strategy.recompute)
    if recomputed != recompute_names(other.recompute):
        return valued(lang, "recompute", "+".join(recomputed) or report_text(lang, "none"))
    swapped = swap_names(strategy)
    if swapped != swap_names(other):
        return valued(lang, "swap", "+".join(swapped) or report_text(lang, "none"))
    both = {*strategy.features} & {*other.features}
    changed = [name for name in (*strategy.features, *other.features) if name not in both]
    if changed:
        return ("+" if changed[0] in strategy.features else "-") + changed[0]
    if strategy.rl is not None and other.rl is not None and strategy.rl.generation != other.rl.generation:
        return generation_in_words(strategy.rl)
    return check_text(lang, "placement")


def spare_table(plan_set: PlanSet, lang: Language) -> Table:
    """For each number of nodes the best plan, and that of today's layout."""
    cells = []
    for row in plan_set.spares:
        if row.best is None:
            cells.append([f"-{row.nodes}", f"{row.num_npus:,}", report_text(lang, "none"), "", "", "", ""])
            continue
        plans = [row.best]
        if row.same_layout is not None and row.same_layout.strategy != row.best.strategy:
            plans.append(row.same_layout)
        cells += [[f"-{row.nodes}", *_spare_cells(plan, lang)] for plan in plans]
    return Table(report_text.each(lang, *_SPARE_COLUMNS), cells, {0, 1, 3, 4, 5})


def _spare_cells(plan: SparePlan, lang: Language) -> list[str]:
    change = plan.checkpoint
    how = check_text(lang, f"checkpoint_{change.how}")
    if change.seconds is not None:
        how = bracketed(lang, how, duration(change.seconds))
    return [
        f"{plan.num_npus:,}",
        degrees(plan.strategy),
        f"{plan.global_batch_size:,}",
        f"{plan.step_time_s:.4g}",
        f"{plan.throughput_pct:.0f} %",
        how,
    ]
