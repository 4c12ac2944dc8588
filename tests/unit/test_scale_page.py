"""Page of what many cards add: a scatter that was put in is found, runs are held against their fewest cards."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

from autodeploy.calibration.shipped.tables import shipped_records
from docs import scale
from docs.scale import Timed, page, scatter_of, series_of

pytestmark = pytest.mark.unit
SERIES = "dgxc_v25.02.02_gpt175b_"


@cache
def of_gpt() -> tuple[tuple[Timed, ...], ...]:
    """The series of one model, in two number formats."""
    records = [record for record in shipped_records() if record.id.startswith(SERIES)]
    return tuple(map(tuple, series_of(records)))


def test_a_scatter_that_was_put_in_is_found() -> None:
    made = [
        [replace(r, measured_s=1.1 * r.alone_s * (r.waiting_s / r.alone_s) ** 2) for r in group] for group in of_gpt()
    ]
    found = scatter_of(made)
    assert found.value == pytest.approx(3.0, rel=1e-6)
    assert found.error == pytest.approx(0.0, abs=1e-6)
    assert found.left_at_best < 1e-6 < found.left_with < found.left_without


def test_the_shipped_scatter_explains_what_series_lose() -> None:
    found = scatter_of(of_gpt())
    assert found.left_with < found.left_without
    assert all(group[0].cards < group[-1].cards and group[0].slope < group[-1].slope for group in of_gpt())


def test_the_page_names_every_large_run_beside_its_fewest_cards() -> None:
    records = [record for record in shipped_records() if record.id.startswith(SERIES)]
    text = page(records)
    large = [record for record in records if (record.cluster.num_npus or 0) >= scale.LARGE]
    assert large
    for record in large:
        (row,) = [line for line in text.splitlines() if line.startswith(f"| {record.id} |")]
        assert " on 128 |" in row


def test_what_is_off_on_few_cards_too_is_no_matter_of_scale() -> None:
    first, *_, last = of_gpt()[0]
    slow = replace(last, measured_s=1.2 * last.waiting_s)
    assert scale._told(slow, replace(first, measured_s=1.2 * first.waiting_s)) == "as on few cards"
    assert scale._told(slow, first) == scale._told(slow, None) == "unexplained"
    assert scale._told(replace(last, measured_s=last.waiting_s), first) == ""
