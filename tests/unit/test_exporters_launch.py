"""Launch artefacts: the script runs, says what the plan says, and uses no flag that is not in the table."""

from __future__ import annotations

import os
import re
import subprocess

import pytest

from autodeploy.formats.common.launch_script import environment_variables
from autodeploy.formats.import_document import import_document
from autodeploy.formats.megatron.strategy import micro_batch_group
from autodeploy.formats.registry import export, formats_of
from autodeploy.kit.errors import UnsupportedError
from autodeploy.specs.spec import Spec
from autodeploy.specs.strategy import Recompute
from autodeploy.stack.releases import release_of
from cost_models.schedule import group_size
from tests import factories

RECIPE = {
    "DATA_PATH": "/data/my set",
    "TOKENIZER_PATH": "/data/tokenizer",
    "CKPT_SAVE_DIR": "/data/checkpoints",
    "MASTER_ADDR": "10.0.0.1",
    "NODE_RANK": "3",
    "LR": "1e-5",
    "MIN_LR": "1e-7",
    "WARMUP_ITERS": "500",
    "ROTARY_BASE": "10000",
    "TRAIN_ITERS": "1000",
}
TORCHRUN = {"--nproc_per_node", "--nnodes", "--node_rank", "--master_addr", "--master_port"}
DENSE = {
    "name": "dense",
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "vocab_size": 32001,
}


def a_plan(rank=1, spec=None, **strategy):
    """A PlanSet and its plan with another strategy; its stages follow the strategy."""
    changed = factories.strategy(rank).model_dump() | {"layers_per_stage": None} | strategy
    chosen = factories.strategy(rank, **{key: value for key, value in changed.items() if key != "recompute"})
    if "recompute" in strategy:
        chosen = chosen.model_copy(update={"recompute": strategy["recompute"]})
    plan = factories.plan(rank, spec=spec, strategy=chosen, stages=(), run=None)
    return factories.plan_set(1, spec=spec), plan


def launched(text, tmp_path, **environment):
    """The arguments that the script hands to torchrun, and its environment."""
    (tmp_path / "torchrun").write_text('#!/bin/sh\nenv > "$CAUGHT.env"\nprintf "%s\\n" "$@" > "$CAUGHT"\n')
    (tmp_path / "torchrun").chmod(0o755)
    script = tmp_path / "pretrain.sh"
    script.write_text(text)
    path = f"{tmp_path}:{os.environ['PATH']}"
    run = subprocess.run(
        ["bash", str(script)],
        cwd=tmp_path,
        env={"PATH": path, "CAUGHT": str(tmp_path / "caught"), **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    if run.returncode:
        return run, [], {}
    seen = dict(line.split("=", 1) for line in (tmp_path / "caught.env").read_text().splitlines() if "=" in line)
    return run, (tmp_path / "caught").read_text().splitlines(), seen


def value(arguments, flag):
    return arguments[arguments.index(flag) + 1]


@pytest.fixture
def script(tmp_path):
    """Launches a plan's script and returns the arguments."""

    def launch(plan_set, plan, **environment):
        run, arguments, _ = launched(export(plan_set, plan, "mindspeed-llm").text, tmp_path, **RECIPE | environment)
        assert run.returncode == 0, run.stderr
        return arguments

    return launch


@pytest.mark.parametrize("target", ["mindspeed-llm", "megatron"])
@pytest.mark.parametrize("rank", [1, 2, 3, 4, 5])
def test_every_flag_is_in_the_table_and_bash_can_read_it(rank, target):
    plan_set = factories.plan_set(5)
    text = export(plan_set, plan_set.plans[rank - 1], target).text
    flags = re.findall(r"^    (--[a-z0-9_-]+)", text, re.MULTILINE)
    release = release_of(target, "huawei")
    assert f"release={release.name}" in text
    assert len(flags) > 40
    assert [flag for flag in flags if flag not in release.flags.keys() | TORCHRUN] == []
    assert [
        name for name in re.findall(r"^export (\w+)=", text, re.MULTILINE) if name not in environment_variables()
    ] == []
    assert subprocess.run(["bash", "-n"], input=text, text=True, check=False).returncode == 0


def test_the_artefact_says_where_it_comes_from():
    plan_set = factories.plan_set()
    for to in ("mindspeed-llm", "megatron", "markdown", "json", "csv"):
        artefact = export(plan_set, plan_set.plans[0], to)
        assert plan_set.plans[0].plan_id in artefact.text
        assert factories.ENGINE_VERSION in artefact.text
        assert plan_set.plans[0].plan_id in artefact.filename
    assert "generated, review before launch" in export(plan_set, plan_set.plans[0], "mindspeed-llm").text


def test_the_script_starts_the_plan(tmp_path):
    plan_set = factories.plan_set()
    text = export(plan_set, plan_set.plans[0], "mindspeed-llm").text
    run, arguments, seen = launched(text, tmp_path, **RECIPE, EXTRA_ARGS="--seed 42 --moe-router-dtype fp32")
    assert run.returncode == 0, run.stderr
    expected = {
        "--nproc_per_node": "16",
        "--nnodes": "48",
        "--node_rank": "3",
        "--tensor-model-parallel-size": "2",
        "--pipeline-model-parallel-size": "16",
        "--expert-model-parallel-size": "32",
        "--expert-tensor-parallel-size": "1",
        "--micro-batch-size": "1",
        "--global-batch-size": "15360",
        "--seq-length": "4096",
        "--num-layers": "61",
        "--data-path": "/data/my set",
        "--qk-head-dim": "128",
        "--moe-router-group-topk": "4",
        "--first-k-dense-replace": "3",
        "--mtp-num-layers": "1",
    }
    assert {flag: value(arguments, flag) for flag in expected} == expected
    assert {"--moe-fb-overlap", "--sequence-parallel", "--moe-unperm2-mem-optim-swap", "pretrain_gpt.py"} <= {
        *arguments
    }
    assert arguments[-4:] == ["--seed", "42", "--moe-router-dtype", "fp32"]
    assert "--load" not in arguments
    wanted = {"CPU_AFFINITY_CONF": "1", "TASK_QUEUE_ENABLE": "2", "CUDA_DEVICE_MAX_CONNECTIONS": "1"}
    assert {name: seen[name] for name in wanted} == wanted


@pytest.mark.parametrize("missing", [name for name in RECIPE if name != "TRAIN_ITERS"])
def test_the_script_stops_where_something_is_not_set(tmp_path, missing):
    plan_set = factories.plan_set()
    given = {name: text for name, text in RECIPE.items() if name != missing}
    run, _, _ = launched(export(plan_set, plan_set.plans[0], "mindspeed-llm").text, tmp_path, **given)
    assert run.returncode != 0
    assert f"set {missing}:" in run.stderr
    assert not (tmp_path / "caught").exists()


def test_the_script_stops_on_another_number_of_ranks(tmp_path):
    plan_set = factories.plan_set()
    text = export(plan_set, plan_set.plans[0], "mindspeed-llm").text
    run, _, _ = launched(text, tmp_path, **RECIPE, NNODES="47")
    assert run.returncode == 2
    assert "768 ranks" in run.stderr


def test_iterations_follow_from_the_tokens(script):
    assert value(script(*a_plan(), TRAIN_ITERS=""), "--train-iters") == "235240"  # 14.8e12 / (15360 * 4096), rounded up


def test_a_name_with_line_breaks_stays_a_comment():
    spec = factories.spec(model=factories.DEEPSEEK_V3 | {"name": "x\ntouch /tmp/owned\n"})
    plan_set, plan = a_plan(spec=spec)
    assert "\ntouch" not in export(plan_set, plan, "mindspeed-llm").text


def test_uneven_layers_under_virtual_stages_are_a_layout(script):
    arguments = script(*a_plan(tp=2, pp=4, vpp=2, dp=96, layers_per_stage=((7, 7), (8, 8), (8, 8), (7, 8))))
    layout = value(arguments, "--pipeline-model-parallel-layout")
    assert expanded(layout) == ["E" + "t" * 7, *(["t" * 8] * 2), *(["t" * 7] * 2), *(["t" * 8] * 2), "t" * 8 + "mL"]
    assert "--num-layers-per-virtual-pipeline-stage" not in arguments


def expanded(layout):
    """Megatron's reading of a layout string."""
    for pattern in (r"\(([^)]+)\)\*(\d+)", r"(.)\*(\d+)"):
        layout = re.sub(pattern, lambda found: found.group(1) * int(found.group(2)), layout)
    return layout.split("|")


def test_even_layers_need_no_layout(script):
    model = factories.DEEPSEEK_V3 | {"num_hidden_layers": 64}
    arguments = script(*a_plan(spec=factories.spec(model=model), pp=8, vpp=4, tp=2, dp=48))
    assert value(arguments, "--num-layers-per-virtual-pipeline-stage") == "2"
    assert "--pipeline-model-parallel-layout" not in arguments


def test_uneven_layers_without_virtual_stages_are_a_list(script):
    spec = factories.spec(model=factories.DEEPSEEK_V3 | {"num_hidden_layers": 62, "first_k_dense_replace": 0})
    arguments = script(*a_plan(rank=4, spec=spec, layers_per_stage=(8, 8, 8, 7) * 2, pp=8, dp=24, tp=4))
    assert value(arguments, "--num-layer-list") == "8,8,8,7,8,8,8,7"


def test_dense_layers_first_exclude_the_list(script):
    arguments = script(*a_plan(rank=4, layers_per_stage=(8, 8, 8, 7, 8, 8, 7, 7), pp=8, dp=24, tp=4))
    assert "--num-layer-list" not in arguments
    assert [stage.count("t") for stage in expanded(value(arguments, "--pipeline-model-parallel-layout"))] == [
        *(8, 8, 8, 7, 8, 8, 7, 7)
    ]


def test_overlapped_all_gather_has_its_own_flag(script):
    arguments = script(*a_plan(rank=4, moe_dispatcher="allgather", features=("moe_alltoall_overlap",)))
    assert {"--moe-allgather-overlap-comm", "--moe-permutation-async-comm", "--moe-grouped-gemm"} <= {*arguments}
    assert "--moe-alltoall-overlap-comm" not in arguments


def test_dualpipev_is_padded_with_layers_that_do_nothing(script):
    arguments = script(*a_plan(rank=3, layers_per_stage=((4, 3), *(((4, 4),) * 6), (4, 2)), pp=8))
    assert value(arguments, "--schedules-method") == "dualpipev"
    assert value(arguments, "--num-layers") == "64"
    # Chunk 8 is the way back of stage 7 (two layers short), chunk 15 that of stage 0 (one short).
    assert value(arguments, "--noop-layers") == "34,35,63"


def test_tp_extend_ep_leaves_tp_out_of_the_flag(script):
    arguments = script(
        *a_plan(rank=4, tp=4, pp=16, dp=12, ep=32, moe_dispatcher="alltoall_seq", features=("tp_extend_ep",))
    )
    assert value(arguments, "--expert-model-parallel-size") == "8"
    assert {"--moe-tp-extend-ep", "--moe-permutation-async-comm", "--moe-grouped-gemm"} <= {*arguments}
    assert "--expert-tensor-parallel-size" not in arguments


@pytest.mark.parametrize(
    ("recompute", "expected"),
    [
        (Recompute(granularity="none"), []),
        (
            Recompute(granularity="full"),
            ["--recompute-granularity", "full", "--recompute-method", "uniform", "--recompute-num-layers", "1"],
        ),
        (
            Recompute(granularity="full", num_layers=2),
            ["--recompute-granularity", "full", "--recompute-method", "block", "--recompute-num-layers", "2"],
        ),
        (
            Recompute(granularity="selective", modules=("activation", "norm"), num_layers=2),
            [
                *("--recompute-activation-function", "--recompute-activation-function-num-layers", "2"),
                *("--recompute-norm", "--recompute-norm-num-layers", "2"),
            ],
        ),
        (
            Recompute(granularity="selective", per_stage=({"mla_up_proj": 3}, *({"mla_up_proj": 1},) * 15)),
            ["--recompute-mla-up-proj"],
        ),
        (
            Recompute(granularity="selective", modules=("moe", "core_attn")),
            ["--recompute-granularity", "selective", "--recompute-modules", "moe", "core_attn"],
        ),
    ],
)
def test_recompute(recompute, expected):
    plan_set, plan = a_plan(rank=4, recompute=recompute)
    text = export(plan_set, plan, "mindspeed-llm").text
    block = re.search(r"^RECOMPUTE_ARGS=\(\n(.*?)^\)", text, re.MULTILINE | re.DOTALL)
    assert (block.group(1).split() if block else []) == expected


def test_another_recompute_on_each_stage_is_noted():
    recompute = Recompute(granularity="selective", per_stage=({"activation": 3}, *({"activation": 1},) * 15))
    artefact = export(*a_plan(rank=4, recompute=recompute), "mindspeed-llm")
    assert any("the plan has recompute in some layers only" in note for note in artefact.notes)
    assert all(f"# Note: {note}" in artefact.text for note in artefact.notes)


def test_no_feature_is_dropped_in_silence():
    from autodeploy.stack.features import FEATURES

    for target in ("mindspeed-llm", "megatron"):
        for name in FEATURES:
            plain = export(*a_plan(rank=4, features=(), swap=()), target)
            with_feature = export(*a_plan(rank=4, features=(name,), swap=()), target)
            said = with_feature.text != plain.text or with_feature.notes != plain.notes
            assert said or name in SAID_BY_OTHER_FIELDS, (target, name)


# The strategy's own fields say these, or the environment block does.
SAID_BY_OTHER_FIELDS = {
    *("adaptive_pipe", "dualpipev", "hierarchical_a2a", "virtual_pipeline_balance", "selective_recompute"),
    *("selective_swap", "reuse_fp32_param", "swap_optimizer", "ulysses", "ring", "hybrid_cp"),
    *("host_core_binding", "tp_extend_ep"),
}


def test_a_dense_model_has_no_expert_flags(script):
    spec = factories.spec(model=DENSE, target="mindspeed-llm")
    arguments = script(
        *a_plan(rank=4, spec=spec, tp=8, pp=4, dp=24, ep=1, etp=None, moe_dispatcher=None, swap=("attention",))
    )
    assert [flag for flag in arguments if flag.startswith(("--moe", "--expert", "--num-experts", "--first-k"))] == []
    assert value(arguments, "--num-query-groups") == "8"
    assert value(arguments, "--padded-vocab-size") == "32008"
    assert "--swap-attention" in arguments


def test_context_parallel(script):
    arguments = script(*a_plan(rank=4, tp=4, pp=8, cp=4, cp_algo="hybrid", ulysses_degree=2, dp=6))
    assert value(arguments, "--context-parallel-algo") == "hybrid_cp_algo"
    assert value(arguments, "--ulysses-degree-in-cp") == "2"
    spec = Spec.model_validate(factories.spec_document() | {"cluster": {"profile": "nvidia-h100", "num_npus": 768}})
    hybrid = a_plan(rank=4, spec=spec, tp=4, pp=8, cp=4, cp_algo="hybrid", ulysses_degree=2, dp=6)
    text = export(*hybrid, "megatron").text
    assert "--hierarchical-context-parallel-sizes 2 2" in text


@pytest.mark.parametrize(
    ("profile", "flag", "lacks"),
    [
        ("cloudmatrix-384", "--moe-fb-overlap", "--overlap-moe-expert-parallel-comm"),
        ("nvidia-h100", "--overlap-moe-expert-parallel-comm", "--moe-fb-overlap"),
    ],
)
def test_adaptive_pipe_is_said_in_the_words_of_the_release(profile, flag, lacks):
    """Beside MindSpeed Megatron-LM is an older one, which MindSpeed gives a flag of its own."""
    spec = Spec.model_validate(factories.spec_document() | {"cluster": {"profile": profile, "num_npus": 384}})
    text = export(*a_plan(spec=spec), "megatron").text
    assert flag in text
    assert lacks not in text
    assert "--moe-layer-freq '([0]*3+[1]*58)'" in text


def test_megatron_groups_micro_batches_that_do_not_divide():
    flag = "--microbatch-group-size-per-virtual-pipeline-stage"
    for count, group in ((10, "5"), (12, None)):
        plans, plan = a_plan(vpp=2, pp=4)
        text = export(plans, plan.model_copy(update={"micro_batches": count}), "megatron").text
        assert (f"{flag} {group}" in text) if group else (flag not in text)


def test_groups_are_those_of_the_schedule():
    for pp in range(1, 9):
        for count in range(pp, 40):
            assert micro_batch_group(pp, count) == group_size(pp, count)


def test_another_framework_than_the_searched_one_is_noted():
    spec = factories.spec()
    assert spec.search.target == "mindspeed-llm"
    plan_set = factories.plan_set()
    for to, noted in (("mindspeed-llm", False), ("megatron", True), ("megatron-flags", True)):
        artefact = export(plan_set, plan_set.plans[0], to)
        assert any("was made for mindspeed-llm" in note for note in artefact.notes) == noted
        assert ("was made for" in artefact.text) == noted


@pytest.mark.parametrize("target", ["megatron", "mindformers"])
def test_what_another_framework_lacks_is_not_read_back(target):
    kept = {"flash_attention", "rect_fa", "virtual_pipeline_balance"}
    features = tuple(sorted({*kept, "mc2", "virtual_optimizer"}))
    spec = factories.spec()
    if target == "megatron":
        spec = Spec.model_validate(factories.spec_document() | {"cluster": {"profile": "nvidia-h100", "num_npus": 384}})
    artefact = export(*a_plan(spec=spec, features=features, schedule="1f1b", vpp=1), target)
    assert any("virtual_optimizer" in note for note in artefact.notes)
    read = import_document(artefact.text, artefact.filename)
    found = {*read.document["strategy"]["features"]} - {"host_core_binding"}  # that one is in the environment
    assert found == kept | ({"grouped_gemm"} if target == "mindformers" else set())  # MindFormers has no other experts


def test_dualpipe_is_refused():
    with pytest.raises(UnsupportedError):
        export(*a_plan(schedule="dualpipe"), "mindspeed-llm")


def test_megatron_on_ascend_brings_the_adaptor(tmp_path):
    plan_set, plan = a_plan()
    text = export(plan_set, plan, "megatron").text
    run, arguments, seen = launched(text, tmp_path, **RECIPE)
    assert run.returncode == 0, run.stderr
    assert "pretrain_gpt_ascend.py" in arguments
    assert value(arguments, "--tokenizer-type") == "HuggingFaceTokenizer"
    assert seen["TASK_QUEUE_ENABLE"] == "2"


def test_megatron_elsewhere_needs_none(tmp_path):
    document = factories.spec_document() | {"cluster": {"profile": "nvidia-h100", "num_npus": 768}}
    plan_set, plan = a_plan(spec=Spec.model_validate(document))
    run, arguments, seen = launched(export(plan_set, plan, "megatron").text, tmp_path, **RECIPE)
    assert run.returncode == 0, run.stderr
    assert "pretrain_gpt.py" in arguments
    assert "CPU_AFFINITY_CONF" not in seen
    assert seen["CUDA_DEVICE_MAX_CONNECTIONS"] == "1"


def test_recompute_counted_by_class_is_layers_to_the_flags():
    by_class = {"activation@dense": 2, "activation@moe": 1}
    recompute = Recompute(granularity="selective", per_stage=(by_class, *({"activation@moe": 3},) * 15))
    text = export(*a_plan(rank=4, recompute=recompute, layers_per_stage=(4,) * 13 + (3,) * 3), "mindspeed-llm").text
    assert "--recompute-activation-function-num-layers 3" in text


def test_the_flags_block_has_the_flags_of_the_script():
    for target in ("mindspeed-llm", "megatron"):
        block = export(*a_plan(), f"{target}-flags").text
        script = export(*a_plan(), target).text
        flags = re.findall(r"^    (--.*)$", block, re.MULTILINE)
        assert len(flags) > 30
        assert [line for line in flags if f"    {line}\n" not in script] == []
        assert "torchrun" not in block


@pytest.mark.parametrize("schedule", ["1f1b", "interleaved", "dualpipev", "dualpipe", "adaptive_pipe"])
def test_a_format_is_offered_where_its_framework_has_the_schedule(schedule):
    plan_set = factories.plan_set(1)
    vpp = 2 if schedule in {"interleaved", "adaptive_pipe"} else 1
    strategy = plan_set.plans[0].strategy.model_copy(
        update={"schedule": schedule, "vpp": vpp, "layers_per_stage": None}
    )
    plan = plan_set.plans[0].model_copy(update={"strategy": strategy})
    for name in ("mindspeed-llm", "megatron", "mindformers"):
        try:
            export(plan_set, plan, name)
            refused = False
        except UnsupportedError as error:
            refused = any(field.path == "/strategy/schedule" for field in error.errors)
        assert refused == (name not in formats_of(schedule)), name
