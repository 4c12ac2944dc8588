"""The report of a search in blocks: the best plan, the ranking, then what was searched; as text and as Markdown."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autodeploy.messages import in_language, joined, label, text_of
from autodeploy.reports.recommendation import (
    box_table,
    ignorance_lines,
    pareto_line,
    recommendation_lines,
    rescaled_line,
)
from autodeploy.reports.run_facts import plans_table, rl_lines, rl_workload, run_facts, spare_table
from autodeploy.reports.tables import COLUMNS, Block, Table, escape, in_columns, in_markdown
from autodeploy.reports.wording import (
    ACRONYMS,
    bracketed,
    chance,
    change_lines,
    check_text,
    choices,
    convention_words,
    degrees,
    excess_words,
    field_name,
    fullest_stage,
    part_name,
    percent,
    quantity,
    report_text,
    schedule_title,
    seconds,
    system_title,
    titled,
    valued,
    with_records,
)
from autodeploy.specs.planset import PARTS
from autodeploy.specs.spec import spec_of
from autodeploy.stack.frameworks import DEFAULT, FRAMEWORKS, UNRESTRICTED, launchers, post_trainers, title_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from autodeploy.messages import Language
    from autodeploy.specs.diagnostics import BrokenRule
    from autodeploy.specs.planset import Breakdown, Evidence, Plan, PlanSet
    from autodeploy.specs.spec import Spec


_WORDS = frozenset({"schedule", "feature", "moe_dispatcher", "cp_algo"})


def unproven(plan: Plan) -> tuple[Evidence, ...]:
    """Parts of the plan that no run has."""
    return tuple(each for each in plan.evidence if each.runs == 0)


def in_words(each: Evidence, lang: Language) -> str:
    """`EP 64`, `DualPipeV`, `alltoall_seq`: an axis with its value, or a name that says its axis itself."""
    if each.axis not in _WORDS:
        return f"{_axis(each.axis, lang)} {each.value}"
    return _value(each, lang)


def unproven_names(plan: Plan, lang: Language) -> str:
    """`EP 64, DualPipeV`; nothing where every axis and feature has runs."""
    return report_text(lang, "comma").join(in_words(each, lang) for each in unproven(plan))


def evidence_line(plan: Plan, lang: Language) -> str | None:
    """Traits that no run has and the error of the nearest; else those with the fewest runs. None if unknown."""
    if not plan.evidence:
        return None
    missing = unproven(plan)
    if not missing:
        weakest = min(plan.evidence, key=lambda each: each.runs)
        text = report_text(lang, "all_proven", name=in_words(weakest, lang), runs=weakest.runs)
        return text + _nearest(weakest, lang)
    text = titled(lang, report_text(lang, "unproven"), unproven_names(plan, lang))
    # One record stands for all: the one that was missed most, of those that have an error.
    with_record = [each for each in missing if each.nearest_record is not None]
    return text + (_nearest(max(with_record, key=lambda each: abs(each.error or 0.0)), lang) if with_record else "")


def evidence_table(plan: Plan, lang: Language) -> Table:
    """Every axis and feature of a plan, those without a run first, then by the number of runs."""
    rows = [
        [
            _axis(each.axis, lang),
            _value(each, lang),
            f"{each.runs:,}",
            "-" if each.error is None else f"{100 * each.error:+z.1f} %",
            with_records(each.nearest_record or "-", lang),
        ]
        for each in sorted(plan.evidence, key=lambda each: each.runs)
    ]
    return Table(report_text.each(lang, "axis", "value", "runs", "evidence_error", "nearest_record"), rows, {2, 3})


def _nearest(each: Evidence, lang: Language) -> str:
    if each.nearest_record is None:
        return ""
    record = with_records(each.nearest_record, lang)
    text = report_text(lang, "semicolon") + report_text(lang, "nearest", record=record)
    if each.error is None:
        return text
    key = "predicted_long" if each.error >= 0 else "predicted_short"
    return text + report_text(lang, "comma") + report_text(lang, key, pct=percent(abs(each.error)))


def _axis(axis: str, lang: Language) -> str:
    if axis in {"feature", "ranks"}:
        return report_text(lang, axis)
    if axis in _WORDS | {"micro_batch_size"}:
        return field_name(lang, axis)
    return axis.removeprefix("rl.") if "." in axis else axis.upper()


def _value(each: Evidence, lang: Language) -> str:
    return schedule_title(str(each.value), lang) if each.axis == "schedule" else str(each.value)


# Where a step's time goes, in whole percents that add up to 100, and what MFU gains without its losses.
MOST_LOSSES = 3
LEAST_SHARE_SHOWN = 0.01
"""Smaller parts of a step are folded into "other"."""


def percentages(breakdown: Breakdown, always: Collection[str] = ()) -> dict[str, int]:
    """Whole percents by part of the step, largest remainders rounded up so that the sum is 100.

    always : parts that are shown however small they are.
    """
    seconds = {part: getattr(breakdown, part) for part in PARTS}
    total = sum(seconds.values())
    if total <= 0:
        return {}
    shown = [part for part in PARTS if seconds[part] >= LEAST_SHARE_SHOWN * total or part in always]
    exact = {part: 100 * seconds[part] / total for part in shown}
    exact["other"] = 100 * sum(value for part, value in seconds.items() if part not in shown) / total
    whole = {part: int(share) for part, share in exact.items()}
    by_remainder = sorted(exact, key=lambda part: whole[part] - exact[part])
    for part in by_remainder[: 100 - sum(whole.values())]:
        whole[part] += 1
    return whole


def breakdown_line(plan: Plan, lang: Language) -> str:
    """`step time: compute 62 | EP 6 (93 % hidden) | imbalance 6 | ... other 3 %`."""
    experts = {"exposed_ep_s"} if plan.strategy.ep > 1 else set()
    parts = []
    for part, share in percentages(plan.breakdown, experts).items():
        text, hidden = f"{part_name(lang, part)} {share}", round(100 * plan.hidden.ep_share_step)
        parts.append(bracketed(lang, text, report_text(lang, "hidden", share=hidden)) if part in experts else text)
    return titled(lang, report_text(lang, "step_time"), " | ".join(parts) + " %")


def losses(plan: Plan, lang: Language) -> list[str]:
    """The largest losses of a step with what MFU gains without each: `recompute 15.1 s (+5.8 MFU points)`."""
    texts = []
    for loss in plan.headroom[:MOST_LOSSES]:
        name = report_text(lang, "below_peak") if loss.part == "compute_s" else part_name(lang, loss.part)
        gain = report_text(lang, "mfu_points", points=f"{loss.mfu_points:+.1f}")
        texts.append(bracketed(lang, f"{name} {seconds(loss.seconds)} s", gain))
    return texts


def headroom_line(plan: Plan, lang: Language) -> str | None:
    """The largest losses of a step, and MFU without them all; None where nothing is known of any."""
    if not plan.headroom:
        return None
    without = report_text(lang, "mfu_without", mfu=percent(plan.headroom[:MOST_LOSSES][-1].mfu_up_to_here))
    losses_text = report_text(lang, "comma").join(losses(plan, lang))
    return titled(lang, report_text(lang, "headroom"), losses_text + report_text(lang, "semicolon") + without)


# One plan in the words an engineer and a lead both understand.
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
    if spec.software is not None:
        launch += report_text(lang, "comma") + report_text(lang, "on_software", name=spec.software.document().name)
    return title, workload_in_words(spec, lang) + report_text(lang, "comma") + launch


def workload_in_words(spec: Spec, lang: Language) -> str:
    """Samples that a step trains on; for reinforcement learning those it generates."""
    training = spec.training
    if training.rl is not None:
        return rl_workload(spec, lang)
    batch = training.global_batch_size.value
    return report_text(
        lang,
        "workload",
        seq=training.seq_length,
        batch=f"{batch:,}",
        tokens=quantity(batch * training.seq_length),
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
    facts: list[str | None] = [
        *rule_lines(plan.broken_rules, lang),
        count_on_line(plan, lang),
        speed_line(plan, lang),
        *rl_lines(plan, lang),
    ]
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
    """Lanes of the device and the host in a micro batch."""
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
        bracketed(lang, f"MFU {percent(plan.mfu)} %", convention_words(plan.mfu_convention, lang)),
    ]
    return "   ".join(parts)


def step_in_words(plan: Plan, lang: Language) -> str:
    """The step time, and what to expect where unproven gains and the risk not to fit make it another."""
    step = f"{seconds(plan.step_time_s)} s"
    expected = step if plan.expected_step_time_s is None else f"{seconds(plan.expected_step_time_s)} s"
    parts = [valued(lang, "step", step)] + [report_text(lang, "expected", step=expected)] * (expected != step)
    return report_text(lang, "comma").join(parts)


def count_on_line(plan: Plan, lang: Language) -> str | None:
    """The step time to count on, and why; None where measured runs agree with the predicted one."""
    told = plan.count_on
    if told is None:
        return None
    why = with_records(in_language(told.why, lang), lang)
    return report_text(lang, "count_on", step=seconds(told.step_time_s), why=why)


def measured_mfu(plan: Plan, lang: Language) -> str | None:
    """The highest MFU that a published run of the plan's class reached; None where none has one."""
    mfu = plan.best_measured_mfu
    if mfu is None:
        return None
    return report_text(
        lang, "measured_mfu", runs=mfu.runs, value=percent(mfu.highest), record=with_records(mfu.record, lang)
    )


def interval_line(plan: Plan, lang: Language) -> str:
    """The 80 % interval, and the axes in which no measured run is near."""
    given = plan.uncertainty
    text = report_text(lang, "interval", low=seconds(given.low_s), high=seconds(given.high_s))
    beyond = extrapolated_line(plan, lang)
    return text if beyond is None else text + report_text(lang, "semicolon") + beyond


def extrapolated_line(plan: Plan, lang: Language) -> str | None:
    """Axes in which no measured run is near; None where there are none."""
    axes = plan.uncertainty.extrapolated
    return report_text(lang, "extrapolated", axes=axes_in_words(axes, lang)) if axes else None


def axes_in_words(axes: Iterable[str], lang: Language) -> str:
    """Axes and features in which no measured run is near: `device family, EP, adaptive pipe`."""
    translated = [in_language(axis, lang) for axis in axes]
    named = [
        axis.upper() if axis in ACRONYMS else axis if lang == "zh" else axis.replace("_", " ") for axis in translated
    ]
    return in_language(joined(named), lang)


def memory_line(plan: Plan, lang: Language) -> str:
    """Peak and limit with the interval, the chance to fit, and the imbalance of experts that it survives.

    A launch that lacks memory at the assumed imbalance may fit where experts are more even: it says so, too.
    """
    facts = [fits_words(plan, lang)]
    if not plan.fits:
        facts.append(excess_words(plan, lang))
    if plan.oom_imbalance is not None and (plan.fits or plan.oom_imbalance >= 1.0):
        facts.append(report_text(lang, "oom", limit=f"{plan.oom_imbalance:.1f}"))
    return report_text(lang, "semicolon").join(facts)


def fits_words(plan: Plan, lang: Language) -> str:
    """Peak, limit and fullest stage, the interval, and the chance to fit."""
    peak, limit = f"{plan.peak_memory_gib:.1f}", f"{plan.memory_limit_gib:.1f}"
    facts = [report_text(lang, "memory", peak=peak, limit=limit, stage=fullest_stage(plan))]
    if plan.start_gib > plan.peak_memory_gib:
        facts.append(report_text(lang, "at_start", peak=f"{plan.start_gib:.1f}"))
    if (interval := plan.memory_interval) is not None:
        facts.append(valued(lang, "interval_80", f"{interval.low_gib:.1f}-{interval.high_gib:.1f} GiB"))
    if plan.p_fits is not None:
        facts.append(valued(lang, "p_fits", chance(plan.p_fits)))
    return report_text(lang, "semicolon").join(facts)


def experts_line(plan: Plan, lang: Language) -> str | None:
    """Assumed unevenness of experts, its group and its reason; None where no ranks share them."""
    experts = plan.experts
    if experts is None or experts.ep == 1:
        return None
    router = titled(lang, field_name(lang, "training.router"), report_text(lang, f"router_{experts.router}"))
    router = report_text(lang, "loads_file") if experts.from_file else router
    factors = experts.time_factor, experts.memory_factor, experts.memory_factor_of_stage
    time, memory, stage = (f"{factor:.2f}" for factor in factors)
    return report_text(lang, "experts", ep=experts.ep, time=time, memory=memory, stage=stage, router=router)


def render_plan_set(
    plan_set: PlanSet, lang: Language = "en", columns: int = COLUMNS, next_lines: Sequence[str] = ()
) -> str:
    """The whole report as text of at most so many columns, and what all of it rests on."""
    blocks = report_blocks(plan_set, lang, wide=False, next_lines=next_lines)
    return in_columns(head(plan_set, lang), *blocks, columns=columns)


def render_markdown(plan_set: PlanSet, lang: Language = "en", *, plan: Plan | None = None) -> str:
    """The whole report as Markdown, of one plan in detail (the best unless another is given), and its provenance."""
    shown = plan or best_of(plan_set)
    top = head(plan_set, lang, shown)
    search = plan_set.search
    identity = [f"AutoDeploy {search.engine_version}"]
    identity += [f"plan `{shown.plan_id}`"] if shown is not None else []
    identity.append(f"spec `{search.spec_hash[:12]}`, profile `{search.profile_hash[:12]}`")
    body = in_markdown(Block(lines=top.lines), *report_blocks(plan_set, lang, plan=plan))
    foot = f"<sub>{', '.join(identity)}; {report_text(lang, 'generated')}</sub>"
    return f"# {escape(top.title)}\n\n{body}{foot}\n"


def render_plan(spec: Spec, plan: Plan, lang: Language = "en") -> str:
    """The report of an estimate as text: one strategy as given, no ranking."""
    title, work = header(spec, plan, lang)
    block = plan_block(plan, lang, name=report_text(lang, "plan").upper())
    further = filter(None, [rescaled_line(plan, lang), in_language(plan.explanation, lang)])
    return in_columns(Block(title, [work]), block._replace(lines=[*block.lines, *further]))


def best_of(plan_set: PlanSet) -> Plan | None:
    """The first plan, where there is any."""
    return plan_set.plans[0] if plan_set.plans else None


def report_blocks(
    plan_set: PlanSet,
    lang: Language,
    *,
    plan: Plan | None = None,
    wide: bool = True,
    next_lines: Sequence[str] = (),
) -> list[Block]:
    """All that a report says below its title.

    plan : the plan that is told in detail; the best unless given.
    wide : whether tables have the columns that a terminal has no room for.
    next_lines : commands that make sense now; those of a search in this database unless given.
    """
    spec = spec_of(plan_set.search)
    best = best_of(plan_set)
    shown = plan or best
    off = off_lines(plan_set, lang)
    last = Block(lines=[counts_line(plan_set, lang), *note_lines(plan_set, spec, lang), *off])
    steps = Block(report_text(lang, "next"), next_lines or next_steps(plan_set, spec))
    if shown is None:
        return [*no_plan(plan_set, lang), last, steps]
    blocks = [
        plan_block(shown, lang, name=report_text(lang, "best") if shown is best else report_text(lang, "plan").upper()),
        Block(table=plans_table(plan_set, lang, wide=wide), lines=recommendation_lines(plan_set, lang)),
        Block(report_text(lang, "spares"), table=spare_table(plan_set, lang)),
    ]
    blocks += [
        Block(lines=lane_lines(shown, lang)),
        Block(report_text(lang, "evidence"), table=evidence_table(shown, lang)),
        Block(report_text(lang, "box"), ignorance_lines(plan_set.risk, lang), box_table(plan_set.risk, lang)),
        Block(report_text(lang, "menu"), table=menu_table(shown, lang)),
    ]
    return [*(block for block in blocks if block.lines or (block.table and block.table.rows)), last, steps]


def head(plan_set: PlanSet, lang: Language, plan: Plan | None = None) -> Block:
    """Model and cluster, and below it workload and target."""
    spec = spec_of(plan_set.search)
    title, work = header(spec, plan or best_of(plan_set) or plan_set.reference, lang)
    return Block(title, [work])


def counts_line(plan_set: PlanSet, lang: Language) -> str:
    """Numbers of candidates by outcome, and the proven quality of the best."""
    counts, best = plan_set.counts, best_of(plan_set)
    text = report_text(
        lang,
        "counts",
        enumerated=f"{counts.enumerated:,}",
        seconds=f"{plan_set.timing.total_s:.1f}",
        illegal=f"{sum(counts.rejected.values()):,}",
        too_big=f"{counts.too_big:,}",
        pruned=f"{counts.pruned:,}",
        solved=f"{counts.solved:,}",
    )
    if best is None:
        return text
    proven = report_text(lang, "gap_unknown") if best.gap is None else report_text(lang, "gap", gap=percent(best.gap))
    return text + report_text(lang, "semicolon") + proven


def off_lines(plan_set: PlanSet, lang: Language) -> list[str]:
    """Features that are off by their reasons: `the model has no experts: mutual_routing, ...`."""
    named: dict[str, list[str]] = {}
    for name, reason in plan_set.features_off.items():
        named.setdefault(reason, []).append(name)
    return [
        report_text(lang, "features_off", reason=in_language(reason, lang), names=", ".join(names))
        for reason, names in named.items()
    ]


def note_lines(plan_set: PlanSet, spec: Spec, lang: Language) -> list[str]:
    """Plans that none beats, what the target framework costs, and warnings."""
    pareto = pareto_line(plan_set, lang)
    lines = [] if pareto is None else [pareto]
    free = plan_set.unrestricted
    if free.best_step_time_s is not None and (free.price_pct or 0) >= 0.05 and spec.search.target != UNRESTRICTED:
        target = title_of(spec.search.target)
        values = {"price": f"{free.price_pct:.1f}", "step": seconds(free.best_step_time_s)}
        lines.append(report_text(lang, "price", target=target, **values))
    if (beside := plan_set.optimality.not_searched) and plan_set.optimality.gap is not None:
        lines.append(report_text(lang, "not_searched", names=report_text(lang, "comma").join(beside)))
    return lines + [report_text(lang, "warning", text=in_language(text, lang)) for text in plan_set.warnings]


def no_plan(plan_set: PlanSet, lang: Language) -> list[Block]:
    """Why there is no plan, and the nearest changes that would bring one."""
    if plan_set.status != "infeasible":
        status = text_of(lang, f"page.status.{plan_set.status}")
        return [Block(report_text(lang, "unfinished", status=status), [plan_set.error] if plan_set.error else [])]
    reason = plan_set.infeasible
    if reason is None:
        return [Block(report_text(lang, "infeasible"))]
    rules = report_text(lang, "semicolon").join(in_language(rule, lang) for rule in reason.binding_rules)
    binding = [report_text(lang, "binding", rules=rules)] if rules else []
    nearest = change_lines(reason.nearest, lang)
    return [
        Block(report_text(lang, "infeasible"), binding),
        Block(report_text(lang, "nearest_changes" if nearest else "no_nearest"), nearest),
    ]


def next_steps(plan_set: PlanSet, spec: Spec, site: str = "", *, served: bool = False) -> list[str]:
    """Commands that make sense now, with the real plan's id, and the address of the search's page.

    site : where the pages of the search are. served : whether a service there has the search, so that commands ask it.
    """
    page = f"{site}/searches/{plan_set.search.id}" if site and plan_set.search.id else ""
    there = f" --server {site}" if served else ""
    last = page if served else "autodeploy serve" + (f"  # {page}" if page else "")
    if not plan_set.plans:
        question = f"autodeploy why-not SPEC --strategy tp=8,pp=8{there}"
        return [last] if spec.training.rl else [question, last]
    best = plan_set.plans[0]
    if spec.training.rl is not None:
        trainer = spec.search.target if FRAMEWORKS[spec.search.target].post_trains else post_trainers()[0]
        return [f"autodeploy export {best.plan_id} --to {trainer}{there}", last]
    target = spec.search.target if spec.search.target in launchers() else DEFAULT
    other = 2 * best.strategy.tp if best.strategy.tp < 8 else best.strategy.tp // 2
    return [
        f"autodeploy export {best.plan_id} --to {target}{there}",
        f"autodeploy why-not {best.plan_id} --strategy tp={other}{there}",
        last,
    ]


def menu_table(plan: Plan, lang: Language) -> Table:
    """Choices of recomputation and swap on each kind of layer, and those that the plan takes."""
    rows = []
    for item in plan.memory_menu:
        ratio = "–" if item.gib_per_ms is None else f"{item.gib_per_ms:.2f}"
        cells = [
            label(lang, f"layer_{item.layers}"),
            f"{item.choice} ({report_text(lang, item.kind)})",
            f"{item.saved_gib:.3f}",
        ]
        rows.append([*cells, f"{item.added_ms:.2f}", ratio, str(item.used_layers)])
    titles = report_text.each(lang, "layers", "menu_choice", "menu_saved", "menu_added", "menu_used")
    return Table([*titles[:4], "GiB/ms", titles[4]], rows, {2, 3, 4, 5})
