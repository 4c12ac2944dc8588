"""One launch, one answer: what `check` says of a file is what `estimate` says of the spec that it is imported as."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from ruamel.yaml import YAML

from autodeploy.analysis.launch_checks.launch import launch_of
from autodeploy.analysis.launch_checks.launch_check import check
from autodeploy.analysis.what_if.improve import improve
from autodeploy.calibration.record_prediction import predict_record
from autodeploy.calibration.shipped.tables import shipped_records
from autodeploy.formats import registry as exporters
from autodeploy.formats.import_document import import_document
from autodeploy.kit.errors import AutoDeployError
from autodeploy.kit.yaml_text import yaml_text
from autodeploy.search import planner
from autodeploy.specs.answers import CheckLimits
from autodeploy.specs.reading import read_spec_document
from autodeploy.specs.spec import parse_spec
from autodeploy.stack.features import FEATURES
from autodeploy.stack.frameworks import FRAMEWORKS, launchers
from autodeploy.stack.releases import frameworks_for
from hardware_profiles import load_profile
from tests.launch_check.rule_pairs import document
from tests.support.record_specs import spec_of_record
from tests.unit.test_plans_are_exportable import given_plans
from tests.unit.test_rule_pairs import script

if TYPE_CHECKING:
    from autodeploy.formats.common.import_result import ImportResult
    from autodeploy.specs.planset import Plan
    from autodeploy.specs.record import Record

FILES = Path(__file__).parents[1] / "launch_files"
ASCEND = ("ascend-800t-a2", "cloudmatrix-384")
NVIDIA = ("nvidia-h100", "nvidia-h800", "nvidia-b200", "nvidia-a100-80g")
CHIPS = (*ASCEND, *NVIDIA)
NO_SEARCH = SimpleNamespace(
    plan=lambda spec, *, alone=False: SimpleNamespace(plans=()),
    estimate=planner.estimate,
    launch_rules=planner.launch_rules,
)
EVERYTHING = CheckLimits(max_memory=100.0)

DENSE = """torchrun --nproc_per_node 8 --nnodes 2 pretrain_gpt.py --num-layers 40 --hidden-size 5120
  --ffn-hidden-size 13824
  --num-attention-heads 40 --seq-length 4096 --max-position-embeddings 4096 --micro-batch-size 1 --global-batch-size 128
  --swiglu --normalization RMSNorm --position-embedding-type rope --untie-embeddings-and-output-weights
  --disable-bias-linear --vocab-size 32000 --bf16 --lr 1e-4 --train-iters 50 --attention-dropout 0 --hidden-dropout 0
  --tensor-model-parallel-size 4 --pipeline-model-parallel-size 2"""
EXPERTS = """torchrun --nproc_per_node 8 --nnodes 2 pretrain_gpt.py --num-layers 24 --hidden-size 2048
  --ffn-hidden-size 6144 --moe-ffn-hidden-size 1024 --num-attention-heads 16 --group-query-attention
  --num-query-groups 4 --seq-length 8192 --max-position-embeddings 8192 --micro-batch-size 1 --global-batch-size 128
  --swiglu --normalization RMSNorm --position-embedding-type rope --untie-embeddings-and-output-weights
  --disable-bias-linear --vocab-size 64000 --bf16 --lr 1e-4 --train-iters 50 --attention-dropout 0 --hidden-dropout 0
  --num-experts 64 --moe-router-topk 6 --moe-token-dispatcher-type alltoall --tensor-model-parallel-size 1
  --pipeline-model-parallel-size 2 --expert-model-parallel-size 8 --expert-tensor-parallel-size 1
  --use-distributed-optimizer"""
# Flags that Megatron-LM has off, by the feature that each switches.
SWITCHED = {
    "grouped_gemm": "--moe-grouped-gemm",
    "fused_operators": "--moe-permute-fusion",
    "overlap_grad_reduce": "--overlap-grad-reduce",
    "overlap_param_gather": "--overlap-param-gather",
}
OWN = {
    "dense": DENSE,
    "dense, sharded": f"{DENSE} --use-distributed-optimizer --sequence-parallel --overlap-grad-reduce",
    "dense, all recomputed": f"{DENSE} --recompute-granularity full --recompute-method block --recompute-num-layers 20",
    "dense, unfused rotary": f"{DENSE} --no-rope-fusion --no-bias-swiglu-fusion",
    "dense, 16-bit gradients": f"{DENSE} --use-distributed-optimizer --grad-reduce-in-bf16",
    "experts, plain": EXPERTS,
    "experts, every switch": " ".join([EXPERTS, *SWITCHED.values()]),
    "experts, all-gather": EXPERTS.replace(
        "--moe-token-dispatcher-type alltoall", "--moe-token-dispatcher-type allgather"
    ),
}


def one_line(text: str) -> str:
    return " ".join(text.split()) if text.startswith("torchrun") else text


def launches() -> list[Any]:
    """Launch files of the tests on one chip of each maker in turn, those of the rules' accepted pairs on one."""
    found = []
    files = (*sorted(FILES.glob("*.sh")), *sorted(FILES.glob("*/*.sh")), FILES / "mindformers_moe.yaml")
    for place, path in enumerate(files):
        two = ASCEND[place % len(ASCEND)], NVIDIA[place % len(NVIDIA)]
        found.append(pytest.param(path.read_text(encoding="utf-8"), path.name, two, id=path.stem))
    for place, pair in enumerate(document()["pairs"]):
        one = CHIPS[place % len(CHIPS) :][:1]
        found.append(pytest.param(script(pair, "obey"), "launch.sh", one, id=f"{place}-{pair['rule']}"))
    return found


def both_doors(
    imported: ImportResult, chip: str, num_npus: int | None = None, *, as_text: bool = True
) -> tuple[Plan, Plan] | None:
    """The predictions of `check` and of `estimate` from the written spec; None where the launch has none on a chip.

    as_text : whether the spec is written and read; on another chip it is the same text but for the chip's name.
    """
    try:
        checked = check(launch_of(imported, chip, None, num_npus), EVERYTHING, planner=NO_SEARCH).plan
        written = imported.spec_document(chip, None, num_npus)
        if as_text:
            written = YAML(typ="safe").load(yaml_text(written))
        estimated = planner.estimate(read_spec_document(written))
    except AutoDeployError:
        return None
    return None if checked is None else (checked, estimated)


def assert_alike(first: Plan, second: Plan) -> None:
    assert first.step_time_s == pytest.approx(second.step_time_s, rel=1e-9)
    assert first.peak_memory_gib == pytest.approx(second.peak_memory_gib, rel=1e-9)
    assert first.breakdown.model_dump() == pytest.approx(second.breakdown.model_dump(), rel=1e-9)


@pytest.mark.parametrize(("text", "name", "chips"), launches())
def test_check_of_a_launch_is_the_estimate_of_its_spec(text: str, name: str, chips: tuple[str, ...]) -> None:
    try:
        imported = import_document(text, name)
    except AutoDeployError:
        return  # no door reads it
    for chip in chips:
        pair = both_doors(imported, chip, None if imported.ranks else 64, as_text=chip == chips[0])
        if pair is not None:
            assert_alike(*pair)


@pytest.mark.parametrize("name", OWN)
def test_our_own_launches_have_one_answer_on_every_chip(name: str) -> None:
    imported = import_document(one_line(OWN[name]), "launch.sh")
    for chip in CHIPS:
        pair = both_doors(imported, chip, None if imported.ranks else 64, as_text=chip == CHIPS[0])
        assert pair is not None
        assert_alike(*pair)


EXPORTED = [
    (name, chip)
    for chip in ("ascend-800t-a2", "nvidia-h100")
    for name in launchers()
    if not FRAMEWORKS[name].post_trains and name in frameworks_for(name, load_profile(chip).vendor)
]


@pytest.mark.parametrize(("target", "chip"), EXPORTED)
def test_an_exported_plan_has_one_answer_in_every_door(target: str, chip: str) -> None:
    strategy: dict[str, Any] = {"tp": 1, "pp": 1, "micro_batch_size": 1}
    base = {
        "model": "qwen3-0.6b",
        "cluster": {"profile": chip, "num_npus": 8},
        "training": {"seq_length": 4096, "global_batch_size": 64},
        "search": {"target": target},
    }
    if FRAMEWORKS[target].shards_alone or FRAMEWORKS[target].one_stage:
        strategy |= {"fsdp": True}
    spec = parse_spec({**base, "strategy": strategy})
    plan = planner.estimate(spec)
    artefact = exporters.export(given_plans(spec, plan), plan, target)
    imported = import_document(artefact.text, artefact.filename)
    pair = both_doors(imported, chip, 8)
    assert pair is not None
    assert_alike(*pair)


@cache
def of_experts(chip: str, flags: tuple[str, ...]) -> tuple[Plan, Plan] | None:
    """Both predictions of the launch of experts with these flags."""
    return both_doors(import_document(" ".join([one_line(EXPERTS), *flags]), "launch.sh"), chip, 16)


@pytest.mark.parametrize("chip", CHIPS)
@pytest.mark.parametrize("missing", [tuple(SWITCHED), *((name,) for name in SWITCHED)])
def test_a_flag_that_is_missing_is_off_in_every_door(chip: str, missing: tuple[str, ...]) -> None:
    flags = [flag for name, flag in SWITCHED.items() if name not in missing]
    if "overlap_grad_reduce" in missing:
        flags = [flag for flag in flags if flag != SWITCHED["overlap_param_gather"]]
    whole, without = (of_experts(chip, tuple(given)) for given in (SWITCHED.values(), flags))
    assert whole is not None
    assert without is not None
    for full, less in zip(whole, without, strict=True):
        assert not {*missing} & {*less.strategy.features}
        assert full.step_time_s < less.step_time_s


def test_improve_says_what_each_missing_flag_brings() -> None:
    launch = launch_of(import_document(one_line(EXPERTS), "launch.sh"), "nvidia-h800", None, 16)
    report = improve(launch, planner=planner)
    gains = {}
    for name in ("grouped_gemm", "fused_operators", "overlap_grad_reduce"):
        assert launch.spec.strategy is not None
        features = tuple(sorted({*launch.spec.strategy.features, name}))
        changed = launch.spec.strategy.model_copy(update={"features": features})
        plan = planner.estimate(launch.spec.model_copy(update={"strategy": changed}))
        gains[name] = plan.tokens_per_s_per_npu / report.plan.tokens_per_s_per_npu - 1.0
    assert all(gain > 0.0 for gain in gains.values())
    best = max(gains, key=lambda name: gains[name])
    shown = {each.name: each for each in (*report.improvements, *report.keeping_layout)}
    assert SWITCHED[best] in shown[best].add_flags


@pytest.mark.parametrize("chip", CHIPS)
def test_nothing_that_a_flag_switches_is_on_without_it(chip: str) -> None:
    plain = launch_of(import_document(one_line(EXPERTS), "launch.sh"), chip, None, 16).spec
    assert plain.strategy is not None
    assert not {*SWITCHED} & {*plain.strategy.features}
    ours = {name for name in plain.strategy.features if name in FEATURES}
    assert ours == (
        set()
        if load_profile(chip).vendor == "huawei"
        else {"flash_attention", "rect_fa", "fused_swiglu", "fused_rmsnorm"}
    )


def test_a_launch_that_names_nothing_has_nothing_on_in_every_door() -> None:
    imported = import_document(one_line(DENSE), "launch.sh")
    spec = imported.spec("ascend-800t-a2", None, 16)
    assert spec.strategy is not None
    assert spec.strategy.named_features == frozenset()
    again = read_spec_document(spec.model_dump(mode="json"))
    assert again.strategy == spec.strategy
    assert planner.estimate(again).strategy.features == ()
    left_open = replace(
        imported, document={**imported.document, "strategy": {**imported.document["strategy"], "features": None}}
    )
    strategy = {name: value for name, value in left_open.document["strategy"].items() if name != "features"}
    chosen = parse_spec({**spec.model_dump(mode="json"), "strategy": strategy})
    assert chosen.strategy is not None
    assert chosen.strategy.named_features is None
    assert "features" not in chosen.model_dump(mode="json")["strategy"]
    assert planner.estimate(chosen).step_time_s < planner.estimate(spec).step_time_s


# One shipped run in nine: of every source, and of both makers' chips.
RUNS = tuple(r for r in shipped_records() if r.measured.step_time_s or r.measured.tokens_per_s_per_npu)[::9]


@pytest.mark.parametrize("record", RUNS, ids=lambda record: record.id)
def test_a_measured_run_has_one_answer_as_a_record_and_as_a_spec(record: Record) -> None:
    """A run that was measured itself is told by what was measured: without that, both are the same formulas."""
    validated = predict_record(record)
    plan = planner.estimate(spec_of_record(validated.record))
    ratio = 1.0 if plan.rescaled is None else plan.rescaled.ratio
    assert plan.step_time_s / ratio == pytest.approx(validated.step_time_s, rel=1e-9)
