"""Layers of stages and chunks: what importer, flag rules and placement rules take a launch to place."""

from __future__ import annotations

import pytest

from autodeploy.analysis.launch_checks.flag_rules import FlagValues, broken_flag_rules
from autodeploy.analysis.launch_checks.launch import launch_of
from autodeploy.formats.common.launch_script import read_launch_script
from autodeploy.formats.import_document import import_document
from autodeploy.kit.errors import SpecError
from autodeploy.search.planner import launch_rules
from autodeploy.space.facts import placed_facts

EMBEDDING, LOSS = "--account-for-embedding-in-pipeline-split", "--account-for-loss-in-pipeline-split"
EACH, COUNT = "--num-layers-per-virtual-pipeline-stage", "--num-virtual-stages-per-pipeline-rank"
BOTH = f"{EMBEDDING} {LOSS}"
DENSE = (
    "torchrun --nproc_per_node 8 --nnodes 3 pretrain_gpt.py --hidden-size 1024 --num-attention-heads 16 "
    "--vocab-size 32000 --seq-length 512 --max-position-embeddings 512 --micro-batch-size 1 --global-batch-size 192 "
    "--bf16 --lr 1e-4 --min-lr 1e-5 --train-iters 3 {flags}"
)
# Eight experts, passes in pairs on four stages of four chunks of two: thirty-two layers, padding counted.
PAIRED = (
    "torchrun --nproc_per_node 8 --nnodes 2 pretrain_gpt.py --use-mcore-models --num-layers 32 --hidden-size 1024 "
    "--num-attention-heads 16 --vocab-size 32000 --seq-length 512 --max-position-embeddings 512 --micro-batch-size 1 "
    "--global-batch-size 192 --bf16 --lr 1e-4 --min-lr 1e-5 --train-iters 3 --swiglu --num-experts 8 "
    "--moe-router-topk 2 --moe-ffn-hidden-size 512 --moe-grouped-gemm --moe-token-dispatcher-type alltoall "
    "--expert-model-parallel-size 4 --pipeline-model-parallel-size 4 --moe-fb-overlap --use-distributed-optimizer "
    "{flags}"
)


def broken(text, *components):
    script = read_launch_script(text)
    return {each.rule for each in broken_flag_rules(FlagValues(script, script.ranks, ""), frozenset(components))}


# Rows are what Megatron-LM core_v0.12.1 builds: transformer_block.py, get_num_layers_to_build, on every rank.
@pytest.mark.parametrize(
    ("layers", "pp", "flags", "rows"),
    [
        (30, 4, f"{BOTH} {COUNT} 2", [[3, 4], [4, 4], [4, 4], [4, 3]]),
        (23, 2, f"{EMBEDDING} {EACH} 3", [[2, 3, 3, 3], [3, 3, 3, 3]]),
        (47, 4, LOSS, [12, 12, 12, 11]),
        (14, 8, f"{BOTH} {EACH} 1", [[0, 1], *[[1, 1]] * 6, [1, 0]]),
        (39, 2, f"{LOSS} {EACH} 10", [[10, 10], [10, 9]]),
        (46, 3, f"{BOTH} {COUNT} 4", [[3, 4, 4, 4], [4, 4, 4, 4], [4, 4, 4, 3]]),
        (7, 8, EMBEDDING, [0, *[1] * 7]),
    ],
)
def test_embedding_and_loss_that_count_as_layers_fill_chunks_as_in_the_framework(layers, pp, flags, rows):
    text = DENSE.format(flags=f"--num-layers {layers} --pipeline-model-parallel-size {pp} {flags}")
    assert not broken(text, "megatron")
    strategy = import_document(text, "a.sh").document["strategy"]
    assert (strategy["layers_per_stage"], strategy["pp"]) == (rows, pp)


@pytest.mark.parametrize(
    ("layers", "flags", "rule"),
    [
        (31, f"{BOTH} {COUNT} 2", "layers_divide_by_virtual_stages"),
        (30, f"{BOTH} {EACH} 3", "layers_divide_by_chunks"),
        (32, f"{LOSS} {EACH} 2", "layers_divide_by_pp"),
        (32, EMBEDDING, "layers_divide_by_pp"),
        (32, f"{LOSS} {COUNT} 4", "layers_divide_by_virtual_stages"),
        (31, f"{LOSS} --decoder-first-pipeline-num-layers 7 {COUNT} 1", "uneven_ends_alone"),
        (32, f"{BOTH} --pipeline-model-parallel-layout Et*8|t*8|t*8|t*8L", "layout_alone"),
    ],
)
def test_what_the_framework_cannot_spread_breaks_its_rule(layers, flags, rule):
    text = DENSE.format(flags=f"--num-layers {layers} --pipeline-model-parallel-size 4 {flags}")
    assert rule in broken(text, "megatron")


def test_an_uneven_end_that_chunks_do_not_divide_is_refused_at_its_flag():
    text = DENSE.format(flags=f"--num-layers 16 --pipeline-model-parallel-size 4 {EACH} 2")
    with pytest.raises(SpecError, match="--decoder-last-pipeline-num-layers"):
        import_document(text + " --decoder-last-pipeline-num-layers 1", "a.sh")


# MindSpeed @028de58c fb_overlap.py compares the number that Python's set of the no-op layers yields first.
@pytest.mark.parametrize(
    ("noops", "takes"),
    [
        ("31", True),
        ("30,31", True),
        ("7,30,31", True),
        ("15,30,31", True),
        ("22,23,31", True),
        ("14,15,31", True),
        ("3,30,31", False),
        ("0,31", False),
        ("7,15,23", False),
        ("6,7,15,31", False),
    ],
)
def test_padding_is_legal_to_flags_and_to_placements_alike(noops, takes):
    text = PAIRED.format(flags=f"{EACH} 2 --noop-layers {noops}")
    assert broken(text, "megatron", "mindspeed") == (set() if takes else {"fb_overlap_pads_the_last_chunk"})
    spec = launch_of(import_document(text, "a.sh"), "ascend-800t-a2").spec
    idle = [int(number) for number in noops.split(",")]
    chunks = [2 - sum(number // 2 == chunk for number in idle) for chunk in range(16)]
    assert spec.strategy.layers_per_stage == tuple(tuple(chunks[stage::4]) for stage in range(4))
    assert placed_facts(chunks)["padded_layers"] == (32 if takes else 0)
    rules = {each.rule for each in launch_rules(spec).broken}
    # A placement that no padding says may still be a layout, unless one of its chunks has no layer.
    assert ("fb_overlap_fills_chunks" in rules) == (not takes and 0 in chunks)


@pytest.mark.parametrize("noops", ["31", "30,31", "7,30,31", "15,31", "22,23,31"])
def test_a_layout_and_padding_of_one_placement_are_one_strategy(noops):
    idle = [int(number) for number in noops.split(",")]
    chunks = [2 - sum(number // 2 == chunk for number in idle) for chunk in range(16)]
    layout = "E" + "|".join("t" * layers for layers in chunks) + "L"
    padded = import_document(PAIRED.format(flags=f"{EACH} 2 --noop-layers {noops}"), "a.sh")
    text = PAIRED.replace("--num-layers 32", f"--num-layers {32 - len(idle)}")
    laid_out = import_document(text.format(flags=f"--pipeline-model-parallel-layout '{layout}'"), "a.sh")
    assert laid_out.document["strategy"] == padded.document["strategy"]
    assert laid_out.document["model"] == padded.document["model"]
