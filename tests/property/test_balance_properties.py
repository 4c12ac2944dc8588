"""Mechanisms that level the load: they agree with the accounting, lose no token and never add time they don't state."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from autodeploy.costs.inputs.build_context import spec_context
from autodeploy.costs.inputs.expert_balance import ExpertBalance, migrated_balance, routed_balance
from autodeploy.costs.steps.estimate import template_layers
from autodeploy.costs.sweep.sweep import sweep
from autodeploy.specs.training import TrainingSpec
from cost_models.expert_migration import greedy_placement
from cost_models.load_balance import contiguous, hot_share, loads_of_ranks, series_of_factor, without_hottest
from tests.support.accounting.cases import LATENT, MOE, Case, candidates_of, case_of, cluster, spec_of
from tests.support.accounting.ranks import Degrees
from tests.support.accounting.run import Levelled
from tests.support.accounting.step import account
from tests.support.estimates import estimates
from tests.support.examples import examples

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autodeploy.costs.steps.estimate import Estimate

EXACT = 1e-9
ON = frozenset({"flash_attention", "grouped_gemm"})
HISTOGRAM = {"256": 50.0, "1024": 30.0, "4096": 20.0}


def estimated(case: Case, strategies: Sequence[Degrees], layers: int = 8) -> list[Estimate]:
    """Of each strategy with its layers spread evenly."""
    placed = []
    for d in strategies:
        chunks = template_layers((layers,), d.pp, d.vpp).sum(axis=-1).tolist()
        assert sum(map(sum, chunks)) == layers
        placed.append((d, chunks, {}))
    return estimates(case.context, placed)


def balances(case: Case, d: Degrees) -> tuple[ExpertBalance, ExpertBalance]:
    """What migration and what copying leaves, of the one candidate."""
    groups = case.context.expert_ranks(candidates_of([d]))
    flat = np.array([d.etp == 1 and d.dispatcher in {"alltoall", "alltoall_seq"}])
    return migrated_balance(case.context.loads, groups), routed_balance(case.context.loads, groups, flat)


def levelled(balance: ExpertBalance) -> Levelled:
    return Levelled(
        compute=float(balance.compute[0]),
        arrives=float(balance.exchange[0]),
        peak=float(balance.peak[0]),
        home=1.0 - float(balance.mean_exchange[0]),
        moved=float(balance.moved_share[0]),
        hot=float(balance.hot_experts[0]),
    )


DEGREES = [
    Degrees(32, tp=2, ep=8, etp=1, micro_batches=4, sequence_parallel=True),
    Degrees(32, tp=2, ep=4, etp=2, micro_batches=4, sequence_parallel=True, dispatcher="alltoall_seq"),
    Degrees(32, tp=1, pp=2, ep=16, micro_batches=6),
    Degrees(32, tp=1, pp=2, vpp=2, ep=8, micro_batches=8, schedule="adaptive_pipe"),
    Degrees(32, tp=2, pp=1, ep=16, etp=1, micro_batches=4, sequence_parallel=True, dispatcher="hierarchical"),
]


@pytest.mark.parametrize("model", [MOE, LATENT], ids=["moe", "latent"])
@pytest.mark.parametrize("feature", ["expert_migration", "mutual_routing"])
@pytest.mark.parametrize("imbalance", [1.2, 2.5])
def test_levelled_experts_equal_the_accounting(model: dict[str, Any], feature: str, imbalance: float) -> None:
    """Layers are levelled or left as they are, whichever is faster: the estimate is one of the two accounts."""
    case = case_of(model, cluster("nodes"), ON | {feature}, imbalance=imbalance, peak=3.0, network=0.3)
    for d, found in zip(DEGREES, estimated(case, DEGREES), strict=True):
        migrated, routed = balances(case, d)
        chunks = template_layers((8,), d.pp, d.vpp).sum(axis=-1).tolist()
        changed = replace(case.run, levelled=levelled(migrated if feature == "expert_migration" else routed))
        accounts = [account(run, d, case.machine, chunks) for run in (case.run, changed)]
        times = [a.step_s for a in accounts]
        assert any(found.step_time_s == pytest.approx(step_s, rel=EXACT) for step_s in times), (d, times)
        assert found.step_time_s <= times[0] * (1 + EXACT)
        assert sum(found.breakdown.values()) == pytest.approx(found.step_time_s, rel=1e-6)


@pytest.mark.parametrize("rearranged", [False, True])
def test_packed_samples_equal_the_accounting(rearranged: bool) -> None:
    on = ON | ({"sample_rearrangement"} if rearranged else set())
    case = with_histogram(case_of(MOE, cluster("nodes"), on))
    assert case.context.packs is not None
    table = sweep(candidates_of(DEGREES), case.context)
    for row, (d, found) in enumerate(zip(DEGREES, estimated(case, DEGREES), strict=True)):
        factor = float(case.context.exchange_features(candidates_of([d])).attention_imbalance[0])
        run = replace(case.run, slow_attention=factor, keys=case.context.packs.keys)
        chunks = template_layers((8,), d.pp, d.vpp).sum(axis=-1).tolist()
        assert found.step_time_s == pytest.approx(account(run, d, case.machine, chunks).step_s, rel=EXACT)
        assert table.bound_s[row] <= found.step_time_s * (1 + EXACT)


def with_histogram(case: Case) -> Case:
    training = TrainingSpec.model_validate(
        {"seq_length": 4096, "global_batch_size": 64, "sequence_length_histogram": HISTOGRAM, "routing_imbalance": 1.0}
    )
    where = cluster("nodes")
    spec = spec_of(dict(case.run.model), where, training)
    return replace(case, context=spec_context(spec, where.profile, case.context.features))


@settings(max_examples=examples(14), phases=[Phase.generate])
@given(
    st.sampled_from(["expert_migration", "mutual_routing", "sample_rearrangement", "capacity_drop"]),
    st.sampled_from([1.0, 1.1, 1.5, 3.0]),
    st.sampled_from([0.01, 0.1, 1.0, 10.0]),
)
def test_a_feature_that_levels_never_adds_exposed_time(feature: str, imbalance: float, network: float) -> None:
    plain, on = (
        case_of(MOE, cluster("nodes"), features, imbalance=imbalance, peak=3.0, network=network)
        for features in (ON, ON | {feature})
    )
    if feature == "sample_rearrangement":
        plain, on = with_histogram(plain), with_histogram(on)
    for before, after in zip(estimated(plain, DEGREES), estimated(on, DEGREES), strict=True):
        assert after.step_time_s <= before.step_time_s * (1 + EXACT)
        assert after.allocator_bytes.max() <= before.allocator_bytes.max() * (1 + EXACT)
        waits = ("exposed_ep_s", "imbalance_s")
        small = EXACT * before.step_time_s
        assert sum(after.breakdown[w] for w in waits) <= sum(before.breakdown[w] for w in waits) + small


@settings(max_examples=examples(20), phases=[Phase.generate])
@given(st.floats(1.0, 4.0), st.sampled_from([(1, 4), (1, 8), (2, 16), (4, 32)]), st.integers(0, 3))
def test_tokens_are_conserved_through_placement_and_copies(factor: float, where: tuple[int, int], hottest: int) -> None:
    """What ranks receive adds up to what the router sends, wherever experts are, and hot experts' tokens stay home."""
    nodes, ranks = where
    loads = series_of_factor(factor, 64, ranks, 0.1, 50).loads
    sent = loads.sum(axis=-1)
    for placement in (contiguous(loads.shape[1], 64, ranks), greedy_placement(loads[0], nodes, ranks)):
        received = loads_of_ranks(loads, placement, ranks)
        np.testing.assert_allclose(received.sum(axis=-1), sent, rtol=1e-12)
        cold = loads_of_ranks(without_hottest(loads, hottest), placement, ranks).sum(axis=-1)
        np.testing.assert_allclose(cold + hot_share(loads, hottest) * sent, sent, rtol=1e-12)


@pytest.mark.parametrize("imbalance", [1.0, 1.05, 1.3, 2.0, 5.0])
def test_migration_is_never_worse_than_none_by_more_than_its_cost(imbalance: float) -> None:
    strategies = [Degrees(32, ep=ep, micro_batches=4) for ep in (2, 4, 8, 16)]
    off, on = (
        estimated(case_of(MOE, cluster("nodes"), f, imbalance=imbalance, peak=5.0), strategies)
        for f in (ON, ON | {"expert_migration"})
    )
    for without, migrating in zip(off, on, strict=True):
        assert migrating.step_time_s <= without.step_time_s * (1 + EXACT)
        assert migrating.breakdown["imbalance_s"] <= without.breakdown["imbalance_s"] * (1 + EXACT)
