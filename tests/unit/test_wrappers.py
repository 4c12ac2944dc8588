"""Wrappers of launches: numbered arguments, optional settings, files and tables that the flags come from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from autodeploy.formats.import_document import import_document, import_file
from autodeploy.kit.errors import SpecError, UnsupportedError

if TYPE_CHECKING:
    from pathlib import Path

SHAPE = (
    "--num-layers 24 --hidden-size 2048 --num-attention-heads 16 --ffn-hidden-size 5504 --swiglu --vocab-size 32000 "
    "--max-position-embeddings 4096 --seq-length 2048 --bf16"
)
LAUNCH = f"pretrain_gpt.py {SHAPE}"
SWIFT = "NPROC_PER_NODE=8 NNODES=2 megatron {task} --model Qwen/Qwen3-8B --max_length 4096 --dataset a/b {rest}\n"
FLAGS = "MODEL_ARGS:\n" + "".join(
    f"  --{name}: {value}\n"
    for name, value in {
        "num-layers": 24,
        "hidden-size": 2048,
        "num-attention-heads": 16,
        "ffn-hidden-size": 5504,
        "vocab-size": 32000,
        "seq-length": 2048,
        "max-position-embeddings": 4096,
        "swiglu": "true",
        "bf16": "true",
        "use-distributed-optimizer": "true",
        "tensor-model-parallel-size": "${TP}",
        "global-batch-size": "${BATCH}",
    }.items()
)


def _strategy(text: str, **options: Any) -> dict[str, Any]:
    return dict(import_document(text, "a.sh", **options).document["strategy"])


def test_a_file_of_ms_swift_stands_before_the_other_arguments(tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text("NPROC_PER_NODE=8 megatron sft conf/a.yaml --micro_batch_size 2\n")
    with pytest.raises(SpecError) as raised:
        import_file(tmp_path / "run.sh")
    assert "conf/a.yaml" in raised.value.hint
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "a.yaml").write_text(
        "ENV:\n  NNODES: 2\n  NPROC_PER_NODE: 4\nmodel: Qwen/Qwen3-8B\nmax_length: 4096\nmicro_batch_size: 1\n"
        "tensor_model_parallel_size: 4\nsequence_parallel: true\ndataset:\n  - a/b\n  - c/d\n"
    )
    read = import_file(tmp_path / "run.sh")
    strategy = read.document["strategy"]
    assert [strategy[key] for key in ("tp", "micro_batch_size", "sequence_parallel")] == [4, 2, True]
    assert (read.ranks, read.document["training"]["seq_length"]) == (16, 4096)
    assert any("conf/a.yaml: line 6" in text for text in read.diagnostics.contradictions)
    with pytest.raises(UnsupportedError) as refused:
        import_file(tmp_path / "conf" / "a.yaml")
    assert "megatron sft" in refused.value.hint


def test_a_checkpoint_of_megatron_names_the_model_of_release_3() -> None:
    launch = SWIFT.format(task="sft", rest="--max_epochs 3").replace(
        "--model Qwen/Qwen3-8B", "--load /a/Qwen3-8B-mcore"
    )
    read = import_document(launch, "a.sh")
    assert (read.document["model"]["num_hidden_layers"], read.kept) == (36, ())


def test_a_word_given_twice_counts_the_last_time() -> None:
    read = import_document(SWIFT.format(task="sft", rest="--micro_batch_size 1 --micro_batch_size 2"), "a.sh")
    assert read.document["strategy"]["micro_batch_size"] == 2
    assert read.diagnostics.contradictions


def test_what_ms_swift_trains_besides_is_refused_before_its_model_is_looked_for() -> None:
    with pytest.raises(UnsupportedError):
        import_document(SWIFT.format(task="rlhf", rest="--rlhf_type grpo").replace("Qwen3-8B", "Unknown-8B"), "a.sh")


def test_all_arguments_of_a_script_are_asked_for_by_their_numbers_and_names() -> None:
    text = "SIZE=$1\nTP=${10}\nif [ $SIZE = 7B ]; then\n  MICRO=4\nfi\n"
    text += (
        f"torchrun {LAUNCH} --tensor-model-parallel-size $TP --micro-batch-size $MICRO --context-parallel-size $CP\n"
    )
    with pytest.raises(SpecError) as raised:
        _strategy(text)
    assert raised.value.hint.endswith("--set 1=SIZE --set 10=TP --set CP=VALUE")
    strategy = _strategy(text, variables={"1": "7B", "10": "2", "CP": "2"})
    assert (strategy["tp"], strategy["micro_batch_size"], strategy["cp"]) == (2, 4, 2)


@pytest.mark.parametrize(("given", "micro", "virtual"), [({}, 2, 1), ({"MP_MICRO": "4", "MP_VP": "6"}, 4, 2)])
def test_a_variable_that_nobody_sets_is_empty_to_a_condition(given: dict[str, str], micro: int, virtual: int) -> None:
    text = "if [ -z ${MP_MICRO} ]; then MP_MICRO=2; fi\nif [ -n ${MP_VP} ]; then\n"
    text += "  vp_option=' --num-layers-per-virtual-pipeline-stage '${MP_VP}\nelse\n  vp_option=\nfi\n"
    text += f"torchrun {LAUNCH} --pipeline-model-parallel-size 2 --micro-batch-size $MP_MICRO ${{vp_option}}\n"
    strategy = _strategy(text.replace("-n ${MP_VP}", '-n "${MP_VP}"'), variables=given)
    assert (strategy["micro_batch_size"], strategy["vpp"]) == (micro, virtual)
    with pytest.raises(SpecError):  # what stands in a branch that is not known stays unknown
        _strategy("if $(a); then MICRO=2; fi\nif [ -z $MICRO ]; then MICRO=4; fi\n" + text.replace("MP_MICRO", "MICRO"))


@pytest.mark.parametrize("folder", ["/nowhere/at/all", "repository/mine", "mine"])
def test_a_file_of_another_machine_is_found_by_the_end_of_its_place(tmp_path: Path, folder: str) -> None:
    tmp_path = tmp_path / "mine"
    tmp_path.mkdir()
    (tmp_path / "run.sh").write_text(f"source {folder}/size.sh\ntorchrun {LAUNCH} --micro-batch-size $MICRO\n")
    with pytest.raises(SpecError):
        import_file(tmp_path / "run.sh")
    (tmp_path / "size.sh").write_text("MICRO=2\n")
    assert import_file(tmp_path / "run.sh").document["strategy"]["micro_batch_size"] == 2


@pytest.mark.parametrize("starter", ["mpirun -np $N --npernode 8 -x NAME=$NAME", "mpiexec -n $N", "srun -n $N"])
def test_a_script_of_a_parallel_starter_is_followed(tmp_path: Path, starter: str) -> None:
    header = "#SBATCH --nodes=4\n#SBATCH --gpus-per-node=8\n"
    (tmp_path / "run.sh").write_text(f"#!/bin/bash\n{header}{starter} bash train.sh\n")
    (tmp_path / "train.sh").write_text(f"python pretrain_gpt.py {SHAPE} --micro-batch-size 2\n")
    read = import_file(tmp_path / "run.sh")
    assert (read.ranks, read.document["strategy"]["micro_batch_size"]) == (32, 2)


@pytest.mark.parametrize(
    "before",
    [
        'if $(ssh a "test -f \\"$F\\""); then\n  N=$(( ${A} > ${N} ? ${A} : ${N} ))\nfi\n',  # quotes in quotes
        "P=\n" + 'P="${P} 855056046544 ${ROOT}/some_text_document"\n' * 200,  # a long list of data
    ],
)
def test_nothing_before_a_launch_keeps_it_from_being_read(before: str) -> None:
    assert _strategy(f"{before}torchrun {LAUNCH} --micro-batch-size 2\n")["micro_batch_size"] == 2


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ('{\n  # sizes\n  "pipe_parallel_size": 1,\n  "num_layers": 6,\n}\n', "GPT-NeoX"),
        ("work_group: a\nmodules:\n  pre_trainer:\n    framework: megatron\n", "Primus"),
        ("model: a/b\ncutoff_len: 2048\ntrain_dataset: c.yaml\n", "LLaMA-Factory"),
        ("model: a/b\ntuner_type: lora\n", "ms-swift"),
    ],
)
def test_configurations_of_other_frameworks_are_refused_by_name(text: str, named: str) -> None:
    with pytest.raises(UnsupportedError) as raised:
        import_document(text, "a.yml")
    assert named in str(raised.value)


def test_a_choice_of_numbers_is_followed() -> None:
    text = "TP=$1\nMICRO=$(( ($TP > 1) ? 4 : 2 ))\n"
    text += f"torchrun {LAUNCH} --tensor-model-parallel-size $TP --micro-batch-size $MICRO\n"
    assert [_strategy(text, variables={"1": tp})["micro_batch_size"] for tp in ("1", "2")] == [2, 4]


def test_the_files_of_a_wrapper_name_its_model_too(tmp_path: Path) -> None:
    rest = SHAPE.replace("--vocab-size 32000", "").replace("--num-layers 24 --hidden-size 2048", "")
    rest = rest.replace("--num-attention-heads 16 --ffn-hidden-size 5504", "")
    shape = "--num-layers 32 --hidden-size 4096 --num-attention-heads 32 --ffn-hidden-size 11008"
    flags = f"{shape} {rest} --untie-embeddings-and-output-weights --position-embedding-type rope"
    (tmp_path / "run_llama2.sh").write_text(f"torchrun pretrain_gpt.py {flags} --micro-batch-size $1\n")
    (tmp_path / "mine.sh").write_text("bash run_llama2.sh 1\n")
    assert import_file(tmp_path / "mine.sh").document["model"]["vocab_size"] == 32000


def test_a_wrapper_that_reads_a_table_names_it(tmp_path: Path) -> None:
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "small.yaml").write_text(FLAGS)
    run = tmp_path / "run.sh"
    run.write_text(
        "export MODEL=small\nexport TABLE=$(pwd)/conf/${MODEL}.yaml\nWORDS=$(yq . ${TABLE})\npython a.py ${WORDS}\n"
    )
    with pytest.raises(SpecError) as raised:
        import_file(run)
    assert "conf/small.yaml" in raised.value.hint


@pytest.mark.parametrize(("value", "has"), [("true", True), ("false", False)])
def test_a_variable_of_a_table_may_be_a_switch(value: str, has: bool) -> None:
    text = FLAGS.replace("--use-distributed-optimizer: true", "--use-distributed-optimizer: ${OWN}")
    variables = {"TP": "2", "BATCH": "64", "OWN": value}
    assert import_document(text, "a.yaml", variables=variables).document["strategy"]["distributed_optimizer"] is has
