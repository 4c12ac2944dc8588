"""The operators of a plan as tables of at most 100 columns."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autodeploy.reports.plan_report import aligned
from autodeploy.reports.texts import say

if TYPE_CHECKING:
    from autodeploy.reports.texts import Language
    from autodeploy.specs.operators import LayerOperators, OperatorReport

MICRO, MEGA, GIGA, TERA = 1e-6, 1e6, 1e9, 1e12
OPERATORS = ("op_name", "op_kind", "op_forward", "op_backward", "op_uneven", "op_rate", "op_roofline", "op_step")
EXCHANGES = ("op_name", "op_group", "op_tier", "op_message", "op_once", "op_reached", "op_hidden", "op_step")


def render_operators(report: OperatorReport, lang: Language = "en") -> str:
    """Each kind of layer with its operators and exchanges, the longest of a step first."""
    lines = [
        say(
            lang,
            "op_head",
            runs=f"{report.micro_batches:,}",
            layers=f"{report.layers_per_stage:.4g}",
            peak=f"{report.peak_flops / TERA:.4g}",
            hbm=f"{report.hbm_bytes_per_s / GIGA:.4g}",
        )
    ]
    for layer in report.layers:
        lines += _layer(layer, lang)
    return "".join(line.rstrip() + "\n" for line in lines)


def _layer(layer: LayerOperators, lang: Language) -> list[str]:
    rows = sorted(layer.operators, key=lambda row: (-row.step_s, row.name))
    cells = [
        [
            row.name,
            row.kind,
            _micros(row.forward_s),
            _micros(row.backward_s),
            _micros(row.uneven_s) if row.uneven_s else "",
            _rate(row.flops, row.moved_bytes, row.forward_s + row.backward_s),
            f"{row.roofline_pct:.0f} %",
            f"{row.step_s:.4g}",
        ]
        for row in rows
    ]
    lines = ["", say(lang, "op_layer", name=layer.name, count=f"{layer.layers:.4g}")]
    lines += aligned([say(lang, name) for name in OPERATORS], cells, {2, 3, 4, 5, 6, 7})
    if layer.beside_s:
        lines.append(say(lang, "op_beside", time=_micros(layer.beside_s)))
    if layer.exchanges:
        found = [
            [
                row.name,
                f"{row.group.upper()} {row.ranks}",
                row.tier,
                f"{row.message_bytes / MEGA:.4g}",
                _micros(row.once_s),
                f"{row.bytes_per_s / GIGA:.4g}",
                f"{row.hidden_pct:.0f} %",
                f"{row.step_s:.4g}",
            ]
            for row in sorted(layer.exchanges, key=lambda row: (-row.step_s, row.name))
        ]
        lines += aligned([say(lang, name) for name in EXCHANGES], found, {3, 4, 5, 6, 7})
    return lines


def _micros(seconds: float) -> str:
    return f"{seconds / MICRO:,.0f}"


def _rate(flops: float, moved_bytes: float, seconds: float) -> str:
    """FLOP/s of matrix work, bytes a second of the rest."""
    if not seconds:
        return "-"
    return f"{flops / seconds / TERA:.3g} TF/s" if flops else f"{moved_bytes / seconds / GIGA:.3g} GB/s"
