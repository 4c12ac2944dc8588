"""Messages of an exchange by pass: what differs between them is priced apart, what does not is one number."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from autodeploy.costs.inputs.build_context import profile_of, spec_context
from autodeploy.costs.layers.layer_cost import layer_cost, layer_times
from autodeploy.costs.layers.unit_costs import layer_inputs
from autodeploy.costs.workload.layers import in_format
from autodeploy.costs.workload.operators import BACKWARD, FORWARD, RECOMPUTED, Exchange, group_of
from autodeploy.specs.spec import parse_spec
from tests.support.accounting.cases import candidates_of
from tests.support.accounting.ranks import Degrees

if TYPE_CHECKING:
    from autodeploy.costs.layers.exchanges import LayerInputs, OneExchange

CUT = Degrees(64, tp=2, pp=2, ep=16, cp=2, micro_batches=8, sequence_parallel=True)
BY_EXPERTS = Degrees(64, tp=2, pp=2, ep=16, etp=2, micro_batches=8, sequence_parallel=True)
# Exchanges of both passes in each of their groups.
BOTH_WAYS = [
    ("dispatch", CUT, "ep"),
    ("combine", CUT, "ep"),
    ("key_value_ring", CUT, "cp"),
    ("head_exchange", replace(CUT, ulysses=2), "cp"),
    ("expert_gather", BY_EXPERTS, "ep"),
    ("expert_scatter", BY_EXPERTS, "ep"),
]
each_both_ways = pytest.mark.parametrize(("name", "cut", "lane"), BOTH_WAYS, ids=[name for name, *_ in BOTH_WAYS])


def layer(cut: Degrees) -> LayerInputs:
    made = parse_spec(
        {
            "model": "qwen3-30b-a3b",
            "cluster": {"profile": "cloudmatrix-384", "num_npus": 32},
            "training": {"seq_length": 8192, "global_batch_size": 128},
            "search": {"target": "any"},
        }
    )
    context = spec_context(made, profile_of(made.cluster), frozenset({"flash_attention", "grouped_gemm"}))
    return next(iter(layer_inputs(context, candidates_of([cut]))))[0]


def named(inputs: LayerInputs, name: str) -> Exchange:
    return next(each for each in inputs.table.exchanges if each.name == name)


def changed(inputs: LayerInputs, name: str, **fields: Any) -> LayerInputs:
    exchanges = tuple(x._replace(**fields) if x.name == name else x for x in inputs.table.exchanges)
    return replace(inputs, table=replace(inputs.table, exchanges=exchanges))


def priced(inputs: LayerInputs, name: str) -> OneExchange:
    return next(each for each in layer_times(inputs).exchanged.each if each.exchange.name == name)


@each_both_ways
def test_a_pass_with_shorter_messages_alone_gets_shorter(name: str, cut: Degrees, lane: str) -> None:
    plain = layer(cut)
    half = changed(
        plain, name, message_bytes=named(plain, name).message_bytes / 2, backward_bytes=named(plain, name).message_bytes
    )
    before, after = priced(plain, name), priced(half, name)
    assert after.once_s[FORWARD] < before.once_s[FORWARD]
    assert after.once_s[BACKWARD] == before.once_s[BACKWARD]
    assert after.once_s[RECOMPUTED] == after.once_s[FORWARD], "a replay sends what the forward pass sent"
    times = layer_times(plain).exchanged, layer_times(half).exchanged
    saved = (before.once_s[FORWARD] - after.once_s[FORWARD]) * before.exchange.forward_count
    np.testing.assert_allclose(times[0].total_s(lane) - times[1].total_s(lane), saved, rtol=1e-9)
    for back in (False, True):
        assert times[0].launches(backward=back) == times[1].launches(backward=back)
        shown = [each.exposed[lane, back] for each in times]
        # Attention hides the ring whole; nothing hides the others'.
        assert (shown[0] == shown[1]) if back or name == "key_value_ring" else (shown[0] > shown[1])


@each_both_ways
def test_a_pass_that_is_said_to_send_as_much_costs_as_much(name: str, cut: Degrees, lane: str) -> None:
    plain = layer(cut)
    sizes = named(plain, name).message_bytes
    said = changed(
        plain, name, backward_bytes=sizes, recomputed_bytes=sizes, recomputed_count=named(plain, name).forward_count
    )
    one, other = layer_cost(plain), layer_cost(said)
    assert (one.forward.total_s, one.backward.total_s) == (other.forward.total_s, other.backward.total_s)
    assert {n: c.recompute_s for n, c in one.choices.items()} == {n: c.recompute_s for n, c in other.choices.items()}
    np.testing.assert_allclose(getattr(one, f"{lane}_total_s"), getattr(other, f"{lane}_total_s"), rtol=1e-12)


@pytest.mark.parametrize(
    ("name", "choice"),
    [
        ("dispatch", "permute"),
        ("expert_gather", "permute"),
        ("combine", "moe"),
        ("expert_scatter", "moe"),
        ("attention_gather", "full"),
    ],
)
def test_a_replay_sends_its_own_messages(name: str, choice: str) -> None:
    plain = layer(BY_EXPERTS)
    none, twice = changed(plain, name, recomputed_count=0.0), changed(plain, name, recomputed_count=2.0)
    seconds = [layer_cost(inputs).choices[choice].recompute_s for inputs in (none, plain, twice)]
    once = priced(plain, name).once_s[FORWARD]
    np.testing.assert_allclose(np.diff(np.ravel(seconds)), np.ravel([once, once]), rtol=1e-9)
    for inputs in (none, twice):
        costs = layer_cost(plain), layer_cost(inputs)
        assert costs[0].alone_s == costs[1].alone_s, "the passes themselves send what they sent"


@each_both_ways
def test_an_exchange_that_runs_more_often_or_wider_does_so_in_every_pass(name: str, cut: Degrees, lane: str) -> None:
    given = named(layer(cut), name)
    apart = given._replace(backward_bytes=given.message_bytes * 2, recomputed_bytes=given.message_bytes * 3)
    for one in (given, apart, apart._replace(recomputed_count=5.0)):
        assert one.often(3.0).counts == tuple(3.0 * count for count in one.counts)
        assert one.wider(2.0).sizes == tuple(2.0 * size for size in one.sizes)
        assert sum(count for _, count in one.sent) == one.forward_count + one.backward_count


@pytest.mark.parametrize("carries", ["tokens", "weights", "probabilities", "counts", "sums"])
def test_only_numbers_of_the_run_s_format_get_wider_with_it(carries: Any) -> None:
    table = changed(layer(CUT), "dispatch", carries=carries).table
    wide = next(each for each in in_format(table, 4.0).exchanges if each.name == "dispatch")
    before = next(each for each in table.exchanges if each.name == "dispatch")
    assert wide.message_bytes / before.message_bytes == (2.0 if carries in {"tokens", "weights"} else 1.0)


def test_nothing_of_the_busiest_rank_is_added_to_what_carries_no_tokens() -> None:
    plain = layer(CUT)
    sums = changed(plain, "dispatch", carries="sums")
    assert plain.uneven
    for inputs, even in ((plain, False), (sums, True)):
        one = priced(inputs, "dispatch")
        assert (one.once_s[FORWARD] == one.even_s[FORWARD]) == even
    assert {group_of(each) for each in plain.table.exchanges} == {"tp", "ep", "etp", "ring", "ulysses"}
