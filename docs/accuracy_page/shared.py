"""What the A100 figures are without layouts whose tensor-parallel groups share a node: where the order breaks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from docs.accuracy_page.errors import errors_of, layout_groups, ordered_pairs
from docs.accuracy_page.splits import rows_by_id

if TYPE_CHECKING:
    from collections.abc import Callable

    from autodeploy.specs.record import Record
    from docs.accuracy_page.errors import Runs

SHARED_TITLES = (
    *("A100 runs, family left out", "runs", "mean (MAPE)", "90th percentile"),
    *("pairs", "ordered right", "groups: tau, regret"),
)
SERIES = "GPT-39.1B"  # 47 layouts measured at one batch
LARGE_MICRO_BATCH = "vtrain_multi_027"  # slower than its half, with the same work and no pipeline


def shares(record: Record) -> bool:
    """Whether several tensor-parallel groups of a run share a node."""
    return bool(rows_by_id()[record.id]["shares_node"])


def _slow(record: Record) -> bool:
    return record.model.name == SERIES and record.strategy.tp in (2, 4)


def shared_node_rows(runs: Runs) -> list[list[str]]:
    """The figures of all runs, and without three sets: one seen to be slow, one by layout alone, that and one run."""
    kept: tuple[tuple[str, Callable[[Record], bool]], ...] = (
        ("all", lambda _: True),
        (f"without {SERIES} at TP2 and TP4", lambda r: not _slow(r)),
        ("without all layouts whose groups share a node", lambda r: not shares(r)),
        (f"and without `{LARGE_MICRO_BATCH}`", lambda r: not shares(r) and r.id != LARGE_MICRO_BATCH),
    )
    rows = []
    for name, keep in kept:
        subset = runs.of([keep(r) for r in runs.records])
        errors, order = errors_of(subset.left_out), ordered_pairs(subset)
        groups = "; ".join(f"{g.name.split()[0]} {g.tau:.2f}, {100 * g.regret:.1f} %" for g in layout_groups(subset))
        right = f"{100 * order.left_out / order.pairs:.1f} %" if order.pairs else "-"
        size = [str(errors.n), f"{100 * errors.mape:.1f} %", f"{100 * errors.p90_ape:.1f} %"]
        rows.append([name, *size, str(order.pairs), right, groups])
    return rows


def pairs_by_sharing(runs: Runs) -> tuple[int, int, int, int]:
    """Pairs of the series' layouts and how many are ordered wrong: with both on whole nodes, and with others."""
    series = runs.of([r.model.name == SERIES for r in runs.records])
    whole = series.of([not shares(r) for r in series.records])
    inside, total = ordered_pairs(whole), ordered_pairs(series)
    wrong_inside, wrong = inside.pairs - inside.left_out, total.pairs - total.left_out
    return inside.pairs, wrong_inside, total.pairs - inside.pairs, wrong - wrong_inside
