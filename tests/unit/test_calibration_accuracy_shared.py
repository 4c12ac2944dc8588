"""What keeps A100 from its aims: layouts whose tensor-parallel groups share a node."""

from __future__ import annotations

import numpy as np

from autodeploy.calibration.shipped.tables import shipped_records
from docs.accuracy_page.errors import Runs, ordered_pairs
from docs.accuracy_page.shared import SERIES, SHARED_TITLES, pairs_by_sharing, shared_node_rows, shares


def series() -> Runs:
    """The runs of the series, all predicted exactly."""
    records = tuple(r for r in shipped_records() if r.model.name == SERIES)
    return Runs(records, np.zeros(len(records)), np.zeros(len(records)))


def test_a_run_shares_nodes_where_its_groups_are_smaller_than_they_are() -> None:
    marks = {r.strategy.tp: shares(r) for r in series().records}
    assert marks == {1: True, 2: True, 4: True, 8: False}


def test_every_pair_is_counted_once_and_an_exact_model_orders_all() -> None:
    runs = series()
    whole, wrong_whole, others, wrong_others = pairs_by_sharing(runs)
    assert whole + others == ordered_pairs(runs).pairs
    assert (wrong_whole, wrong_others) == (0, 0)


def test_the_table_leaves_out_more_from_row_to_row() -> None:
    rows = shared_node_rows(series())
    assert all(len(row) == len(SHARED_TITLES) for row in rows)
    assert [int(row[1]) for row in rows] == sorted((int(row[1]) for row in rows), reverse=True)
    assert all(row[5] == "100.0 %" for row in rows)
