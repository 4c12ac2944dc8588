"""Kinds of attention, optimizers and tuning as records: complete, and asked by what they say of themselves."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import numpy as np
import pytest

from autodeploy.costs.workload.attention_types import kind_of, shape_of
from autodeploy.costs.workload.kinds import ATTENTION, LAYERS, costs_of
from autodeploy.costs.workload.layers import layer_kinds, layer_table
from autodeploy.costs.workload.memory_choices import CHOICES, EVERYTHING
from autodeploy.costs.workload.operators import OperatorFeatures
from autodeploy.space.facts import facts_of
from autodeploy.specs.attention import ATTENTION_KINDS, kind_of_attention
from autodeploy.specs.model import NORMS_PER_LAYER, ModelSpec
from autodeploy.specs.model_rules import LAYER_KINDS, PARTS
from autodeploy.specs.presets import load_preset, preset_names
from autodeploy.specs.strategy import RecomputeModule, SwapModule
from autodeploy.specs.training import TrainingSpec
from autodeploy.specs.tuning import TARGETS, TUNINGS
from autodeploy.stack.memory_choices import RECOMPUTED, SWAPPED
from cost_models.hbm import OptimizerFormat, optimizer_moved_bytes, state_bytes
from cost_models.optimizers import ADAM, OPTIMIZERS, Optimizer
from tests.support.sharding import shard

ON = OperatorFeatures()


def test_every_kind_of_attention_has_costs_and_names_fields_of_a_model() -> None:
    assert ATTENTION.keys() == {kind.name for kind in ATTENTION_KINDS}
    assert LAYERS.keys() == {kind.name for kind in LAYER_KINDS}
    for part in (*ATTENTION_KINDS, *LAYER_KINDS, *PARTS):
        named = {part.field, *part.fields, *part.needs, *part.excludes} - {""}
        assert named <= ModelSpec.model_fields.keys(), part
    for kind in ATTENTION_KINDS:
        assert {field for field, _, _ in kind.sizes} <= ModelSpec.model_fields.keys()


def test_strategies_name_the_memory_choices_that_records_have() -> None:
    assert set(get_args(RecomputeModule)) == RECOMPUTED.keys()
    assert set(get_args(SwapModule)) == SWAPPED.keys()


def test_memory_choices_touch_what_layers_of_the_kind_have() -> None:
    adapters = replace(ON, lora_rank=8, lora_targets=TARGETS)
    plain = (
        replace(ON, flash_attention=False, weighted_activation=True),
        replace(ON, torch_modules=True, joins_heads=True),
    )
    ascend = replace(ON, copies_heads=True, joins_heads=True, casts_router=True, regathers_latents=True)
    rows = (
        *(("deepseek-v3", on) for on in (ON, adapters, ascend, *plain)),
        *(("qwen3-8b", on) for on in (replace(ON, slices_heads=True, keeps_gathered=True, copies_heads=True), *plain)),
        *(("longcat-flash", ON), ("qwen3-8b", adapters)),
    )
    tables = [
        layer_table(load_preset(name), shard(tp=2), on, kind)
        for name, on in rows
        for kind, _ in layer_kinds(load_preset(name))
    ]
    turning = replace(shard(tp=2, etp=2), turns_tokens=np.array([True]))
    tables += [
        layer_table(load_preset("deepseek-v3"), turning, ON, kind)
        for kind, _ in layer_kinds(load_preset("deepseek-v3"))
    ]
    tensors = {tensor.name for table in tables for tensor in table.tensors}
    operators = {op.name for table in tables for op in table.operators}
    exchanges = {exchange.name for table in tables for exchange in table.exchanges}
    for choice in CHOICES.values():
        assert set(choice.frees) <= tensors | {EVERYTHING}, choice.name
        assert set(choice.replays) <= operators | {EVERYTHING}, choice.name
        assert set(choice.replays_exchanges) <= exchanges | {EVERYTHING}, choice.name


@pytest.mark.parametrize("name", preset_names())
def test_a_rank_that_holds_all_has_the_parameters_that_the_record_counts(name: str) -> None:
    model = load_preset(name)
    for attention in {model.attention_type(layer) for layer in range(model.num_hidden_layers)}:
        layer = next(n for n in range(model.num_hidden_layers) if model.attention_type(n) == attention)
        if model.shares_index(layer):
            continue
        kind, record = kind_of(model, layer), kind_of_attention(model, attention)
        whole, cut = costs_of(model, kind).params(shape_of(model, kind), shard(), ON, kind)
        assert whole + float(np.max(cut)) == record.matrices(model, attention) + record.vectors(model, attention)
        assert model.vector_params_of(attention) == (
            NORMS_PER_LAYER[model.norm_layout] * model.hidden_size + record.vectors(model, attention)
        )


@pytest.mark.parametrize("name", ["qwen3-8b", "deepseek-v3.2", "kimi-linear-48b-a3b", "deepseek-v4-flash"])
def test_rules_know_the_kinds_and_facts_of_every_model(name: str) -> None:
    model = load_preset(name)
    facts = facts_of(*(model,), world=8, seq_length=4096, global_batch=8, node_ranks=8, tp_limit=8, features=set[str]())
    assert {kind.name for kind in ATTENTION_KINDS if facts[kind.name]} == model.attention_names
    for kind in ATTENTION_KINDS:
        for fact, (otherwise, of_model) in kind.facts.items():
            assert facts[fact] == (of_model(model) if kind.name in model.attention_names else otherwise)
    assert not any(facts[each.fact] for each in TUNINGS)


@pytest.mark.parametrize(("moments", "precision"), [(4.0, "bf16"), (0.0, "fp16"), (12.0, "fp32"), (4.0, "fp8")])
@pytest.mark.parametrize("feature", ["", "torch_fsdp2", "bf16_gradients"])
def test_states_follow_from_the_record_of_an_optimizer(
    monkeypatch: pytest.MonkeyPatch, moments: float, precision: str, feature: str
) -> None:
    monkeypatch.setitem(OPTIMIZERS, "own", Optimizer("own", moments))
    plain, own = (OptimizerFormat.of(frozenset({feature, name}), precision) for name in ("", "own"))
    assert own.moments == moments
    held = [float(state_bytes(4, distributed_optimizer=True, optimizer=form).total) for form in (plain, own)]
    assert held[0] - held[1] == pytest.approx((ADAM.moments - moments) / 4)
    moved = [float(optimizer_moved_bytes(4, optimizer=form)) for form in (plain, own)]
    assert moved[0] - moved[1] == pytest.approx(2 * (ADAM.moments - moments) / 4)


@pytest.mark.parametrize(
    ("training", "names"),
    [
        ({}, []),
        ({"kind": "sft"}, []),
        ({"kind": "sft", "lora": {"rank": 8}}, ["lora"]),
        ({"kind": "dpo", "lora": {"rank": 8}}, ["lora", "dpo"]),
    ],
)
def test_a_training_says_how_it_tunes(training: dict[str, object], names: list[str]) -> None:
    spec = TrainingSpec.model_validate({"seq_length": 4096, "global_batch_size": 8, **training})
    assert [each.name for each in spec.tunings] == names
    assert spec.in_part == (spec.adapters[0] > 0)
    assert spec.sample_tokens == 4096 * (2 if spec.has_reference else 1)
