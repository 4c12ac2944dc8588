"""Hostile files are refused in less than a second."""

from __future__ import annotations

import pytest

from tests.support.hostile_files import HOSTILE, LIMIT_S, refusal_s

pytestmark = pytest.mark.integration


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_file_is_refused_at_once(name):
    assert refusal_s(name) < LIMIT_S
