"""The product's counts are those that frameworks were seen to make, and toy widths keep what decides them."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autodeploy.analysis.launch_checks.launch import launch_of
from autodeploy.analysis.witness import verify
from autodeploy.analysis.witness.compare import differences
from autodeploy.analysis.witness.documents import Counts, Difference, Message, StageReport, WitnessReport
from autodeploy.analysis.witness.run import refuse_missing, run_rank
from autodeploy.analysis.witness.seen import seen_counts
from autodeploy.analysis.witness.toy import toy_launch
from autodeploy.formats.common.launch_script import read_launch_script
from autodeploy.formats.import_document import import_document
from autodeploy.kit.errors import SpecError
from autodeploy.stack.software import memory_facts
from hardware_profiles.shipped_yaml import load_shipped_yaml
from tests.witness import __main__ as witness
from tests.witness.records import compared, records
from tests.witness.saved import FUNCTIONS, saved_by_stand_ins, written

pytestmark = pytest.mark.unit
RECORDS = records()
PLANS = load_shipped_yaml(witness.PLANS.read_text(encoding="utf-8"))


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.name)
def test_predictions_differ_from_what_was_seen_only_where_the_record_says(record):
    prediction = record.prediction()
    for stage in record.stages:
        found = tuple(
            row.name for row in compared(prediction, stage, real_widths=record.real_widths) if row.verdict == "differs"
        )
        assert found == stage.differs, stage.counts.stage


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.name)
def test_parameters_order_and_sends_are_exact_in_every_record(record):
    exact = ("parameters", "expert_parameters", "weight_bytes", "gradient_bytes", "optimizer_bytes", "order", "pp send")
    for stage in record.stages:
        assert not [name for name in stage.differs if name.startswith(exact)]


@pytest.mark.parametrize("name", PLANS)
def test_every_plan_that_is_run_is_exported_and_read_for_the_release_of_its_record(name):
    launch = launch_of(import_document(witness.script_of(PLANS[name]), f"{name}.sh"))
    release = verify.release_of_launch(launch).name
    (record,) = [each for each in RECORDS if each.name == name]
    assert release == record.release
    assert verify.toy_prediction(launch, release)[1].stages == record.stages[-1].counts.stage + 1


@pytest.mark.parametrize("name", ["llm_moe", "core_moe", "llm_dualpipev"])
def test_facts_of_memory_are_no_features_of_a_plan_and_no_note_of_its_launch(name):
    text = witness.script_of(PLANS[name])
    assert not [fact for fact in memory_facts() if fact in text]


@pytest.mark.parametrize(("name", "fuses"), [("llm_dense", True), ("core_dense", True), ("main_llama", False)])
def test_launches_with_mindspeed_rotate_by_one_operator(name, fuses):
    assert ("--use-fused-rotary-pos-emb" in witness.script_of(PLANS[name])) is fuses


def test_records_cover_frameworks_schedules_and_exchanges():
    releases = {record.release for record in RECORDS}
    assert releases >= {"megatron-main", "megatron-mindspeed-master", "mindspeed-llm-master"}
    assert sum(len(record.stages) for record in RECORDS) >= 24
    groups = {message.group for record in RECORDS for stage in record.stages for message in stage.counts.messages}
    assert groups >= {"tp", "cp", "ep", "pp"}
    assert any("B" in word[1:] for record in RECORDS for stage in record.stages for word in stage.counts.order)


def script(**flags: object) -> str:
    words = {
        "num-layers": 8,
        "hidden-size": 4096,
        "ffn-hidden-size": 14336,
        "num-attention-heads": 32,
        "seq-length": 8192,
        "max-position-embeddings": 8192,
        "vocab-size": 128256,
        "micro-batch-size": 1,
        "global-batch-size": 64,
        **flags,
    }
    return "torchrun --nproc_per_node 8 --nnodes 2 pretrain_gpt.py " + " ".join(
        f"--{name.replace('_', '-')} {value}" for name, value in words.items()
    )


@given(
    tp=st.sampled_from([1, 2, 3, 4, 8]),
    cp=st.sampled_from([1, 2, 4]),
    experts=st.sampled_from([8, 60, 64, 128, 256]),
    taken=st.sampled_from([1, 2, 4, 6, 8]),
    hidden=st.sampled_from([2048, 5120, 7168]),
)
def test_toy_widths_divide_by_every_degree_and_experts_get_as_many_tokens(tp, cp, experts, taken, hidden):
    given_flags = {
        "tensor_model_parallel_size": tp,
        "context_parallel_size": cp,
        "num_experts": experts,
        "moe_router_topk": taken,
        "moe_ffn_hidden_size": 1408,
        "hidden_size": hidden,
        "seq_length": 1 << 20,
    }
    toy = toy_launch(read_launch_script(script(**given_flags)), 16, {})

    def number(name: str) -> int:
        return int(toy.model[name][0])

    for width in ("--hidden-size", "--ffn-hidden-size", "--moe-ffn-hidden-size", "--vocab-size", "--seq-length"):
        assert number(width) % tp == 0
    assert number("--seq-length") // (tp * cp) * taken % experts == 0
    for kept in ("--num-layers", "--num-experts", "--moe-router-topk", "--global-batch-size", "--num-attention-heads"):
        assert toy.model[kept] == (str(dict(given_flags, **KEPT)[kept[2:].replace("-", "_")]),)


KEPT = {"num_layers": 8, "global_batch_size": 64, "num_attention_heads": 32}


@pytest.mark.parametrize(
    ("seen", "verdict"), [(1000, "equal"), (1004, "padding"), (996, "padding"), (1005, "differs"), (900, "differs")]
)
def test_gradients_may_differ_by_the_padding_of_buckets_alone(seen, verdict):
    predicted = Counts(stage=0, gradient_bytes=1000)
    rows = differences(predicted, Counts(stage=0, gradient_bytes=seen), 4, "", real_widths=False)
    assert {row.name: row.verdict for row in rows}["gradient_bytes"] == verdict


@given(
    hidden=st.sampled_from([2048, 5120, 7168]),
    sequence=st.sampled_from([4096, 32768]),
    vocabulary=st.integers(1000, 200000),
)
def test_at_real_widths_nothing_that_a_prediction_reads_changes(hidden, sequence, vocabulary):
    flags = {"hidden_size": hidden, "seq_length": sequence, "vocab_size": vocabulary}
    toy = toy_launch(read_launch_script(script(**flags)), 16, {}, real_widths=True)
    assert {name: toy.model[f"--{name.replace('_', '-')}"] for name in flags} == {
        n: (str(v),) for n, v in flags.items()
    }
    assert "--kv-channels" not in toy.argv


@pytest.mark.parametrize(
    ("seen", "kept", "total"),
    [(1000, "equal", "equal"), (971, "close", "close"), (970, "differs", "close"), (900, "differs", "differs")],
)
def test_what_passes_keep_is_compared_at_real_widths_alone(seen, kept, total):
    predicted = Counts(stage=0, weight_bytes=100, kept_bytes=1000)
    counts = Counts(stage=0, weight_bytes=100, kept_bytes=seen)
    rows = {row.name: row.verdict for row in differences(predicted, counts, 0, "", real_widths=True)}
    assert (rows["kept_bytes"], rows["total_bytes"]) == (kept, total)
    rows = {row.name: row.verdict for row in differences(predicted, counts, 0, "", real_widths=False)}
    assert rows.keys() & {"kept_bytes", "total_bytes"} == set()


@pytest.mark.parametrize("calls", [0, 1, 3, 4, 5, 100])
def test_one_message_more_or_less_is_a_difference(calls):
    def counts(number: int) -> Counts:
        return Counts(stage=1, messages=(Message(group="ep", operation="all_to_all", size_bytes=64, calls=number),))

    rows = {row.name: row.verdict for row in differences(counts(4), counts(calls), 0, "", real_widths=False)}
    assert rows["ep all_to_all 64"] == ("equal" if calls == 4 else "differs")


def test_seen_messages_are_of_the_last_step_and_of_groups_of_several_ranks():
    def row(**changes: object) -> dict[str, object]:
        usual = {"step": 1, "phase": "forward", "operation": "all_gather", "group": "tp=etp", "size": 2, "calls": 3}
        return {**usual, "sent": 8, "received": 16, **changes}

    answer = {
        "chunks": [{"parameters": 4, "expert_parameters": 0, "bytes": 8}],
        "gradient_bytes": 16,
        "optimizer_bytes": 48,
        "constants": {"1": 100},
        "passes": [
            {"step": step, "kind": kind, "chunk": 0, "micro": 0, "live_bytes": live}
            for step, kind, live in ((0, "F", 900), (1, "F", 700), (1, "head", 650), (1, "B", 100))
        ],
        "collectives": [
            row(),
            row(step=0),
            row(size=1),
            row(phase="after"),
            row(operation="irecv"),
            row(operation="isend", group="pp", phase="between"),
        ],
    }
    found = seen_counts(answer, 2)
    assert found.order == ("F0.0", "B0.0")
    assert found.kept_bytes == 600
    assert [(m.group, m.operation, m.size_bytes, m.calls) for m in found.messages] == [
        ("pp", "send", 8, 3),
        ("tp", "all_gather", 16, 3),
    ]


@pytest.mark.parametrize(
    ("verdict", "decided_by", "error", "agrees"),
    [
        ("equal", "", "", True),
        ("close", "torch_npu", "", True),
        ("differs", "torch_npu", "", True),
        ("differs", "", "", False),
        ("equal", "", "RuntimeError: stopped", False),
    ],
)
def test_a_report_agrees_but_where_the_framework_itself_differs_or_stops(verdict, decided_by, error, agrees):
    row = Difference(name="order", predicted="a", seen="b", verdict=verdict, decided_by=decided_by)
    stage = StageReport(stage=0, rank=0, seconds=1.0, numbers=(row,), error=error)
    report = WitnessReport(release="megatron-main", commits={}, ranks=8, changed={}, stages=(stage,))
    assert report.agrees is agrees


def test_a_folder_that_is_no_tree_and_an_interpreter_without_torch_are_refused(tmp_path):
    with pytest.raises(SpecError) as refused:
        refuse_missing(sys.executable, {"megatron": tmp_path})
    assert refused.value.errors[0].path == "--megatron"
    with pytest.raises(SpecError) as refused:
        refuse_missing(str(tmp_path / "python"), {})
    assert refused.value.errors[0].path == "--python"
    bare = tmp_path / "bare"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -S -I "$@"\n')
    bare.chmod(0o755)
    with pytest.raises(SpecError) as refused:
        refuse_missing(str(bare), {})
    assert refused.value.errors[0].path == "--python"


def test_a_program_that_answers_nothing_says_why(tmp_path):
    silent = tmp_path / "silent"
    silent.write_text("#!/bin/sh\necho no such luck >&2\nexit 3\n")
    silent.chmod(0o755)
    toy = toy_launch(read_launch_script(script()), 16, {})
    answer, _ = run_rank(toy, {}, 3, python=str(silent), folder=tmp_path, timeout_s=10.0)
    assert answer["error"] == "no such luck"
    request = json.loads((Path(tmp_path) / "request3.json").read_text())
    assert request["rank"] == 3
    assert "--mock-data" in request["argv"]


SAVED = saved_by_stand_ins()


def test_every_stand_in_that_saves_has_its_source_on_record():
    assert SAVED.keys() <= FUNCTIONS.keys()


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_stand_in_saves_what_its_source_saves(name):
    function = FUNCTIONS[name]
    pairs, nothing, more = (function.get(key, {}) for key in ("saves", "nothing", "more"))
    assert set(written(function)) == pairs.keys() | nothing.keys()
    if name in SAVED:
        own = [part.strip() for value in pairs.values() for part in re.split(r",(?![^(]*\))", value)]
        assert sorted([*own, *more]) == sorted(SAVED[name])
    else:  # of several functions: each with what it saves
        for value in pairs.values():
            part, _, saved = value.partition(" ")
            assert saved in next(names for of, names in SAVED.items() if of.endswith(f".{part}"))
