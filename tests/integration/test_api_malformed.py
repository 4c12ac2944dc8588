"""Whatever is wrong with a spec, the answer is a refusal that says where; `make soak` sends 10,000 of them."""

from __future__ import annotations

import pytest

from tests.support.malformed_specs import WELL_FORMED, posting_app, refuse_all

pytestmark = pytest.mark.integration


def test_malformed_specs_are_refused_with_a_pointer(sqlite_url):
    with posting_app(sqlite_url) as post:
        assert post(WELL_FORMED).status_code == 202
        sent, _ = refuse_all(post, examples=300)
    assert sent >= 300
