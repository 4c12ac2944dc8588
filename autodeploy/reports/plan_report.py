"""The report of a search in blocks: the best plan, the ranking, then what was searched; as text and as Markdown."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autodeploy.messages import Message, in_language, label, text_of
from autodeploy.reports.best_plan import header, lane_lines, plan_block
from autodeploy.reports.evidence import evidence_table
from autodeploy.reports.recommendation import box_table, pareto_line, recommendation_lines, rescaled_line
from autodeploy.reports.rows import plans_table, spare_table
from autodeploy.reports.tables import Block, Table, escape, in_columns, in_markdown
from autodeploy.reports.texts import report_text
from autodeploy.reports.wording import percent, seconds
from autodeploy.specs.spec import Spec
from autodeploy.stack.frameworks import DEFAULT, FRAMEWORKS, UNRESTRICTED, launchers, post_trainers, title_of

if TYPE_CHECKING:
    from autodeploy.messages import Language
    from autodeploy.specs.planset import Plan, PlanSet


def render_plan_set(plan_set: PlanSet, lang: Language = "en", *, detail: bool = False) -> str:
    """The report as text of at most 100 columns; `detail` adds what all of it rests on."""
    return in_columns(_head(plan_set, lang), *report_blocks(plan_set, lang, wide=False, detail=detail))


def render_markdown(plan_set: PlanSet, lang: Language = "en", *, plan: Plan | None = None) -> str:
    """The whole report as Markdown, of one plan in detail (the best unless another is given), and its provenance."""
    shown = plan or best_of(plan_set)
    head = _head(plan_set, lang, shown)
    search = plan_set.search
    identity = [f"AutoDeploy {search.engine_version}"]
    identity += [f"plan `{shown.plan_id}`"] if shown is not None else []
    identity.append(f"spec `{search.spec_hash[:12]}`, profile `{search.profile_hash[:12]}`")
    body = in_markdown(Block(lines=head.lines), *report_blocks(plan_set, lang, plan=plan))
    foot = f"<sub>{', '.join(identity)}; {report_text(lang, 'generated')}</sub>"
    return f"# {escape(head.title)}\n\n{body}{foot}\n"


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
    plan_set: PlanSet, lang: Language, *, plan: Plan | None = None, wide: bool = True, detail: bool = True
) -> list[Block]:
    """All that a report says below its title.

    Parameters
    ----------
    plan : the plan that is told in detail; the best unless given.
    wide : whether tables have the columns that a terminal has no room for.
    detail : whether evidence, uncertain numbers, choices of memory and features that are off are told.
    """
    spec = Spec.model_validate(plan_set.search.spec)
    best = best_of(plan_set)
    shown = plan or best
    off = off_lines(plan_set, lang) if detail else []
    last = Block(lines=[counts_line(plan_set, lang), *note_lines(plan_set, spec, lang), *off])
    steps = Block(report_text(lang, "next"), next_steps(plan_set, spec))
    if shown is None:
        return [*no_plan(plan_set, lang), last, steps]
    blocks = [
        plan_block(shown, lang, name=report_text(lang, "best") if shown is best else report_text(lang, "plan").upper()),
        Block(table=plans_table(plan_set, lang, wide=wide), lines=recommendation_lines(plan_set, lang)),
        Block(report_text(lang, "spares"), table=spare_table(plan_set, lang)),
    ]
    if detail:
        blocks += [
            Block(lines=lane_lines(shown, lang)),
            Block(report_text(lang, "evidence"), table=evidence_table(shown, lang)),
            Block(report_text(lang, "box"), table=box_table(plan_set.risk, lang)),
            Block(report_text(lang, "menu"), table=menu_table(shown, lang)),
        ]
    return [*(block for block in blocks if block.lines or (block.table and block.table.rows)), last, steps]


def _head(plan_set: PlanSet, lang: Language, plan: Plan | None = None) -> Block:
    spec = Spec.model_validate(plan_set.search.spec)
    title, work = header(spec, plan or best_of(plan_set) or plan_set.reference, lang)
    return Block(title, [work])


def counts_line(plan_set: PlanSet, lang: Language) -> str:
    """What became of the candidates, and how good the best is proven to be."""
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
    changes = (Message("common.place", place=near.change, message=near.effect) for near in reason.nearest)
    nearest = [in_language(change, lang) for change in changes]
    return [
        Block(report_text(lang, "infeasible"), binding),
        Block(report_text(lang, "nearest_changes" if nearest else "no_nearest"), nearest),
    ]


def next_steps(plan_set: PlanSet, spec: Spec) -> list[str]:
    """Commands that make sense now, with the real plan's id."""
    if not plan_set.plans:
        return [*([] if spec.training.rl else ["autodeploy why-not SPEC --strategy tp=8,pp=8"]), "autodeploy serve"]
    best = plan_set.plans[0]
    if spec.training.rl is not None:
        trainer = spec.search.target if FRAMEWORKS[spec.search.target].post_trains else post_trainers()[0]
        return [f"autodeploy export {best.plan_id} --to {trainer}", "autodeploy serve"]
    target = spec.search.target if spec.search.target in launchers() else DEFAULT
    other = 2 * best.strategy.tp if best.strategy.tp < 8 else best.strategy.tp // 2
    return [
        f"autodeploy export {best.plan_id} --to {target}",
        f"autodeploy why-not {best.plan_id} --strategy tp={other}",
        "autodeploy serve",
    ]


def menu_table(plan: Plan, lang: Language) -> Table:
    """What could be recomputed or swapped on each kind of layer, and what the plan takes."""
    rows = []
    for item in plan.memory_menu:
        ratio = "–" if item.gib_per_ms is None else f"{item.gib_per_ms:.2f}"
        cells = [
            label(lang, f"layer_{item.layers}"),
            f"{item.choice} ({report_text(lang, item.kind)})",
            f"{item.saved_gib:.3f}",
        ]
        rows.append([*cells, f"{item.added_ms:.2f}", ratio, str(item.used_layers)])
    titles = [report_text(lang, key) for key in ("layers", "menu_choice", "menu_saved", "menu_added", "menu_used")]
    return Table([*titles[:4], "GiB/ms", titles[4]], rows, {2, 3, 4, 5})
