"""What a stack asks of the host: causes stated in its document, seconds that follow, and advice that changes them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from autodeploy.analysis.what_if.improve import host_of, neighbours
from autodeploy.calibration.record_prediction import measured_step_s, predict_record
from autodeploy.calibration.shipped.tables import shipped_records
from autodeploy.costs.inputs.build_context import profile_of, spec_context
from autodeploy.costs.layers.layer_cost import launches
from autodeploy.costs.prediction_spread import coverage, nearest_record, spread_of
from autodeploy.costs.steps.scenarios import CORE_RANGE, host_range, times_of_host
from autodeploy.costs.workload.layers import layer_table
from autodeploy.costs.workload.operators import OperatorFeatures
from autodeploy.costs.workload.sparse_attention import row_bytes
from autodeploy.formats.import_document import import_document
from autodeploy.kit.errors import SpecError
from autodeploy.search.planner import estimate, launch_rules, predict, prepare
from autodeploy.search.ranking.operator_report import lane_report
from autodeploy.specs.presets import load_preset
from autodeploy.specs.reading import read_spec_document
from autodeploy.specs.software import SoftwareSpec, software_faults
from autodeploy.stack.host import HostSoftware
from autodeploy.stack.software import Run, resolved, shipped_stacks, stack_of_document
from cost_models.host_bound import issue_s, slowest_of
from cost_models.host_optimizer import LINK_BYTES, MOVED_BYTES, THREAD_S, host_adam_s
from tests.support.sharding import shard
from tests.unit.test_rl_improve import launched

LATE = HostSoftware(changing_shapes=True, new_shape_s=2e-4)


# Two threads in series.
@pytest.mark.parametrize("new", [0.0, 3e-5, 4e-4])
def test_two_stages_work_at_the_pace_of_the_slower_one(new: float) -> None:
    python = 1e-5
    alone, first, second = (float(issue_s(python, new, level)) for level in (0, 1, 2))
    assert second <= first <= alone
    assert first >= max(python, new)
    assert second == pytest.approx(max(python, 0.5 * python + new))


def test_a_shape_that_was_seen_costs_nothing_at_any_level_with_a_queue() -> None:
    assert float(issue_s(1e-5, 0.0, 1)) == float(issue_s(1e-5, 0.0, 2)) == 1e-5


def test_more_hosts_wait_longer_for_the_slowest() -> None:
    waits = slowest_of(np.array([1.0, 8.0, 64.0, 512.0]), 0.1)
    assert waits[0] == 1.0
    assert (np.diff(waits) > 0.0).all()
    assert (slowest_of(np.array([8.0]), 0.0) == 1.0).all()


# Operators that are issued.
def calls(on: OperatorFeatures, ep: int, *, backward: bool) -> float:
    table = layer_table(load_preset("qwen3-30b-a3b"), shard(ep=ep), on, ("moe", None))
    return float(np.sum([np.asarray(launches(op, backward=backward)).item() for op in table.operators]))


@pytest.mark.parametrize("ep", [4, 8, 16])
def test_experts_apart_cost_the_host_eight_operators_each(ep: int) -> None:
    """Two weights copied forward and in a replay, two hooks and two sums backward: 64 sums of 32 experts in a trace."""
    joined, experts = OperatorFeatures(grouped_gemm=True), 128 / ep
    apart = replace(joined, experts_apart=True)
    more = [calls(apart, ep, backward=b) - calls(joined, ep, backward=b) for b in (False, True)]
    assert more == [pytest.approx(2 * experts), pytest.approx(4 * experts - 2)]


def test_experts_one_by_one_cost_what_was_counted_of_eight() -> None:
    """Megatron-LM core_v0.12.1 with MindSpeed @028de58c: 35 and 170 operators more than joined."""
    joined, alone = OperatorFeatures(grouped_gemm=True), OperatorFeatures(grouped_gemm=False)
    forward, backward = (calls(alone, 16, backward=b) - calls(joined, 16, backward=b) for b in (False, True))
    assert forward == pytest.approx(35, abs=1)
    assert backward == pytest.approx(170 + 2 * 7, rel=0.1)  # hooks stand beside what was counted


# A step on a late host.
def spec(**changes: Any) -> Any:
    strategy = {"tp": 2, "pp": 1, "ep": 8, "etp": 1, "recompute": {"granularity": "full"}, "features": ["grouped_gemm"]}
    return read_spec_document(
        {
            "model": "qwen3-30b-a3b",
            "cluster": {"profile": "ascend-800t-a2", "num_npus": 16},
            "training": {"seq_length": 2048, "global_batch_size": 64},
            "search": {"target": "mindspeed-llm"},
            "strategy": strategy,
        }
        | changes
    )


def overridden(**facts: str) -> dict[str, Any]:
    return {"software": {"stack": "mindspeed-llm", "overrides": {f"host.{k}": v for k, v in facts.items()}}}


def test_changing_shapes_take_longer_and_joined_experts_less() -> None:
    fixed, changing, apart = (
        estimate(spec(**overridden(**facts))).step_time_s
        for facts in ({}, {"shapes": "changing"}, {"shapes": "changing", "expert_parameters": "apart"})
    )
    assert fixed < changing < apart
    assert estimate(spec()).step_time_s == fixed


@pytest.mark.parametrize("facts", [{"task_queue": "2"}, {"scatter": "0"}, {"new_shape_us": "20"}])
def test_every_cause_of_a_late_host_can_be_taken_away(facts: dict[str, str]) -> None:
    before, after = (estimate(spec(**overridden(**{"shapes": "changing"} | each))).step_time_s for each in ({}, facts))
    assert after < before


def test_a_compiled_graph_has_no_host_beside_it() -> None:
    given = spec(search={"target": "mindformers"})
    slow = spec(
        search={"target": "mindformers"},
        cluster={**given.cluster.model_dump(exclude_unset=True), "overrides": {"host.issue_us_per_op": 500}},
    )
    assert estimate(slow).breakdown.host_bound_s == 0.0


# Adam on the host.
@pytest.mark.parametrize("kernel", ["unfused", "foreach", "fused"])
@pytest.mark.parametrize("threads", [1.0, 4.0, 1000.0])
def test_adam_on_the_host_is_bound_by_threads_or_by_memory(kernel: str, threads: float) -> None:
    found = float(host_adam_s(1e9, kernel, threads, core_ratio=3.0, host_bytes_per_s=50e9, link_bytes_per_s=24e9))
    bounds = MOVED_BYTES[kernel] / 50.0, 3e9 * THREAD_S[kernel] / threads
    assert found == pytest.approx(max(bounds) + LINK_BYTES / 24.0)


def test_a_fraction_on_the_host_leaves_the_rest_on_the_device() -> None:
    def of(fraction: float | None) -> Any:
        strategy = spec().strategy.model_copy(update={"optimizer_offload_fraction": fraction})
        return estimate(spec().model_copy(update={"strategy": strategy}))

    none, some, whole = of(None), of(0.4), of(1.0)
    assert none.breakdown.optimizer_s < some.breakdown.optimizer_s < whole.breakdown.optimizer_s
    peaks = [max(stage.memory_gib.optimizer for stage in each.stages) for each in (none, some, whole)]
    assert peaks[0] > peaks[1] > peaks[2]


@pytest.mark.parametrize(
    ("flags", "fraction"),
    [
        ("", None),
        (" --optimizer-cpu-offload", 1.0),
        (" --optimizer-cpu-offload --optimizer-offload-fraction 0.25", 0.25),
        (" --optimizer-cpu-offload --optimizer-offload-fraction 0", None),
    ],
)
def test_scripts_say_how_much_of_the_optimizer_the_host_runs(flags: str, fraction: float | None) -> None:
    text = (
        "torchrun --nproc_per_node 8 --nnodes 1 pretrain_gpt.py --num-layers 32 --hidden-size 4096 "
        "--ffn-hidden-size 11008 --num-attention-heads 32 --seq-length 4096 --max-position-embeddings 4096 "
        "--micro-batch-size 1 --global-batch-size 64 --vocab-size 32000 --tensor-model-parallel-size 8 "
        "--use-distributed-optimizer --bf16"
    )
    found = import_document(text + flags, "a.sh").spec("ascend-800t-a2").strategy
    assert (found.optimizer_offload_fraction, found.swap_optimizer) == (fraction, False)


def test_advice_names_the_defaults_of_a_late_host() -> None:
    given = launched()
    strategy = given.strategy.model_copy(update={"optimizer_offload_fraction": 1.0})
    given = given.model_copy(update={"strategy": strategy})
    plan, rules, host = estimate(given), launch_rules(given), host_of(given)
    found = {each.kind for each in neighbours(plan, strategy, rules.features, rules, software=host)}
    assert {"host.task_queue", "host.optimizer_kernel", "host.optimizer_threads"} <= found


# Stack documents.
def test_every_fact_of_a_host_is_a_number_with_a_unit_or_a_word() -> None:
    for stack in shipped_stacks().values():
        for name, facts in stack.facts["host"].items():
            for fact in facts:
                assert bool(fact.unit) == fact.value.replace(".", "").isdigit() or name == "task_queue", (
                    stack.name,
                    name,
                )
                assert not fact.interval or fact.interval[0] <= float(fact.value) <= fact.interval[1]


def test_shapes_that_stay_have_no_cost_of_new_ones() -> None:
    for stack in shipped_stacks().values():
        host = resolved(stack, Run()).host
        assert host.new_shape_range == (1.0, 1.0) or host.changing_shapes


def test_routed_rows_have_a_new_shape_in_every_micro_batch_until_the_host_does_not_ask() -> None:
    """Eleven operators of the experts' forward pass: two products, three of the activation, two sorts of three."""
    document = {
        "model": "deepseek-v2-lite",
        "cluster": {"profile": "ascend-800t-a2", "num_npus": 16},
        "training": {"seq_length": 4096, "global_batch_size": 64},
        "search": {"target": "any"},
    }
    strategy = {"tp": 1, "pp": 1, "ep": 8, "etp": 1}
    issued = {}
    for us, features in (("0", ()), ("130", ()), ("0", ("host_sync_free",)), ("130", ("host_sync_free",))):
        software = {"stack": "mindspeed-llm", "overrides": {"host.new_shape_us": us}}
        names = ["grouped_gemm", "flash_attention", *features]
        spec = read_spec_document({**document, "software": software, "strategy": {**strategy, "features": names}})
        prepared = prepare(spec)
        made = predict(prepared, spec.strategy, frozenset(names))
        report = lane_report(made.candidate, made.context, 0)
        issued[us, features] = report.forward_issue_s
    layers, experts = 27, 26
    more = issued["130", ()] - issued["0", ()]
    assert more == pytest.approx(130e-6 * 11 * experts / layers, rel=0.1)
    assert issued["130", ("host_sync_free",)] == issued["0", ("host_sync_free",)]
    # Three sums and five copies of sizes that the host does not read.
    spared = issued["0", ()] - issued["0", ("host_sync_free",)]
    assert spared == pytest.approx(10e-6 * 8 * experts / layers, rel=0.01)


@pytest.mark.parametrize(
    "facts", [{"shape": "fixed"}, {"task_queue": 3}, {"optimizer_threads": 0}, {"scatter": "much"}]
)
def test_a_host_that_no_stack_has_is_refused_with_its_place(facts: dict[str, Any]) -> None:
    (name, value), *_ = facts.items()
    document = {"name": "own", "title": "own", "host": {name: {"value": value, "kind": "assumed", "source": "own"}}}
    with pytest.raises(SpecError) as error:
        stack_of_document(document)
    assert error.value.errors[0].path.startswith(f"/host/{name}")
    override = SoftwareSpec(stack="mindspeed-llm", overrides={f"host.{name}": str(value)})
    assert [each.path for each in software_faults(override, "huawei")] == [f"/software/overrides/host.{name}"]


# Kernels that gather.
@pytest.mark.parametrize("heads", [1, 4])
def test_rows_that_a_kernel_gathers_do_not_depend_on_heads(heads: int) -> None:
    model, tp = load_preset("deepseek-v3.2"), heads
    gathering = OperatorFeatures(gathers_keys=True)
    tables = [layer_table(model, shard(tp=each), gathering, ("moe", None)) for each in (1, tp)]
    moved = [next(op for op in t.operators if op.name == "core_attention").forward_bytes for t in tables]
    assert float(np.asarray(moved[0]).item()) == float(np.asarray(moved[1]).item()) > 0.0


def test_gradients_of_gathered_rows_are_added_in_fp32() -> None:
    forward, backward = row_bytes(np.array([100.0]), 64.0, 576.0)
    assert backward / forward == pytest.approx((2.0 + 4.0 + 4.0) / 2.0)


# Adapters over shards.
def test_frozen_weights_are_sharded_and_gathered() -> None:
    def of(*features: str) -> Any:
        document = {
            "model": "qwen3-8b",
            "cluster": {"profile": "ascend-800t-a2", "num_npus": 8},
            "training": {"kind": "sft", "lora": {"rank": 16}, "seq_length": 4096, "global_batch_size": 32},
            "search": {"target": "any"},
            "strategy": {"tp": 1, "pp": 1, "fsdp": bool(features), "features": ["flash_attention", *features]},
        }
        return estimate(read_spec_document(document))

    whole, sharded = of(), of("fsdp", "torch_fsdp2")
    weights = [each.stages[0].memory_gib.weights for each in (whole, sharded)]
    assert weights[1] == pytest.approx(2.0 * weights[0] / 8.0, rel=0.05)  # FP32 shards of BF16 weights over 8 ranks
    assert sharded.breakdown.exposed_dp_s > 0.0


# Intervals of kinds of runs that no fit sees.
SIDES = "shorter", "longer"
RUN = {
    **{"moe": True, "ranks": 16, "shares_node": False, "seq_length": 2048, "features": (), "tp": 4, "pp": 1, "vpp": 1},
    **{"cp": 1, "ep": 4, "etp": 4, "micro_batch_size": 1, "schedule": "1f1b", "moe_dispatcher": "alltoall"},
}


@pytest.mark.parametrize("kind", ["updates", "tuning", "sharded", "foreign"])
def test_a_kind_of_run_without_a_fit_is_wider_and_says_so(kind: str) -> None:
    known, unknown = spread_of("ascend-910b", RUN), spread_of("ascend-910b", RUN | {"kind": kind})
    low, high = unknown.interval(1.0)
    assert low < known.interval(1.0)[0] < known.interval(1.0)[1] < high
    assert unknown.basis != known.basis
    beyond = coverage()["beyond"]
    excess = [max(0.0, own**2 - mean) for own, mean in zip(known.own, beyond["explained"], strict=True)]
    ends = [np.sqrt(beyond[side] ** 2 + beyond["within"] ** 2 + more) for side, more in zip(SIDES, excess, strict=True)]
    assert (-np.log(low), np.log(high)) == pytest.approx(ends)


def test_what_a_run_of_such_a_kind_does_not_know_of_itself_counts_beyond_what_its_records_did_not() -> None:
    kind, explained = RUN | {"kind": "updates"}, coverage()["beyond"]["explained"]
    plain, little, much = (
        spread_of("ascend-910b", kind, asymmetric=(0.0, float(np.sqrt(explained[1])) * share))
        for share in (0.0, 0.5, 2.0)
    )
    assert plain.interval(1.0) == little.interval(1.0)
    assert plain.interval(1.0)[0] == pytest.approx(much.interval(1.0)[0])
    assert much.interval(1.0)[1] > plain.interval(1.0)[1]


def test_an_interval_of_more_than_six_times_is_no_prediction() -> None:
    wide = spread_of("ascend-910b", RUN | {"kind": "updates"}, asymmetric=(0.2, 2.0))
    assert wide.basis.key == "calibration.no_prediction"
    assert wide.interval(1.0)[1] / wide.interval(1.0)[0] > 6.0


def test_the_nearest_record_is_of_the_same_kind_of_run() -> None:
    kinds = {row["id"]: row["kind"] for row in coverage()["others"]}
    for kind in set(kinds.values()):
        named = nearest_record("ascend-910b", RUN | {"kind": kind})
        assert named is not None
        assert kinds[named.rsplit("(", 1)[1].rstrip(")")] == kind


def test_what_a_context_runs_tells_its_kind() -> None:
    given = spec()
    profile = profile_of(given.cluster)
    assert spec_context(given, profile, frozenset()).kind_of_run == "pretraining"
    assert spec_context(given, profile, frozenset(), host=LATE).kind_of_run == "updates"
    assert spec_context(given, profile, frozenset({"fsdp"})).kind_of_run == "sharded"


def test_an_unmeasured_core_widens_a_run_with_adam_on_the_host_alone() -> None:
    runs = {r.id: predict_record(r) for r in shipped_records() if r.id in {"SAPO_mbs8_ep8", "MSF03"}}
    ranges = {name: host_range(p.candidate, p.context, p.layout) for name, p in runs.items()}
    assert ranges["MSF03"] == (0.0, 0.0)
    one = runs["SAPO_mbs8_ep8"]
    later = times_of_host(one.candidate, one.context, one.layout, (1.0, CORE_RANGE[1]), "host_core")
    on_cores = one.estimate.breakdown["optimizer_s"]
    assert later[1] - later[0] == pytest.approx(on_cores, rel=0.05)  # twice as long, but for the link's copies
    assert ranges["SAPO_mbs8_ep8"][1] > np.log(later[1] / later[0])


def test_the_cost_of_a_new_shape_has_the_least_squares_of_its_source() -> None:
    factors = (0.95, 1.0, 1.05)
    runs = [r for r in shipped_records() if r.id.startswith("SAPO_mbs")]
    squares = np.zeros(3)
    for run in runs:
        p = predict_record(run)
        squares += np.log((measured_step_s(run) or 0.0) / times_of_host(p.candidate, p.context, p.layout, factors)) ** 2
    assert len(runs) == 4
    assert int(np.argmin(squares)) == 1
