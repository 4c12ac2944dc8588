"""Launch scripts: what is read of them, where a mistake is, and that nothing is ever run."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from autodeploy.formats.common.flag_effects import flag_effects
from autodeploy.formats.common.launch_script import read_launch_script
from autodeploy.formats.import_document import import_document, import_file
from autodeploy.kit.errors import SpecError, UnsupportedError
from autodeploy.messages import in_language
from tests.support.pace import at_most

CHINESE = re.compile(r"[\u4e00-\u9fff]")
FILES = Path(__file__).parent.parent / "launch_files"
SHAPE = "--num-layers 4 --hidden-size 512 --num-attention-heads 8"
REST = "--seq-length 1024 --vocab-size 1000 --global-batch-size 8"


def script(*lines, flags=f"{SHAPE} {REST}"):
    """A script of the lines that starts a training with the flags."""
    return "\n".join([*lines, f"torchrun --nproc_per_node 8 pretrain_gpt.py {flags}"])


def flags_of(*lines, flags):
    found = read_launch_script(script(*lines, flags=f"{SHAPE} {flags}")).flags
    return {name: flag.text for name, flag in found.items() if name not in SHAPE}


def test_a_mindspeed_script_is_a_spec():
    imported = import_file(FILES / "mindspeed_moe.sh")
    assert (imported.kind, imported.target, imported.ranks) == ("launch-script", "mindspeed-llm", 128)
    spec = imported.spec("cloudmatrix-384")
    model, strategy = spec.model, spec.strategy
    assert (spec.cluster.num_npus, spec.training.global_batch_size.value, spec.training.seq_length) == (64, 512, 8192)
    assert spec.training.tokens == 1000 * 512 * 8192
    assert (model.num_hidden_layers, model.n_routed_experts, model.first_k_dense_replace) == (22, 64, 1)
    assert (model.n_shared_experts, model.num_key_value_heads, model.qk_norm) == (2, 4, True)
    assert (strategy.tp, strategy.pp, strategy.vpp, strategy.ep, strategy.etp) == (2, 4, 3, 16, 1)
    assert strategy.layers_per_stage == ((2, 2, 2), (2, 2, 2), (2, 2, 2), (2, 2, 0))
    assert (strategy.schedule, strategy.moe_dispatcher, strategy.swap_optimizer) == ("interleaved", "alltoall", True)
    # One layer of each virtual stage, but of the empty one.
    assert [row.get("full", 0) for row in strategy.recompute.per_stage] == [3, 3, 3, 3]
    assert {"moe_alltoall_overlap", "grouped_gemm", "fused_operators", "host_core_binding"} <= {*strategy.features}
    assert imported.environment["TASK_QUEUE_ENABLE"] == "2"
    assert "MY_OWN_SWITCH" not in imported.environment
    assert [(flag.name, flag.value) for flag in imported.kept] == [("--some-flag-of-ours", "1 2")]


def test_a_megatron_script_is_a_spec():
    imported = import_file(FILES / "megatron_dense.sh")
    spec = imported.spec("nvidia-h100")
    assert (imported.target, imported.ranks, spec.cluster.num_npus) == ("megatron", 32, 32)
    assert spec.strategy.layers_per_stage == (7, 9, 9, 5)
    assert (spec.training.precision, spec.training.tokens) == ("fp8", 1_000_000 * 4096)
    assert (spec.model.vocab_size, spec.model.intermediate_size) == (50_257, 8192)
    assert spec.model.tie_word_embeddings
    assert spec.strategy.recompute.modules == ("core_attn",)
    notes = imported.diagnostics
    assert any("dirname" in note.reason for note in notes.ignored)
    assert any("WANDB_API_KEY" in note.reason for note in notes.ignored)
    assert "/model/vocab_size" in {note.field for note in notes.defaulted}


def test_a_script_without_chips_asks_for_them():
    with pytest.raises(SpecError) as caught:
        import_file(FILES / "mindspeed_moe.sh").spec()
    assert caught.value.errors[0].path == "/cluster/profile"
    assert "--cluster" in caught.value.errors[0].hint


def test_a_script_without_a_sequence_says_where_it_may_be():
    text = script("OPTS=$(python options.py)", flags=f"$OPTS {SHAPE} --vocab-size 1000 --global-batch-size 8")
    with pytest.raises(SpecError, match="--seq-length is required") as caught:
        import_document(text, "a.sh").spec("ascend-800t-a2")
    assert "$(python options.py) is not executed" in caught.value.errors[0].hint


def test_a_script_may_name_its_chips():
    mark = "# autodeploy: cluster=ascend-800t-a2 device=910B3 num_npus=64"
    spec = import_document(script(mark), "a.sh").spec()
    assert (spec.cluster.profile, spec.cluster.device, spec.cluster.num_npus) == ("ascend-800t-a2", "910B3", 64)
    assert import_document(script(mark), "a.sh").spec("cloudmatrix-384").cluster.device is None


def test_too_few_ranks_are_a_contradiction_and_ask_for_cards():
    imported = import_document(script(flags=f"{SHAPE} {REST} --tensor-model-parallel-size 16"), "a.sh")
    assert [note.value for note in imported.diagnostics.contradicted] == ["8"]
    with pytest.raises(SpecError, match="num_npus is required"):
        imported.spec("ascend-800t-a2")
    assert imported.spec("ascend-800t-a2", num_npus=64).cluster.num_npus == 64


@pytest.mark.parametrize(
    ("lines", "flags", "expected"),
    [
        (["A=2"], "--lr $A", "2"),
        (["A=2"], '--lr "${A}e-5"', "2e-5"),
        (["A='x y'"], '--lr "$A"', "x y"),
        ([], "--lr ${A:-7}", "7"),
        (["A="], "--lr ${A:-7}", "7"),
        (["A=1"], "--lr ${A:+3}", "3"),
        (["A=4", "B=$(( (A + 2) * A / 3 - 1 ))"], "--lr $B", "7"),
        (["A=4", "B=$(($A*${A}))"], "--lr $B", "16"),
        (["A=(1 2 3)"], '--lr "${A[@]}"', "1 2 3"),
        (["A=(1)", "A+=(2)"], "--lr ${A[*]}", "1 2"),
        (["A=1", "A+=0"], "--lr $A", "10"),
        (["A=1", "if [ $A -gt 0 ]; then B=5; else B=6; fi"], "--lr $B", "5"),
        (["A=1", "if ((A == 2)); then B=5; elif [[ $A == 1 && -n x ]]; then B=6; fi"], "--lr $B", "6"),
        (["A=x", '[ "$A" = y ] && B=1 || B=2'], "--lr $B", "2"),
        (["f() {", "  B=9", "}", "f"], "--lr $B", "9"),
        (["B=1 # not 2"], "--lr $B", "1"),
        (["B=1; cat <<EOF > x", "B=2", "EOF", ""], "--lr $B", "1"),
        (["export B=3"], "--lr=$B", "3"),
        (["A=b", "case $A in", "a) B=1 ;;", "b|c)", "  B=2", "  ;;", "*) B=3", "esac"], "--lr $B", "2"),
        (["A=7b", 'case "${A}" in (13?) B=1;; *b) B=2;; esac'], "--lr $B", "2"),
        (["B=1", "case x in '*') B=2;; [!x]) B=3;; esac"], "--lr $B", "1"),
        (["B=1", "case $1 in x) B=2;; esac"], "--lr $B", "1"),
        (["f() { B=$2; C=$#; }", "f 4 5 6"], "--lr $B$C", "53"),
        (["f() { shift; g $@; }", "g() { B=$1; }", "f 4 5"], "--lr $B", "5"),
        (["f() { g 1; B=$1; }", "g() { :; }", "f 8"], "--lr $B", "8"),
        (["A=3", "let B=A*2"], "--lr $B", "6"),
        (["A=3", "(( B = A ** 2 ))"], "--lr $B", "9"),
        (["B=$[2**10 / 4]"], "--lr $B", "256"),
        (["A=(x y z)", "B=${#A[@]}${A[1]}"], "--lr $B", "3y"),
        (["declare -A A=([one]=4 [two]=5)", 'B=$((${A[one]} * 2))${A["two"]}'], "--lr $B", "85"),
        (["A=2", "B=$(cat <<E", '  $A "x"', "E", ")"], "--lr $B", '2 "x"'),
        (["A=2", "B=$(cat <<'E'", "$A", "E", ")"], '--lr "$B"', "$A"),
    ],
)
def test_variables(lines, flags, expected):
    assert flags_of(*lines, flags=flags)["--lr"] == expected


def test_negative_numbers_are_values():
    assert flags_of(flags="--moe-layer-freq -1 --bf16") == {"--moe-layer-freq": "-1", "--bf16": ""}


def test_the_last_of_two_flags_counts():
    imported = import_document(script(flags=f"{SHAPE} {REST} --micro-batch-size 1 --micro-batch-size 2"), "a.sh")
    assert imported.document["strategy"]["micro_batch_size"] == 2
    assert [note.value for note in imported.diagnostics.contradicted] == ["1"]


def test_a_variable_from_outside():
    text = script(flags=f"{SHAPE} {REST} --tensor-model-parallel-size $TP")
    with pytest.raises(
        SpecError, match=r"line 1, column \d+: --tensor-model-parallel-size: \$TP has no value"
    ) as caught:
        import_document(text, "a.sh")
    assert caught.value.hint == "set it: --set TP=VALUE"
    assert import_document(text, "a.sh", variables={"TP": "4"}).document["strategy"]["tp"] == 4
    assert import_document("TP=2\n" + text, "a.sh", variables={"TP": "4"}).document["strategy"]["tp"] == 4


def test_nothing_is_run(tmp_path):
    owned = tmp_path / "owned"
    text = script(f"A=$(touch {owned})", f"B=`touch {owned}`", f"touch {owned}", f"cat <(touch {owned})", flags="")
    imported = import_document(f"{text} {SHAPE} {REST} --lr $A --min-lr $B", "a.sh")
    assert not owned.exists()
    refused = [note.reason for note in imported.diagnostics.ignored if "not executed" in note.reason]
    assert len(refused) == 2
    with pytest.raises(SpecError, match="has no value in the script"):
        import_document(script(flags=f"{SHAPE} {REST} --tensor-model-parallel-size $(nproc)"), "a.sh")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('A=1\nB="two\n', 'line 2, column 3: missing "'),
        ("A=${B", "line 1, column 4: missing '}'"),
        ("A=(1 2", r"line 1, column 3: missing '\)'"),
        ("\nif true; then\n", "missing 'elif', 'else' or 'fi'"),
        ("fi\n", "line 1, column 1: unexpected 'fi'"),
        ("A=$((1 / 0))\n", "line 1, column 3: .*: 1 / 0 is not a whole number"),
        ("A=$((99999999999999999999 * 9))\n", "column 3: .* is too big"),
        ("A=$(echo\n", "missing"),
        ("case x\n", "line 1, column 1: missing 'in'"),
        ("case x in\na) B=1\n", "missing ';;' or 'esac'"),
        ("case x in\na", "line 1, column 1: missing 'esac'"),
        ("case x in\n) B=1;; esac", r"line 2, column 1: unexpected '\)'"),
        ("A=$(cat <<E\nB\n", "line 1, column 3: missing 'E'"),
        ("A=$((2 ** -1))\n", ": 2 .. -1 is not a whole number"),
        ("A=$((2 ** 63))\n", "column 3: .* is too big"),
        ("echo hello\n", "missing --hidden-size"),
        (script(flags=f"{SHAPE} {REST} --num-query-groups many"), "line 1, column .*'many' is not a whole number"),
        (script(flags=f"{SHAPE} {REST} --num-query-groups {'9' * 50}"), "is not a whole number from"),
        (script(flags=f"{SHAPE} {REST} --noop-layers 7"), "7 is outside .0, 3"),
        (script(flags=f"{SHAPE} {REST} --pipeline-model-parallel-layout 'Ett|tq|L'"), "unexpected 'q'"),
        (script(flags=f"{SHAPE} {REST} --pipeline-model-parallel-layout EttL"), "places 2 layers, the model has 4"),
        (script(flags=f"{SHAPE} --seq-length 8 --global-batch-size 8"), "--vocab-size is required"),
    ],
)
def test_mistakes_name_their_place(text, message):
    with pytest.raises(SpecError, match=message):
        import_document(text, "a.sh")


HOSTILE = {
    "doubling": "A=0123456789\n" + "".join("A=$A$A\n" for _ in range(60)) + script(),
    "array doubling": "A=(1)\n" + 'A+=("${A[@]}")\n' * 60 + script(),
    "nested defaults": "A=" + "${A:-" * 5000 + "}" * 5000,
    "nested commands": "A=" + "$(" * 50_000,
    "nested arithmetic": "A=$((" + "(" * 900 + ")" * 900 + "))\n" + script(),
    "nested cases": "case x in x) " * 5000,
    "powers": "A=$((" + "3**" * 1300 + "1))\n" + "A=$((" + "1**" * 1300 + "9**9**9))\n" + script(flags=SHAPE),
    "arguments": "f() { f $@ $@; }\nf 1 2\n" + script(),
    "nested conditions": "if true; then\n" * 5000,
    "nested functions": "f() { f; f; }\nf\n" + script(),
    "many quotes": '"' * 99_999,
    "many commands": "a\n" * 100_000 + script(),
    "layout": script(flags=f"{SHAPE} {REST} --pipeline-model-parallel-layout '(((t*9999)*9999)*9999)'"),
    "wide number": script(flags=f"{SHAPE} {REST} --num-experts {'1' * 100_000}"),
    "many words": "a " * 90_000 + "\n" + script(),
    "backslashes": "\\" * 200_000 + "\n" + script(),
    "too large": "#" * 2_000_000,
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_scripts_are_refused_fast(name):
    with at_most(1.0), pytest.raises(SpecError):
        import_document(HOSTILE[name], "a.sh")


def test_mechanisms_that_are_not_modelled_are_refused_by_name():
    with pytest.raises(UnsupportedError, match=r"line 1, column \d+: not modelled yet: linear attention"):
        import_document(script(flags=f"{SHAPE} {REST} --full-attention-interval 4"), "a.sh")


def test_a_model_is_called_as_its_preset_its_tokenizer_or_its_file():
    def name(flags="", filename="my_moe.sh"):
        return import_document(script(flags=f"{SHAPE} {REST} {flags}"), filename).document["model"]["name"]

    assert name() == "my_moe"
    assert name(filename=None) == "imported model"
    assert name("--tokenizer-name-or-path ./model_from_hf/Qwen9-7B-hf/") == "Qwen9-7B-hf"
    assert name("--tokenizer-name-or-path 'your tokenizer path' --load ckpt/glm9-mcore") == "glm9-mcore"
    assert name("--load ckpt", "a.sh") == "a"


def test_flags_that_change_the_result_and_are_not_modelled_are_a_class_of_their_own() -> None:
    given = "--optimizer sgd --reset-position-ids --rampup-batch-size 8 8 100"
    text = "torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 2 --hidden-size 512 --num-attention-heads 8 "
    rest = "--vocab-size 100 --micro-batch-size 1 --seq-length 512 "
    found = import_document(text + rest + given, "a.sh").diagnostics
    assert [note.source.partition(": ")[2] for note in found.unmodelled] == [
        "--optimizer",
        "--reset-position-ids",
        "--rampup-batch-size",
    ]
    assert "line 1: --optimizer sgd: states and time" in found.doubts[0]
    assert all(CHINESE.search(in_language(doubt, "zh")) for doubt in found.doubts)
    for name in ("adam", "muon"):
        assert not import_document(f"{text}{rest}--optimizer {name}", "a.sh").diagnostics.unmodelled
    assert all(
        CHINESE.search(in_language(reason, "zh")) for reason in {effect.reason for effect in flag_effects().values()}
    )


def test_a_capacity_is_the_models_where_experts_are_padded_to_it_and_drops_tokens_else() -> None:
    def read(flags: str) -> tuple[dict[str, Any], list[str], dict[str, Any]]:
        text = "torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 2 --hidden-size 512 --num-attention-heads 8 "
        text += "--vocab-size 100 --micro-batch-size 1 --seq-length 512 --num-experts 8 --moe-router-topk 2 "
        found = import_document(text + "--moe-ffn-hidden-size 512 " + flags, "a.sh")
        return found.document["model"], found.document["strategy"]["features"], found.document["training"]

    model, features, _ = read("--moe-expert-capacity-factor 1.25 --moe-pad-expert-input-to-capacity")
    assert model["capacity_factor"] == 1.25
    assert "capacity_drop" not in features
    model, features, training = read("--moe-expert-capacity-factor 1.1")
    assert "capacity_factor" not in model
    assert "capacity_drop" in features
    assert training["expert_capacity_factor"] == 1.1


def test_a_pattern_of_expert_layers_counts_padding() -> None:
    text = "torchrun --nproc_per_node 8 pretrain_gpt.py --hidden-size 512 --num-attention-heads 8 --vocab-size 100 "
    text += "--seq-length 512 --num-experts 8 --moe-router-topk 2 --moe-ffn-hidden-size 512 --ffn-hidden-size 2048 "
    text += "--pipeline-model-parallel-size 2 --num-layers 8 --noop-layers 1,2 --moe-layer-freq '([0]*3+[1]*5)'"
    model = import_document(text, "a.sh").document["model"]
    assert model["num_hidden_layers"] == 6
    assert model["first_k_dense_replace"] == 1
    assert model["mlp_only_layers"] == []


def test_swapped_attention_outputs_are_read_as_such() -> None:
    text = "torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 2 --hidden-size 512 --num-attention-heads 8 "
    found = import_document(text + "--vocab-size 100 --seq-length 512 --mla-swap-core-attn-out", "a.sh")
    assert found.document["strategy"]["swap"] == ["core_attn_out"]


def test_a_fixed_router_balances_the_experts() -> None:
    text = "torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 2 --hidden-size 512 --num-attention-heads 8 "
    found = import_document(text + "--vocab-size 100 --micro-batch-size 1 --seq-length 512 --fix-router", "a.sh")
    assert found.document["training"]["routing_imbalance"] == 1.0
    assert found.document["training"]["routing_imbalance_peak"] == 1.0
    assert any("--fix-router" in note.reason for note in found.diagnostics.defaulted)


@pytest.mark.parametrize("written", ["$MEM_ARGS", "${MEM_ARGS}", "${MEM_ARGS[@]}"])
def test_a_variable_for_flags_that_nothing_sets_is_empty_and_told(written):
    """It is no value of the flag before it, as the shell leaves nothing of it."""
    moe = 'MOE_ARGS="--num-experts 8 --moe-router-topk 2"'
    text = script(moe, flags=f"{SHAPE} {REST} $MOE_ARGS {written} --swiglu")
    found = import_document(text, "a.sh").document
    assert (found["model"]["num_experts_per_tok"], found["model"]["hidden_act"]) == (2, "silu")
    (doubt,) = found["doubts"]
    assert doubt == "$MEM_ARGS is not set in the script: read as empty"
    assert in_language(doubt, "zh") == "脚本中未设置 $MEM_ARGS：按空值读取"


def test_a_variable_for_flags_is_set_from_outside():
    text = script(flags=f"{SHAPE} {REST} $MEM_ARGS")
    found = import_document(text, "a.sh", variables={"MEM_ARGS": "--swap-attention --swiglu"})
    assert found.document["model"]["hidden_act"] == "silu"
    assert "doubts" not in found.document


def test_a_value_that_nothing_sets_is_asked_for():
    with pytest.raises(SpecError, match=r"--moe-router-topk: \$TOPK has no value"):
        import_document(script(flags=f"{SHAPE} {REST} --num-experts 8 --moe-router-topk $TOPK"), "a.sh")


@pytest.mark.parametrize(
    ("flags", "recompute"),
    [
        ("--recompute-num-layers 1", {"modules": ["mlp"], "per_stage": [{"mlp": 1}, {"mlp": 1}]}),
        ("--recompute-num-layers 2", {"modules": ["mlp"]}),
        ("--recompute-num-layers 1 --recompute-method uniform", {"modules": ["mlp"]}),
        ("--recompute-num-layers 2 --num-experts 4", {"modules": ["moe"]}),
        ("--recompute-num-layers 1 --num-layers-per-virtual-pipeline-stage 1", {"modules": ["mlp"]}),
        (
            "--recompute-num-layers 1 --num-layers-per-virtual-pipeline-stage 1 --enable-recompute-layers-per-pp-rank",
            {"modules": ["mlp"], "per_stage": [{"mlp": 1}, {"mlp": 1}]},
        ),
    ],
)
def test_beside_swapped_attention_the_count_is_of_recomputed_mlps(flags, recompute):
    """MindSpeed's swap-attention reads `--recompute-num-layers` without a granularity as layers whose MLP is redone."""
    given = f"{SHAPE} {REST} --pipeline-model-parallel-size 2 --swap-attention {flags}"
    strategy = import_document(script(flags=given), "a.sh").document["strategy"]
    assert strategy["recompute"] == {"granularity": "selective"} | recompute
    assert strategy["swap"] == ["attention"]


def test_a_block_of_swapped_layers_is_told():
    given = f"{SHAPE} {REST} --pipeline-model-parallel-size 2 --swap-attention --recompute-num-layers 1"
    (doubt,) = import_document(script(flags=f"{given} --recompute-method block"), "a.sh").document["unmodelled"]
    assert "attention is predicted as swapped in every layer" in doubt
    assert "按每一层都换出注意力预测" in in_language(doubt, "zh")


def test_a_count_of_layers_alone_recomputes_nothing():
    given = f"{SHAPE} {REST} --recompute-num-layers 1"
    assert import_document(script(flags=given), "a.sh").document["strategy"]["recompute"] == {"granularity": "none"}


@pytest.mark.parametrize(("flags", "told"), [("", True), ("--moe-fb-overlap", False)])
def test_pairs_of_dualpipev_that_run_one_after_another_are_told(flags, told):
    """MindSpeed's dualpipev_schedules.py overlaps a pair under `--moe-fb-overlap` alone."""
    moe = "--num-experts 8 --expert-model-parallel-size 4 --moe-grouped-gemm --moe-token-dispatcher-type alltoall"
    given = f"{SHAPE} {REST} --pipeline-model-parallel-size 2 --schedules-method dualpipev {moe} {flags}"
    document = import_document(script(flags=given), "a.sh").document
    assert document["strategy"]["schedule"] == "dualpipev"
    assert any("--moe-fb-overlap" in each for each in document.get("unmodelled", ())) == told
