"""What a server makes ready before its first reader comes."""

from __future__ import annotations

from api.ui.rendering import ENVIRONMENT, warm_up
from autodeploy.space.rules import read_rules


def test_every_page_rule_and_sentence_is_read_ahead() -> None:
    warm_up()
    assert ENVIRONMENT.cache is not None
    compiled = {name for _, name in ENVIRONMENT.cache}
    assert {"search.html", "plan.html", "searches.html", "new.html"} <= compiled
    for kept in (read_rules,):
        before = kept.cache_info().misses
        kept()
        assert kept.cache_info().misses == before
