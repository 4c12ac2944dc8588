"""Measured steps of post-training: how they are read, predicted and compared."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from pydantic import ValidationError
from typer.testing import CliRunner

from autodeploy.calibration.post_training import predict_rl, validate_rl
from autodeploy.calibration.shipped.overhead_fit import EAGER, HOST, row_weights, shipped_rl
from autodeploy.calibration.validation import classes_of
from autodeploy.cli.main import app
from autodeploy.costs.post_training.overheads import Overheads, defaults_of, overheads_of
from autodeploy.kit.errors import SpecError
from autodeploy.specs.measurements import RlRecord, read_measurements, rl_records
from autodeploy.specs.record import Unread

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.unit


def line(
    *,
    rl: dict[str, Any] | None = None,
    how: dict[str, Any] | None = None,
    measured: dict[str, Any] | None = None,
    **others: Any,
) -> dict[str, Any]:
    """A step of Qwen3-8B on one node of H100."""
    return {
        "id": "one",
        "source": "test",
        "framework": "NeMo-RL",
        "model": {
            "name": "Qwen3-8B",
            "hidden_size": 4096,
            "num_hidden_layers": 36,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "intermediate_size": 12288,
            "vocab_size": 151936,
        },
        "cluster": {"profile": "nvidia-h100", "num_npus": 16},
        "training": {
            "kind": "rl_post_training",
            "rl": {
                "prompts_per_step": 64,
                "responses_per_prompt": 16,
                "prompt_length": {"mean": 100},
                "response_length": {"mean": 1000, "max": 4096},
                **(rl or {}),
            },
        },
        "strategy": {
            "tp": 2,
            "rl": {"placement": "colocated", "generation": {"tp": 2, "engine": "vllm", "mode": None}, **(how or {})},
        },
        "measured": measured or {"step_time_s": 100.0},
        **others,
    }


def record(**changes: Any) -> RlRecord:
    return RlRecord.model_validate(line(**changes))


def test_errors_are_of_speeds() -> None:
    [row] = validate_rl([record()])
    assert row.predicted is not None
    assert row.error.time == pytest.approx(100.0 / row.predicted.step_time_s - 1.0)
    [row] = validate_rl([record(measured={"tokens_per_s_per_npu": 700.0, "step_time_s": 100.0})])
    assert row.predicted is not None
    assert row.error.time == pytest.approx(row.predicted.tokens_per_s_per_npu / 700.0 - 1.0)
    low, high = row.predicted.step_time_interval_s
    assert low < row.predicted.step_time_s < high
    assert 0.8 < sum(row.parts.values()) <= 1.0 + 1e-9


@pytest.mark.parametrize(("count", "tokens"), [("mean", 1100.0), ("max", 4196.0), ("response", 1000.0)])
def test_tokens_are_counted_by_the_records_own_rule(count: str, tokens: float) -> None:
    found = predict_rl(record(token_count=count, framework="other"))
    per_card = 1024 * tokens / found.step.step_time_s / 16
    assert found.tokens_per_s_per_npu == pytest.approx(per_card, rel=1e-3)


def test_what_is_not_published_is_as_the_framework_has_it_and_said() -> None:
    found = predict_rl(record())
    assert found.layout.offload == ("optimizer", "gradients", "parameters")
    assert found.layout.pack_tokens == 4096  # its greatest length counts the prompt
    assert found.layout.generation.memory_fraction == 0.6
    assert found.rl.updates_per_step == 2  # of 512 responses
    said = {each.path for each in found.diagnoses}
    assert {
        "/strategy/rl/offload",
        "/strategy/rl/pack_tokens",
        "/strategy/rl/generation/mode",
        "/strategy/rl/generation/memory_fraction",
        "/training/rl/updates_per_step",
    } <= said


def test_what_is_published_stands() -> None:
    how = {"offload": [], "pack_tokens": 8192, "generation": {"tp": 2, "memory_fraction": 0.8, "mode": "eager"}}
    found = predict_rl(record(how=how, rl={"updates_per_step": 1}))
    assert found.layout.offload == ()
    assert found.layout.pack_tokens == 8192
    assert found.layout.generation.memory_fraction == 0.8
    assert found.step.mode == "eager"
    assert found.diagnoses == ()


def test_training_that_does_not_fit_is_read_as_recomputed() -> None:
    found = predict_rl(record(how={"pack_tokens": 65_536}))
    assert found.strategy.recompute.granularity == "full"
    assert "/strategy/recompute" in {each.path for each in found.diagnoses}


def test_a_missing_mean_is_the_stated_share_of_the_greatest_length() -> None:
    rl = {"prompt_length": {"max": 2048}, "response_length": {"max": 4096}}
    found = predict_rl(record(rl=rl, framework="mindspeed-rl"))
    share = defaults_of("mindspeed-rl")["mean_to_max"]
    assert found.rl.response_length.mean == share * 4096
    assert found.rl.prompt_length.mean == share * 2048
    said = {"prompt_length": {"mean": share * 2048}, "response_length": {"mean": share * 4096, "max": 4096}}
    known = predict_rl(record(rl=said, framework="mindspeed-rl"))
    assert known.step.step_time_s == found.step.step_time_s
    assert known.step.half_width < 0.4 < found.step.half_width


def test_other_words_are_read_and_said() -> None:
    how = {"generation": {"tp": 2, "engine": "TensorRT-LLM", "precision": "nvfp4"}}
    found = record(how=how, measured={"step_time_s": 9.0, "mfu": 0.3}, odd=1)
    assert found.layout.generation.engine == "trtllm"
    said = {each.path for each in found.diagnoses}
    assert said == {"/strategy/rl/generation/precision", "/measured/mfu", "/odd"}


def test_a_step_without_a_layout_or_a_time_is_no_record() -> None:
    with pytest.raises(ValidationError, match=r"strategy\.rl is required"):
        RlRecord.model_validate({**line(), "strategy": {"tp": 2}})
    with pytest.raises(ValidationError, match="at least one of"):
        record(measured={"update_s": 3.0})


def test_a_step_that_can_not_be_is_skipped_with_its_reason() -> None:
    [row] = validate_rl([record(how={"generation": {"tp": 3}})])
    assert row.predicted is None
    assert "not a multiple of the replica size" in str(row.skipped)


def test_lines_of_all_kinds_stand_in_one_file(tmp_path: Path) -> None:
    file = tmp_path / "runs.jsonl"
    broken = {**line(), "id": "broken", "training": {"kind": "rl_post_training", "rl": {}}}
    file.write_text("".join(json.dumps(each) + "\n" for each in (line(), broken)))
    first, second = read_measurements(file)
    assert isinstance(first, RlRecord)
    assert isinstance(second, Unread)
    assert second.name == "broken"
    assert second.error.errors[0].path.startswith("/2/training/rl/")
    with pytest.raises(SpecError):
        rl_records(file)


@pytest.mark.parametrize("form", ["table", "json", "html"])
def test_validate_tells_them_on_the_command_line(form: str, tmp_path: Path) -> None:
    file = tmp_path / "runs.jsonl"
    file.write_text(json.dumps(line()) + "\n")
    done = CliRunner().invoke(app, ["validate", str(file), "-f", form])
    assert done.exit_code == 0, done.output
    if form == "json":
        [row] = json.loads(done.output)["rows"]
        assert row["kind"] == "rl_post_training"
        assert row["error"]["time"] == pytest.approx(100.0 / row["predicted"]["step_time_s"] - 1.0)
        assert json.loads(done.output)["summary"]["rl"]["n"] == 1
    else:
        assert "one" in done.output
        assert "post-training" in done.output


def test_the_shipped_steps_are_all_predicted_within_their_aims() -> None:
    records = shipped_rl()
    rows = validate_rl(records)
    errors = {row.id: row.error.time for row in rows}
    assert None not in errors.values()
    for fit, most in ((HOST, 0.15), (EAGER, 0.40)):
        own = [abs(errors[record.id] or 0.0) for record in records if record.framework == fit.framework]
        assert np.median(own) <= most
    steps = {row.id: row.predicted.step_time_s for row in rows if row.predicted}
    for name in steps:
        if "_1off" in name:
            assert steps[name] < steps[name.replace("_1off", "_on")]
    assert classes_of(records[0])[0] == "post-training experts, profile nvidia-h100"


def test_a_recipe_counts_once() -> None:
    weights = row_weights([record for record in shipped_rl() if record.framework == "nemo-rl"])
    assert weights.tolist() == [0.5, 0.5, 0.5, 0.5, 1.0, 1.0, 0.5, 0.5, 0.5, 0.5]


def test_the_prior_holds_where_rows_say_nothing() -> None:
    errors = np.zeros((1, len(EAGER.choices)))
    assert EAGER.choices[EAGER.best(errors, np.ones(1))] == {"eager_layer": 2.0}


def test_overheads_slow_what_they_are_of() -> None:
    base = record(how={"generation": {"tp": 2, "mode": "eager"}})
    none = predict_rl(base, Overheads())

    def seconds(**changes: float | bool) -> dict[str, float]:
        found = predict_rl(base, Overheads(**changes)).step  # type: ignore[arg-type]
        return {phase.name: phase.exposed_s for phase in found.phases}

    before = {phase.name: phase.exposed_s for phase in none.step.phases}
    assert seconds(step_s=7.0)["preparation"] == 7.0
    assert seconds(sequence_s=1e-4)["generation"] > before["generation"]
    assert seconds(eager_layer=2.0)["generation"] > 1.3 * before["generation"]
    assert seconds(host_copy=0.5)["onload_training"] == pytest.approx(2.0 * before["onload_training"])
    assert seconds(gathers=True)["hand_over"] >= before["hand_over"]
    assert overheads_of("never heard of it") == overheads_of("other")
