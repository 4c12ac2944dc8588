"""Ring attention: kernels see pieces of sequences or of packed documents, and every step puts the pieces together."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from autodeploy.costs.inputs.context import packs_of
from autodeploy.costs.workload.layers import layer_table
from autodeploy.costs.workload.operators import Operator, OperatorFeatures
from autodeploy.formats.import_document import import_document
from autodeploy.formats.registry import export
from autodeploy.search.planner import plan
from autodeploy.specs.presets import load_preset
from autodeploy.specs.reading import read_spec_document
from tests.support.sharding import shard

WHOLE = OperatorFeatures()
PACKED = replace(WHOLE, mean_keys=1024.0, documents=16.0)  # documents of 2,048 tokens in sequences of 32,768
JOINED = replace(WHOLE, joins_pieces="between_steps")
ADDED = replace(WHOLE, joins_pieces="at_the_end")
SEQ = 32_768.0


def operator(name: str, cp: int, on: OperatorFeatures, ulysses: int = 1) -> Operator | None:
    """The named operator of a layer of LLaMA2-7B on one rank."""
    cut = shard(cp=cp, ulysses=ulysses, seq=int(SEQ))
    table = layer_table(load_preset("llama2-7b"), cut, on, ("dense", None))
    return next((op for op in table.operators if op.name == name), None)


@pytest.mark.parametrize("cp", [1, 4, 8])
def test_attention_works_on_pieces_of_a_document(cp: int) -> None:
    whole, packed = operator("core_attention", cp, WHOLE), operator("core_attention", cp, PACKED)
    assert whole is not None
    assert packed is not None
    assert float(np.ravel(whole.seq)[0]) == SEQ / cp
    assert float(np.ravel(packed.seq)[0]) == 2048 / cp


@pytest.mark.parametrize("on", [PACKED, JOINED, ADDED])
def test_only_a_ring_puts_pieces_together(on: OperatorFeatures) -> None:
    assert operator("ring_update", 1, on) is None
    assert operator("ring_update", 8, on, ulysses=8) is None


def test_whole_sequences_are_put_together_by_operators_where_the_software_has_them() -> None:
    """MindSpeed's are operators between the steps."""
    assert operator("ring_update", 4, WHOLE) is None
    plain, fused = (
        operator("ring_update", 4, JOINED),
        operator("ring_update", 4, replace(JOINED, fused_ring_update=True)),
    )
    assert plain is not None
    assert fused is not None
    assert np.ravel(fused.forward_bytes)[0] < 0.2 * np.ravel(plain.forward_bytes)[0]
    assert np.ravel(fused.backward_bytes)[0] == np.ravel(plain.backward_bytes)[0]
    assert np.ravel(plain.issued)[0] == pytest.approx(3 * 20.5 + 3)


def test_outputs_of_all_pieces_are_added_up_behind_the_last_step() -> None:
    """Ranks of a ring of two have one whole piece and a half, or two whole ones: 6 B an element of 4,096."""
    two = operator("ring_update", 2, ADDED)
    assert two is not None
    tokens = SEQ / 2
    assert np.ravel(two.forward_bytes)[0] == pytest.approx(tokens * 4096 * 6 * (1.5 + 2) / 2)
    assert np.ravel(two.backward_bytes)[0] == pytest.approx(tokens * 3 * 4096 * (4 + (6 + 3) / 2))


def test_two_steps_move_twice_as_much_as_one() -> None:
    two, three = operator("ring_update", 2, JOINED), operator("ring_update", 3, JOINED)
    assert two is not None
    assert three is not None
    assert np.ravel(3 * three.forward_bytes)[0] == pytest.approx(np.ravel(2 * two.forward_bytes)[0] * 2)


def test_more_ranks_take_more_steps_for_the_same_tokens() -> None:
    """Bytes of all ranks grow with cp - 1 steps; the host's work on a rank with the documents, too."""
    four, eight = operator("ring_update", 4, PACKED), operator("ring_update", 8, PACKED)
    assert four is not None
    assert eight is not None
    assert np.ravel(8 * eight.forward_bytes)[0] == pytest.approx(np.ravel(4 * four.forward_bytes)[0] * 7 / 3)
    assert np.ravel(eight.issued)[0] == pytest.approx(7 * (3 + 6 * 16))


def test_one_operator_puts_the_pieces_together_with_less_traffic_and_no_work_of_the_host_by_document() -> None:
    plain = operator("ring_update", 8, PACKED)
    fused = operator("ring_update", 8, replace(PACKED, fused_ring_update=True))
    assert plain is not None
    assert fused is not None
    assert np.ravel(fused.forward_bytes)[0] < 0.4 * np.ravel(plain.forward_bytes)[0]
    assert np.ravel(fused.issued)[0] == 7 * 3


def test_a_launch_names_the_operator_where_documents_are_packed_around_a_ring() -> None:
    document = {
        "model": "llama2-7b",
        "cluster": {"profile": "ascend-800t-a2", "num_npus": 16},
        "training": {"seq_length": 32768, "global_batch_size": 16, "sequence_length_histogram": {"4096": 1.0}},
        "search": {
            "target": "mindspeed-llm",
            "effort": 0.02,
            "top_k": 1,
            "risk": "neutral",
            "allow": {"cp": [4], "cp_algo": ["ring"]},
        },
    }
    plan_set = plan(read_spec_document(document), alone=True)
    best = plan_set.plans[0]
    assert "fused_ring_update" in best.strategy.features
    text = export(plan_set, best, "mindspeed-llm").text
    assert "--use-fused-ring-attention-update" in text
    strategy = import_document(text, "run.sh").document["strategy"]
    assert "fused_ring_update" in strategy["features"]


def test_a_histogram_says_how_many_documents_a_sequence_holds() -> None:
    packs = packs_of({"2048": 1.0, "6144": 1.0}, 32_768, 64)
    assert packs.documents == pytest.approx(8.0)
    assert 2048 < 2 * packs.keys < 6144
