"""Messages of a layer: tensor, context and expert parallel, against the volumes of their sources."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from autodeploy.costs.workload.layers import embedding_table, head_table, layer_table, mtp_table
from autodeploy.costs.workload.memory_choices import CHOICES
from autodeploy.costs.workload.operators import Exchange, LayerTable, OperatorFeatures
from autodeploy.specs.presets import load_preset
from tests.support.sharding import shard

FUSED = OperatorFeatures(rect_fa=True)


def exchange(table: LayerTable, name: str) -> Exchange:
    return next(e for e in table.exchanges if e.name == name)


def counts(table: LayerTable, *kinds: str) -> tuple[float, float]:
    """How often exchanges of these kinds run: forward, backward."""
    chosen = [e for e in table.exchanges if e.kind in kinds]
    return (
        float(sum(np.ravel(e.forward_count)[0] for e in chosen)),
        float(sum(np.ravel(e.backward_count)[0] for e in chosen)),
    )


@pytest.mark.parametrize(("cp", "seq"), [(2, 8192), (4, 32_768), (8, 131_072)])
def test_ring_passes_keys_and_values_once_forward_and_twice_backward(cp: int, seq: int) -> None:
    # MindSpeed megatron_cp_algo: forward (cp - 1) x 2 s b g d / t x 2 B (K, V), backward twice that (K, V, dK, dV).
    model = load_preset("llama3-8b")
    tp = 2
    ring = exchange(layer_table(model, shard(tp=tp, cp=cp, seq=seq), FUSED, ("dense", None)), "key_value_ring")
    local = seq / cp
    forward = (cp - 1) * 2 * local * model.num_key_value_heads * model.head_dim / tp * 2
    assert float(ring.message_bytes[0] * np.ravel(ring.forward_count)[0]) == forward
    assert float(ring.message_bytes[0] * np.ravel(ring.backward_count)[0]) == 2 * forward


def test_ulysses_moves_queries_keys_values_and_output() -> None:
    # ulysses_cp_algo: 2 B s b (2a + 2g) d / t x (cp - 1) / cp, once in each pass; the exchange keeps 1 / cp itself.
    model = load_preset("llama3-8b")
    table = layer_table(model, shard(tp=2, cp=4, ulysses=4, seq=32_768), FUSED, ("dense", None))
    heads = exchange(table, "head_exchange")
    a, g, d = model.num_attention_heads, model.num_key_value_heads, model.head_dim
    assert float(heads.message_bytes[0]) == 2 * 8192 * (2 * a + 2 * g) * d / 2
    assert counts(table, "heads") == (1, 1)
    assert counts(table, "ring") == (0, 0), "heads alone leave no ring"


def test_hybrid_context_parallelism_rings_over_the_rest() -> None:
    model = load_preset("llama3-8b")
    table = layer_table(model, shard(cp=8, ulysses=2, seq=32_768), FUSED, ("dense", None))
    assert counts(table, "ring") == (3, 6)


def test_sequence_parallelism_gathers_and_scatters_twice_a_layer() -> None:
    # Korthikanti, arXiv:2205.05198: two all-gathers and two reduce-scatters in each pass; Megatron gathers the inputs
    # once more backward for the weight gradients.
    model = load_preset("llama2-70b")
    table = layer_table(model, shard(tp=8), FUSED, ("dense", None))
    assert counts(table, "gather") == (2, 4)
    assert counts(table, "scatter") == (2, 2)
    assert counts(table, "reduce") == (0, 0)
    gathered = exchange(table, "mlp_gather")
    assert float(gathered.message_bytes[0]) == 2 * 4096 * model.hidden_size


def test_without_sequence_parallelism_two_all_reduces_in_each_pass() -> None:
    # Megatron-LM, arXiv:1909.08053.
    table = layer_table(load_preset("llama2-70b"), shard(tp=8, sp=False), FUSED, ("dense", None))
    assert counts(table, "reduce") == (2, 2)
    assert counts(table, "gather", "scatter") == (0, 0)


def test_one_rank_has_no_tensor_parallel_exchange() -> None:
    table = layer_table(load_preset("llama2-70b"), shard(), FUSED, ("dense", None))
    assert counts(table, "gather", "scatter", "reduce") == (0, 0)


def test_latent_attention_gathers_latents_instead_of_the_hidden_state() -> None:
    # Megatron-LM multi_latent_attention.py: down projections run on the s / t tokens of a rank (duplicated weights),
    # the column parallel up projections gather q_compressed and kv_compressed; h wide: the output's scatter alone.
    model = load_preset("deepseek-v3")
    table = layer_table(model, shard(tp=8), FUSED, ("moe", None))
    attention = [e for e in table.exchanges if e.window == "attention" and e.kind in {"gather", "scatter"}]
    forward = sum(float(np.ravel(e.message_bytes * e.forward_count)[0]) for e in attention)
    assert forward == 2 * 4096 * (1536 + 512 + 64 + 7168)
    names = {e.name for e in table.exchanges}
    assert not {"attention_gather", "attention_regather", "attention_gradient_scatter"} & names
    column = {"gather": (1, 0), "regather": (0, 1), "gradient_scatter": (0, 1)}
    # The rotary key is gathered whole (gather_from_sequence_parallel_region): no product gathers it again.
    for part, width, messages in (("q", 1536, column), ("kv", 512, column), ("key", 64, {"scatter": (0, 1)})):
        for name, passes in ({"gather": (1, 0)} | messages).items():
            latent = exchange(table, f"latent_{part}_{name}")
            assert float(latent.message_bytes[0]) == 2 * 4096 * width
            assert (np.ravel(latent.forward_count)[0], np.ravel(latent.backward_count)[0]) == passes


def test_latent_attention_without_sequence_parallelism_reduces_the_gradient_of_latents() -> None:
    table = layer_table(load_preset("deepseek-v3"), shard(tp=8, sp=False), FUSED, ("dense", None))
    attention = [e for e in table.exchanges if e.window == "attention" and np.any(e.forward_count + e.backward_count)]
    assert {e.name: (e.kind, float(e.message_bytes[0])) for e in attention} == {
        "latent_q_gradient_reduce": ("reduce", 2 * 4096 * 1536),
        "latent_kv_gradient_reduce": ("reduce", 2 * 4096 * 512),
        "attention_reduce": ("reduce", 2 * 4096 * 7168),
        **{e.name: (e.kind, float(e.message_bytes[0])) for e in attention if e.kind == "heads"},
    }
    assert exchange(table, "latent_q_gradient_reduce").behind == "weight_gradient"


def test_a_patched_gather_brings_messages_and_hides_none() -> None:
    # Stage 4 of DeepSeek-V3 by MindSpeed-LLM @c77308a1 under TP2: of each latent 8 gathers and 2 scatters a layer and
    # micro batch where projections are recomputed, of shared experts' input two ahead.
    on = replace(FUSED, regathers_latents=True, regathers_shared=True)
    paired = replace(shard(tp=2), paired=np.array([True]))
    table = layer_table(load_preset("deepseek-v3"), paired, on, ("moe", None))
    replayed = CHOICES["mla_up_proj"]
    for latent in ("q", "kv"):
        of = [e for e in table.exchanges if f"_{latent}_" in e.name]
        both = {e.name: float(np.ravel(e.forward_count + e.backward_count)[0]) for e in of}
        again = {e.name: float(np.ravel(e.counts[2])[0]) for e in of if replayed.replays_exchange(e)}
        gathers = sum(n for each in (both, again) for name, n in each.items() if name.endswith("gather"))
        assert (gathers, sum(n for each in (both, again) for name, n in each.items() if "scatter" in name)) == (8, 2)
    assert not any(CHOICES["full"].replays_exchange(e) for e in table.exchanges if e.name.startswith("split_"))
    shared = [e for e in table.exchanges if e.window == "mlp" and e.kind == "gather" and e.group is None]
    assert sum(float(np.ravel(e.forward_count)[0]) for e in shared) == 2


def test_a_prediction_module_looks_up_and_joins_under_tensor_parallelism() -> None:
    # MindSpeed-LLM multi_token_prediction.py: the embedding's scatter; 2h gathered in both passes and scattered back; h
    # gathered ahead, its gradient scattered, and gathered where it was cut.
    model = load_preset("deepseek-v3")
    layer, head = layer_table(model, shard(tp=2), FUSED, ("moe", None)), head_table(model, shard(tp=2), FUSED)
    module = mtp_table(model, shard(tp=2), FUSED)
    for kind, ahead, back in (("gather", 1 + 1, 1 + 1 + 1), ("scatter", 1, 1 + 1)):
        parts = [counts(table, kind) for table in (layer, head)]
        assert counts(module, kind) == (sum(n for n, _ in parts) + ahead, sum(n for _, n in parts) + back)


def test_queries_without_a_latent_need_the_hidden_state_too() -> None:
    # q_lora_rank null (DeepSeek-V2-Lite): queries are projected up from the hidden state.
    model = load_preset("deepseek-v3").model_copy(update={"q_lora_rank": None})
    table = layer_table(model, shard(tp=8), FUSED, ("dense", None))
    assert float(exchange(table, "attention_gather").message_bytes[0]) == 2 * 4096 * 7168
    assert float(exchange(table, "latent_kv_gather").message_bytes[0]) == 2 * 4096 * 512
    assert not {e.name for e in table.exchanges if e.name.startswith("latent_q_")}


def test_grouped_query_attention_has_no_latents_to_exchange() -> None:
    table = layer_table(load_preset("llama2-70b"), shard(tp=8), FUSED, ("dense", None))
    assert not {e.name for e in table.exchanges if e.name.startswith("latent_")}


def test_dispatch_sends_each_local_token_once_a_choice() -> None:
    # 2 n h bytes, n = s b / t local tokens; the exchange itself multiplies by k.
    table = layer_table(load_preset("deepseek-v3"), shard(tp=4, ep=32), FUSED, ("moe", None))
    for name in ("dispatch", "combine"):
        sent = exchange(table, name)
        assert float(sent.message_bytes[0]) == 2 * 1024 * 7168
        assert (sent.forward_count, sent.backward_count) == (1, 1)
    assert table.choices_per_token == 8


def test_expert_tensor_parallelism_gathers_the_rows_of_its_group() -> None:
    # Every rank of an expert's tensor-parallel group needs all rows that any of its ranks received.
    whole, cut = (
        layer_table(load_preset("mixtral-8x7b"), shard(tp=4, ep=8, etp=e), FUSED, ("moe", None)) for e in (1, 4)
    )
    assert float(exchange(whole, "expert_gather").message_bytes[0]) == 0
    assert float(exchange(cut, "expert_gather").message_bytes[0]) == 2 * 4096 * 2 * 4096


def test_a_dispatcher_that_cuts_the_width_copies_what_it_gathers_and_sorts_a_part_of_the_width() -> None:
    # Megatron-LM mappings.py _gather_along_last_dim: the ranks' columns are put beside each other, in and out once.
    model, cut = load_preset("mixtral-8x7b"), shard(tp=4, ep=2, etp=4)
    turned = replace(cut, turns_tokens=np.array([True]))
    rows = 4096 * 2
    tables = [
        {op.name: op for op in layer_table(model, each, FUSED, ("moe", None)).operators} for each in (cut, turned)
    ]
    assert not {"rows_joined", "rows_split", "tokens_turned"} & tables[0].keys()
    for name in ("rows_joined", "rows_split"):
        joined = tables[1][name]
        assert float(np.ravel(joined.forward_bytes)[0]) == float(np.ravel(joined.backward_bytes)[0]) == 4 * 4096 * rows
    assert float(np.ravel(tables[1]["tokens_turned"].forward_bytes)[0]) == 2 * 4 * 4096 * 1024
    whole, part = (float(np.ravel(table["sort_by_expert"].forward_bytes)[0]) for table in tables)
    assert whole == 4 * part


def test_heads_of_two_widths_are_padded_to_the_wider_or_both_to_one_that_kernels_like() -> None:
    model, cut = load_preset("deepseek-v3"), shard(tp=4)
    values, both = OperatorFeatures(), OperatorFeatures(padded_heads=True)
    seen = [
        {op.name: op for op in layer_table(model, cut, on, ("moe", None)).operators} for on in (FUSED, values, both)
    ]
    flops = [float(np.ravel(table["core_attention"].flops)[0]) for table in seen]
    assert flops[1] / flops[0] == pytest.approx(2 * 192 / (192 + 128))
    assert flops[2] / flops[1] == pytest.approx(256 / 192)
    assert "concat_and_pad" not in seen[0]
    moved = [float(np.ravel(table["concat_and_pad"].forward_bytes)[0]) for table in seen[1:]]
    assert moved[1] > 3 * moved[0]


def test_dropless_routing_synchronises_in_every_layer_and_capacity_never() -> None:
    # Megatron-LM core_v0.12.1 token_dispatcher.py: one wait for sizes, on one rank too; moe_utils.py permute: rows and
    # weights selected by a mask unless the permutation is fused.
    model, once = load_preset("deepseek-v3"), replace(FUSED, fused_operators=True)
    for degrees in ({"ep": 8}, {"tp": 8}, {}):
        assert layer_table(model, shard(**degrees), once, ("moe", None)).synchronisations == 1
        assert (
            layer_table(model, shard(**degrees), replace(once, grouped_gemm=False), ("moe", None)).synchronisations == 1
        )
        assert layer_table(model, shard(**degrees), FUSED, ("moe", None)).synchronisations == 3
    assert layer_table(model, shard(ep=8), FUSED, ("dense", None)).synchronisations == 0
    padded = OperatorFeatures(capacity_factor=1.0)
    assert layer_table(model, shard(ep=8), padded, ("moe", None)).synchronisations == 0


def test_gathered_tokens_are_selected_by_a_mask_whatever_is_fused() -> None:
    gathers = replace(shard(tp=8), gathers_tokens=np.array([True]))
    for on in (FUSED, replace(FUSED, fused_operators=True)):
        assert layer_table(load_preset("mixtral-8x7b"), gathers, on, ("moe", None)).synchronisations == 3


def test_a_replay_of_the_permutation_waits_for_its_selections_alone() -> None:
    model = load_preset("deepseek-v3")
    assert layer_table(model, shard(ep=8), FUSED, ("moe", None)).replayed_synchronisations == 2
    fused = replace(FUSED, fused_operators=True)
    assert layer_table(model, shard(ep=8), fused, ("moe", None)).replayed_synchronisations == 0


def test_the_output_head_communicates_as_any_product_cut_by_columns() -> None:
    # Megatron-LM tensor_parallel/layers.py: the input is gathered again behind its gradient, and that gradient is
    # scattered behind the weight's.
    model = load_preset("llama2-7b")
    head = head_table(model, shard(tp=8), FUSED)
    assert (counts(head, "gather"), counts(head, "scatter")) == ((1, 1), (0, 1))
    layer = layer_table(model, shard(tp=8), FUSED, ("dense", None))
    for name in ("gather", "regather", "gradient_scatter", "gradient_reduce"):
        mine, theirs = exchange(head, f"head_{name}"), exchange(layer, f"mlp_{name}")
        assert (mine.kind, mine.behind, float(mine.message_bytes[0])) == (
            theirs.kind,
            theirs.behind,
            float(theirs.message_bytes[0]),
        )


def test_the_loss_reduces_three_numbers_a_token() -> None:
    # Vocabulary-parallel cross-entropy: maximum, the target's logit and the sum of exponents, FP32.
    loss = exchange(head_table(load_preset("llama2-7b"), shard(tp=8), FUSED), "loss_reduce")
    assert float(loss.message_bytes[0]) == 4096 * 4
    assert loss.forward_count == 3


def test_the_embedding_is_scattered_and_its_gradient_gathered() -> None:
    table = embedding_table(load_preset("llama2-7b"), shard(tp=8))
    assert counts(table, "scatter") == (1, 0)
    assert counts(table, "gather") == (0, 1)
    assert counts(embedding_table(load_preset("llama2-7b"), shard()), "scatter") == (0, 0)
