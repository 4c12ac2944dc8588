"""Numbers as people read them, always with their unit; shared by every template."""

from __future__ import annotations

import re
from datetime import UTC, datetime

from autodeploy.formats.registry import written
from autodeploy.reports import wording
from autodeploy.stack.frameworks import title_of

_SCALES = ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k"))
ABSENT = "–"
_AXIS = re.compile(r"[a-z_]+=")
_CHINESE = re.compile("[\u4e00-\u9fff]")


def seconds(value: float | None) -> str:
    """`61.23 s`, `812 ms`, `1,204 s`."""
    if value is None:
        return ABSENT
    if 0 < value < 0.0995:
        return f"{value * 1e3:.1f} ms"
    if value < 1:
        return f"{value * 1e3:.0f} ms" if value else "0 s"
    return f"{seconds_bare(value)} s"


def seconds_bare(value: float | None) -> str:
    """Seconds without the unit, for columns that name it."""
    if value is None:
        return ABSENT
    return f"{value:,.2f}" if value < 100 else f"{value:,.1f}" if value < 1000 else f"{value:,.0f}"


def count(value: float | None) -> str:
    """`15,360`."""
    return ABSENT if value is None else f"{value:,.0f}"


def compact(value: float | None) -> str:
    """`14.8T`, `1.03M`, `384`."""
    if value is None:
        return ABSENT
    for scale, letter in _SCALES:
        if value >= scale:
            return f"{value / scale:.3g}{letter}"
    return f"{value:.3g}"


def days(value: float | None) -> str:
    """`112`, `3.4`, `0.21`."""
    if value is None:
        return ABSENT
    return f"{value:,.0f}" if value >= 10 else f"{value:.1f}" if value >= 1 else f"{value:.2g}"


def percent(share: float | None) -> str:
    """A share of 1 as `62.0 %`; what is not nothing never reads as `0.0 %`."""
    if share is None:
        return ABSENT
    return "< 0.1 %" if 0.0 < share < 0.0005 else f"{100 * share:.1f} %"


def chance(probability: float | None) -> str:
    """A probability as `97 %`."""
    return ABSENT if probability is None else wording.chance(probability)


def signed_percent(share: float) -> str:
    """A relative difference as `+3.7 %`."""
    return f"{100 * share:+z.1f} %".replace("-", "−")


def signed_seconds(value: float) -> str:
    """A difference of times as `+1.20 s`."""
    if abs(value) < 5e-5:
        return "0 s"
    return ("−" if value < 0 else "+") + seconds(abs(value))


def decimal(value: float) -> str:
    """`1.3`, `2.35`."""
    return f"{value:.4g}"


def gib(value: float | None) -> str:
    """`55.5 GiB`."""
    return ABSENT if value is None else f"{value:.1f} GiB"


def instant(value: str) -> str:
    """An RFC 3339 time as `2026-11-20 12:00Z`, which is UTC."""
    try:
        moment = datetime.fromisoformat(value)
    except ValueError:
        return value
    return (moment if moment.tzinfo is None else moment.astimezone(UTC)).strftime("%Y-%m-%d %H:%MZ")


def quantity(value: float | str | bool | None) -> str:
    """A profile's number: all its digits, thousands apart, large and tiny ones in powers of ten."""
    if value is None or isinstance(value, bool | str):
        return ABSENT if value is None else str(value)
    if value and not 1e-3 <= abs(value) < 1e9:
        return f"{value:.6g}"
    return f"{value:,}" if isinstance(value, int) or value != int(value) else f"{value:,.0f}"


def sentence(text: str) -> str:
    """A text that began in the middle of a sentence, as a sentence of its own."""
    begin = text[:1] if _AXIS.match(text) else text[:1].upper()
    return begin + text[1:] + ("" if text.endswith((".", "。")) else "。" if _CHINESE.search(text) else ".")


def product_name(name: str) -> str:
    """Spelling of a framework's or a format's name by itself."""
    row = written().get(name)
    return title_of(name) if row is None else row.title


def short_hash(value: str) -> str:
    """The first 12 characters."""
    return value[:12]


FILTERS = {
    function.__name__: function
    for function in (
        seconds,
        seconds_bare,
        count,
        compact,
        days,
        decimal,
        product_name,
        percent,
        chance,
        signed_percent,
        signed_seconds,
        gib,
        instant,
        quantity,
        sentence,
        short_hash,
        wording.short_degrees,
    )
}
