"""Layers on stages: what a launch lets a placement be, how flags say it, and how they are read back."""

from __future__ import annotations

from itertools import pairwise

import pytest

from autodeploy.formats.common.source import Source
from autodeploy.formats.megatron.layers import Placement, moves_dense_layers, padded_layer
from autodeploy.formats.megatron.memory import treats_as_planned
from autodeploy.formats.megatron.script import reads
from autodeploy.formats.registry import export
from autodeploy.kit.errors import SpecError
from autodeploy.search.legality import launch_rules
from autodeploy.space.facts import placed_facts
from autodeploy.specs.presets import load_preset
from autodeploy.specs.spec import Spec
from autodeploy.specs.strategy import Recompute
from tests import factories

V3 = {
    "model": load_preset("deepseek-v3").model_dump(mode="json"),
    "cluster": {"profile": "cloudmatrix-384", "num_npus": 384},
    "training": {"seq_length": 4096, "global_batch_size": 15360},
    "search": {"target": "mindspeed-llm"},
}
FEATURES = ("grouped_gemm",)
DEGREES = {"tp": 4, "cp": 1, "ep": 64, "etp": 1, "dp": None, "moe_dispatcher": "alltoall", "features": FEATURES}
DENSE = (
    "torchrun --nproc_per_node 8 --nnodes 4 pretrain_gpt.py --num-layers 30 --hidden-size 1024 "
    "--num-attention-heads 16 "
    "--seq-length 4096 --micro-batch-size 1 --global-batch-size 64 --tensor-model-parallel-size 2 "
    "--pipeline-model-parallel-size 4 --bf16 --vocab-size 32000 --swiglu "
)


def flags_of(rows, schedule, vpp=1, recompute=None, target="mindspeed-llm", swap=()):
    """Flags and notes of a plan of DeepSeek-V3 with layers placed as `rows`."""
    spec = Spec.model_validate(V3)
    placed = {"pp": len(rows), "vpp": vpp, "schedule": schedule, "layers_per_stage": rows, "swap": swap}
    strategy = factories.strategy(1, **DEGREES, **placed)
    if recompute is not None:
        strategy = strategy.model_copy(update={"recompute": recompute})
    plan = factories.plan(1, spec=spec, strategy=strategy, stages=(), run=None)
    found = export(factories.plan_set(1, spec=spec), plan, target)
    words = found.text.split()
    return {a: b for a, b in pairwise(words) if a.startswith("--")}, found


def read(text):
    return reads(Source(text, "run.sh", {"TP": "4"})).document


@pytest.mark.parametrize(
    ("chunks", "empty", "bare", "padded"),
    [
        ([4, 4, 4, 4], 0, 0, 16),
        ([4, 4, 4, 0], 1, 0, 16),
        ([4, 4, 3, 4], 0, 0, 0),
        ([4, 5, 4, 0], 1, 1, 0),
        ([0, 4, 4, 4], 1, 1, 0),
    ],
)
def test_what_padding_can_say(chunks, empty, bare, padded):
    assert placed_facts(chunks) == {"empty_chunks": empty, "bare_chunks": bare, "padded_layers": padded}


def test_the_first_layers_with_padding():
    assert padded_layer(3, []) == 3
    assert padded_layer(3, [61, 62, 63]) == 3
    assert padded_layer(3, [2, 3]) == 5
    assert padded_layer(0, [0]) == 0


def test_dualpipev_pads_61_layers_as_the_vendor_does():
    # MindSpeed-LLM examples/mcore/deepseek3: PP 8, --num-layers 64 --noop-layers 61,62,63; the last chunk is stage 0's.
    given, found = flags_of([[4, 1], *[[4, 4]] * 7], "dualpipev")
    assert (given["--num-layers"], given["--noop-layers"]) == ("64", "61,62,63")
    assert given["--first-k-dense-replace"] == "3"
    document = read(found.text)
    assert document["model"]["num_hidden_layers"] == 61
    assert document["strategy"]["layers_per_stage"] == [[4, 1], *[[4, 4]] * 7]


def test_dense_layers_count_padding():
    rows = [[2, 5], *[[4, 4]] * 6, [4, 2]]
    given, found = flags_of(rows, "dualpipev")
    assert given["--num-layers"] == "80"
    assert given["--first-k-dense-replace"] == "6"  # layers 2, 3 and 4 do nothing
    document = read(found.text)
    assert document["model"]["first_k_dense_replace"] == 3
    assert document["strategy"]["layers_per_stage"] == rows


def test_padding_makes_room_for_dense_layers():
    # 1 + 2 layers on the first two chunks: with chunks of two the three dense ones would end where the stage does.
    rows = [[1, 2], *[[2, 2]] * 13, [2, 1], [2, 1]]
    given, found = flags_of(rows, "dualpipev")
    assert given["--num-layers"] == "96"
    assert given["--first-k-dense-replace"] == "5"
    assert not any("first-k-dense-replace" in note for note in found.notes)
    document = read(found.text)
    assert document["model"]["first_k_dense_replace"] == 3
    assert document["strategy"]["layers_per_stage"] == rows


def test_an_empty_last_chunk_is_padding_under_paired_passes():
    # MindSpeed fb_overlap.py refuses a layout with a chunk without decoder layers, and takes no-op layers in the last.
    rows = [[6, 6], [6, 6], [6, 6], [6, 6], [6, 6], [1, 0]]
    assert "--pipeline-model-parallel-layout" in flags_of(rows, "interleaved", 2, recompute=Recompute())[0]
    spec = {**V3, "model": {**V3["model"], "num_hidden_layers": 60}}
    placed = {"pp": 4, "vpp": 4, "schedule": "adaptive_pipe", "layers_per_stage": [[4, 4, 4, 4]] * 3 + [[4, 4, 4, 0]]}
    plan = factories.plan(
        1, spec=Spec.model_validate(spec), strategy=factories.strategy(1, **DEGREES, **placed), stages=(), run=None
    )
    text = export(factories.plan_set(1, spec=Spec.model_validate(spec)), plan, "mindspeed-llm").text
    assert "--noop-layers 60,61,62,63" in text
    assert "--num-layers-per-virtual-pipeline-stage 4" in text
    assert "--pipeline-model-parallel-layout" not in text


def test_dense_layers_of_a_whole_stage_are_launched_with_padding():
    # MindSpeed-LLM transformer_block.py: --first-k-dense-replace has to be below num_layers // pp, padding counted.
    rows = [4] * 13 + [3] * 3
    given, found = flags_of(rows, "1f1b")
    assert given["--num-layers"] == "64"
    assert given["--noop-layers"] == "55,59,63"
    assert not any("first-k-dense-replace" in note for note in found.notes)
    assert read(found.text)["strategy"]["layers_per_stage"] == rows


@pytest.mark.parametrize(
    ("flags", "rows"),
    [
        (
            "--decoder-first-pipeline-num-layers 6 --decoder-last-pipeline-num-layers 8",
            [[3, 3], [4, 4], [4, 4], [4, 4]],
        ),
        ("--decoder-last-pipeline-num-layers 6", [[4, 4], [4, 4], [4, 4], [3, 3]]),
        (
            "--account-for-embedding-in-pipeline-split --account-for-loss-in-pipeline-split",
            [[3, 4], [4, 4], [4, 4], [4, 3]],
        ),
    ],
)
def test_uneven_ends_keep_their_virtual_stages(flags, rows):
    # Megatron-LM core_v0.12.1, transformer_block.py, get_num_layers_to_build.
    strategy = read(f"{DENSE} {flags} --num-virtual-stages-per-pipeline-rank 2")["strategy"]
    assert (strategy["vpp"], strategy["schedule"]) == (2, "interleaved")
    assert strategy["layers_per_stage"] == rows


def test_uneven_ends_that_virtual_stages_do_not_divide():
    with pytest.raises(SpecError, match="cannot be split evenly over 3"):
        read(f"{DENSE} --decoder-first-pipeline-num-layers 6 --num-virtual-stages-per-pipeline-rank 3")


def test_layers_of_a_folded_model():
    assert Placement(((3, 3), (2, 3)), 0, folded=True).stages() == [[0, 1, 2, 9, 10], [3, 4, 5, 6, 7, 8]]
    assert Placement(((3, 3), (2, 3)), 1).stages() == [[0, 1, 2, 6, 7], [3, 4, 5, 8, 9, 10]]


NOTE = "the plan has recompute in some layers only"


@pytest.mark.parametrize(
    ("counts", "says"),
    [
        ([16, 15, 15, 15], False),  # every layer of every stage
        ([15, 15, 15, 15], False),  # as many on each
        ([16, 15, 15, 14], True),
        ([4, 3, 3, 3], True),
    ],
)
def test_a_note_compares_counts_with_the_layers_of_the_stage(counts, says):
    rows = [16, 15, 15, 15]
    per_stage = tuple({"full": count} for count in counts)
    _, found = flags_of(rows, "1f1b", recompute=Recompute(granularity="full", per_stage=per_stage))
    assert any(NOTE in note for note in found.notes) == says


def test_layers_recomputed_whole_need_no_other_choice():
    assert treats_as_planned("norm", [3, 3], [7, 5], [4, 2])
    assert treats_as_planned("norm", [5, 3], [7, 5], [2, 2])
    assert not treats_as_planned("norm", [5, 1], [7, 5], [2, 2])


@pytest.mark.parametrize(
    ("chunks", "dense", "moved"),
    [
        (((5, 4, 4, 3), (4, 4, 4, 4), (4, 4, 4, 4), (4, 4, 4, 1)), 3, False),
        (((1,) * 4,) * 6 + ((1, 1, 1, 0),), 1, True),  # built: the first chunk of every stage is dense
        (((3, *(2,) * 7), (2,) * 8, (2,) * 8, (2, 2, 2, 2, 1, 1, 1, 1)), 3, True),  # built: six layers are dense
        (((2, 7, 7, 5),), 3, True),
        (((4, 7, 7, 3),), 3, False),
        (((2, 2), (2, 2)), 3, False),
        (((2, 7, 7, 5),), 0, False),
    ],
)
def test_layouts_that_would_make_other_layers_dense(chunks, dense, moved):
    assert moves_dense_layers(Placement(chunks, len(chunks[0]) - 1), dense) == moved


def test_a_layout_that_would_make_other_layers_dense_is_padded():
    given, _ = flags_of([[1, 2, 2, 2], *[[2, 2, 2, 2]] * 6, [2, 2, 2, 0]], "interleaved", vpp=4)
    assert "--pipeline-model-parallel-layout" not in given
    assert given["--noop-layers"] == "1,62,63"
    assert given["--first-k-dense-replace"] == "4"
    _, found = flags_of([[1, 2, 2, 2], *[[2, 2, 2, 2]] * 6, [2, 2, 2, 0]], "adaptive_pipe", vpp=4)
    assert any("MindSpeed-LLM cannot run this layout" in note for note in found.notes)


@pytest.mark.parametrize("module", ["norm", "activation"])
def test_what_is_asked_layer_by_layer_needs_the_layers_of_a_chunk(module):
    rows = [[6, 5, 5, 5], [5, 5, 5, 5], [5, 5, 5, 5]]
    recompute = Recompute(granularity="selective", modules=(module,))
    plain, _ = flags_of(rows, "interleaved", vpp=4, recompute=Recompute())
    assert "--num-layers-per-virtual-pipeline-stage" not in plain
    asked, _ = flags_of(rows, "interleaved", vpp=4, recompute=recompute)
    assert "--pipeline-model-parallel-layout" not in asked
    assert asked["--num-layers-per-virtual-pipeline-stage"] == "6"
    _, paired = flags_of(rows, "adaptive_pipe", vpp=4, recompute=recompute)
    assert any("a layout of virtual stages" in note for note in paired.notes)
    padded, _ = flags_of([[4, 4]] * 7 + [[4, 1]], "adaptive_pipe", vpp=2, recompute=recompute)
    assert (padded["--noop-layers"], padded["--num-layers-per-virtual-pipeline-stage"]) == ("61,62,63", "4")


def test_attention_is_swapped_with_padding_where_a_layout_has_no_length_of_chunks(monkeypatch):
    """MindSpeed's swap_attention/adaptor.py multiplies by it; a layout leaves it empty."""
    monkeypatch.setitem(V3, "model", load_preset("qwen3-235b-a22b").model_dump(mode="json"))
    rows = [[11, 12], [12, 12], [12, 12], [12, 11]]
    for swap, padded in (((), False), (("attention",), True)):
        flags, _ = flags_of(rows, "interleaved", vpp=2, recompute=Recompute(), swap=swap)
        assert ("--noop-layers" in flags, "--pipeline-model-parallel-layout" in flags) == (padded, not padded)
        assert flags.get("--num-layers-per-virtual-pipeline-stage") == ("12" if padded else None)


def test_inputs_of_layers_are_swapped_under_full_recomputation_of_all_alone():
    """MindSpeed's swap_layer_input.py sends them out where a layer runs without gradients."""
    asked = {"tp": 4, "pp": 4, "vpp": 2, "ep": 16, "schedule": "interleaved", "swap": ["layer_input"]}
    recompute = {"granularity": "full"}
    for update, launched in (({}, True), ({"num_layers": 2}, False), ({"granularity": "none"}, False)):
        spec = Spec.model_validate(V3 | {"strategy": asked | {"recompute": recompute | update}})
        assert ("swap_layer_input" in launch_rules(spec).memory_choices) is launched
