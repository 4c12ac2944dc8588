"""Launches as people hold them: sourced files, wrappers, batch headers, other spellings of Megatron's settings."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest

from autodeploy.analysis.launch_checks.legality import check_unread
from autodeploy.formats.import_document import import_document, import_file
from autodeploy.formats.shell.follow import follow
from autodeploy.formats.shell.slurm import slurm_job
from autodeploy.kit.errors import SpecError, UnsupportedError
from autodeploy.messages import Message
from autodeploy.search.planner import estimate
from autodeploy.specs.answers import CheckLimits
from autodeploy.specs.spec import Spec
from autodeploy.specs.synonyms import words_of_fields

if TYPE_CHECKING:
    from pathlib import Path

SHAPE = (
    "--num-layers 24 --hidden-size 2048 --num-attention-heads 16 --ffn-hidden-size 5504 --swiglu --vocab-size 32000 "
    "--max-position-embeddings 4096 --seq-length 2048 --bf16"
)
LAUNCH = f"pretrain_gpt.py {SHAPE}"


def _strategy(text: str, **options: Any) -> dict[str, Any]:
    return dict(import_document(text, "a.sh", **options).document["strategy"])


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("source conf/model.sh", 'ARGS="--num-layers 24"'),
        (". ./conf/model.sh", 'ARGS="--num-layers 24"'),
        ('DIR="$(cd "$(dirname "$0")" && pwd)"\nsource "${DIR}/conf/model.sh"', 'ARGS="--num-layers 24"'),
        ('source "$(dirname "${BASH_SOURCE[0]}")"/conf/model.sh', "ARGS=(--num-layers 24)"),
        ("F=conf/model.sh\nsource $F", 'export ARGS="--num-layers 24"'),
    ],
)
def test_a_sourced_file_sets_variables_of_the_script(tmp_path: Path, first: str, second: str) -> None:
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "model.sh").write_text(second + "\n")
    rest = SHAPE.replace("--num-layers 24 ", "")
    (tmp_path / "run.sh").write_text(f"{first}\ntorchrun --nproc_per_node 8 pretrain_gpt.py ${{ARGS[@]}} {rest}\n")
    read = import_file(tmp_path / "run.sh")
    assert read.document["model"]["num_hidden_layers"] == 24
    assert any("conf/model.sh" in str(note.source) for note in read.diagnostics.taken)


@pytest.mark.parametrize(
    "call",
    [
        "bash train.sh 2 4 x",
        "sh ./train.sh 2 4 x",
        "./train.sh 2 4 x",
        "nohup bash train.sh 2 4 x > log 2>&1 &",
        "srun --nodes 2 bash -x train.sh 2 4 x",
        'A="2 4 x"\nbash train.sh $A',
    ],
)
def test_a_wrapper_calls_a_script_with_its_arguments(tmp_path: Path, call: str) -> None:
    train = f"TP=$1\nPP=${{2}}\nNOISE=$#\ntorchrun --nproc_per_node 8 --nnodes $NOISE {LAUNCH}"
    parallel = "--tensor-model-parallel-size $TP --pipeline-model-parallel-size $PP"
    (tmp_path / "train.sh").write_text(f"{train} {parallel}\n")
    (tmp_path / "go.sh").write_text(f"TP=7\n{call}\n")
    read = import_file(tmp_path / "go.sh")
    assert (read.document["strategy"]["tp"], read.document["strategy"]["pp"], read.ranks) == (2, 4, 24)


def test_a_started_script_sees_what_is_exported_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "inner.sh").write_text(f"torchrun {LAUNCH} --tensor-model-parallel-size ${{TP:-1}} ${{CP_ARGS}}\n")
    (tmp_path / "run.sh").write_text('export TP=4\nCP_ARGS="--context-parallel-size 2"\nbash inner.sh\n')
    strategy = import_file(tmp_path / "run.sh").document["strategy"]
    assert (strategy["tp"], strategy["cp"]) == (4, 1)


@pytest.mark.parametrize("name", ["gone.sh", "sub/gone.sh", "../gone.sh", "${HERE}/sub/gone.sh"])
def test_a_file_that_is_missing_is_named(tmp_path: Path, name: str) -> None:
    (tmp_path / "run.sh").write_text(f"source {name}\npython pretrain_gpt.py $MODEL\n")
    with pytest.raises(SpecError) as raised:
        import_file(tmp_path / "run.sh")
    assert name.removeprefix("${HERE}/") in raised.value.hint


def test_no_file_is_read_without_a_folder(tmp_path: Path) -> None:
    secret = tmp_path / "secret.sh"
    secret.write_text("TP=4\n")
    assert not follow(f"source {secret}\nbash {secret}\n").variables.known("TP")


def test_a_script_that_starts_itself_is_refused(tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text("bash run.sh\n")
    with pytest.raises(SpecError) as raised:
        import_file(tmp_path / "run.sh")
    assert "run.sh" in str(raised.value)


@pytest.mark.parametrize(
    "command",
    [
        f'CMD="torchrun {LAUNCH} --tensor-model-parallel-size 2"\neval $CMD',
        f"eval torchrun {LAUNCH} --tensor-model-parallel-size 2",
        f'bash -c "torchrun {LAUNCH} --tensor-model-parallel-size 2"',
        f"srun -N 4 bash -lc 'torchrun {LAUNCH} --tensor-model-parallel-size 2'",
        f'TP=2\nsrun sh -c "torchrun --master_addr $(hostname) {LAUNCH} --tensor-model-parallel-size $TP"',
    ],
)
def test_a_text_that_is_carried_out_is_followed(command: str) -> None:
    assert _strategy(command)["tp"] == 2


def test_arguments_are_given_by_number() -> None:
    text = f"TP=$1\nMBS=${{10}}\ntorchrun {LAUNCH} --tensor-model-parallel-size $TP --micro-batch-size $MBS\n"
    strategy = _strategy(text, variables={"1": "4", "10": "2"})
    assert (strategy["tp"], strategy["micro_batch_size"]) == (4, 2)
    with pytest.raises(SpecError) as raised:
        _strategy(text, variables={"10": "2"})
    assert "--set 1=" in raised.value.hint


@pytest.mark.parametrize(
    ("header", "ranks"),
    [
        ("#SBATCH --nodes=4\n#SBATCH --gpus-per-node=8", 32),
        ("#SBATCH -N 4\n#SBATCH --gres=gpu:8", 32),
        ("#SBATCH -N2\n#SBATCH --gres=gpu:h100:4", 8),
        ("#SBATCH --ntasks=64\n#SBATCH --ntasks-per-node=8", 64),
        ("#SBATCH --nodes=3 # of the large ones\n#SBATCH --ntasks-per-node=8", 24),
        ("#SBATCH --gpus=16", 16),
        ("#SBATCH --ntasks 6\n#SBATCH --gpus-per-task=2", 12),
        ("#SBATCH --nodes=2\n#SBATCH --ntasks-per-node=1", None),
        ("#SBATCH --nodes=2\n#SBATCH --gres=shard:8", None),
    ],
)
def test_a_batch_header_says_the_ranks(header: str, ranks: int | None) -> None:
    assert slurm_job(f"#!/bin/bash\n{header}\nsrun python {LAUNCH}\n").ranks == ranks


def test_ranks_of_the_launcher_stand_above_those_of_the_header() -> None:
    header = "#SBATCH --nodes=4\n#SBATCH --ntasks-per-node=1\n#SBATCH --gpus-per-node=8\n"
    assert import_document(f"{header}srun torchrun --nproc_per_node 4 --nnodes 2 {LAUNCH}", "a.sh").ranks == 8
    read = import_document(f"{header}srun torchrun --nproc_per_node 8 --nnodes $SLURM_NNODES {LAUNCH}", "a.sh")
    assert read.ranks == 32


@pytest.mark.parametrize("number", ["220_000_000", "1_000", "4_8"])
def test_whole_numbers_are_pythons(number: str) -> None:
    tokens = import_document(f"torchrun {LAUNCH} --global-batch-size 8 --train-samples {number}", "a.sh")
    assert tokens.document["training"]["tokens"] == int(number) * 2048


SWIFT = "NPROC_PER_NODE=8 NNODES=2 megatron {task} --model Qwen/Qwen3-8B --max_length 4096 --dataset a/b {rest}\n"


@pytest.mark.parametrize(
    ("task", "rest", "found"),
    [
        ("sft", "--tensor_model_parallel_size 4 --sequence_parallel true", {"tp": 4, "sequence_parallel": True}),
        ("pt", "--pipeline_model_parallel_size 2 --micro_batch_size 2", {"pp": 2, "micro_batch_size": 2}),
        (
            "sft",
            "--context_parallel_size 2 --use_distributed_optimizer false",
            {"cp": 2, "distributed_optimizer": False},
        ),
        ("sft", "--sequence_parallel false", {"sequence_parallel": False, "distributed_optimizer": True}),
        ("rlhf", "--rlhf_type dpo --beta 0.2 --tensor_model_parallel_size 2", {"tp": 2}),
    ],
)
def test_words_of_ms_swift_are_megatrons(task: str, rest: str, found: dict[str, Any]) -> None:
    read = import_document(SWIFT.format(task=task, rest=rest), "a.sh")
    assert found.items() <= read.document["strategy"].items()
    assert read.document["model"]["num_hidden_layers"] == 36
    assert (read.ranks, read.document["training"]["seq_length"]) == (16, 4096)
    assert read.document["training"].get("kind", "pre_training") == {"sft": "sft", "pt": "pre_training"}.get(
        task, "dpo"
    )
    assert not read.kept


def test_recomputation_of_ms_swift_is_selective_unless_it_says_otherwise() -> None:
    def granularity(rest: str) -> str:
        read = import_document(SWIFT.format(task="sft", rest=rest), "a.sh").document["strategy"]
        return str(read["recompute"]["granularity"])

    assert granularity("--recompute_granularity none") == "none"
    full = "--recompute_granularity full --recompute_method uniform --recompute_num_layers 1"
    assert granularity(full) == "full"


def test_adapters_of_ms_swift_are_those_of_the_spec() -> None:
    rest = "--tuner_type lora --lora_rank 16 --lora_alpha 64 --target_modules linear_qkv linear_proj"
    lora = import_document(SWIFT.format(task="sft", rest=rest), "a.sh").document["training"]["lora"]
    assert lora == {"rank": 16, "alpha": 64, "target_modules": ["linear_qkv", "linear_proj"]}


def test_the_model_of_ms_swift_is_the_config_beside_it(tmp_path: Path) -> None:
    config = (
        '{"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "num_hidden_layers": 12, "hidden_size": 512'
    )
    config += ', "num_attention_heads": 8, "num_key_value_heads": 4, "intermediate_size": 1536, "vocab_size": 9000}'
    launch = SWIFT.format(task="sft", rest="").replace("Qwen/Qwen3-8B", "me/Own-1B")
    (tmp_path / "run.sh").write_text(launch)
    with pytest.raises(SpecError):
        import_file(tmp_path / "run.sh")
    (tmp_path / "config.json").write_text(config)
    assert import_file(tmp_path / "run.sh").document["model"]["num_hidden_layers"] == 12


@pytest.mark.parametrize(
    "command",
    [
        "deepspeed --num_gpus 8 train.py --deepspeed ds.json",
        "llamafactory-cli train a.yaml",
        "accelerate launch train.py",
        "swift sft --model Qwen/Qwen3-8B",
        f"torchrun {LAUNCH} --deepspeed --zero-stage 1",
        f"python train.py {SHAPE} --rollout-batch-size 32",
        SWIFT.format(task="rlhf", rest="--rlhf_type grpo"),
        SWIFT.format(task="sft", rest="--task_type seq_cls"),
        SWIFT.format(task="sft", rest="--quant_bits 4"),
    ],
)
def test_other_trainers_are_refused_by_name(command: str) -> None:
    with pytest.raises(UnsupportedError) as raised:
        import_document(f"#!/bin/bash\n{command}\n", "a.sh")
    message = raised.value.errors[0].message
    assert isinstance(message, Message)


TASK = """
system: {tensor_model_parallel_size: 2, use_distributed_optimizer: true, precision: {bf16: true, fp16: false}}
model:
  num_layers: 24
  hidden_size: 2048
  num_attention_heads: 16
  ffn_hidden_size: 5504
  swiglu: true
  seq_length: 2048
  max_position_embeddings: 4096
  micro_batch_size: 2
  global_batch_size: ${experiment.batch}
data: {tokenizer: {vocab_size: 32000}}
"""
FLAGS = """
ENV_VARS: {CUDA_DEVICE_MAX_CONNECTIONS: 1}
MODEL_ARGS:
  --num-layers: 24
  --hidden-size: 2048
  --num-attention-heads: 16
  --ffn-hidden-size: 5504
  --swiglu: true
  --untie-embeddings-and-output-weights: false
  --seq-length: 2048
  --max-position-embeddings: 4096
  --vocab-size: 32000
  --bf16: true
  --micro-batch-size: 2
  --use-distributed-optimizer: true
  --tensor-model-parallel-size: ${TP}
  --global-batch-size: ${BATCH}
"""
# Megatron-LM's examples/moe_recipes.
RECIPE = FLAGS.replace("MODEL_ARGS", "ARGS").replace("  --", "  ")
RECIPE = re.sub(r"^  \S+:", lambda key: key[0].replace("-", "_"), RECIPE, flags=re.MULTILINE)


@pytest.mark.parametrize(
    ("text", "variables"),
    [
        (TASK, {"experiment.batch": "64"}),
        (FLAGS, {"TP": "2", "BATCH": "64"}),
        (RECIPE, {"TP": "2", "BATCH": "64"}),
    ],
)
def test_settings_as_keys_read_as_the_flags_that_they_are(text: str, variables: dict[str, str]) -> None:
    flags = f"torchrun {LAUNCH} --tensor-model-parallel-size 2 --use-distributed-optimizer --micro-batch-size 2"
    expected = import_document(f"{flags} --global-batch-size 64", "a.sh", name="a").document
    read = import_document(text, "a.yaml", name="a", variables=variables).document
    for section in ("model", "training", "strategy"):
        assert read[section] == expected[section]
    with pytest.raises(SpecError) as raised:
        import_document(text, "a.yaml")
    assert "--set" in raised.value.hint


@pytest.mark.parametrize(
    ("word", "on"), [("true", True), ("True", True), ("1", True), ("false", False), ("0", False), ("no", False)]
)
def test_a_switch_of_ms_swift_is_on_or_off_in_every_spelling(word: str, on: bool) -> None:
    rest = f"--tensor_model_parallel_size 2 --sequence_parallel {word} --micro_batch_size 1"
    strategy = import_document(SWIFT.format(task="sft", rest=rest), "a.sh").document["strategy"]
    assert (strategy["sequence_parallel"], strategy["micro_batch_size"]) == (on, 1)


def test_a_length_that_nobody_told_is_asked_for_by_its_variable() -> None:
    text = "NPROC_PER_NODE=8 megatron sft --model Qwen/Qwen3-8B --max_length $LENGTH\n"
    with pytest.raises(SpecError) as raised:
        import_document(text, "a.sh")
    assert "--set LENGTH=" in raised.value.hint
    told = import_document(text, "a.sh", variables={"LENGTH": "2048", "NNODES": "4"})
    assert (told.document["training"]["seq_length"], told.ranks) == (2048, 32)


def test_what_a_started_text_does_not_know_keeps_its_name() -> None:
    text = f'bash -c "torchrun {LAUNCH} --tensor-model-parallel-size $(nproc)"\n'
    with pytest.raises(SpecError) as raised:
        import_document(text, "a.sh")
    assert "nproc" in str(raised.value)


def test_every_synonym_is_of_a_field_of_the_spec() -> None:
    schema = Spec.model_json_schema()

    def fields(node: dict[str, Any]) -> dict[str, Any]:
        branches = [node, *node.get("anyOf", ()), *node.get("allOf", ())]
        named = [schema["$defs"][each["$ref"].rpartition("/")[2]] for each in branches if "$ref" in each]
        return {name: field for each in (*branches, *named) for name, field in each.get("properties", {}).items()}

    for pointer in words_of_fields():
        node = schema
        for part in pointer.strip("/").split("/"):
            assert part in fields(node), pointer
            node = fields(node)[part]


TASK = """\
system: {tensor_model_parallel_size: 2, use_distributed_optimizer: true}
model:
  num_layers: 24
  hidden_size: 2048
  num_attention_heads: 16
  ffn_hidden_size: 5504
  swiglu: true
  seq_length: 2048
  max_position_embeddings: 4096
  micro_batch_size: 1
  global_batch_size: 64
data:
  tokenizer: {vocab_size: 32000}
"""
EXPERIMENT = """\
defaults: [_self_, {{train: small}}]
experiment:
  task: {{type: train, entrypoint: train/{program}}}
  runner: {{nnodes: 2, nproc_per_node: 8}}
  envs: {{CUDA_DEVICE_MAX_CONNECTIONS: 8}}
"""


@pytest.fixture
def task(tmp_path: Path) -> Path:
    """A task of FlagScale beside its experiment."""
    (tmp_path / "train").mkdir()
    (tmp_path / "train.yaml").write_text(EXPERIMENT.format(program="train_gpt.py"))
    (tmp_path / "train" / "small.yaml").write_text(TASK)
    return tmp_path / "train" / "small.yaml"


@pytest.mark.parametrize("from_experiment", [True, False])
def test_an_experiment_and_its_task_are_one_launch(task: Path, from_experiment: bool) -> None:
    read = import_file(task.parent.parent / "train.yaml" if from_experiment else task)
    assert (read.document["strategy"]["tp"], read.ranks) == (2, 16)
    assert read.environment == {"CUDA_DEVICE_MAX_CONNECTIONS": "8"}
    assert any("line 3" in str(note.source) for note in read.diagnostics.taken)  # num_layers, in the task


def test_tasks_of_a_folder_are_for_the_program_of_its_experiment(task: Path) -> None:
    (task.parent.parent / "train.yaml").write_text(EXPERIMENT.format(program="train_rwkv.py"))
    other = task.parent / "large.yaml"
    other.write_text(TASK)
    for path in (task, other, task.parent.parent / "train.yaml"):
        with pytest.raises(UnsupportedError) as raised:
            import_file(path)
        assert raised.value.errors[0].path == "/framework"


def test_an_experiment_without_its_task_names_it(task: Path) -> None:
    task.unlink()
    with pytest.raises(SpecError) as raised:
        import_file(task.parent.parent / "train.yaml")
    assert "train/small.yaml" in raised.value.hint


@pytest.mark.parametrize(
    ("keys", "field"),
    [
        ("system: {hetero: {enable_hetero: true}}", "/training/kind"),
        ("model: {vision_root: model/vision}", "/model"),
        ("model: {language_model_type: llama}", "/model"),
    ],
)
def test_heterogeneous_and_vision_tasks_are_refused(keys: str, field: str) -> None:
    section, _, rest = keys.partition(": ")
    lines = TASK.replace(f"{section}:\n", f"{section}:\n  {rest[1:-1]}\n") if f"{section}:\n" in TASK else TASK
    text = lines if lines != TASK else TASK.replace("system: {", f"system: {{{rest[1:-1]}, ")
    with pytest.raises(UnsupportedError) as raised:
        import_document(text, "a.yaml")
    assert raised.value.errors[0].path == field


@pytest.mark.parametrize(("multiple", "width"), [(256, 5632), (1000, 6000)])
def test_the_width_of_a_gated_mlp_is_rounded_up(multiple: int, width: int) -> None:
    text = TASK.replace("ffn_hidden_size: 5504", f"multiple_of: {multiple}")
    assert import_document(text, "a.yaml").document["model"]["intermediate_size"] == width


def test_all_variables_that_are_missing_are_named_at_once() -> None:
    parallel = "--tensor-model-parallel-size $TP --micro-batch-size $2 --recompute-method $HOW --data-path $DATA"
    with pytest.raises(SpecError) as raised:
        _strategy(f"torchrun {LAUNCH} {parallel}")
    assert all(f"--set {name}=VALUE" in raised.value.hint for name in ("TP", "2", "HOW"))
    assert "DATA" not in raised.value.hint


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("torchrun -m verl.trainer.sft_trainer data.x=1", "verl's supervised fine-tuning"),
        ("python tools/preprocess_data.py --input a.json", "preparation of data"),
        ("python convert_ckpt_v2.py --load-dir a", "conversion of checkpoints"),
        (f"torchrun ptq.py {SHAPE} --export-quant-cfg fp8", "quantization"),
        (f"torchrun to_mcore.py {SHAPE} --target-tensor-model-parallel-size 2", "conversion of checkpoints"),
        ("python evaluate_model.py --tensor-model-parallel-size 2", "evaluation"),
        ("megatron export --model a --to_mcore true", "ms-swift's export and inference"),
        ("python chatlearn_entrypoint.py grpo --config-file a.yaml", "RL"),
        ("torchrun -m torchtitan.train --module llama3 --config llama3_8b", "torchtitan"),
        (f"torchrun train_rwkv.py {SHAPE}", "RWKV"),
    ],
)
def test_programs_that_train_nothing_or_something_else_are_named(text: str, named: str) -> None:
    with pytest.raises(UnsupportedError) as raised:
        import_document(text, "a.sh")
    assert named in str(raised.value)


@pytest.mark.parametrize(
    ("text", "named"),
    [("from torchtitan.config import x\n", "torchtitan"), ("import nemo\n", "NeMo"), ("x = 1\n", "Python")],
)
def test_configurations_in_python_are_refused_by_their_framework(text: str, named: str) -> None:
    with pytest.raises(SpecError) as raised:
        import_document(text, "a.py")
    assert named in str(raised.value)


def test_another_framework_is_not_judged_by_the_rules_of_this_one() -> None:
    text = f"deepspeed_ok=1\npython pretrain_gpt.py {SHAPE} --pipeline-model-parallel-size 7 --zero-stage 1\n"
    with pytest.raises(UnsupportedError) as raised:
        import_document(text, "a.sh")
    with pytest.raises(UnsupportedError):
        check_unread(text, raised.value, CheckLimits(), cluster="nvidia-a100-80g")


def test_a_file_is_found_above_a_script_in_its_checkout_alone(tmp_path: Path) -> None:
    (tmp_path / "scripts" / "models").mkdir(parents=True)
    (tmp_path / "scripts" / "models" / "small.sh").write_text('ARGS="--num-layers 24"\n')
    rest = SHAPE.replace("--num-layers 24 ", "")
    run = tmp_path / "scripts" / "run.sh"
    run.write_text(f"source scripts/models/small.sh\ntorchrun pretrain_gpt.py ${{ARGS}} {rest}\n")
    with pytest.raises(SpecError):
        import_file(run)
    (tmp_path / ".git").mkdir()
    assert import_file(run).document["model"]["num_hidden_layers"] == 24


def test_a_dropped_train_type_trains_every_parameter() -> None:
    launch = "megatron sft --model qwen3-8b --train_type lora --max_length 2048"
    kept = import_document(launch, "a.sh").document["training"]
    dropped = import_document(f"{launch} --ignore_args_error true", "a.sh")
    assert "lora" in kept
    assert "lora" not in dropped.document["training"]
    assert any("tuner_type" in str(text) for text in dropped.diagnostics.doubts)


@pytest.mark.parametrize(
    ("before", "after", "rule"),
    [
        ("num_attention_heads: 16", "num_attention_heads: 15", "heads_divide_by_tp"),
        ("num_layers: 24", "num_layers: 24\n  num_query_groups: 6\n  group_query_attention: true", "query_groups"),
        ("tensor_model_parallel_size: 2", "pipeline_model_parallel_size: 7", "layers_divide_by_pp"),
    ],
)
def test_settings_as_keys_that_cannot_be_predicted_are_judged(before: str, after: str, rule: str) -> None:
    text = TASK.replace(before, after)
    with pytest.raises(SpecError) as raised:
        import_document(text, "a.yaml").spec("nvidia-h100")
    report = check_unread(text, raised.value, CheckLimits(), cluster="nvidia-h100", num_npus=16)
    assert any(each.rule.startswith(rule) for each in report.broken_rules)


def test_query_groups_without_their_switch_are_told() -> None:
    read = import_document(f"torchrun {LAUNCH} --num-query-groups 4", "a.sh")
    assert "num_key_value_heads" not in read.document["model"]
    assert any("--group-query-attention" in text for text in read.diagnostics.contradictions)
    whole = import_document(f"torchrun {LAUNCH} --num-query-groups 4 --group-query-attention", "a.sh")
    assert whole.document["model"]["num_key_value_heads"] == 4
    assert not whole.diagnostics.contradictions


def test_another_program_over_megatron_has_its_stack_and_its_start(task: Path) -> None:
    read = import_file(task)
    assert read.spec("nvidia-h100").software.stack == "megatron-lm"
    on_ascend = read.spec("ascend-800t-a2")
    assert on_ascend.software.stack == "megatron-mindspeed"
    plan = estimate(on_ascend)
    outside = plan.stages[0].memory_gib.communication_buffers + plan.stages[0].memory_gib.runtime
    assert plan.start_gib > outside + plan.stages[0].memory_gib.weights + plan.stages[0].memory_gib.gradients
