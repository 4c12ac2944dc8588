"""What stands behind a missed figure: runs left aside, and shares of few runs inside their intervals."""

from __future__ import annotations

import numpy as np
import pytest

from autodeploy.calibration.accuracy_errors import Runs
from autodeploy.calibration.accuracy_misses import binomial_at_least, interval_miss, left_aside
from autodeploy.calibration.accuracy_splits import Held
from autodeploy.calibration.accuracy_worst import diagnoses
from autodeploy.calibration.measured import counts_for_time
from autodeploy.calibration.shipped import shipped_records

RECORDS = tuple(
    r for r in shipped_records() if r.cluster.profile in {"ascend-800t-a2", "cloudmatrix-384"} and counts_for_time(r)
)


def held(*filled: float) -> list[Held]:
    """Runs whose errors fill these shares of intervals of +- 10 % (logarithm)."""
    return [Held(record, 0.1 * share, 0.1) for record, share in zip(RECORDS, filled, strict=False)]


def test_a_binomial_tail() -> None:
    assert binomial_at_least(0, 9) == pytest.approx(1.0)
    assert binomial_at_least(9, 9) == pytest.approx(0.8**9)
    assert binomial_at_least(8, 9) == pytest.approx(0.8**9 + 9 * 0.8**8 * 0.2)


def test_a_share_as_aimed_at_needs_no_words() -> None:
    assert interval_miss("x", held(0.1, 0.2, 0.3, 0.4, 2.0)) == ""


def test_too_many_inside_names_the_run_that_decides() -> None:
    runs = held(0.1, 0.2, 0.75, 0.4, 0.5, 0.6, 0.3, 0.2, 2.0)
    text = interval_miss("x", runs)
    assert "8 of 9 runs inside; the aim needs 7 (77.8 %)" in text
    assert "8 or more of 9 with a probability of 44 %, so this is no evidence that they are too wide" in text
    assert f"`{runs[8].record.id}` lies outside" in text
    assert f"`{runs[2].record.id}`" in text
    assert "25 % narrower" in text


def test_too_few_inside_names_those_outside() -> None:
    runs = held(0.1, 0.2, 1.5, 0.4, 3.0)
    text = interval_miss("x", runs)
    assert "3 or fewer of 5 with a probability of 26 %, so this is no evidence that they are too narrow" in text
    order = [text.index(f"`{runs[i].record.id}`") for i in (4, 2)]
    assert order == sorted(order), "the farthest first"
    assert f"`{runs[0].record.id}`" not in text


def test_an_unlikely_share_speaks_against_the_intervals() -> None:
    assert "so they are likely too narrow" in interval_miss("x", held(*[2.0] * 9, 0.5))
    assert "so they are likely too wide" in interval_miss("x", held(*[0.5] * 20))


def test_every_record_left_aside_has_its_reason_beside_it() -> None:
    none = np.zeros(len(RECORDS))
    text = left_aside([Runs(RECORDS, none, none)])
    lines = text.splitlines()
    aside = [name for name, each in diagnoses().items() if each.cause == "record"]
    assert sorted(line.split("`")[1] for line in lines) == sorted(aside)
    assert all(len(line.split("%): ", 1)[1]) > 10 for line in lines)
