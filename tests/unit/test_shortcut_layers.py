"""LongCat-Flash: experts on a shortcut, and experts that return what they get. Counts by hand and by shapes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from autodeploy.costs.workload.attention_types import unmeasured_types
from autodeploy.costs.workload.flops import forward_flops_per_token
from autodeploy.costs.workload.layers import head_table, layer_kinds, layer_table
from autodeploy.costs.workload.memory_choices import CHOICES
from autodeploy.costs.workload.operators import LayerTable, OperatorFeatures
from autodeploy.specs.model import ModelSpec
from autodeploy.specs.presets import load_preset
from tests.support.sharding import shard

FUSED = OperatorFeatures(rect_fa=True)
LONGCAT = load_preset("longcat-flash")
KIND = layer_kinds(LONGCAT)[0][0]
H, SEQ = 6144, 4096

# By hand, from the shapes of arXiv 2509.01322, table 1, and transformers' modular_longcat_flash.py.
MLA = 6144 * 1536 + 1536 * 64 * 192 + 6144 * (512 + 64) + 512 * 64 * (128 + 128) + 64 * 128 * 6144
DENSE = 3 * 6144 * 12288
EXPERT = 3 * 6144 * 2048
ROUTER = 6144 * (512 + 256)
NORMS = 2 * (2 * 6144 + 1536 + 512)


def plain(**change: Any) -> ModelSpec:
    """The same layer without a shortcut and without experts that return what they get."""
    return LONGCAT.model_copy(update={"n_zero_experts": 0, "num_experts_per_tok": 8, "shortcut_moe": False, **change})


def products(table: LayerTable) -> float:
    return sum(
        float(np.ravel(2.0 * op.runs * op.rows * op.columns * op.depth * op.groups)[0])
        for op in table.operators
        if op.kind in {"gemm", "grouped_gemm"}
    )


def scores(table: LayerTable) -> float:
    return sum(float(np.ravel(op.runs * op.flops)[0]) for op in table.operators if op.kind == "attention")


def by_name(table: LayerTable) -> dict[str, Any]:
    return {op.name: op for op in table.operators}


def test_parameters_are_the_published_ones() -> None:
    layer = 2 * MLA + 2 * DENSE + 512 * EXPERT + ROUTER + NORMS
    whole = 28 * layer + 2 * 131_072 * H + H
    assert LONGCAT.layer_params(0) == layer
    assert LONGCAT.total_params() == whole
    assert whole / 1e9 == pytest.approx(560, rel=0.01)


@pytest.mark.parametrize(("experts", "published"), [(0, 18.6), (8, 27.0), (12, 31.3)])
def test_activated_parameters_depend_on_how_many_experts_have_matrices(experts: int, published: float) -> None:
    # The head counts, the embedding does not; 18.6 to 31.3 billion, 27 in the mean: 8 of the 12 experts of a token.
    active = 28 * (2 * MLA + 2 * DENSE + experts * EXPERT + ROUTER + NORMS) + 131_072 * H + H
    assert active / 1e9 == pytest.approx(published, rel=0.01)
    if experts == LONGCAT.computing_experts_per_tok:
        assert LONGCAT.active_params(include_embedding=False) == active


def test_a_token_reaches_the_experts_equally_often() -> None:
    assert (LONGCAT.computing_experts_per_tok, LONGCAT.zero_experts_per_tok) == (8.0, 4.0)
    assert plain().computing_experts_per_tok == 8.0


@pytest.mark.parametrize(("tp", "ep"), [(1, 1), (4, 8), (8, 64)])
def test_flops_are_two_per_activated_weight(tp: int, ep: int) -> None:
    table = layer_table(LONGCAT, shard(seq=SEQ, tp=tp, ep=ep), FUSED, KIND)
    weights = (2 * (MLA - 6144 * 1536 - 6144 * 576) + 2 * DENSE) / tp + 8 * EXPERT / tp + ROUTER / tp
    latents = 2 * (6144 * 1536 + 6144 * 576) / tp  # of the rank's own tokens
    assert products(table) == pytest.approx(2.0 * SEQ * (weights + latents))
    # Two attentions of 64 heads, half the sequence in the mean, widths 192 and 128.
    assert scores(table) == pytest.approx(2 * SEQ * 2.0 * 64 / tp * (SEQ / 2) * (192 + 128))


def test_model_flops_are_those_of_the_tables() -> None:
    table = layer_table(LONGCAT, shard(seq=SEQ), FUSED, KIND)
    counted = 28 * (products(table) + scores(table)) + products(head_table(LONGCAT, shard(seq=SEQ), FUSED))
    assert forward_flops_per_token(LONGCAT, SEQ) == pytest.approx(counted / SEQ)


@pytest.mark.parametrize(("tp", "ep"), [(1, 1), (4, 8)])
def test_a_rank_holds_its_share(tp: int, ep: int) -> None:
    table = layer_table(LONGCAT, shard(seq=SEQ, tp=tp, ep=ep), FUSED, KIND)
    latents = 2 * (6144 * 1536 + 6144 * 576)
    dense = (2 * MLA - latents + 2 * DENSE) / tp + latents + ROUTER + NORMS
    assert float(np.ravel(table.dense_params)[0]) == pytest.approx(dense)
    assert float(np.ravel(table.expert_params)[0]) == 512 * EXPERT / ep


def test_a_layer_keeps_both_halves_and_its_experts() -> None:
    sharding = shard(seq=SEQ, tp=4, ep=8)
    moe = layer_table(plain(), sharding, FUSED, KIND)
    dense = layer_table(plain(n_routed_experts=None), sharding, FUSED, ("dense", None))
    both = layer_table(LONGCAT, sharding, FUSED, KIND)
    kept = [{t.name: float(np.ravel(t.kept_bytes)[0]) for t in table.tensors} for table in (dense, moe, both)]
    experts = {name for name in kept[1] if name.startswith(("expert_", "router_", "unpermute"))}
    tokens = SEQ / 4
    own = {"router_logits": 4 * tokens * 768, "zero_in": 2 * H * tokens * 4, "zero_unpermute_in": 2 * H * tokens * 4}
    expected = {name: 2 * size for name, size in kept[0].items()} | {n: kept[1][n] for n in experts} | own
    assert kept[2] == pytest.approx(expected)


def test_experts_that_return_what_they_get_are_sent_tokens_too() -> None:
    sharding = shard(seq=SEQ, tp=4, ep=8)
    table = layer_table(LONGCAT, sharding, FUSED, KIND)
    sent = {
        e.name: (float(np.ravel(e.message_bytes)[0]), e.choices or table.choices_per_token) for e in table.exchanges
    }
    tokens = 2.0 * H * SEQ / 4
    assert sent["dispatch"] == sent["combine"] == (tokens, 8.0)
    assert sent["zero_dispatch"] == sent["zero_combine"] == (tokens, 4.0)
    rows = by_name(table)
    # Half as many rows are permuted, and weighted, as go to the experts; nothing is multiplied by a matrix.
    ratio = np.ravel(rows["sort_by_expert"].forward_bytes)[0] / np.ravel(rows["zero_sort_by_expert"].forward_bytes)[0]
    assert ratio == pytest.approx(2.0)
    assert np.ravel(rows["zero_weights"].forward_bytes)[0] == pytest.approx(4 * H * (SEQ / 4) * 4)
    assert not [name for name in rows if name.startswith("zero_") and rows[name].kind in {"gemm", "grouped_gemm"}]
    assert float(np.ravel(table.synchronisations)[0]) == 2 * float(
        np.ravel(layer_table(plain(), sharding, FUSED, KIND).synchronisations)[0]
    )


def test_collectives_run_in_both_halves() -> None:
    sharding = shard(seq=SEQ, tp=4, ep=8)
    dense = layer_table(plain(n_routed_experts=None), sharding, FUSED, ("dense", None))
    both = layer_table(LONGCAT, sharding, FUSED, KIND)

    def counts(table: LayerTable) -> dict[str, list[float]]:
        found = {e.name: (e.forward_count, e.backward_count) for e in table.exchanges}
        return {name: [float(np.ravel(count)[0]) for count in pair] for name, pair in found.items()}

    once, twice = counts(dense), counts(both)
    assert {name: twice[name] for name in once} == {name: [2 * n for n in pair] for name, pair in once.items()}


def test_recomputing_experts_replays_those_without_matrices() -> None:
    table = layer_table(LONGCAT, shard(seq=SEQ, tp=4, ep=8), FUSED, KIND)
    own = {op.name for op in table.operators if op.name.startswith("zero_")} - {"zero_sizes", "zero_sum"}
    assert own <= set(CHOICES["moe"].replays)
    assert {t.name for t in table.tensors if t.name.startswith("zero_")} <= set(CHOICES["moe"].frees)


def test_no_measured_run_covers_them() -> None:
    assert unmeasured_types(LONGCAT) == {"shortcut_experts", "zero_experts"}
    assert unmeasured_types(plain()) == set()


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"n_shared_experts": 1}, "n_shared_experts"),
        ({"first_k_dense_replace": 1}, "first_k_dense_replace"),
        ({"num_nextn_predict_layers": 1}, "num_nextn_predict_layers"),
        ({"norm_layout": "sandwich"}, "norm_layout"),
        ({"intermediate_size": None}, "intermediate_size"),
        ({"capacity_factor": 1.5}, "capacity_factor"),
        ({"num_experts_per_tok": 769}, "num_experts_per_tok"),
        ({"n_routed_experts": None}, "n_zero_experts"),
    ],
)
def test_what_is_not_modelled_beside_them_is_refused(change: dict[str, Any], field: str) -> None:
    with pytest.raises(ValidationError) as caught:
        ModelSpec.model_validate(LONGCAT.model_dump(exclude_unset=True) | change)
    assert field in {error["loc"][0] for error in caught.value.errors()}
