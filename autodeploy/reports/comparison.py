"""Differences between plans, and answers about one plan, as text."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Any, get_args

from autodeploy.messages import Message, in_language
from autodeploy.reports.plan_report import fits_words
from autodeploy.reports.run_facts import duration, size
from autodeploy.reports.tables import Block, Table, in_markdown
from autodeploy.reports.wording import (
    chance,
    check_text,
    choices,
    command_text,
    degrees,
    field_name,
    fullest_stage,
    memory_name,
    part_name,
    recompute_names,
    report_text,
    schedule_title,
    swap_names,
    titled,
)
from autodeploy.specs.plan_details import Cell, ComparedPlan, Comparison, Difference, Group
from autodeploy.specs.planset import PARTS, StageMemory

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from autodeploy.messages import Language
    from autodeploy.specs.answers import ClusterComparison, ClusterPoint, WhyNot
    from autodeploy.specs.planset import Plan, PlanSet


# Days and cost on several clusters, as lines and as a table.
def cluster_lines(comparison: ClusterComparison, lang: Language) -> list[str]:
    """Cluster that is cheapest in time, and the reasons against others."""
    out = [answer for answer in comparison.clusters if answer.cheapest is None]
    why = [titled(lang, answer.offer.title, in_language(answer.message, lang)) for answer in out]
    return [in_language(comparison.message, lang), *why]


def cluster_table(comparison: ClusterComparison, lang: Language) -> Table:
    """A row a plan, by cluster and cards. A star: none is sooner for as little, or cheaper and as soon."""
    names = ("cluster", "num_npus", "days", "interval_80", "cost", "versus_cheapest", "layout", "front")
    rows = [
        [
            answer.offer.title,
            f"{point.num_npus:,}",
            f"{point.days:.1f}" + ("" if point.meets_deadline else command_text(lang, "too_late")),
            f"{point.days_low:.1f}\u2013{point.days_high:.1f}",
            f"{point.cost:,.0f}",
            _dearer(point, comparison.best) if point is answer.cheapest and comparison.best is not None else "",
            degrees(point.strategy),
            "*" if point.on_front else "",
        ]
        for answer in comparison.clusters
        for point in answer.points
    ]
    return Table(command_text.each(lang, *names), rows, {1, 2, 3, 4, 5})


def _dearer(point: ClusterPoint, best: ClusterPoint) -> str:
    """By how much it is dearer; `\u2248` where that is within the 80 % intervals."""
    if point is best:
        return "-"
    apart = point.days_low * best.days * point.cost > best.days_high * point.days * best.cost
    dearer = f"{100.0 * (point.cost / best.cost - 1.0):+.0f} %"
    return dearer if apart else f"\u2248 {dearer}"


NOTHING = "none"  # what a document says of a strategy without any
Pair = tuple["PlanSet", "Plan"]
# field, unit, whether more is better (None: neither)
_FIGURES: tuple[tuple[str, str, bool | None], ...] = (
    ("step_time_s", "s", False),
    ("expected_step_time_s", "s", False),
    ("regret_p80_pct", "%", False),
    ("tokens_per_s", "tokens/s", True),
    ("tokens_per_s_per_npu", "tokens/s/card", True),
    ("mfu", "", True),
    ("peak_memory_gib", "GiB", False),
    ("memory_limit_gib", "GiB", None),
    ("p_fits", "", True),
    ("oom_imbalance", "", True),
    ("num_npus_used", "", None),
    ("micro_batches", "", None),
    ("rescaled", "", None),
    ("experts.time_factor", "", False),
    ("experts.memory_factor", "", False),
    ("run.days", "days", False),
    ("run.npu_hours", "card-hours", False),
    ("run.goodput", "", True),
    ("run.cost", "", False),
)
_PLAIN = (
    *("tp", "pp", "vpp", "dp", "cp", "cp_algo", "ep", "etp", "micro_batch_size", "schedule", "moe_dispatcher"),
    *("sequence_parallel", "distributed_optimizer", "fsdp", "swap_optimizer", "reuse_fp32_param"),
)
_ASKED = (
    *("model.name", "cluster.profile", "cluster.device", "cluster.num_npus", "training.seq_length"),
    *("training.global_batch_size.value", "training.precision", "training.routing_imbalance"),
    *("training.routing_imbalance_peak", "training.router", "search.target", "search.numerics", "search.objective"),
    "search.risk",
)


def compare_plans(pairs: Sequence[Pair]) -> Comparison:
    """The fields in which the plans differ, in reading order."""
    plans = [plan for _, plan in pairs]
    rows: list[Difference] = []

    def row(group: Group, field: str, of: Callable[[Pair], Cell], unit: str = "", more: bool | None = None) -> None:
        values = tuple(of(pair) for pair in pairs)
        if any(value != values[0] for value in values):
            rows.append(Difference(group=group, field=field, unit=unit, values=values, best=_best(values, more)))

    for path in _ASKED:
        row("search", path, lambda pair, path=path: _at(pair[0].search.spec, path))  # type: ignore[misc]
    row("search", "engine_version", lambda pair: pair[0].search.engine_version)
    row("search", "profile_hash", lambda pair: pair[0].search.profile_hash[:12])
    for name in _PLAIN:
        row("strategy", name, lambda pair, name=name: getattr(pair[1].strategy, name))  # type: ignore[misc]
    row("strategy", "layers_per_stage", lambda pair: " ".join(_layers(pair[1])))
    row("strategy", "recompute", lambda pair: " + ".join(recompute_names(pair[1].strategy.recompute)) or NOTHING)
    row("strategy", "swap", lambda pair: " + ".join(swap_names(pair[1].strategy)) or NOTHING)
    shared = set.intersection(*(set(plan.strategy.features) for plan in plans)) if plans else set()
    row(
        "strategy",
        "features",
        lambda pair: " ".join(n for n in pair[1].strategy.features if n not in shared) or NOTHING,
    )
    row("strategy", "unproven", lambda pair: _unproven(pair[1]))
    for name, unit, more in _FIGURES:
        row("time", name, lambda pair, name=name: _figure(pair[1], name), unit, more)  # type: ignore[misc]
    for name in PARTS:
        row("breakdown", name, lambda pair, name=name: getattr(pair[1].breakdown, name), "s", False)  # type: ignore[misc]
    for name in StageMemory.model_fields:
        row("stages", name, lambda pair, name=name: _worst_stage(pair[1])[name], "GiB")  # type: ignore[misc]
    return Comparison(plans=tuple(map(_column, pairs)), differences=tuple(rows))


def comparison_tables(comparison: Comparison, lang: Language = "en") -> list[Table]:
    """A table for each group of fields, with a column for each plan; the best value has a star."""
    shown = rows_in_words(comparison, lang)
    tables = []
    for group in get_args(Group):
        rows = [
            [row_title(row, lang), *(f"{text} *" if index == best else text for index, text in enumerate(texts))]
            for row, texts, best in shown
            if row.group == group
        ]
        if rows:
            titles = [check_text(lang, f"group_{group}"), *(plan.plan_id for plan in comparison.plans)]
            tables.append(Table(titles, rows, {*range(1, len(titles))}))
    return tables


def render_comparison_markdown(comparison: Comparison, lang: Language = "en") -> str:
    """The plans, what differs between them, and what becomes of checkpoints."""
    plans = [f"{plan.plan_id} {plan.layout}" for plan in comparison.plans]
    blocks = [Block(lines=plans), *(Block(table=table) for table in comparison_tables(comparison, lang))]
    equal = [] if comparison.differences else [check_text(lang, "all_equal")]
    last = Block(lines=[*equal, *checkpoint_lines(comparison, lang)])
    return f"## {check_text(lang, 'compare_title')}\n\n{in_markdown(*blocks, last)}"


def checkpoint_lines(comparison: Comparison, lang: Language = "en") -> list[str]:
    """Change of the first plan's checkpoints in each other, a sentence each, and the commands of a conversion."""
    lines = []
    for change in comparison.checkpoints:
        how, reason = check_text(lang, f"checkpoint_{change.how}"), in_language(change.reason, lang)
        line = check_text(lang, "checkpoint_change", before=change.before, after=change.after, how=how, reason=reason)
        if change.moved_gb is not None and change.seconds is not None:
            line += check_text(lang, "checkpoint_moved", size=size(change.moved_gb), time=duration(change.seconds))
        lines += [line, *(f"`{command}`" for command in change.commands)]
    return lines


def row_title(row: Difference, lang: Language = "en") -> str:
    """A field in words; parts of a step and of the memory have theirs from the plan's reports."""
    if row.group == "breakdown":
        return part_name(lang, row.field)
    return memory_name(lang, row.field) if row.group == "stages" else field_name(lang, row.field)


def rows_in_words(comparison: Comparison, lang: Language = "en") -> list[tuple[Difference, list[str], int | None]]:
    """The rows that differ as they are written, their texts, and the column that is best; equal texts have no best."""
    shown = []
    for row in comparison.differences:
        texts = cell_texts(row, lang)
        if len(set(texts)) > 1:
            best = row.best if row.best is not None and texts.count(texts[row.best]) == 1 else None
            shown.append((row, texts, best))
    return shown


def cell_texts(row: Difference, lang: Language = "en") -> list[str]:
    """The values of a row as text; the largest has four significant digits, and all have as many decimals."""
    largest = max((abs(value) for value in row.values if isinstance(value, float)), default=0.0)
    decimals = 0 if largest >= 1000 else 1 if largest >= 100 else 2 if largest >= 10 else 3
    return [_text(row.field, value, lang, decimals) for value in row.values]


def _text(field: str, value: Cell, lang: Language, decimals: int) -> str:
    if value is None:
        return "–"
    if isinstance(value, bool):
        return check_text(lang, "yes" if value else "no")
    if isinstance(value, float):
        if field in {"mfu", "run.goodput"}:
            return f"{100 * value:.1f} %"
        if field == "p_fits":
            return chance(value)
        if field == "regret_p80_pct":
            return f"{value:.1f}"
        return f"{value:,.{decimals}f}"
    return f"{value:,}" if isinstance(value, int) else _word(field, value, lang)


def _word(field: str, text: str, lang: Language) -> str:
    """A text of a strategy or a spec: what people know under another name than documents have, and repeats once."""
    if field == "layers_per_stage":
        return _repeats(text.split(" "))
    if field == "schedule":
        return schedule_title(text, lang)
    return check_text(lang, "none") if text == NOTHING else text


def _repeats(stages: Sequence[str]) -> str:
    """`4+1, 7 x 4+4` for stages of equal layers one after the other."""
    runs = [(stage, len(list(equal))) for stage, equal in groupby(stages)]
    return ", ".join(stage if number == 1 else f"{number} × {stage}" for stage, number in runs)


def _at(document: Any, path: str) -> Cell:
    for step in path.split("."):
        document = document.get(step) if isinstance(document, dict) else None
    if isinstance(document, dict) and "at_ep" in document:
        return f"{document['value']:g} (EP{document['at_ep']})"
    return document if isinstance(document, str | int | float | bool) else None


def _figure(plan: Plan, path: str) -> Any:
    """A number of the plan or of its parts; None where it has none. What is not rescaled is multiplied by 1."""
    if path == "rescaled":
        return 1.0 if plan.rescaled is None else plan.rescaled.ratio
    part, _, name = path.rpartition(".")
    return getattr(getattr(plan, part) if part else plan, name, None)


def _layers(plan: Plan) -> list[str]:
    return ["+".join(map(str, stage.layers)) for stage in plan.stages]


def _unproven(plan: Plan) -> Cell:
    """Axes and features that no run has; nothing where that is not known."""
    if not plan.evidence:
        return None
    return ", ".join(f"{each.axis} {each.value}" for each in plan.evidence if each.runs == 0) or NOTHING


def _worst_stage(plan: Plan) -> dict[str, float]:
    return plan.stages[fullest_stage(plan)].memory_gib.model_dump()


def _best(values: tuple[Cell, ...], more: bool | None) -> int | None:
    """The column whose value is best, where all have one and the best is alone."""
    if more is None or not all(isinstance(value, int | float) for value in values):
        return None
    numbers = [float(value) for value in values if isinstance(value, int | float)]
    best = max(numbers) if more else min(numbers)
    return numbers.index(best) if numbers.count(best) == 1 else None


def _column(pair: Pair) -> ComparedPlan:
    plan_set, plan = pair
    return ComparedPlan(
        plan_id=plan.plan_id,
        search_id=plan_set.search.id,
        model=str(_at(plan_set.search.spec, "model.name") or ""),
        layout=degrees(plan.strategy),
    )


def answer_lines(answer: WhyNot, lang: Language) -> list[str]:
    """Reasons against the strategy, its completion, what would fit, and what it would cost."""
    message = in_language(answer.message, lang)
    lines = [report_text(lang, "rejected_by", rule=answer.rule, message=message) if answer.rule else message]
    if (plan := answer.completed) is not None:
        layout = degrees(plan.strategy)
        lines.append(report_text(lang, "completed_by", layout=layout, choices=choices(plan.strategy, lang)))
        lines.append(fits_words(plan, lang))
    if answer.fitting is not None:
        peak = f"{answer.fitting.peak_memory_gib:.1f}"
        lines.append(report_text(lang, "fits_with", choices=choices(answer.fitting.strategy, lang), peak=peak))
    if answer.step_time_s is not None:
        compared = [
            report_text(lang, name, pct=f"{pct:+z.1f}")
            for name in ("against_best", "against_fastest")
            if (pct := getattr(answer, f"{name}_pct")) is not None
        ]
        lines.append(report_text(lang, "would_take", step=f"{answer.step_time_s:.4g}") + "".join(compared))
    return lines


# What a rehearsal keeps of its plan, what it changes and can't show, and both predictions.
SHOWN_MS = 0.005  # parts below it are left out


def rehearsal_lines(
    of: Plan,
    rehearsal: Plan,
    changed: Mapping[str, tuple[int, int]],
    layer_s: Mapping[str, tuple[Mapping[str, float], Mapping[str, float]]],
) -> list[str]:
    """One sentence a line, each a message of the catalogue.

    changed, layer_s : as `autodeploy.analysis.rehearsal.Rehearsal` has them.
    """
    fewer = ", ".join(f"{name} {before} -> {after}" for name, (before, after) in changed.items())
    lines: list[str] = [
        Message("reports.rehearsal_title", plan=of.plan_id, here=rehearsal.num_npus_used, cards=of.num_npus_used),
        Message("reports.rehearsal_changes", changes=fewer),
        Message("reports.rehearsal_unchanged"),
        *(Message("reports.predicted", cards=plan.num_npus_used, **_prediction(plan)) for plan in (rehearsal, of)),
    ]
    for kind, (planned, now) in layer_s.items():
        parts = [
            f"{part.removesuffix('_s')} {1e3 * planned[part]:.2f} -> {1e3 * now[part]:.2f} ms"
            for part in planned
            if max(planned[part], now[part]) * 1e3 > SHOWN_MS
        ]
        lines.append(Message("reports.rehearsal_layer_times", kind=kind, parts=", ".join(parts)))
    lines.append(Message("reports.it_does_not_show"))
    return lines


def _prediction(plan: Plan) -> dict[str, str]:
    interval = plan.uncertainty
    return {
        "step": f"{plan.step_time_s:.4g}",
        "low": f"{interval.low_s:.4g}",
        "high": f"{interval.high_s:.4g}",
        "gib": f"{plan.peak_memory_gib:.1f}",
    }
