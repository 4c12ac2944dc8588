"""Samples that are not padded: memory holds up to a length, at every door."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from autodeploy.analysis.launch_checks.launch import launch_of
from autodeploy.analysis.launch_checks.launch_check import check
from autodeploy.cli import main
from autodeploy.formats.import_document import import_document
from autodeploy.formats.registry import export
from autodeploy.kit.errors import SpecError
from autodeploy.reports.check_report import render_check, render_check_annotations, render_check_markdown
from autodeploy.reports.wording import check_text, excess_words
from autodeploy.search import planner
from autodeploy.search.predictions import LEAST_SHARE, PADDED_TO
from autodeploy.specs.answers import CheckLimits, CheckReport
from autodeploy.specs.reading import parse_spec
from tests import factories

if TYPE_CHECKING:
    from pathlib import Path

    from autodeploy.specs.spec import Spec

FLAGS = (
    "--num-layers 32 --hidden-size 4096 --ffn-hidden-size 11008 --num-attention-heads 32 --vocab-size 32000 --swiglu "
    "--bf16 --untie-embeddings-and-output-weights --normalization RMSNorm --use-flash-attn --seq-length 32768 "
    "--global-batch-size 8 --micro-batch-size 1 --tensor-model-parallel-size 8 --use-distributed-optimizer "
    "--max-position-embeddings 32768 --position-embedding-type rope --finetune --stage sft --is-instruction-dataset"
)
UNPADDED = "--no-pad-to-seq-lengths"
NOTHING: Any = SimpleNamespace(plans=())
PLANNER: Any = SimpleNamespace(
    **{name: getattr(planner, name) for name in planner.__all__} | {"plan": lambda _, **__: NOTHING}
)
SWIFT = "megatron sft --model Qwen/Qwen3-8B --dataset x --max_length 4096 --tensor_model_parallel_size 8"


def run(*arguments: str) -> int:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["autodeploy", *arguments])
        with pytest.raises(SystemExit) as ended:
            main.run()
    return int(ended.value.code or 0)


def document(flags: str, text: str = FLAGS) -> dict[str, Any]:
    found = import_document(f"torchrun --nproc_per_node 8 posttrain_gpt.py {text} {flags}", "a.sh").document
    assert isinstance(found, dict)
    return found


def report(flags: str = UNPADDED, text: str = FLAGS, **limits: Any) -> CheckReport:
    imported = import_document(f"torchrun --nproc_per_node 8 posttrain_gpt.py {text} {flags}", "a.sh")
    return check(launch_of(imported, "ascend-800t-a2"), CheckLimits(**limits), planner=PLANNER)


@pytest.fixture(scope="module")
def told() -> CheckReport:
    return report()


def at_length(spec: dict[str, Any], tokens: int) -> Spec:
    return parse_spec(spec | {"training": spec["training"] | {"seq_length": tokens}})


def test_the_gate_holds_to_the_longest_sample_that_fits(told: CheckReport) -> None:
    gate = told.gates[1]
    assert gate.passed
    assert gate.value > 1.0
    assert gate.up_to_tokens is not None
    longer = gate.up_to_tokens + 8 * PADDED_TO
    assert planner.estimate(at_length(told.spec, gate.up_to_tokens)).fits
    assert not planner.estimate(at_length(told.spec, longer)).fits
    assert told.plan is not None
    assert told.plan.fits_to_tokens == gate.up_to_tokens


def test_full_sequences_keep_their_shortage_and_remedies(told: CheckReport) -> None:
    assert told.shortage is not None
    assert told.shortage.excess_bytes > 0
    assert told.remedies


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_every_report_says_to_which_length(told: CheckReport, lang: Any) -> None:
    assert told.plan is not None
    tokens = f"{told.gates[1].up_to_tokens:,}"
    verdict = check_text(lang, "passed_to_tokens", tokens=tokens)
    words = excess_words(told.plan, lang)
    assert tokens in words
    text, markdown = render_check(told, lang), render_check_markdown(told, lang)
    assert verdict in text
    assert verdict in markdown
    assert words in markdown
    assert f"::warning file=a.sh,title={check_text(lang, 'peak_memory')}" in render_check_annotations(
        told, lang, name="a.sh"
    )


def test_padded_samples_and_samples_too_short_to_be_of_use_fail() -> None:
    assert not report("").gates[1].passed
    long = FLAGS.replace("--seq-length 32768", "--seq-length 524288")
    found = report(UNPADDED, long)
    assert found.plan is not None
    assert not found.gates[1].passed
    assert found.gates[1].up_to_tokens is None
    shortest = at_length(found.spec, int(LEAST_SHARE * 524288))
    assert not planner.estimate(shortest).fits


def test_a_limit_below_the_cards_memory_has_a_length_of_its_own(told: CheckReport) -> None:
    tight = report(max_memory=0.9).gates[1].up_to_tokens
    whole = told.gates[1].up_to_tokens
    assert tight is not None
    assert whole is not None
    assert tight < whole


@pytest.mark.parametrize("flags", [f"{UNPADDED} --reset-attention-mask --neat-pack", f"{UNPADDED} --pack", ""])
def test_packed_and_padded_samples_are_full(flags: str) -> None:
    assert "pads_samples" not in document(flags)["training"]


def test_the_flag_is_idle_without_samples_of_instructions() -> None:
    assert "pads_samples" not in document(UNPADDED, FLAGS.replace("--is-instruction-dataset", ""))["training"]


def test_lengths_of_documents_are_those_of_packed_ones() -> None:
    text = f"# autodeploy: lengths=512/0.5+2048/0.5\ntorchrun --nproc_per_node 8 posttrain_gpt.py {FLAGS} {UNPADDED}"
    training = import_document(text, "a.sh").document["training"]
    assert "sequence_length_histogram" in training
    assert "pads_samples" not in training


@pytest.mark.parametrize(("words", "padded"), [("", False), ("--packing true", None), ("--packing false", False)])
def test_ms_swift_pads_nothing(words: str, padded: bool | None) -> None:
    training = import_document(f"NPROC_PER_NODE=8 {SWIFT} {words}", "a.sh").document["training"]
    assert training.get("pads_samples") is padded


def test_ms_swift_cuts_at_the_models_maximum_where_no_length_is_given() -> None:
    text = f"NPROC_PER_NODE=8 {SWIFT}".replace("--max_length 4096 ", "")
    found = import_document(text, "a.sh")
    training, recipe = found.document["training"], found.document["model"]["recipe"]
    assert training["seq_length"] == recipe["max_position_embeddings"]
    assert any("/training/seq_length" in text for text in found.diagnostics.assumptions)
    given = import_document(f"NPROC_PER_NODE=8 {SWIFT}", "a.sh")
    assert not any("/training/seq_length" in text for text in given.diagnostics.assumptions)


@pytest.mark.parametrize(("data", "padded"), [("", False), ("  packing: true\n", None), ("  packing: false\n", False)])
def test_the_fsdp2_backend_pads_to_the_longest(data: str, padded: bool | None) -> None:
    text = (
        "model: {model_name_or_path: Qwen/Qwen3-8B}\n"
        f"data:\n  cutoff_len: 4096\n{data}"
        "parallel: {fsdp_size: 8}\ntraining: {stage: sft, per_device_train_batch_size: 1}\n"
    )
    imported = import_document(text, "a.yaml")
    assert imported.document["training"].get("pads_samples") is padded
    assert len([text for text in imported.diagnostics.doubts if "/data/packing" in text]) == 1


@pytest.mark.parametrize(
    "training",
    [
        {"kind": "pretrain"},
        {"kind": "sft", "sequence_length_histogram": {"512": 1}},
    ],
)
def test_only_samples_that_stand_alone_keep_their_lengths(training: dict[str, Any], told: CheckReport) -> None:
    spec = {**told.spec, "training": {"seq_length": 4096, "global_batch_size": 8, **training, "pads_samples": False}}
    with pytest.raises(SpecError) as caught:
        parse_spec(spec)
    assert [error.path for error in caught.value.errors] == ["/training/pads_samples"]


def test_an_estimate_says_it_and_succeeds(
    told: CheckReport, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "spec.json"
    path.write_text(json.dumps(told.spec), encoding="utf-8")
    assert run("estimate", str(path), "-f", "json") == 0
    assert json.loads(capsys.readouterr().out)["fits_to_tokens"] == told.gates[1].up_to_tokens
    assert run("estimate", str(path)) == 0
    assert f"{told.gates[1].up_to_tokens:,}" in capsys.readouterr().out


def test_tuning_by_the_fsdp2_backend_is_launched() -> None:
    text = (
        "model: {model_name_or_path: Qwen/Qwen3-8B}\ndata: {cutoff_len: 4096}\n"
        "parallel: {fsdp_size: 8, fsdp_modules: ['model.layers.{*}', model.embed_tokens, lm_head]}\n"
        "training: {stage: sft, per_device_train_batch_size: 1}\n"
    )
    imported = import_document(text, "a.yaml")
    found = check(launch_of(imported, "ascend-800t-a2"), planner=PLANNER)
    assert "training_is_launched" not in {rule.rule for rule in found.broken_rules}
    plans = factories.plan_set(spec=parse_spec(found.spec))
    assert found.plan is not None
    written = import_document(export(plans, found.plan, "mindspeed-llm-fsdp2").text, "b.yaml").document["training"]
    assert (written["kind"], written["pads_samples"]) == ("sft", False)


def test_a_script_for_mindspeed_llm_pads_as_its_spec(told: CheckReport) -> None:
    for to, cluster, release, given in (
        ("mindspeed-llm", "ascend-800t-a2", None, True),
        ("megatron", "nvidia-h100", "megatron-main", False),
    ):
        search = {**told.spec["search"], "target": to, "target_release": release}
        spec = {**told.spec, "search": search, "cluster": {"profile": cluster, "num_npus": 8}}
        found = factories.plan_set(spec=parse_spec(spec))
        artefact = export(found, found.plans[0], to)
        written = [line for line in artefact.text.splitlines() if not line.lstrip().startswith("#")]
        assert any(UNPADDED in line for line in written) is given
        assert any("pads_samples" in note for note in artefact.notes) is not given
