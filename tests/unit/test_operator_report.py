"""Where the time goes, down to operators: they add up to the parts of the estimate, and no roofline is above them."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from autodeploy.cli.main import app
from autodeploy.costs.layers.unit_costs import scalar_at, unit_costs
from autodeploy.reports.operator_table import beyond_line, render_operators
from autodeploy.search.planner import estimate, lowered, operators, plan
from autodeploy.specs.plan_details import OperatorReport
from autodeploy.specs.reading import read_spec_document
from tests.unit.test_rl_planning import QUICK
from tests.unit.test_rl_planning import spec_of as rl_spec

CASES: dict[str, dict[str, Any]] = {
    "dense": {"model": "llama2-7b", "strategy": {"tp": 2, "pp": 2, "micro_batch_size": 1}},
    "experts": {
        "model": "qwen3-30b-a3b",
        "strategy": {"tp": 2, "pp": 2, "ep": 8, "etp": 1, "micro_batch_size": 1, "moe_dispatcher": "alltoall"},
    },
    "latent": {
        "model": "deepseek-v3",
        "num_npus": 256,
        "strategy": {"tp": 2, "pp": 8, "ep": 16, "etp": 1, "micro_batch_size": 1, "moe_dispatcher": "alltoall"},
    },
}


def spec_of(name: str, **search: Any) -> Any:
    case = CASES[name]
    return read_spec_document(
        {
            "model": case["model"],
            "cluster": {"profile": "ascend-800t-a2", "num_npus": case.get("num_npus", 32)},
            "training": {"seq_length": 4096, "global_batch_size": 512},
            "strategy": {"schedule": "1f1b", "recompute": {"granularity": "full"}, **case["strategy"]},
            "search": search,
        }
    )


@cache
def reported(name: str) -> OperatorReport:
    spec = spec_of(name)
    return operators(spec, estimate(spec))


@pytest.mark.parametrize("name", CASES)
def test_operators_and_exchanges_add_up_to_the_parts_of_a_layer(name: str) -> None:
    """The estimate's own costs of each kind of layer, embedding and head."""
    spec = spec_of(name)
    context, candidate = lowered(spec, estimate(spec))
    costs = unit_costs(context, candidate)
    layers = reported(name).layers
    pieces = [*costs.layers, costs.embedding, costs.head, *([costs.mtp] if costs.mtp is not None else [])]
    assert [layer.name for layer in layers[: len(costs.layers)]] == [cost.name for cost in costs.layers]
    for layer, cost in zip(layers, pieces, strict=True):
        even = sum(row.forward_s + row.backward_s for row in layer.operators)
        compute = scalar_at(cost.forward.compute_s, 0) + scalar_at(cost.backward.compute_s, 0)
        assert even - layer.beside_s == pytest.approx(compute, rel=1e-9)
        exposed = {group: 0.0 for group in ("tp", "ep")}
        for each in layer.exchanges:
            exposed["tp" if each.group == "tp" else "ep"] += each.exposed_s
        tp = scalar_at(cost.forward.exposed_tp_s, 0) + scalar_at(cost.backward.exposed_tp_s, 0)
        assert exposed["tp"] == pytest.approx(tp, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("name", CASES)
def test_nothing_is_above_the_roofline(name: str) -> None:
    for layer in reported(name).layers:
        for row in layer.operators:
            assert 0.0 <= row.roofline_pct <= 100.0 + 1e-9, row
            assert row.uneven_s >= -1e-12
            assert row.flops > 0.0 or row.moved_bytes >= 0.0
        for each in layer.exchanges:
            assert each.ranks > 1
            assert 0.0 <= each.hidden_pct <= 100.0
            assert each.forward_count + each.backward_count > 0.0


def test_flops_are_those_of_the_model() -> None:
    """Of a dense layer without experts: 6 FLOPs a parameter and token, by hand: Llama2-7B has 32 layers of 202.4 M."""
    report = reported("dense")
    layer = report.layers[0]
    gemms = sum(row.flops for row in layer.operators if row.kind == "gemm")
    parameters = 4 * 4096**2 + 3 * 4096 * 11008
    assert gemms == pytest.approx(6.0 * parameters * 4096 / 2, rel=1e-9)  # cut in two by tp


def test_steps_add_up_over_layers_and_micro_batches() -> None:
    report = reported("dense")
    assert report.micro_batches == 512 // 8
    row = report.layers[0].operators[0]
    each = row.forward_s + row.backward_s + row.uneven_s
    assert row.step_s == pytest.approx(each * report.micro_batches * 16)
    whole = sum(row.step_s for layer in report.layers for row in layer.operators)
    assert whole < report.step_time_s


def test_messages_count_every_copy() -> None:
    """A dispatch of Qwen3-30B-A3B sends each token of 2,048 wide to 8 experts, in 16 bits."""
    layer = next(each for each in reported("experts").layers if each.name == "moe")
    sent = next(row for row in layer.exchanges if row.name == "dispatch")
    assert sent.message_bytes == pytest.approx(8 * 2048 * 2.0 * 4096 / 2)
    assert sent.ranks == 8
    assert sent.bytes_per_s == pytest.approx(sent.message_bytes / sent.once_s)


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_tables_keep_to_their_width(lang: Any) -> None:
    text = render_operators(reported("experts"), lang)
    assert "core_attention" in text
    assert "dispatch" in text
    assert all(len(line) <= 100 for line in text.splitlines())


def test_post_training_reports_one_update() -> None:
    spec = rl_spec(fix=QUICK, effort="fast", top_k=1, risk="neutral")
    report = operators(spec, plan(spec).plans[0])
    assert report.layers
    assert np.isfinite(report.step_time_s)


def test_the_command_shows_both_formats(tmp_path: Any) -> None:
    path = tmp_path / "spec.yaml"
    path.write_text(
        "model: llama2-7b\ncluster: {profile: ascend-800t-a2, num_npus: 8}\n"
        "training: {seq_length: 4096, global_batch_size: 64}\nstrategy: {tp: 2, pp: 2, micro_batch_size: 1}\n",
        encoding="utf-8",
    )
    shown = CliRunner().invoke(app, ["estimate", str(path), "--detail", "operators"])
    assert shown.exit_code == 0
    assert "core_attention" in shown.stdout
    found = CliRunner().invoke(app, ["estimate", str(path), "--detail", "operators", "-f", "json"])
    assert OperatorReport.model_validate_json(found.stdout).layers


def test_what_lies_beyond_the_roofline_is_told_with_what_would_change_it() -> None:
    layer = reported("experts").layers[0]
    for row in layer.operators:
        whole = row.forward_s + row.backward_s + row.uneven_s
        lost = row.step_s * max(0.0, 1.0 - row.roofline_s / whole) if whole > 0.0 else 0.0
        assert row.beyond_s == pytest.approx(lost, rel=1e-9, abs=1e-15)
        assert row.bound == ("compute" if row.kind in {"attention", "grouped_gemm"} else row.bound)
        assert row.bound == "memory" or row.flops > 0.0
    first = max(layer.operators, key=lambda row: row.beyond_s)
    assert beyond_line(layer, "en").startswith(f"time beyond the roofline, and what would reduce it: {first.name} ")
    chinese = beyond_line(layer, "zh")
    assert first.name in chinese
    assert "beyond" not in chinese
    uneven = first.model_copy(update={"uneven_s": 2.0 * first.forward_s + 2.0 * first.backward_s})
    assert "balance the load of experts" in beyond_line(layer.model_copy(update={"operators": (uneven,)}), "en")
