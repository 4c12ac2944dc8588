"""A commissioning in words: one table of its launches, and what each of them is for."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from autodeploy.messages import Message, Section, in_language
from autodeploy.reports.tables import Block, Table
from autodeploy.reports.wording import degrees, report_text
from autodeploy.specs.commissioning import STOP

if TYPE_CHECKING:
    from collections.abc import Iterable

    from autodeploy.messages import Language
    from autodeploy.specs.commissioning import Commissioning, CommissioningLaunch, Doubt
    from autodeploy.specs.planset import Plan

said = Section("commission")


def commissioning_blocks(commissioning: Commissioning, lang: Language) -> list[Block]:
    """The launches side by side, then one by one: parts, causes, and when to go on."""
    of = commissioning
    title = said(lang, "title", plan=of.plan_id, launches=len(of.launches), cards=f"{of.num_npus:,}")
    now = said(lang, "now", step=f"{of.step_time_s:.4g}", **interval(of.low_s, of.high_s))
    names = ("launch", "cards", "step", "peak", "fits", "stop", "whole", "measured")
    rows = [_row(launch, lang) for launch in of.launches]
    blocks = [Block(title, [now], Table([said(lang, name) for name in names], rows, {1}))]
    for launch in of.launches:
        changes = ", ".join(f"{name} {before} -> {here}" for name, (before, here) in launch.changed.items())
        lines = [
            said(lang, "changed", changes=changes),
            said(lang, "tells", causes=_causes(launch.doubts, lang)),
            in_language(_rule(launch.low_s, launch.high_s, launch.stop_above_s, _most_gib(launch)), lang),
            said(lang, "passes", **interval(launch.whole_low_s, launch.whole_high_s)),
            said(lang, "report_it", plan=of.plan_id, name=launch.name),
        ]
        layout = degrees(launch.strategy)
        heading = said(lang, "launch_title", name=launch.name, cards=launch.num_npus, layout=layout)
        blocks.append(Block(heading, lines, _parts(launch, lang)))
    if of.skipped:
        blocks.append(Block(lines=[said(lang, "skipped", what=in_language(text, lang)) for text in of.skipped]))
    return blocks


def rule_of(plan: Plan) -> str:
    """When to go on after a launch of this plan and when to stop, as a message."""
    interval, memory = plan.uncertainty, plan.memory_interval
    most = plan.memory_limit_gib if memory is None else min(memory.high_gib, plan.memory_limit_gib)
    return _rule(interval.low_s, interval.high_s, interval.quantile_s(STOP), most)


def _rule(low_s: float, high_s: float, stop_above_s: float, most_gib: float) -> str:
    numbers = {"low": low_s, "high": high_s, "stop": stop_above_s}
    times = {name: f"{value:.4g}" for name, value in numbers.items()}
    return Message("commission.rule", gib=f"{most_gib:.1f}", **times)


def _most_gib(launch: CommissioningLaunch) -> float:
    return min(launch.memory_high_gib, launch.memory_limit_gib)


def interval(low: float, high: float) -> dict[str, str]:
    """Ends of an interval in seconds and its half width in per cent."""
    return {"low": f"{low:.4g}", "high": f"{high:.4g}", "half": f"{100.0 * (math.sqrt(high / low) - 1.0):.1f}"}


def _row(launch: CommissioningLaunch, lang: Language) -> list[str]:
    back = "" if launch.measured_s is None else f"{launch.measured_s:.4g} s"
    return [
        launch.name,
        f"{launch.num_npus:,}",
        f"{launch.step_time_s:.4g} s ({launch.low_s:.4g}-{launch.high_s:.4g})",
        f"{launch.peak_memory_gib:.1f} ({launch.memory_low_gib:.1f}-{launch.memory_high_gib:.1f})",
        "" if launch.p_fits is None else f"{100.0 * launch.p_fits:.0f} %",
        f"{launch.stop_above_s:.4g} s",
        f"{launch.whole_low_s:.4g}-{launch.whole_high_s:.4g} s",
        said(lang, "ran_out") if launch.out_of_memory else back,
    ]


def _parts(launch: CommissioningLaunch, lang: Language) -> Table:
    rows = [
        [said(lang, f"profiler_{part.name}"), f"{part.seconds:.3g} s", f"{part.low_s:.3g}-{part.high_s:.3g} s"]
        for part in launch.parts
    ]
    return Table([said(lang, "part"), said(lang, "predicted"), said(lang, "interval")], rows, {1, 2})


def _causes(doubts: Iterable[Doubt], lang: Language) -> str:
    texts = []
    for each in doubts:
        before, after = f"{100.0 * each.before:.1f}", f"{100.0 * each.after:.1f}"
        if each.cause == "memory":
            texts.append(said(lang, "memory", before=before, after=after))
        else:
            texts.append(f"{said(lang, each.cause)} {before} -> {after} %")
    return report_text(lang, "semicolon").join(texts)
