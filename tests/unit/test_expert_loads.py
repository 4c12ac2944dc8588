"""Reading expert loads: CSV, JSON and MindSpeed's log."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np
import pytest

from autodeploy.kit.errors import SpecError
from autodeploy.search.planner import estimate
from autodeploy.specs.expert_loads import FIELD, content_hash, read_expert_loads
from autodeploy.specs.reading import read_spec_file
from cost_models.expert_skew import SkewFamily, family_imbalance

if TYPE_CHECKING:
    from pathlib import Path

LINE = (
    "[expert load statistics{when}] iter {step}: rank 0 dp{dp} pp{pp}, vppNone, tp0, ep0, model chunk {chunk}, "
    "layer {layer}, device expert load: min 1.00, max 9.00, std 2.00, details [{loads}]\n"
)


def line(step: int, loads: str, *, dp: int = 0, pp: int = 0, chunk: int = 0, layer: int = 0, when: str = "") -> str:
    return LINE.format(step=step, loads=loads, dp=dp, pp=pp, chunk=chunk, layer=layer, when=when)


def write(folder: Path, name: str, text: str) -> str:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_a_csv_of_experts_and_a_csv_of_layers_say_the_same(tmp_path: Path) -> None:
    tall = "step,layer,expert,tokens\n0,3,0,5\n0,3,1,7\n50,3,1,8\n50,3,0,4\n"
    wide = "step,layer,e0,e1\n0,3,5,7\n50,3,4,8\n"
    for name, text in (("tall.csv", tall), ("wide.csv", wide)):
        found = read_expert_loads(write(tmp_path, name, text))
        assert found.series.steps.tolist() == [0, 50]
        assert found.series.loads.tolist() == [[[5.0, 7.0]], [[4.0, 8.0]]]
        assert not found.of_ranks


def test_both_shapes_of_json(tmp_path: Path) -> None:
    cube = {"loads": [[[5, 7], [1, 1]], [[4, 8], [1, 1]]], "steps": [10, 20]}
    rows = [
        {"step": step, "layer": layer, "loads": cube["loads"][t][layer]}
        for t, step in enumerate(cube["steps"])
        for layer in (0, 1)
    ]
    first, second = (
        read_expert_loads(write(tmp_path, name, json.dumps(document))).series
        for name, document in (("cube.json", cube), ("rows.json", rows))
    )
    assert first.steps.tolist() == second.steps.tolist() == [10, 20]
    assert np.array_equal(first.loads, second.loads)


def test_mindspeed_s_log_holds_the_load_of_each_rank(tmp_path: Path) -> None:
    text = "iteration 10 | loss 2.1\n" + line(10, "3, 1") + line(10, "2, 2", dp=1) + line(10, "8, 0", pp=1)
    text += line(10, "1, 3", chunk=1) + line(10, "9, 9", when=" after expert placement")
    text += "".join(line(20, "4, 4", pp=p, chunk=c) for p, c in ((0, 0), (1, 0), (0, 1)))
    found = read_expert_loads(write(tmp_path, "train.log", text))
    assert found.of_ranks
    assert found.series.steps.tolist() == [10, 20]
    # Layers in model order: chunk 0 of both stages, then chunk 1; data-parallel ranks added up.
    assert found.series.loads[0].tolist() == [[5.0, 3.0], [8.0, 0.0], [1.0, 3.0]]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.csv", "layer,step\n1,2\n", "no header"),
        ("a.csv", "step,layer,expert,tokens\n0,0,zero,1\n", "line 2"),
        ("a.csv", "step,layer,expert,tokens\n0,0,0,1\n0,0,0,1\n", "is given twice"),
        ("a.csv", "step,layer,expert,tokens\n0,0,0,1\n0,0,2,1\n", "gaps"),
        ("a.csv", "step,layer,e0,e1\n0,0,1\n", "expected 4 entries"),
        ("a.csv", "step,layer,e0,e1\n0,0,1,1\n1,1,1,1\n", "every step needs all layers"),
        ("a.csv", "step,layer,e0,e1\n0,0,0,0\n", "no tokens"),
        ("a.csv", "step,layer,e0,e1\n0,0,-1,2\n", "at least 0"),
        ("a.csv", "step,layer,e0,e1\n0,0,nan,2\n", "at least 0"),
        ("a.json", "{}", "invalid JSON"),
        ("a.json", '{"loads": [1]}', "not [rows]"),
        ("a.json", '{"loads": [[[1, 2]], [[1, 2]]], "steps": [5, 5]}', "ascend"),
        ("a.log", "nothing here", "--print-expert-load"),
    ],
)
def test_what_is_wrong_with_a_file_is_said_under_its_field(tmp_path: Path, name: str, text: str, message: str) -> None:
    with pytest.raises(SpecError, match=message.replace("[", r"\[")) as caught:
        read_expert_loads(write(tmp_path, name, text))
    assert caught.value.errors[0].path == FIELD


def spec_document(folder: Path, **training: object) -> Path:
    path = folder / "spec.json"
    document = {
        "model": "qwen3-235b-a22b",
        "cluster": {"profile": "ascend-800t-a2", "num_npus": 256},
        "training": {"seq_length": 4096, "global_batch_size": 512, **training},
        "search": {"target": "any"},
        "strategy": {"tp": 4, "pp": 4, "ep": 16, "etp": 1, "features": ["flash_attention", "grouped_gemm"]},
    }
    path.write_text(json.dumps(document), encoding="utf-8")
    return path


def factor_document(folder: Path, factor: float) -> Path:
    """The same imbalance as a factor of the strategy's own group: 16 ranks, 4 sequences."""
    return spec_document(folder, routing_imbalance=stated(factor), routing_imbalance_peak=stated(factor))


def stated(factor: float) -> dict[str, object]:
    """A factor over 16 ranks such that it is met at TP4, which holds more sequences than the group it is stated for."""

    def met(value: float) -> float:
        return float(family_imbalance(SkewFamily(128, value, 16, 4096.0, 0.75), 16, 4.0, 8192.0))

    low, high = 1.0, 2.0 * factor
    for _ in range(60):
        middle = (low + high) / 2.0
        low, high = (middle, high) if met(middle) < factor else (low, middle)
    return {"value": high, "at_ep": 16}


def uneven(rows: int = 4) -> str:
    """128 experts of which the first sixteen get three times the tokens."""
    loads = ",".join("3" if expert < 16 else "1" for expert in range(128))
    header = ",".join(f"e{expert}" for expert in range(128))
    return f"step,layer,{header}\n" + "".join(f"{50 * row},0,{loads}\n" for row in range(rows))


def test_a_file_next_to_the_spec_replaces_the_factors(tmp_path: Path) -> None:
    (tmp_path / "loads.csv").write_text(uneven(), encoding="utf-8")
    spec = read_spec_file(spec_document(tmp_path, expert_load_file="loads.csv", routing_imbalance=1.0))
    assert spec.training.expert_load_sha256 == content_hash(tmp_path / "loads.csv")
    # Ranks hold 8 experts: the busiest 24 of 160 / 16 = 10 tokens.
    factor = read_spec_file(factor_document(tmp_path, 2.4))
    by_file, by_factor = estimate(spec), estimate(factor)
    assert by_file.step_time_s == pytest.approx(by_factor.step_time_s)
    # A file's worst moment is of all its layers; of a factor's, a rank's layers are not all at the worst.
    assert by_file.peak_memory_gib > by_factor.peak_memory_gib
    assert by_file.experts is not None
    assert by_factor.experts is not None
    assert by_file.experts.memory_factor_of_stage == by_file.experts.memory_factor == pytest.approx(2.4)
    assert by_factor.experts.memory_factor_of_stage < by_factor.experts.memory_factor == pytest.approx(2.4)


def test_migration_levels_the_loads_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "loads.csv").write_text(uneven(), encoding="utf-8")
    spec = read_spec_file(spec_document(tmp_path, expert_load_file="loads.csv"))
    assert spec.strategy is not None
    plain = estimate(spec)
    moved = estimate(spec, features=frozenset({*spec.strategy.features, "expert_migration"}))
    # Each rank can hold one hot and seven cold experts: perfectly level, and the router never changes.
    assert plain.breakdown.imbalance_s > 0.0
    assert moved.breakdown.imbalance_s == pytest.approx(0.0, abs=1e-9)
    assert moved.step_time_s < plain.step_time_s
    assert moved.peak_memory_gib < plain.peak_memory_gib


def test_a_log_is_read_at_its_own_and_at_coarser_groups(tmp_path: Path) -> None:
    (tmp_path / "train.log").write_text(
        "".join(line(s, ", ".join(["24", "24", *["8"] * 14])) for s in (10, 60, 110)), encoding="utf-8"
    )
    spec = read_spec_file(spec_document(tmp_path, expert_load_file="train.log"))
    factor = read_spec_file(factor_document(tmp_path, 2.4))
    assert estimate(spec).step_time_s == pytest.approx(estimate(factor).step_time_s)


def test_another_model_s_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "loads.csv").write_text("step,layer,e0,e1\n0,0,1,2\n", encoding="utf-8")
    spec = read_spec_file(spec_document(tmp_path, expert_load_file="loads.csv"))
    with pytest.raises(SpecError, match="2 experts, but the model has 128"):
        estimate(spec)


def test_a_file_that_changes_after_the_spec_was_read_is_refused(tmp_path: Path) -> None:
    (tmp_path / "loads.csv").write_text(uneven(), encoding="utf-8")
    spec = read_spec_file(spec_document(tmp_path, expert_load_file="loads.csv"))
    (tmp_path / "loads.csv").write_text(uneven(2), encoding="utf-8")
    with pytest.raises(SpecError, match="changed since"):
        estimate(spec)


def test_a_missing_file_is_named_when_the_spec_is_read(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"cannot read loads\.csv") as caught:
        read_spec_file(spec_document(tmp_path, expert_load_file="loads.csv"))
    assert caught.value.errors[0].path == FIELD
