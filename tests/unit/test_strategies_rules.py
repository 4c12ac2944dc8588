"""Legality rules as data: well formed, sourced, and each of them decides something."""

from __future__ import annotations

from dataclasses import fields, replace
from functools import cache
from itertools import product
from typing import Any

import numpy as np
import pytest

from autodeploy.space.candidates import CP_ALGOS, DISPATCHERS, SCHEDULES, Candidates
from autodeploy.space.facts import facts_of
from autodeploy.space.rules import COLUMNS, WORDS, Rule, broken_rules, judge, load_rules, values_of
from autodeploy.specs.presets import load_preset
from autodeploy.stack.expression import evaluate, names
from autodeploy.stack.features import FEATURES
from autodeploy.stack.releases import Release, release_of, releases

RULES = {rule.name: rule for rule in load_rules()}
TARGETS = ("mindspeed-llm", "megatron", "mindformers")
WORLD, BATCH, SEQ = 192, 96, 3072

RECOVERY = {"high_availability", "worker_reboot", "elastic_training"}  # narrower than any other feature


def facts(
    model: str = "deepseek-v3",
    *,
    world: int = WORLD,
    features: set[str] | None = None,
    asked: frozenset[str] = frozenset(),
    release: Release | None = None,
    **changed: Any,
) -> dict[str, Any]:
    """Facts of a run on nodes of eight ranks, every feature on."""
    found = facts_of(
        load_preset(model),
        world=world,
        seq_length=SEQ,
        global_batch=BATCH,
        node_ranks=8,
        tp_limit=8,
        features=set(FEATURES) - RECOVERY if features is None else features,
        asked=asked,
        release=release,
    )
    return {**found, **changed}


@cache
def arbitrary(count: int = 4000) -> Candidates:
    """Legal and illegal candidates: every axis drawn on its own, dp sometimes from the others."""
    draw = np.random.default_rng(7)

    def pick(*values: int) -> Any:
        return draw.choice(np.asarray(values), count)

    tp, pp, cp = pick(1, 2, 3, 4, 8, 16), pick(1, 2, 3, 4, 8, 64), pick(1, 1, 2, 3, 4, 5, 8)
    dp = np.where(draw.random(count) < 0.7, WORLD // (tp * pp * cp), pick(0, 1, 2, 5))
    mbs = pick(1, 2, 4, 5)
    even = BATCH // np.maximum(1, mbs * dp)
    return Candidates(
        tp=tp,
        pp=pp,
        vpp=pick(1, 1, 2, 3),
        cp=cp,
        cp_algo=pick(*range(len(CP_ALGOS))),
        ulysses=np.minimum(cp, pick(1, 2, 3, 4, 8)),
        ep=pick(1, 2, 3, 8, 32, 64),
        etp=np.where(draw.random(count) < 0.5, tp, pick(1, 2, 3)),
        dp=dp,
        micro_batch_size=mbs,
        micro_batches=np.where(draw.random(count) < 0.7, even, pick(0, 1, 7, 16, 64)),
        schedule=pick(*range(len(SCHEDULES))),
        moe_dispatcher=pick(*range(len(DISPATCHERS))),
        sequence_parallel=draw.random(count) < 0.5,
        reuse_fp32_param=draw.random(count) < 0.5,
        swap_optimizer=draw.random(count) < 0.5,
        virtual_optimizer=draw.random(count) < 0.5,
        keep_gathered=draw.random(count) < 0.1,
        dp_replicate=np.where(draw.random(count) < 0.9, 1, pick(2, 3, 4)),
        tp_pp_dp_mapping=draw.random(count) < 0.2,
    )


def one(**axes: int | bool | str) -> Candidates:
    """One legal candidate of DeepSeek-V3 on 192 ranks, with some axes changed."""
    chosen: dict[str, Any] = {
        **{"tp": 2, "pp": 4, "vpp": 1, "cp": 1, "ulysses": 1, "ep": 8, "etp": 1, "dp": 24},
        **{
            "micro_batch_size": 1,
            "micro_batches": 4,
            "schedule": "1f1b",
            "cp_algo": "ring",
            "moe_dispatcher": "alltoall",
        },
        **{"sequence_parallel": True, "reuse_fp32_param": False, "swap_optimizer": False, "virtual_optimizer": False},
        **{"keep_gathered": False, "dp_replicate": 1, "tp_pp_dp_mapping": False},
        **axes,
    }
    for axis, values in (("schedule", SCHEDULES), ("cp_algo", CP_ALGOS), ("moe_dispatcher", DISPATCHERS)):
        chosen[axis] = values.index(chosen[axis])
    return Candidates(**{f.name: np.asarray([chosen[f.name]]) for f in fields(Candidates)})


def broken(candidate: Candidates, target: str = "any", **changed: Any) -> set[str]:
    return {rule.name for rule in broken_rules(candidate, facts(release=released(target), **changed), target)[0]}


def released(target: str) -> Release | None:
    """The release of a target: Megatron-LM alone, the others on Ascend."""
    return None if target == "any" else release_of(target, "nvidia" if target == "megatron" else "huawei")


def test_rule_names_are_unique() -> None:
    assert len(RULES) == len(load_rules())


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_every_rule_has_a_text_a_source_and_known_targets(rule: Rule) -> None:
    assert rule.text.strip()
    assert rule.source.strip()
    assert rule.targets
    components = {name for release in releases() for name in release.components}
    assert set(rule.targets) <= {"arithmetic", "released", *components, *(release.name for release in releases())}
    assert rule.kind in {"refused", "later", "unsound", "planned", "costly", "advice"}  # the head of rules.yaml


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_every_rule_names_only_known_names(rule: Rule) -> None:
    known = {*WORDS, *COLUMNS, *facts(), *(f.name for f in fields(Candidates))}
    assert names(rule.require) <= known
    if rule.when:
        assert names(rule.when) <= known


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_every_rule_accepts_something_and_rejects_something(rule: Rule) -> None:
    accepts = rejects = applies = False
    shares = release_of("mindspeed-llm", "huawei")
    few = release_of("mindformers", "huawei"), release_of("megatron", "huawei", "megatron-mindspeed-2.0.0"), shares
    for model, release in product(("deepseek-v3", "llama2-70b", "qwen3-0.6b"), (None, *few)):
        strict, features = release is not None, set(FEATURES) if release is not None else set()
        features -= {"fsdp"} if release in {shares, few[1]} else {"coc"} if release is few[0] else set()
        numbers = {
            "exact_numerics": strict,
            "deterministic": strict,
            "fp16": strict,
            "shards_states": release in {None, shares},
            "trains_adapters": release in few[:2],
            "updates_matrices": release is None,
            "compares_pairs": strict,
            "launches_training": not strict,
            "predictors_apart": strict,
        }
        asked = frozenset(features)
        attention = {"windowed": strict, "sparse_attention": strict, "shares_index": strict}
        attention |= {"linear_heads": 12 if strict else 0, "shortcut": strict, "zero_experts": 36}
        attention |= {
            "compressed": strict,
            "packed": strict,
            "output_groups": 8,
            "entry_tokens": 128,
            "hashed_layers": 3,
        }
        found = facts(model, features=features, asked=asked, release=release, **attention, **numbers)
        values = values_of(arbitrary(), found)
        obeyed = np.broadcast_to(rule.mask(values), (len(arbitrary()),))
        accepts, rejects = accepts or bool(obeyed.any()), rejects or bool((~obeyed).any())
        applies = applies or not rule.when or bool(np.any(evaluate(rule.when, values) & obeyed))
    assert accepts
    assert rejects
    assert applies, "where the rule applies, something obeys it"


def test_the_example_is_legal_everywhere() -> None:
    for target in (*TARGETS, "any"):
        assert broken(one(), target) == set()


def test_launch_rules_are_off_under_any() -> None:
    launch_only = {name for name, rule in RULES.items() if "arithmetic" not in rule.targets}
    assert launch_only
    rejected = judge(arbitrary(), facts(), "any").rejected
    assert not launch_only & set(rejected)


# One clear violation for each rule that has a number in its source; axes are changed on the legal example.
@pytest.mark.parametrize(
    ("name", "axes"),
    [
        ("world_divides", {"dp": 23}),
        ("expert_world_divides", {"ep": 256}),
        ("heads_divide_by_tp", {"tp": 3, "dp": 16}),
        ("sequence_divides_by_cp", {"cp": 5}),
        ("sequence_divides_by_cp_ring", {"cp": 1024}),
        ("heads_divide_for_hybrid", {"cp": 2, "cp_algo": "hybrid", "ulysses": 2, "dp": 12}),
        ("sequence_divides_by_tp", {"tp": 2048}),
        ("experts_divide_by_ep", {"ep": 3}),
        ("etp_is_1_or_tp", {"etp": 4}),
        ("batch_divides", {"micro_batches": 5}),
        ("stages_have_layers", {"pp": 64}),
        ("chunks_need_stages", {"pp": 1, "vpp": 2, "schedule": "interleaved", "dp": 96}),
        ("schedule_fits_vpp", {"vpp": 2}),
        ("schedule_fits_vpp", {"schedule": "interleaved"}),
        ("pairs_have_a_steady_phase", {"schedule": "adaptive_pipe", "vpp": 2}),
        ("dualpipev_micro_batches", {"schedule": "dualpipev", "vpp": 2}),
        ("dualpipe_micro_batches", {"schedule": "dualpipe", "vpp": 2}),
        ("hierarchical_needs_nodes", {"moe_dispatcher": "hierarchical"}),
        ("pairing_needs_exchange", {"schedule": "adaptive_pipe", "vpp": 2, "ep": 1}),
        ("folding_needs_exchange", {"schedule": "dualpipev", "vpp": 2, "ep": 1}),
        ("dualpipev_needs_stages", {"schedule": "dualpipev", "vpp": 2, "pp": 1, "dp": 96}),
        ("reuse_not_with_swap", {"reuse_fp32_param": True, "swap_optimizer": True}),
        ("one_optimizer_memory", {"virtual_optimizer": True, "swap_optimizer": True}),
    ],
)
def test_arithmetic_rule_binds_under_any(name: str, axes: dict[str, Any]) -> None:
    assert name in broken(one(**axes))


def test_numerics_and_determinism_reject_by_name_and_count() -> None:
    # Context parallelism reorders sums; a scatter-add by index has no order.
    split, gathered = one(cp=2, dp=12, micro_batches=8), one(moe_dispatcher="allgather")
    assert "exact_numerics_keep_sequences_whole" not in broken(split)
    assert "exact_numerics_keep_sequences_whole" in broken(split, exact_numerics=True)
    assert "deterministic_dispatch" not in broken(gathered)
    assert "deterministic_dispatch" in broken(gathered, deterministic=True)
    strict = facts(exact_numerics=True, deterministic=True, features=set())
    assert judge(split, strict, "any").rejected == {"exact_numerics_keep_sequences_whole": 1}
    assert judge(gathered, strict, "any").rejected == {"deterministic_dispatch": 1}


def test_optimizer_formats_exclude_what_they_do_away_with() -> None:
    on, off = {"o2_optimizer", "quantized_optimizer"}, set[str]()
    # The O2 optimizer keeps the FP32 master, in which weights may live (MindSpeed-LLM tests/st, qwen3_8b_tp2_pp4_vpp2).
    assert not broken(one(reuse_fp32_param=True), features=on | {"o2_optimizer"}) - broken(one(), features=on)
    swapped = one(swap_optimizer=True)
    assert "swap_not_with_quantized" in broken(swapped, "mindspeed-llm", features=on)
    assert "swap_not_with_quantized" not in broken(swapped, "mindspeed-llm", features=off)


@pytest.mark.parametrize(
    ("target", "name", "axes"),
    [
        ("mindspeed-llm", "fb_overlap_needs_whole_experts", {"schedule": "adaptive_pipe", "vpp": 2, "etp": 2}),
        (
            "mindspeed-llm",
            "fb_overlap_needs_alltoall",
            {"schedule": "adaptive_pipe", "vpp": 2, "moe_dispatcher": "allgather"},
        ),
        ("mindspeed-llm", "dispatcher_is_launched", {"moe_dispatcher": "hierarchical", "ep": 16}),
        ("mindspeed-llm", "dualpipev_not_with_cp", {"schedule": "dualpipev", "vpp": 2, "cp": 2, "dp": 12}),
        ("mindspeed-llm", "fb_overlap_fills_chunks", {"schedule": "adaptive_pipe", "vpp": 31, "pp": 2}),
        ("mindspeed-llm", "dense_layers_leave_experts", {"schedule": "adaptive_pipe", "vpp": 2, "pp": 16}),
        ("mindspeed-llm", "dense_layers_stay_first", {"schedule": "adaptive_pipe", "vpp": 4, "pp": 8}),
        ("mindspeed-llm", "dualpipev_two_rounds", {"schedule": "dualpipev", "vpp": 2}),
        ("mindspeed-llm", "adaptive_pipe_groups_micro_batches", {"schedule": "adaptive_pipe", "vpp": 2}),
        (
            "mindspeed-llm",
            "fb_overlap_needs_alltoall",
            {"schedule": "dualpipev", "vpp": 2, "moe_dispatcher": "allgather"},
        ),
        ("mindspeed-llm", "interleaving_fills_a_group", {"schedule": "interleaved", "vpp": 2, "pp": 6}),
        ("mindformers", "interleaving_groups_micro_batches", {"schedule": "interleaved", "vpp": 2, "pp": 3}),
        ("megatron", "interleaving_fills_a_group", {"schedule": "interleaved", "vpp": 2, "micro_batches": 3}),
        ("mindspeed-llm", "schedule_is_launched", {"schedule": "dualpipe", "vpp": 2}),
        ("mindspeed-llm", "tp_inside_node", {"tp": 16, "dp": 3}),
        ("mindformers", "tp_inside_node", {"tp": 16, "dp": 3}),
        ("megatron", "schedule_is_launched", {"schedule": "dualpipev", "vpp": 2}),
        ("megatron", "dispatcher_is_launched", {"moe_dispatcher": "alltoall_seq"}),
        ("megatron", "optimizer_memory_is_launched", {"swap_optimizer": True}),
        ("megatron", "optimizer_memory_is_launched", {"virtual_optimizer": True}),
        ("mindformers", "mindformers_micro_batches", {"micro_batches": 2}),
        ("mindformers", "schedule_is_launched", {"schedule": "adaptive_pipe", "vpp": 2}),
        ("mindformers", "optimizer_memory_is_launched", {"reuse_fp32_param": True}),
    ],
)
def test_launch_rule_binds_its_target_only(target: str, name: str, axes: dict[str, Any]) -> None:
    assert name in broken(one(**axes), target)
    assert name not in broken(one(**axes), "any")


def test_no_word_of_the_rules_is_also_an_axis_or_a_fact() -> None:
    assert not set(WORDS) & {f.name for f in fields(Candidates)}
    assert not COLUMNS & {*WORDS, *facts(), *(f.name for f in fields(Candidates))}
    assert not set(WORDS) & set(facts())


def test_algorithms_have_words_of_their_own_in_rules() -> None:
    assert {name: WORDS[f"{name}_cp"] for name in CP_ALGOS} == {name: n for n, name in enumerate(CP_ALGOS)}
    used = {word for rule in RULES.values() for word in names(rule.require) | names(rule.when or "True")}
    assert {"ulysses_cp", "hybrid_cp"} <= used


def test_ulysses_gives_each_rank_whole_heads() -> None:
    # MindSpeed: a % (tp * cp) == 0; 128 heads over tp 2 x cp 3 are not whole.
    assert "heads_divide_for_ulysses" in broken(one(cp=3, cp_algo="ulysses", ulysses=3, dp=8))


def test_ulysses_needs_no_zigzag_blocks() -> None:
    # Ring: sequence % (2 cp) == 0; Ulysses: sequence % cp == 0. 3072 = 1024 x 3.
    assert "sequence_divides_by_cp_ring" not in broken(one(cp=1024, cp_algo="ulysses", ulysses=1024))


def test_adaptive_pipe_runs_with_tensor_parallelism_and_whole_experts() -> None:
    # DeepSeek-V3 scripts of MindSpeed-LLM: TP2 on A3, TP4 on A2 with --moe-fb-overlap; no rule asks for tp 1.
    candidate = one(schedule="adaptive_pipe", vpp=2, micro_batches=8, dp=24)
    on = set(FEATURES) - {"fsdp"} - RECOVERY
    assert broken(candidate, "mindspeed-llm", global_batch=192, features=on) == set()


def test_sharded_parameters_need_passes_alone_and_a_copy_of_their_own() -> None:
    paired = one(schedule="adaptive_pipe", vpp=2, micro_batches=8, dp=24)
    for on in ({"fsdp"}, set[str]()):
        assert ("sharded_parameters_not_paired" in broken(paired, features=on)) is bool(on)
        assert ("sharded_parameters_not_reused" in broken(one(reuse_fp32_param=True), features=on)) is bool(on)
    assert not {"sharded_parameters_not_paired", "sharded_parameters_not_reused"} & broken(one(), features={"fsdp"})


def test_megatron_takes_micro_batches_in_any_number_from_a_group_on() -> None:
    # get_schedule_table: groups of N >= pp with a last one of at least pp; MindSpeed's fb-overlap raises instead.
    odd = one(schedule="interleaved", vpp=2, micro_batches=10, dp=24)
    paired = one(schedule="adaptive_pipe", vpp=2, micro_batches=10, dp=24)
    assert broken(odd, "mindspeed-llm", global_batch=240) == set()
    assert "adaptive_pipe_whole_groups" in broken(paired, "mindspeed-llm", global_batch=240)
    assert broken(odd, "megatron", global_batch=240) == set()
    assert broken(odd, "any", global_batch=240) == set()


def test_layers_need_not_divide_by_stages() -> None:
    # 61 layers over 16 stages is the normal case: placement is free.
    assert broken(one(pp=16, dp=6, micro_batches=16, ep=4)) == set()


def test_dense_models_have_no_expert_parallelism() -> None:
    dense = one(ep=1, etp=1)
    assert broken(dense, "mindspeed-llm", model="llama2-70b") == set()
    assert "ep_needs_experts" in broken(one(ep=8), "any", model="llama2-70b")


def test_key_value_heads_match_tp_either_way() -> None:
    # 8 key-value heads: tp 4 divides them, 16 is divided by them, 3 is neither; latent attention has none to divide.
    rule = RULES["kv_heads_match_tp"]
    values = {"kv_heads": 8, "own_keys": True, "tp": np.array([4, 16, 3])}
    assert rule.mask(values).tolist() == [True, True, False]
    assert rule.mask({**values, "own_keys": False}).tolist() == [True, True, True]


def test_rejects_count_each_candidate_once_under_the_first_rule() -> None:
    for target in (*TARGETS, "any"):
        verdict = judge(arbitrary(), facts(release=released(target)), target)
        assert int(verdict.legal.sum()) + sum(verdict.rejected.values()) == len(arbitrary())


def test_a_candidate_is_legal_exactly_when_it_breaks_no_rule() -> None:
    some = arbitrary().take(slice(0, 300))
    for target in TARGETS:
        here = facts(release=released(target))
        legal = judge(some, here, target).legal
        assert legal.tolist() == [not rules for rules in broken_rules(some, here, target)]


def test_judging_one_candidate_is_judging_it_among_others() -> None:
    here = facts(release=released("mindspeed-llm"))
    legal = judge(arbitrary(), here, "mindspeed-llm").legal
    for index in range(0, 400, 13):
        alone = judge(arbitrary().take(slice(index, index + 1)), here, "mindspeed-llm")
        assert bool(alone.legal[0]) == bool(legal[index])


def test_a_target_only_removes_candidates() -> None:
    free = judge(arbitrary(), facts(), "any").legal
    for target in TARGETS:
        assert not np.any(judge(arbitrary(), facts(release=released(target)), target).legal & ~free)


def test_an_empty_batch_is_judged() -> None:
    verdict = judge(arbitrary().take(slice(0, 0)), facts(), "any")
    assert len(verdict.legal) == 0
    assert verdict.rejected == {}


def test_replaced_axes_change_the_verdict_alone() -> None:
    before = one()
    assert broken(replace(before, dp=np.asarray([23]))) == {"world_divides", "batch_divides"}


def test_embedding_and_head_may_have_a_chunk_of_their_own() -> None:
    rule = next(rule for rule in load_rules() if rule.name == "stages_have_layers")
    layers = facts("llama2-70b", world=16, features=set())  # 80 of them
    assert [bool(rule.mask({**layers, "pp": 1, "vpp": chunks})) for chunks in (80, 82, 83)] == [True, True, False]


def test_high_availability_needs_a_second_replica_of_every_layer() -> None:
    """tft_replica_optimizer.py: the data-parallel sizes of dense layers and of experts divide by the copies, two."""
    on = {"high_availability"}
    named = {"replicas_share_states", "expert_replicas_share_states", "replicas_stay_on_the_device"}
    two = broken(one(dp=24), "mindspeed-llm", global_batch=192, features=on)
    assert not two & named - {"expert_replicas_share_states"}
    assert "replicas_share_states" in broken(one(dp=1), "mindspeed-llm", features=on)
    assert "replicas_stay_on_the_device" in broken(one(swap_optimizer=True), "mindspeed-llm", features=on)
    assert not named & broken(one(dp=1, swap_optimizer=True), "mindspeed-llm", features=set())


def test_elastic_training_has_neither_experts_nor_cuts_of_the_sequence() -> None:
    on = {"high_availability", "elastic_training"}
    assert "elastic_training_has_plain_replicas" in broken(one(ep=8), "mindspeed-llm", features=on)
    assert "elastic_training_has_plain_replicas" not in broken(one(ep=1), "mindspeed-llm", features=on)
    assert "elastic_training_needs_sharded_optimizer" in broken(
        one(ep=1, reuse_fp32_param=True), "mindspeed-llm", features=on
    )
