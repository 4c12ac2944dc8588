"""Plans with some nodes fewer: never faster than with more, on their cards, and with what a checkpoint is to them."""

from __future__ import annotations

import json
from functools import cache
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

from api.ui.search_page import search_context
from autodeploy.cli.main import app
from autodeploy.reports.plan_report import render_markdown, render_plan_set
from autodeploy.search.planner import plan
from autodeploy.specs.planset import PlanSet
from autodeploy.specs.reading import read_spec_document
from autodeploy.specs.spec import spec_hash

if TYPE_CHECKING:
    from autodeploy.specs.spec import Spec


FEW = {"tp": [1, 2], "pp": [1, 2], "vpp": [1], "cp": [1], "micro_batch_size": [1]}  # the best is among them


def spec_of(*, cards: int = 32, **search: Any) -> Spec:
    return read_spec_document(
        {
            "model": "llama2-7b",
            "cluster": {"profile": "ascend-800t-a2", "num_npus": cards},
            "training": {"seq_length": 4096, "global_batch_size": 256},
            "search": {"effort": 0.02, "top_k": 2, "allow": FEW, **search},
        }
    )


@cache
def planned() -> PlanSet:
    return plan(spec_of(risk="neutral", spare_nodes=[1, 2, 3, 4]))


@cache
def without() -> PlanSet:
    return plan(spec_of(risk="neutral"))


def test_each_number_of_nodes_has_its_row_and_none_without_cards() -> None:
    rows = planned().spares
    assert [row.nodes for row in rows] == [1, 2, 3]
    assert [row.num_npus for row in rows] == [24, 16, 8]
    assert without().spares == ()


def test_fewer_cards_are_never_faster() -> None:
    steps = [planned().fastest.step_time_s if planned().fastest else 0.0]
    for row in planned().spares:
        assert row.best is not None
        assert row.best.num_npus <= row.num_npus
        steps.append(row.best.step_time_s)
    assert steps == sorted(steps)


def test_throughput_is_of_the_plan_on_all_cards() -> None:
    today = planned().plans[0]
    for row in planned().spares:
        for each in (row.best, row.same_layout):
            assert each is not None
            assert each.throughput_pct == pytest.approx(100.0 * each.tokens_per_s / today.tokens_per_s)
            assert each.tokens_per_s == pytest.approx(each.global_batch_size * 4096 / each.step_time_s)
            assert each.p_fits is not None


def test_todays_layout_on_fewer_replicas_loads_todays_checkpoint() -> None:
    today = planned().plans[0].strategy
    for row in planned().spares:
        same = row.same_layout
        assert same is not None
        assert all(getattr(same.strategy, axis) == getattr(today, axis) for axis in ("tp", "pp", "vpp", "cp", "ep"))
        assert same.global_batch_size % ((same.strategy.dp or 1) * same.strategy.micro_batch_size) == 0
        assert same.global_batch_size <= 256
        assert same.checkpoint.before == planned().plans[0].plan_id
        assert same.checkpoint.how in {"loaded", "resharded"}  # layers may be placed anew
        assert same.checkpoint.seconds is not None


def test_a_document_comes_back_and_says_nothing_where_nothing_was_asked() -> None:
    again = PlanSet.model_validate_json(planned().model_dump_json())
    assert again == planned()
    assert "spares" not in without().model_dump(mode="json")
    assert "spare_nodes" not in spec_of().model_dump(mode="json")["search"]
    assert spec_hash(spec_of()) != spec_hash(spec_of(spare_nodes=[1]))


@pytest.mark.parametrize(("lang", "title"), [("en", "With fewer nodes"), ("zh", "节点减少")])
def test_the_table_is_told(lang: Any, title: str) -> None:
    text = render_plan_set(planned(), lang)
    assert title in text
    assert sum(line.strip().startswith(("-1 ", "-2 ", "-3 ")) for line in text.splitlines()) >= 3
    assert title in render_markdown(planned(), lang)
    assert title not in render_plan_set(without(), lang)


def test_the_page_of_a_search_has_the_table() -> None:
    for lang, title in (("en", "checkpoint"), ("zh", "检查点")):
        found = search_context(planned(), lang)["spares"]  # type: ignore[arg-type]
        assert title in found[0]
        assert len(found[1]) >= 3
    assert search_context(without(), "en")["spares"].rows == []


def test_with_the_time_to_train_too() -> None:
    spec = spec_of(objective="step_time", risk="neutral", spare_nodes=[1])
    tokens = spec.training.model_copy(update={"tokens": 1e11})
    search = spec.search.model_copy(update={"objective": "time_to_train"})
    found = plan(spec.model_copy(update={"training": tokens, "search": search}))
    assert len(found.spares) == 1
    assert found.spares[0].best is not None


def test_one_flag_asks_for_it(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AUTODEPLOY_DATABASE_URL", f"sqlite:///{tmp_path / 'a.db'}")
    path = tmp_path / "spec.yaml"
    path.write_text(
        "model: llama2-7b\ncluster: {profile: ascend-800t-a2, num_npus: 32}\n"
        "training: {seq_length: 4096, global_batch_size: 256}\n"
        f"search: {{effort: fast, top_k: 1, risk: neutral, allow: {json.dumps(FEW)}}}\n",
        encoding="utf-8",
    )
    result = CliRunner().invoke(app, ["plan", str(path), "--spare-table"])
    assert result.exit_code == 0
    assert "With fewer nodes" in result.stdout
