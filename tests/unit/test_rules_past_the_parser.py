"""Rules that no parser states: of process groups, the model's configuration, the first step and the environment."""

from __future__ import annotations

import pytest

from autodeploy.analysis.launch_checks.flag_rules import flag_rules, flag_values
from autodeploy.analysis.launch_checks.launch import launch_of
from autodeploy.analysis.launch_checks.legality import judge_script
from autodeploy.formats.common.launch_script import read_launch_script
from autodeploy.formats.common.source import Source
from autodeploy.formats.megatron.script import reads
from autodeploy.search import planner
from autodeploy.specs.answers import CheckLimits
from autodeploy.specs.reading import read_spec_document
from hardware_profiles import load_profile

SHAPE = (
    "--num-layers 24 --hidden-size 3072 --ffn-hidden-size 8192 --num-attention-heads 24 --seq-length 8192 "
    "--max-position-embeddings 8192 --micro-batch-size 1 --global-batch-size 96 --bf16 --swiglu --lr 1e-4 "
    "--normalization RMSNorm --position-embedding-type rope --disable-bias-linear --vocab-size 100000 --use-flash-attn "
    "--untie-embeddings-and-output-weights --train-iters 50 "
)
EXPERTS = "--num-experts 24 --moe-router-topk 4 --moe-ffn-hidden-size 1536 --moe-token-dispatcher-type alltoall "
DENSE_TP = "--tensor-model-parallel-size 4 --sequence-parallel --use-distributed-optimizer "
STAGES = "--pipeline-model-parallel-size 4 --use-distributed-optimizer "  # 48 ranks: dp 12, 8 micro batches
NVIDIA, ASCEND = (
    ("megatron", "nvidia-h100", "megatron-main"),
    ("mindspeed-llm", "ascend-800t-a2", "mindspeed-llm-master"),
)


def broken(flags: str, stack: tuple[str, str, str], *, exports: str = "", nodes: int = 6) -> frozenset[str]:
    """Names of the rules over flags that a launch breaks."""
    framework, cluster, release = stack
    text = f"{exports}\ntorchrun --nproc_per_node 8 --nnodes {nodes} pretrain_gpt.py {SHAPE} {flags}"
    chips = load_profile(cluster)
    verdict = judge_script(read_launch_script(text), framework, chips, nodes * 8, CheckLimits(), release)
    return frozenset(rule.rule for rule in verdict.broken)


def broken_by_strategy(flags: str, stack: tuple[str, str, str], *, nodes: int = 6) -> frozenset[str]:
    """Names of the rules over strategies that a launch breaks."""
    framework, cluster, release = stack
    text = f"torchrun --nproc_per_node 8 --nnodes {nodes} pretrain_gpt.py {SHAPE} {flags}"
    launch = launch_of(reads(Source(text, "run.sh")), cluster)
    search = launch.spec.search.model_copy(update={"target": framework, "target_release": release})
    return planner.launch_rules(launch.spec.model_copy(update={"search": search})).names


def test_the_launches_of_these_tests_are_legal_as_they_are() -> None:
    for stack in (NVIDIA, ASCEND):
        for flags in ("", DENSE_TP, STAGES, EXPERTS + "--use-distributed-optimizer"):
            assert not broken(flags, stack) | broken_by_strategy(flags, stack)


@pytest.mark.parametrize("stack", [NVIDIA, ASCEND])
@pytest.mark.parametrize(("tp", "ep", "etp"), [(2, 1, 1), (2, 2, 1), (4, 4, 1), (8, 1, 8), (2, 6, 2), (4, 12, 1)])
def test_experts_behind_tensor_parallelism_take_scattered_sequences(
    tp: int, ep: int, etp: int, stack: tuple[str, str, str]
) -> None:
    degrees = (
        f"--tensor-model-parallel-size {tp} --expert-model-parallel-size {ep} --expert-tensor-parallel-size {etp} "
    )
    flags = EXPERTS + degrees + "--use-distributed-optimizer "
    found = broken_by_strategy(flags, stack)
    assert "experts_need_sequence_parallel" in found
    assert ("exchanged_experts_need_sequence_parallel" in found) == (ep > 1 and stack == ASCEND)
    assert not {name for name in broken_by_strategy(flags + "--sequence-parallel", stack) if "sequence" in name}


@pytest.mark.parametrize("sequence_parallel", [True, False, None])
def test_a_spec_is_held_to_what_a_script_is(sequence_parallel: bool | None) -> None:
    strategy = {"tp": 2, "ep": 8, "etp": 1, "moe_dispatcher": "alltoall", "sequence_parallel": sequence_parallel}
    document = {
        "model": "qwen3-30b-a3b",
        "cluster": {"profile": "nvidia-h100", "num_npus": 32},
        "training": {"seq_length": 4096, "global_batch_size": 64},
        "strategy": strategy,
        "search": {"target": "megatron"},
    }
    found = planner.launch_rules(read_spec_document(document)).names
    assert ("experts_need_sequence_parallel" in found) == (sequence_parallel is False)


@pytest.mark.parametrize(
    ("flags", "instances", "rule"),
    [
        (DENSE_TP, 3, None),
        (DENSE_TP, 5, "optimizer_instances_divide_replicas"),
        (STAGES, 12, None),
        (STAGES, 8, "optimizer_instances_divide_replicas"),
        (DENSE_TP + "--context-parallel-size 2 ", 4, None),
        (EXPERTS + "--expert-model-parallel-size 12 --use-distributed-optimizer ", 4, None),
        (
            EXPERTS + "--expert-model-parallel-size 12 --use-distributed-optimizer ",
            8,
            "optimizer_instances_divide_expert_replicas",
        ),
        (
            EXPERTS + "--expert-model-parallel-size 24 --use-distributed-optimizer ",
            6,
            "optimizer_instances_divide_expert_replicas",
        ),
        ("", 2, "optimizer_instances_share_states"),
    ],
)
def test_optimizer_instances_divide_what_they_share(flags: str, instances: int, rule: str | None) -> None:
    found = broken(f"{flags}--num-distributed-optimizer-instances {instances}", NVIDIA)
    assert found == ({rule} if rule else set())


@pytest.mark.parametrize(
    ("batch", "group", "legal"),
    [
        (96, None, True),  # 8 micro batches in groups of 4
        (108, None, False),  # 9: the last group has 1
        (108, 5, True),  # 5 and 4
        (132, 6, True),  # 11: 6 and 5
        (132, 4, False),  # 4, 4 and 3
        (96, 9, False),  # more than there are
        (96, 3, False),  # fewer than stages
        (36, None, False),  # 3 micro batches
        (84, 7, True),
    ],
)
@pytest.mark.parametrize(
    "chunks", ["--num-layers-per-virtual-pipeline-stage 3", "--num-virtual-stages-per-pipeline-rank 2"]
)
def test_interleaved_micro_batches_fill_their_groups(batch: int, group: int | None, legal: bool, chunks: str) -> None:
    size = f" --microbatch-group-size-per-virtual-pipeline-stage {group}" if group else ""
    for stack in (NVIDIA, ASCEND):
        found = broken(f"{STAGES}{chunks} --global-batch-size {batch}{size}", stack)
        assert found == (set() if legal else {"interleaving_fills_a_group"})
        assert not broken(f"{STAGES}--global-batch-size {batch}", stack)


@pytest.mark.parametrize("stack", [NVIDIA, ASCEND])
@pytest.mark.parametrize(
    ("exports", "flags", "rule"),
    [
        ("export CUDA_DEVICE_MAX_CONNECTIONS=8", DENSE_TP, "tensor_groups_share_one_connection"),
        ("export CUDA_DEVICE_MAX_CONNECTIONS=32", "--context-parallel-size 2", "tensor_groups_share_one_connection"),
        (
            "CUDA_DEVICE_MAX_CONNECTIONS=2\nexport CUDA_DEVICE_MAX_CONNECTIONS",
            DENSE_TP,
            "tensor_groups_share_one_connection",
        ),
        ("export CUDA_DEVICE_MAX_CONNECTIONS=1", DENSE_TP, None),
        ("export CUDA_DEVICE_MAX_CONNECTIONS=8", STAGES, None),
        ("", DENSE_TP, None),
        ("export CUDA_DEVICE_MAX_CONNECTIONS=$FROM_OUTSIDE", DENSE_TP, None),
    ],
)
def test_tensor_and_context_parallel_groups_share_one_connection(
    exports: str, flags: str, rule: str | None, stack: tuple[str, str, str]
) -> None:
    assert broken(flags, stack, exports=exports) == ({rule} if rule else set())


def test_blackwell_has_as_many_connections_as_it_wants() -> None:
    eight = "export CUDA_DEVICE_MAX_CONNECTIONS=8"
    assert not broken(DENSE_TP, ("megatron", "nvidia-b200", "megatron-main"), exports=eight)
    assert broken(DENSE_TP, ("megatron", "nvidia-a100-80g", "megatron-main"), exports=eight)


@pytest.mark.parametrize("parts", range(10))
def test_products_are_cut_into_one_two_four_or_eight(parts: int) -> None:
    coc = f"{DENSE_TP}--use-ascend-coc --transformer-impl local --coc-parallel-num {parts}"
    assert broken(coc, ASCEND) == (set() if parts in {1, 2, 4, 8} else {"coc_takes_few_parts"})


@pytest.mark.parametrize(
    ("size", "rule"),
    [
        ("--padded-vocab-size 100000", None),
        ("--padded-vocab-size 100002", "padded_vocabulary_divides_by_tp"),
        ("--padded-vocab-size 100001", "padded_vocabulary_divides_by_tp"),
        ("--padded-vocab-size 100352 --make-vocab-size-divisible-by 0", None),
        ("--make-vocab-size-divisible-by 0", "vocabulary_is_padded_to_a_multiple"),
        ("--make-vocab-size-divisible-by 1", None),
        ("", None),
    ],
)
def test_tensor_parallel_ranks_share_the_vocabulary_evenly(size: str, rule: str | None) -> None:
    assert broken(DENSE_TP + size, ASCEND) == ({rule} if rule else set())


@pytest.mark.parametrize("stack", [NVIDIA, ASCEND])
@pytest.mark.parametrize(
    ("layout", "predictors", "rule"),
    [
        ("Et*6|t*6|t*6|t*6mL", 1, None),
        ("Et*6|t*6|t*6|t*6L", 1, "layout_places_all_predictors"),
        ("Et*6|t*6|t*6|t*6mmL", 1, "layout_places_all_predictors"),
        ("Et*6|t*6|t*6|t*6mL", 0, "layout_places_all_predictors"),
        ("Et*8|t*8|t*8|m*2L", 2, None),
        ("Et*7|t*7|t*10m|L", 1, None),
        ("Et*6|t*6|mt*6|t*6L", 1, "layout_is_in_order"),
        ("t*6E|t*6|t*6|t*6mL", 1, "layout_is_in_order"),
        ("Et*8|t*8|t*8m|mL", 2, "layout_is_in_order"),
        ("Et*8|t*8|t*8|m||||L", 1, "layout_is_in_order"),  # in the first of two virtual stages
        ("Et*3|(t*3|)*6t*3mL", 1, None),
    ],
)
def test_layouts_place_the_prediction_layers_last(
    layout: str, predictors: int, rule: str | None, stack: tuple[str, str, str]
) -> None:
    flags = f"{STAGES}--pipeline-model-parallel-layout '{layout}'" + (
        f" --mtp-num-layers {predictors}" if predictors else ""
    )
    assert broken(flags, stack) == ({rule} if rule else set())


@pytest.mark.parametrize(
    ("flags", "legal"),
    [
        ("--overlap-param-gather --overlap-grad-reduce", False),
        ("--overlap-param-gather --overlap-grad-reduce --optimizer muon", False),
        ("--overlap-param-gather --overlap-grad-reduce --use-distributed-optimizer", True),
        ("--overlap-param-gather --overlap-grad-reduce --use-distributed-optimizer --optimizer muon", True),
        ("--overlap-grad-reduce", True),
    ],
)
def test_parameters_are_gathered_ahead_where_they_are_sharded(flags: str, legal: bool) -> None:
    for stack in (ASCEND,) if "muon" in flags else (NVIDIA, ASCEND):
        found = broken(flags, stack) | broken_by_strategy(flags, stack)
        assert found == (set() if legal else {"param_gather_needs_sharded_optimizer"})


@pytest.mark.parametrize(
    ("first", "last", "pp", "stack", "rule"),
    [
        (3, 3, 5, NVIDIA, None),
        (3, 4, 4, NVIDIA, "uneven_ends_leave_whole_stages"),
        (13, 11, 2, NVIDIA, None),
        (13, 11, 2, ASCEND, "uneven_ends_have_a_middle"),
        (13, 10, 2, NVIDIA, "uneven_ends_leave_whole_stages"),
        (13, 11, 3, NVIDIA, "middle_stages_have_layers"),
        (0, 6, 5, ASCEND, "uneven_ends_leave_whole_stages"),
        (20, 6, 3, ASCEND, "uneven_ends_leave_whole_stages"),
    ],
)
def test_given_ends_leave_whole_stages(
    first: int, last: int, pp: int, stack: tuple[str, str, str], rule: str | None
) -> None:
    ends = f"--decoder-first-pipeline-num-layers {first} --decoder-last-pipeline-num-layers {last}"
    flags = f"--pipeline-model-parallel-size {pp} --global-batch-size 240 --use-distributed-optimizer {ends}"
    assert broken(flags, stack, nodes=5 if pp == 5 else 6) == ({rule} if rule else set())


def test_words_that_are_a_list_are_not_judged_as_one() -> None:
    several = EXPERTS + "--moe-expert-capacity-factor 1.5 --moe-router-load-balancing-type aux_loss seq_aux_loss "
    several += "--moe-aux-loss-coeff 0.01 0.001"
    assert not broken(several, NVIDIA)
    sinkhorn = EXPERTS + "--moe-expert-capacity-factor 1.5 --moe-router-load-balancing-type sinkhorn"
    assert "capacity_needs_plain_balancing" in broken(sinkhorn, NVIDIA)


def test_names_of_rules_over_flags_are_theirs_alone() -> None:
    names = [rule.name for rule in flag_rules()]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("stack", [NVIDIA, ASCEND])
@pytest.mark.parametrize("number", ["nan", "-inf", "1e400", "-1", "9" * 400, "9" * 5_000])
def test_whatever_a_flag_counts_is_judged_without_an_error(number: str, stack: tuple[str, str, str]) -> None:
    flags = [name for value in flag_values().values() for name in value.flags if not value.word]
    assert len(flags) > 40
    for flag in flags:
        broken(f"{DENSE_TP} {EXPERTS} {flag} {number} ", stack)
    broken(" ".join(f"{flag} {number}" for flag in flags[:30]), stack)


@pytest.mark.parametrize("stack", [NVIDIA, ASCEND])
@pytest.mark.parametrize("axis", ["tensor-model", "pipeline-model", "context", "expert-model", "expert-tensor"])
@pytest.mark.parametrize("degree", [0, -1, -4])
def test_a_degree_below_one_is_illegal(axis: str, degree: int, stack: tuple[str, str, str]) -> None:
    assert "degrees_are_positive" in broken(f"{EXPERTS} --{axis}-parallel-size {degree}", stack)


@pytest.mark.parametrize(
    ("flags", "legal"),
    [
        ("--rampup-batch-size 8 8 1000", (True, False)),
        (EXPERTS + "--fp16 --expert-model-parallel-size 4", (True, False)),
        ("--defer-embedding-wgrad-compute " + STAGES, (True, False)),
        (STAGES + "--num-layers-per-virtual-pipeline-stage 6", (True, False)),
    ],
)
def test_what_newer_releases_take_is_legal_for_them_alone(flags: str, legal: tuple[bool, bool]) -> None:
    found = [broken(flags, stack) - {"one_precision"} for stack in (NVIDIA, ASCEND)]
    assert tuple(not each for each in found) == legal, found


SELECTIVE = "--recompute-granularity selective --recompute-modules "


@pytest.mark.parametrize(
    ("flags", "of_main", "of_core"),
    [
        ("core_attn", "", ""),
        ("layernorm mlp", "", ""),
        ("norm", "recomputed_modules_are_of_main", "recomputed_modules_are_known"),
        ("core_attn activation", "recomputed_modules_are_of_main", "recomputed_modules_are_known"),
        ("moe_layer " + EXPERTS, "recomputed_modules_are_of_main", "recomputed_modules_are_known"),
        ("shared_experts " + EXPERTS, "", "recomputed_modules_are_known"),
        ("moe_act " + EXPERTS, *["recomputed_expert_activations_are_grouped"] * 2),
        ("moe_act --moe-grouped-gemm " + EXPERTS, "", ""),
        ("mla_up_proj", *["recomputed_projections_are_latent"] * 2),
        ("layernorm mla_up_proj", *["recomputed_projections_are_latent"] * 2),
    ],
)
def test_recomputed_modules_are_of_the_release_and_of_the_model(flags: str, of_main: str, of_core: str) -> None:
    for expected, stack in ((of_main, NVIDIA), (of_core, ASCEND)):
        found = broken(SELECTIVE + flags + " --use-distributed-optimizer", stack)
        assert {name for name in found if name.startswith("recomputed")} == ({expected} - {""})


def test_shared_experts_are_not_recomputed_beside_their_overlap() -> None:
    flags = EXPERTS + "--moe-shared-expert-intermediate-size 1536 --use-distributed-optimizer "
    alone = broken(flags + SELECTIVE + "shared_experts", NVIDIA)
    beside = broken(flags + "--moe-shared-expert-overlap " + SELECTIVE + "shared_experts", NVIDIA)
    assert beside - alone == {"recomputed_shared_experts_run_alone"}


RAMP = "--rampup-batch-size 8 8 1000"
DUAL = "--schedules-method dualpipev --pipeline-model-parallel-size 4 --use-distributed-optimizer"
GRAPHS = "--cuda-graph-impl local --cuda-graph-modules moe_router"
GROUPED = "--num-experts 24 --moe-router-topk 4 --moe-ffn-hidden-size 1536 --moe-token-dispatcher-type alltoall "


@pytest.mark.parametrize(
    ("release", "flags", "rule"),
    [
        ("megatron-0.19", RAMP, None),
        ("megatron-0.16", RAMP, "batch_ramp_counts_samples"),
        ("megatron-0.17", RAMP, "batch_ramp_counts_samples"),
        ("megatron-mindspeed-0.17", RAMP, "batch_ramp_counts_samples"),
        ("megatron-mindspeed-0.18", RAMP, None),
        ("megatron-mindspeed-0.17", DUAL, "dualpipev_is_adapted"),
        ("megatron-mindspeed-0.18", DUAL, "dualpipev_is_adapted"),
        ("megatron-mindspeed-master", DUAL, None),
        ("megatron-mindspeed-0.18", GROUPED + "--moe-grouped-gemm", "experts_are_adapted"),
        ("megatron-mindspeed-0.17", GROUPED + "--moe-grouped-gemm", None),
        ("megatron-mindspeed-0.18", "--context-parallel-size 2", "context_parallelism_is_adapted"),
        ("megatron-mindspeed-0.17", "--context-parallel-size 2 --mtp-num-layers 1", None),
        ("megatron-0.18", GRAPHS, "graphed_experts_exist"),
    ],
)
def test_newer_releases_are_held_to_what_they_take(release, flags, rule):
    stack = ("megatron", "ascend-800t-a2" if "mindspeed" in release else "nvidia-h100", release)
    assert broken(flags, stack) - {"flag_is_registered"} == ({rule} if rule else set())
