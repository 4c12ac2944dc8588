"""The operators of a plan as tables of at most 100 columns."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autodeploy.reports.tables import Block, Table, in_columns
from autodeploy.reports.wording import bracketed, report_text

if TYPE_CHECKING:
    from autodeploy.messages import Language
    from autodeploy.specs.plan_details import LayerOperators, OperatorReport, OperatorRow

MICRO, MEGA, GIGA, TERA = 1e-6, 1e6, 1e9, 1e12
MOST_BEYOND = 3


def render_operators(report: OperatorReport, lang: Language = "en") -> str:
    """Each kind of layer with its operators and exchanges, the longest of a step first."""
    blocks = [Block(lines=[head(report, lang)])]
    for layer in report.layers:
        beside = [report_text(lang, "op_beside", time=_micros(layer.beside_s))] if layer.beside_s else []
        lines = [*filter(None, [beyond_line(layer, lang)]), *beside]
        blocks += [Block(lines=[""]), Block(layer_title(layer, lang), lines, operator_table(layer, lang))]
        blocks += [Block(table=exchange_table(layer, lang))] if layer.exchanges else []
    return in_columns(*blocks)


def head(report: OperatorReport, lang: Language) -> str:
    """Subject of the tables."""
    return report_text(
        lang,
        "op_head",
        runs=f"{report.micro_batches:,}",
        layers=f"{report.layers_per_stage:.4g}",
        peak=f"{report.peak_flops / TERA:.4g}",
        hbm=f"{report.hbm_bytes_per_s / GIGA:.4g}",
    )


def layer_title(layer: LayerOperators, lang: Language) -> str:
    """A kind of layer and how many the model has."""
    name = report_text(lang, f"layer_{layer.name}") if f"layer_{layer.name}" in report_text else layer.name
    return report_text(lang, "op_layer", name=name, count=f"{layer.layers:.4g}")


def beyond_line(layer: LayerOperators, lang: Language) -> str:
    """The operators with the most time beyond the roofline, and what would change it; empty where none has any."""
    rows = sorted(layer.operators, key=lambda row: (-row.beyond_s, row.name))[:MOST_BEYOND]
    each = [
        bracketed(lang, f"{row.name} {row.beyond_s:.3g} s", report_text(lang, _change_of(row)))
        for row in rows
        if row.beyond_s > 0.0
    ]
    return report_text(lang, "op_beyond", each=report_text(lang, "semicolon").join(each)) if each else ""


def _change_of(row: OperatorRow) -> str:
    """By name: more even experts where these cost more than half of what is lost, else by the kind of operator."""
    lost_s = row.forward_s + row.backward_s + row.uneven_s - row.roofline_s
    if row.uneven_s > 0.5 * lost_s:
        return "op_change_uneven"
    return "op_change_matrix" if row.kind in {"gemm", "grouped_gemm"} else f"op_change_{row.kind}"


def operator_table(layer: LayerOperators, lang: Language = "en") -> Table:
    """A row for each operator, the longest of a step first."""
    rows = [
        [
            row.name,
            report_text(lang, f"kernel_{row.kind}"),
            _micros(row.forward_s),
            _micros(row.backward_s),
            _micros(row.uneven_s) if row.uneven_s else "",
            _rate(row.flops, row.moved_bytes, row.forward_s + row.backward_s),
            f"{row.roofline_pct:.0f} %",
            f"{row.step_s:.4g}",
        ]
        for row in sorted(layer.operators, key=lambda row: (-row.step_s, row.name))
    ]
    keys = ("operator", "kind", "op_forward", "op_backward", "op_uneven", "op_rate", "op_roofline", "s_per_step")
    return Table(report_text.each(lang, *keys), rows, {2, 3, 4, 5, 6, 7})


_WRITTEN = {"ub": "UB", "hccs": "HCCS", "nvlink": "NVLink"}


def tier_name(tier: str, lang: Language) -> str:
    """A tier of the network in words; one without words keeps its name, as its makers write it."""
    in_words = f"tier_{tier}" in report_text
    return report_text(lang, f"tier_{tier}") if in_words else _WRITTEN.get(tier, tier.replace("_", " "))


def exchange_table(layer: LayerOperators, lang: Language = "en") -> Table:
    """A row for each exchange, what is longest exposed first."""
    rows = [
        [
            row.name,
            f"{row.group.upper()} {row.ranks}",
            tier_name(row.tier, lang),
            f"{row.message_bytes / MEGA:.4g}",
            _micros(row.once_s),
            f"{row.bytes_per_s / GIGA:.4g}",
            f"{row.hidden_pct:.0f} %",
            f"{row.step_s:.4g}",
        ]
        for row in sorted(layer.exchanges, key=lambda row: (-row.step_s, row.name))
    ]
    exchange, group, tier, once, hidden, step = (
        report_text(lang, name)
        for name in ("kernel_exchange", "group", "op_tier", "op_once", "op_hidden", "s_per_step")
    )
    return Table([exchange, group, tier, "MB", once, "GB/s", hidden, step], rows, {3, 4, 5, 6, 7})


def _micros(seconds: float) -> str:
    return f"{seconds / MICRO:,.0f}"


def _rate(flops: float, moved_bytes: float, seconds: float) -> str:
    """FLOP/s of matrix work, bytes a second of the rest."""
    if not seconds:
        return "-"
    return f"{flops / seconds / TERA:.3g} TF/s" if flops else f"{moved_bytes / seconds / GIGA:.3g} GB/s"
