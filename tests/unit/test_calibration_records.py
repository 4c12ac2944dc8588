"""What a record is taken for: its family, its release, what was on, and its step time."""

from __future__ import annotations

import csv
from functools import cache
from importlib.resources import files
from typing import Any

import pytest

from autodeploy.calibration.families import family_of
from autodeploy.calibration.record_prediction import (
    counts_for_time,
    fits_time,
    is_update_phase,
    measured_step_s,
    predict_record,
)
from autodeploy.calibration.shipped.class_spreads import run_row
from autodeploy.calibration.shipped.tables import shipped_records
from autodeploy.costs.prediction_spread import coverage
from autodeploy.specs.record import Measured, Record
from autodeploy.specs.software import features_of, release_of, stack_of
from hardware_profiles.loader import load_profile


@cache
def shipped() -> tuple[Record, ...]:
    return tuple(shipped_records())


def record_on(profile: str, **changes: Any) -> Record:
    """A shipped record of a profile, with some fields changed; `name` is the model's."""
    base = next(r for r in shipped() if r.cluster.profile == profile and not r.model.is_moe)
    if name := changes.pop("name", None):
        changes["model"] = base.model.model_copy(update={"name": name})
    return base.model_copy(update=changes)


@pytest.mark.parametrize(
    ("name", "family"),
    [
        ("LLaMA2-13B", "llama2"),
        ("llama2_7b", "llama2"),
        ("LLaMA-33B", "llama"),
        ("Llama-3.1-8B", "llama3"),
        ("Qwen1.5-110B", "qwen15"),
        ("CodeQwen1.5-7B", "qwen15"),
        ("Qwen2.5-7B", "qwen25"),
        ("ChatGLM3-6B", "glm3"),
        ("GLM4-9B", "glm4"),
        ("Mixtral-8x7B", "mixtral"),
        ("DeepSeek-V2-236B", "deepseekv2"),
        ("InternLM2-20B", "internlm2"),
        ("pretrain_llama2_7b", "llama2"),
        ("Bloom-176B", "bloom"),
        ("DeepSeek-V3-671B", "deepseekv3"),
        ("DeepSeek-R1", "deepseekv3"),
        ("deepseek-33b", "deepseek"),
        ("CodeLlama-34B", "llama2"),
    ],
)
def test_a_family_has_no_size_and_one_spelling(name: str, family: str) -> None:
    assert family_of(record_on("ascend-800t-a2", name=name)) == family


def test_experts_make_a_family_of_their_own() -> None:
    moe = next(r for r in shipped() if r.model.is_moe and r.cluster.profile == "ascend-800t-a2")
    named = moe.model_copy(update={"model": moe.model.model_copy(update={"name": "Qwen3-30B-A3B"})})
    assert family_of(named) == "qwen3moe"
    assert family_of(record_on("ascend-800t-a2", name="Qwen3-32B")) == "qwen3"


def test_families_of_gpt_on_a100_are_those_of_the_source() -> None:
    record = record_on("nvidia-a100-80g", name="GPT-175B", id="megatron_7")
    assert family_of(record) == "megatron/GPT-175B"


@pytest.mark.parametrize(
    ("date", "band"),
    [
        ("1.0.RC1", "early_2024"),
        ("v1.0.RC2", "mid_2024"),
        ("1.0.RC3", "mid_2024"),
        ("2024-08", "mid_2024"),
        ("2024", "mid_2024"),
        ("2024.12.1", "2025"),
        ("26.1.0", "current"),
        ("2023-09-01", "early_2024"),
        ("2023 (release notes)", "early_2024"),
        ("2024-05-31 (commit abc)", "early_2024"),
        ("2024-06-01", "mid_2024"),
        ("2024-08-29 (commit 431f3aa0)", "mid_2024"),
        ("2024-10-30", "2025"),
        ("2025-06-30", "2025"),
        ("2026-03-30", "current"),
        (None, "current"),
    ],
)
def test_bands_of_mindspeed_releases_follow_their_date(date: str | None, band: str) -> None:
    found = release_of(record_on("ascend-800t-a2", framework="mindspeed-llm", date=date))
    assert found.band == band
    assert found.dispatcher == "allgather"
    assert "graph_mode" not in found.features


@pytest.mark.parametrize(
    ("date", "unfused"),
    [
        ("1.0.RC1", {"unfused_gradient_accumulation", "unfused_rotary"}),
        ("2024-08-29 (commit 431f3aa0)", {"unfused_gradient_accumulation"}),
        ("2024-10-31", {"unfused_gradient_accumulation"}),
        ("2024-11-18", set()),
        (None, {"regathers_latents", "regathers_shared"}),
    ],
)
def test_what_scripts_of_mindspeed_releases_left_unfused(date: str | None, unfused: set[str]) -> None:
    assert release_of(record_on("ascend-800t-a2", framework="mindspeed-llm", date=date)).features == unfused


def test_micro_batches_of_a_compiled_pipeline_add_their_gradients_apart() -> None:
    record = record_on("ascend-800t-a2", framework="mindformers", date="r1.3.0")
    single, staged = (
        record.model_copy(update={"strategy": record.strategy.model_copy(update={"pp": pp})}) for pp in (1, 2)
    )
    assert release_of(staged).features - release_of(single).features == {"unfused_gradient_accumulation"}
    assert "unfused_optimizer" in release_of(single).features


@pytest.mark.parametrize(
    ("release", "band"),
    [
        ("r1.2.0", "mindformers"),
        ("r1.3.0", "mindformers"),
        ("v1.3.2", "mindformers"),
        ("r1.5.0", "current"),
        ("r1.8.0", "current"),
        ("master", "current"),
        ("2025-01-15", "mindformers"),
        ("2025-06-15", "current"),
        (None, "mindformers"),
    ],
)
def test_bands_of_mindformers_follow_their_release(release: str | None, band: str) -> None:
    assert release_of(record_on("ascend-800t-a2", framework="mindformers", date=release)).band == band


def test_graph_mode_and_nvidia_have_bands_and_defaults_of_their_own() -> None:
    graph = release_of(record_on("ascend-800t-a2", framework="mindformers", date="2024-08-29"))
    assert graph.band == "mindformers"
    assert "graph_mode" in graph.features
    old, modern = (release_of(record_on("nvidia-a100-80g")), release_of(_modern()))
    assert (old.band, modern.band) == ("current", "current")
    assert "flash_attention" in modern.features - old.features
    assert "dropout" in old.features - modern.features


def test_names_of_frameworks_are_those_of_their_stacks() -> None:
    for name in ("MindSpeed", "ModelLink", "mindspeed_llm"):
        assert stack_of(record_on("ascend-800t-a2", framework=name)) == "mindspeed-llm"
    for name in ("MindFormers", "mindspore"):
        assert "graph_mode" in release_of(record_on("ascend-800t-a2", framework=name)).features
    sharded = release_of(record_on("ascend-800t-a2", framework="torchtitan-npu"))
    assert (sharded.band, sharded.dispatcher) == ("current", "alltoall")
    assert {"overlap_grad_reduce", "overlap_param_gather"} <= sharded.features


def test_a100_is_of_2021_until_a_run_says_otherwise() -> None:
    old = record_on("nvidia-a100-80g", date=None)
    assert "dropout" in release_of(old).features
    named = old.strategy.model_copy(update={"features": ("flash_attention",)})
    for later in (old.model_copy(update={"strategy": named}), old.model_copy(update={"date": "2024-03-01"})):
        assert "dropout" not in release_of(later).features
        assert "flash_attention" in release_of(later).features


def test_a_named_fusion_cancels_what_its_release_leaves_out() -> None:
    early = record_on("ascend-800t-a2", framework="mindspeed-llm", date="1.0.RC1")
    fused = early.strategy.model_copy(update={"features": ("fused_rotary", "fused_gradient_accumulation")})
    assert {"unfused_rotary", "unfused_gradient_accumulation"} <= features_of(early)
    found = features_of(early.model_copy(update={"strategy": fused}))
    assert not {name for name in found if name.startswith("unfused")}
    assert not {"fused_rotary", "fused_gradient_accumulation"} & found


def _modern() -> Record:
    return next(r for r in shipped() if r.cluster.profile == "nvidia-h100")


def test_what_was_on_is_what_is_named_and_what_the_release_had_on() -> None:
    record = _modern()
    document = record.model_dump(mode="json", exclude={"diagnoses"})
    document["strategy"]["features"] = ["moe_fb_overlap"]
    named = Record.model_validate(document)
    assert features_of(named) == {"adaptive_pipe"} | release_of(named).features


def test_step_time_follows_from_tokens_per_second_and_card() -> None:
    record = record_on("ascend-800t-a2", measured=Measured(tokens_per_s_per_npu=500.0, step_time_s=1.0))
    tokens = record.training.global_batch_size.value * record.training.seq_length
    assert record.cluster.num_npus is not None
    assert measured_step_s(record) == pytest.approx(tokens / 500.0 / record.cluster.num_npus)
    assert measured_step_s(record_on("ascend-800t-a2", measured=Measured(step_time_s=3.5))) == 3.5
    assert measured_step_s(record_on("ascend-800t-a2", measured=Measured(peak_memory_gib=30.0))) is None


def test_short_runs_and_memory_runs_do_not_count_for_time() -> None:
    timed = Measured(step_time_s=3.5)
    assert counts_for_time(record_on("ascend-800t-a2", measured=timed, short_run=False))
    assert not counts_for_time(record_on("ascend-800t-a2", measured=timed, short_run=True))
    assert not counts_for_time(record_on("ascend-800t-a2", measured=Measured(peak_memory_gib=30.0), short_run=False))


def test_ids_of_the_shipped_records_are_unique_and_sourced() -> None:
    ids = [record.id for record in shipped()]
    assert len(set(ids)) == len(ids)
    assert all(record.source.strip() for record in shipped())


def test_the_shipped_table_holds_the_records_as_they_are_read_today() -> None:
    """Where this fails, a record or what its release had on has changed: `make calibrate`."""
    rows = {row["id"]: row for row in coverage()["records"]}
    of_fit = {"fit", "left_out"}
    assert rows.keys() == {record.id for record in shipped() if fits_time(record)}
    for record in shipped():
        if record.id in rows:
            assert {key: value for key, value in rows[record.id].items() if key not in of_fit} == run_row(record)
    of_memory = [run_row(record) for record in shipped() if record.measured.peak_memory_gib is not None]
    kept = coverage()["memory"]["records"]
    assert kept == [{key: row[key] for key in kept[0]} for row in of_memory]


def test_update_phases_and_doubtful_runs_are_in_no_fit() -> None:
    timed = record_on("ascend-800t-a2", measured=Measured(step_time_s=3.5), short_run=False, confidence="medium")
    assert fits_time(timed)
    assert not fits_time(timed.model_copy(update={"short_run": True}))
    assert not fits_time(timed.model_copy(update={"confidence": "low"}))
    update = timed.model_copy(update={"framework": "verl + MindSpeed (Megatron)"})
    assert is_update_phase(update)
    assert counts_for_time(update)
    assert not fits_time(update)


def test_every_kernel_measurement_has_a_source_and_a_unit() -> None:
    folder = files("autodeploy.calibration").joinpath("records")
    rows = list(csv.DictReader(folder.joinpath("kernels.csv").read_text(encoding="utf-8").splitlines()))
    assert len(rows) > 50
    assert all(row["source"] and row["unit"] and row["value"][0].isdigit() for row in rows)


def test_torchtitan_on_gpus_fuses_what_torch_compile_fuses() -> None:
    eager = next(r for r in shipped() if r.id == "torchtitan_8b_8_eager")
    named = eager.strategy.model_copy(update={"features": (*eager.strategy.features, "torch_compile")})
    compiled = eager.model_copy(update={"strategy": named})
    fused = {"fused_swiglu", "fused_rmsnorm", "fused_cross_entropy"}
    assert not fused & features_of(eager)
    assert "unfused_rotary" in features_of(eager)
    assert fused <= features_of(compiled)
    assert "unfused_rotary" not in features_of(compiled)
    assert fused <= features_of(eager.model_copy(update={"framework": "nemo"}))
    times = [predict_record(run).step_time_s for run in (eager, compiled)]
    assert times[0] > times[1]


def test_torchtitan_on_gpus_shards_and_attends_as_torch_does() -> None:
    run = next(r for r in shipped() if r.id == "torchtitan_8b_8_cp1_fp8")
    own, elsewhere = {"torch_fsdp2", "torch_attention", "weight_casts"}, {"framework": "megatron-lm"}
    assert own <= features_of(run)
    assert not own & features_of(run.model_copy(update=elsewhere))
    assert "torch_attention" not in features_of(record_on("ascend-800t-a2", framework="torchtitan"))
    rate = load_profile("nvidia-h100").efficiency["attention_of_torch"]
    slow, fast = (predict_record(run, efficiency={"attention_of_torch": each}) for each in (rate, 1.0))
    machines = slow.context.machine.rates, fast.context.machine.rates
    for each in ("attention_forward", "attention_backward"):
        assert getattr(machines[0], each) == pytest.approx(rate * getattr(machines[1], each))
    # Full recomputation: the forward pass twice, 2 + 2 + 5 matrix products of 2 s^2 h / 2 FLOPs a layer and sequence.
    flops = 32 * 2.0 * 32_768**2 * 4_096
    reached = [912e12 * float(getattr(machines[1], f"attention_{each}")) for each in ("forward", "backward")]
    alone = 2 * flops / reached[0] + 2.5 * flops / reached[1]
    assert slow.step_time_s - fast.step_time_s == pytest.approx(alone * (1.0 / rate - 1.0), rel=0.03)


def test_torchtitan_on_gpus_is_predicted_within_its_aim() -> None:
    runs = [r for r in shipped() if r.framework == "torchtitan"]
    far = [abs((measured_step_s(run) or 0.0) / predict_record(run).step_time_s - 1.0) for run in runs]
    assert sum(far) / len(far) < 0.30  # as they came: no fit sees them


def test_the_cards_of_torchtitan_tables_are_slower_than_the_profile_by_default() -> None:
    runs = [r for r in shipped() if r.framework == "torchtitan"]
    assert len(runs) == 21
    for run in runs:
        as_sold = run.model_copy(update={"cluster": run.cluster.model_copy(update={"overrides": {}})})
        assert predict_record(run).step_time_s > predict_record(as_sold).step_time_s
