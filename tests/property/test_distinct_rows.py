"""Distinct rows against numpy's own."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from autodeploy.search.choices.layouts import distinct_rows

ROWS = arrays(np.int64, array_shapes(min_dims=2, max_dims=2, min_side=1, max_side=6), elements=st.integers(0, 3))


@given(rows=ROWS)
def test_distinct_rows_are_those_of_numpy_in_its_order(rows: np.ndarray) -> None:
    found = distinct_rows(rows)
    assert found.dtype == rows.dtype
    assert np.array_equal(found, np.unique(rows, axis=0))
    assert len(distinct_rows(rows[:0])) == 0
