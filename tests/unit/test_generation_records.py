"""Measured serving: how it is read, predicted, compared and fitted."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from pydantic import ValidationError
from typer.testing import CliRunner

from autodeploy.calibration.shipped.generation import (
    batches_of,
    fit_generation,
    overlay_of_fit,
    predicted_seconds,
    records_of,
    refit_constants,
    seconds_measured,
    shipped_generation,
)
from autodeploy.calibration.validation import ServedRow, validate, validate_generation
from autodeploy.cli.main import app
from autodeploy.kit.errors import SpecError
from autodeploy.specs.measurements import GenerationRecord, generation_records, read_measurements
from autodeploy.specs.record import Record, Unread
from autodeploy.specs.rl import GenerationLayout
from hardware_profiles.generation import generation_numbers
from hardware_profiles.loader import load_profile

if TYPE_CHECKING:
    from pathlib import Path

MODEL = {
    "name": "Llama-3.1-8B",
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "vocab_size": 128256,
}


def line(*, cluster: dict[str, Any] | None = None, measured: dict[str, float] | None = None, **generation: Any) -> dict:
    """A measurement of Llama-3.1-8B on one H100."""
    load = {"engine": "vllm", "input_length": 1024, "output_length": 256, "concurrency": 16.0}
    return {
        "id": "one",
        "source": "test",
        "kind": "generation",
        "model": MODEL,
        "cluster": {"profile": "nvidia-h100", "num_dies": 1, **(cluster or {})},
        "generation": {**load, **generation},
        "measured": measured or {"tpot_ms": 9.0},
    }


def record(**changes: Any) -> GenerationRecord:
    return GenerationRecord.model_validate(line(**changes))


def test_errors_are_of_speeds() -> None:
    [row] = validate_generation([record(measured={"tpot_ms": 9.0, "decode_tokens_per_s_per_die": 1500.0})])
    assert row.predicted is not None
    assert row.error.tpot == pytest.approx(9.0 / row.predicted.tpot_ms - 1.0)
    assert row.error.time == pytest.approx(row.predicted.decode_tokens_per_s_per_die / 1500.0 - 1.0)
    assert row.error.ttft is None
    low, high = row.predicted.tpot_interval_ms
    assert low < row.predicted.tpot_ms < high
    assert sum(row.parts.values()) == pytest.approx(1.0, abs=0.05)
    assert "engine mode not given; graph assumed" in row.warnings


def test_what_was_assumed_is_said() -> None:
    def warnings(**changes: Any) -> str:
        [row] = validate_generation([record(**changes)])
        return "; ".join(row.warnings)

    assert "generation uses the numbers of nvidia-h100" in warnings(cluster={"profile": "nvidia-a100-80g"})
    assert "assumed" not in warnings(mode="graph")
    assert "of 5000 concurrent requests" in warnings(concurrency=5000.0)
    assert "concurrent requests" not in warnings(concurrency=5000.0, max_num_seqs=8)
    big = {**MODEL, "num_hidden_layers": 400}
    [row] = validate_generation([GenerationRecord.model_validate({**line(), "model": big})])
    assert any(text.startswith("weights do not fit") for text in row.warnings)


def test_replicas_share_the_requests() -> None:
    one, two = validate_generation([record(), record(cluster={"num_dies": 2}, concurrency=32.0)])
    assert one.predicted is not None
    assert one.predicted == two.predicted


def test_words_of_sources_are_read_and_told() -> None:
    read = record(precision="bfloat16")
    assert (read.generation.precision, read.diagnoses) == ("bf16", ())
    read = record(precision="W4A16", cluster={"profile": "ascend-800t-a2"})
    assert read.generation.precision == "w8a8"
    assert "not modelled" in read.diagnoses[0].text
    assert record(engine="TensorRT-LLM").generation.engine == "trtllm"
    other = record(engine="lmdeploy")
    assert (other.generation.engine, other.diagnoses[0].path) == ("vllm", "/generation/engine")
    assert record(precision="fp8_block").generation.precision == "fp8"
    assert record(cluster={"profile": "NVIDIA H200"}).diagnoses[0].path == "/cluster/profile"
    odd = record(tp=4, dp=2, ep=4, cluster={"num_dies": 8})
    assert odd.generation.ep == 8
    assert odd.diagnoses[0].path == "/generation/ep"
    with pytest.raises(ValidationError, match="tp 4 does not divide num_dies 6"):
        record(tp=4, cluster={"num_dies": 6})
    with pytest.raises(ValidationError, match="neither 1 nor tp x dp = 8"):
        GenerationLayout(tp=4, dp=2, ep=4)


def test_one_file_holds_runs_and_serving(tmp_path: Path) -> None:
    shipped = "autodeploy/calibration/records/nvidia.jsonl"
    with open(shipped, encoding="utf-8") as file:
        run = file.readline().strip()
    path = tmp_path / "mixed.jsonl"
    wrong = {**line(), "id": "wrong", "generation": {"engine": "none"}}
    path.write_text("\n".join([run, json.dumps(line()), json.dumps(wrong), "{"]), encoding="utf-8")
    kinds = [type(each) for each in read_measurements(path)]
    assert kinds == [Record, GenerationRecord, Unread, Unread]
    with pytest.raises(SpecError, match="/3/generation/"):
        generation_records(path)
    found = CliRunner().invoke(app, ["validate", str(path), "-f", "json"])
    assert found.exit_code == 0
    report = json.loads(found.stdout)
    assert [row.get("kind") for row in report["rows"]] == [None, "generation", None, None]
    assert report["summary"]["tpot"]["n"] == report["summary"]["time"]["n"] == 1
    assert report["rows"][1]["error"]["tpot"] is not None
    assert report["summary"]["skipped"] == 2
    table = CliRunner().invoke(app, ["validate", str(path)]).stdout
    assert "TPOT ms" in table
    assert "\nTPOT  " in table
    page = CliRunner().invoke(app, ["validate", str(path), "-f", "html", "--lang", "zh"]).stdout
    assert "未给出引擎执行模式；假定为 graph" in page


def test_one_that_cannot_be_predicted_is_skipped_with_its_reason() -> None:
    report = validate([record(precision="fp8", cluster={"profile": "ascend-800t-a2"}), record()])
    first, second = report.rows
    assert "does not support fp8" in str(first.skipped)
    assert second.skipped is None
    assert report.summary.skipped == 1
    assert isinstance(first, ServedRow)
    assert isinstance(second, ServedRow)


def test_shipped_measurements_have_sources_and_keep_their_number() -> None:
    records = shipped_generation()
    assert len(records) == len({each.id for each in records}) == 372
    assert all(each.source for each in records)
    assert {each.cluster.profile for each in records} == {"nvidia-h100", "ascend-800t-a2", "cloudmatrix-384"}


def test_shipped_numbers_are_those_of_the_fit() -> None:
    profile = "ascend-800t-a2"
    own = records_of(shipped_generation(), profile)
    made = overlay_of_fit(fit_generation(own, profile), profile, len(own))
    now = generation_numbers(load_profile(profile)).document
    for name, entry in made["numbers"].items():
        assert now.numbers[name].value == pytest.approx(entry["value"], rel=1e-3)
        assert now.numbers[name].kind == "fitted"
    assert now.engines["vllm-ascend"]["eager"][4].value == pytest.approx(
        made["engines"]["vllm-ascend"]["eager"][4]["value"], rel=1e-3
    )


def test_a_fit_finds_the_constant_that_made_the_measurements() -> None:
    profile = "nvidia-h100"
    loads = [(c, i, o) for c in (1.0, 8.0, 64.0) for i, o in ((128, 512), (2048, 256))]
    bare = [record(concurrency=c, input_length=i, output_length=o) for c, i, o in loads]
    numbers = fit_generation(bare, profile)
    made = type(numbers)(numbers.numbers, numbers.layers, {("vllm", "graph", 1): 100.0}, {})
    seconds = predicted_seconds(batches_of(bare, generation_numbers(load_profile(profile), calibrated=False)), 6, made)
    told = [
        record(concurrency=c, input_length=i, output_length=o, measured={"tpot_ms": 1e3 * float(s)})
        for (c, i, o), s in zip(loads, seconds, strict=True)
    ]
    found = refit_constants(told, profile, numbers, noise=0.001)
    assert found.engines["vllm", "graph", 1] == pytest.approx(100.0, rel=0.01)
    assert np.array([seconds_measured(each) for each in told]) == pytest.approx(seconds)
