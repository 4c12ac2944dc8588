"""Specs that are wrong in one to three places, and an app that must say where."""

from __future__ import annotations

import asyncio
import copy
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import httpx
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from api.app import create_app
from autodeploy.kit.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

# Of processor time: the app runs in this process, and the machine may have other work.
ANSWER_LIMIT_S = 5.0
PATIENCE_S = 60.0

WELL_FORMED: dict[str, Any] = {
    "model": {
        "name": "any",
        "hidden_size": 1024,
        "num_hidden_layers": 16,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "vocab_size": 32_000,
        "intermediate_size": 4096,
    },
    "cluster": {"profile": "ascend-800t-a2", "num_npus": 16},
    "training": {"seq_length": 4096, "global_batch_size": 64},
    "search": {"top_k": 3, "effort": 0.1, "time_limit_s": 10, "fix": {"tp": 2}, "allow": {"pp": [1, 2]}},
}
# Every field here is a whole number of one or more.
NUMBERS = [
    *(("model", name) for name in WELL_FORMED["model"] if name != "name"),
    ("cluster", "num_npus"),
    ("training", "seq_length"),
    ("training", "global_batch_size"),
    ("search", "top_k"),
]
SECTIONS = ("model", "cluster", "training", "search")
REQUIRED = [("model",), ("cluster",), ("training",), ("cluster", "profile"), ("training", "seq_length")]
# No degree here divides anything, so that the lists are taken as they are: 64 million combinations of three axes.
ENORMOUS = {axis: list(range(1001, 1401)) for axis in ("pp", "cp", "ep")}

_text = st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\0"), min_size=1, max_size=30)
_no_number = st.one_of(
    st.lists(st.integers(), max_size=3),
    st.dictionaries(_text, st.integers(), max_size=3),
    st.integers(max_value=0),
    st.integers(min_value=10**12, max_value=10**30),
    st.floats(0.01, 0.99),
    _text.filter(lambda text: not text.strip().lstrip("+-").replace("_", "").replace(".", "").isdigit()).map(
        "x".__add__
    ),
)
_no_section = st.one_of(st.integers(), st.lists(st.integers(), min_size=1, max_size=3), st.booleans())
_no_axis = _text.map(lambda text: {text: 1.5})
Change = tuple[str, tuple[str, ...], Any]
_changes: st.SearchStrategy[Change] = st.one_of(
    st.tuples(st.just("set"), st.sampled_from(NUMBERS), _no_number),
    st.tuples(st.just("set"), st.sampled_from([(name,) for name in SECTIONS]), _no_section),
    st.tuples(st.just("set"), st.sampled_from([(*path, "x_" * 3) for path in ((), *((s,) for s in SECTIONS))]), _text),
    st.tuples(st.just("drop"), st.sampled_from(REQUIRED), st.none()),
    st.tuples(st.just("set"), st.sampled_from([("search", "fix"), ("search", "forbid")]), _no_axis),
    st.tuples(st.just("set"), st.just(("search", "allow")), st.just(ENORMOUS)),
    st.tuples(st.just("set"), st.just(("cluster", "profile")), _text.map("no such ".__add__)),
)


@st.composite
def malformed_specs(draw: st.DrawFn) -> dict[str, Any]:
    """A spec as a user writes it, with one to three mistakes."""
    document = copy.deepcopy(WELL_FORMED)
    for kind, path, value in draw(st.lists(_changes, min_size=1, max_size=3)):
        _apply(document, kind, path, value)
    if document == WELL_FORMED:
        document["x_x_x_"] = 1
    return document


def _apply(document: dict[str, Any], kind: str, path: tuple[str, ...], value: Any) -> None:
    place: Any = document
    for name in path[:-1]:
        place = place.get(name) if isinstance(place, dict) else None
    if not isinstance(place, dict):
        return  # an earlier mistake took the section away
    if kind == "drop":
        place.pop(path[-1], None)
    else:
        place[path[-1]] = value


@contextmanager
def posting_app(database_url: str) -> Iterator[Callable[[dict[str, Any]], httpx.Response]]:
    """Posts a document to the searches of an app with the real planner."""
    app = create_app(Settings(database_url=database_url))
    with asyncio.Runner() as runner:
        lifespan = app.router.lifespan_context(app)
        runner.run(lifespan.__aenter__())
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        client = httpx.AsyncClient(transport=transport, base_url="http://test", timeout=PATIENCE_S)
        try:
            yield lambda document: runner.run(client.post("/v1/searches", json=document))
        finally:
            runner.run(client.aclose())
            runner.run(lifespan.__aexit__(None, None, None))


def refuse_all(post: Callable[[dict[str, Any]], httpx.Response], examples: int) -> tuple[int, float]:
    """Sends so many malformed specs; how many were sent, and the processor seconds of the slowest answer.

    Raises
    ------
    AssertionError
        at an answer that is no refusal, names no place, or takes long.
    """
    sent, slowest_s = 0, 0.0

    @given(document=malformed_specs())
    @settings(
        max_examples=examples,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
        deadline=None,
        derandomize=True,
        database=None,
    )
    def refused(document: dict[str, Any]) -> None:
        nonlocal sent, slowest_s
        started_s, waited_s = time.process_time(), time.monotonic()
        answer = post(document)
        duration_s = time.process_time() - started_s
        sent, slowest_s = sent + 1, max(slowest_s, duration_s)
        assert time.monotonic() - waited_s < PATIENCE_S
        assert 400 <= answer.status_code < 500, (answer.status_code, answer.text[:500])
        errors = answer.json()["errors"]
        assert errors, answer.text[:500]
        assert all(error["pointer"] == "" or error["pointer"].startswith("/") for error in errors), errors
        assert any(error["pointer"] for error in errors), errors
        assert duration_s < ANSWER_LIMIT_S

    refused()
    return sent, slowest_s
