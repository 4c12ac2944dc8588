"""A launch that is followed, in words: its last line, and a page that loads itself again."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from autodeploy.messages import Section
from autodeploy.reports.tables import Table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autodeploy.messages import Language
    from autodeploy.specs.measured_run import Following

said = Section("follow")


def last_line(following: Following, lang: Language) -> str:
    """Iterations, the step and how far it is from the prediction, the parts, memory, and what to do."""
    if following.step_time_s is None:
        return said(lang, following.verdict, predicted=f"{following.predicted_s:.4g}")
    numbers = [f"{said(lang, 'iterations', count=following.iterations)}", _against(following, lang)]
    numbers += [f"{said(lang, part.name)} {part.measured_s:.4g}/{part.predicted_s:.4g} s" for part in following.parts]
    if following.peak_memory_gib is not None:
        numbers.append(f"{following.peak_memory_gib:.1f}/{following.predicted_gib:.1f} GiB")
    return " | ".join([*numbers, said(lang, following.verdict)])


def _against(following: Following, lang: Language) -> str:
    assert following.step_time_s is not None
    error = 100.0 * (following.step_time_s / following.predicted_s - 1.0)
    return said(
        lang,
        "step",
        measured=f"{following.step_time_s:.4g}",
        error=f"{error:+.1f}",
        predicted=f"{following.predicted_s:.4g}",
        low=f"{following.low_s:.4g}",
        high=f"{following.high_s:.4g}",
    )


def followed_table(following: Following, lang: Language) -> Table:
    """Step, parts and memory: measured, predicted, their difference, and by how much ranks differ."""
    titles = [said(lang, name) for name in ("part", "measured", "predicted", "difference", "ranks")]
    rows = []
    if following.step_time_s is not None:
        interval = f"{following.predicted_s:.4g} s ({following.low_s:.4g}-{following.high_s:.4g})"
        difference = f"{following.step_time_s - following.predicted_s:+.3g} s"
        rows.append([said(lang, "whole"), f"{following.step_time_s:.4g} s", interval, difference, ""])
    for part in following.parts:
        least, most = part.ranks_s
        spread = f"{100.0 * (most / least - 1.0):.1f} %" if least > 0.0 else ""
        difference = f"{part.measured_s - part.predicted_s:+.3g} s"
        times = [f"{part.measured_s:.4g} s", f"{part.predicted_s:.4g} s", difference]
        rows.append([said(lang, part.name), *times, spread])
    if following.peak_memory_gib is not None:
        measured, predicted = following.peak_memory_gib, following.predicted_gib
        memory = [f"{measured:.1f} GiB", f"{predicted:.1f} GiB", f"{measured - predicted:+.1f} GiB", ""]
        rows.append([said(lang, "memory"), *memory])
    return Table(titles, rows, {1, 2, 3, 4})


def followed_page(following: Following, seconds: float, lang: Language) -> str:
    """A page of HTML that loads itself again after so many seconds."""
    table = followed_table(following, lang)

    def row(cells: Sequence[str], tag: str) -> str:
        return "<tr>" + "".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in cells) + "</tr>"

    title = escape(f"{following.plan_id}: {said(lang, 'title', cards=following.num_npus)}")
    rows = "".join(row(cells, "td") for cells in table.rows)
    return (
        f'<!doctype html><html lang="{lang}"><head><meta charset="utf-8"><title>{title}</title>'
        f'<meta http-equiv="refresh" content="{max(1, round(seconds))}">'
        "<style>body{font:16px system-ui;margin:2rem}td,th{padding:.2rem .8rem;text-align:right}"
        "td:first-child,th:first-child{text-align:left}</style></head><body>"
        f"<h1>{title}</h1><p>{escape(last_line(following, lang))}</p>"
        f"<table><thead>{row(table.titles, 'th')}</thead><tbody>{rows}</tbody></table></body></html>\n"
    )
