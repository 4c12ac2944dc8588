"""Documents that are built to cost much, by format: each as large as it may be, or nearly."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.support.document_fuzz import MOST_CHARACTERS

if TYPE_CHECKING:
    from collections.abc import Mapping


def filled(piece: str, before: str = "", after: str = "", size: int = MOST_CHARACTERS) -> str:
    """A text of the full size: the piece again and again between the two."""
    return before + piece * ((size - len(before) - len(after)) // len(piece)) + after


def numbered(line: str) -> str:
    """Lines of the full size in which `{n}` is another number each."""
    lines, size, n = [], 0, 0
    while size < MOST_CHARACTERS - 100:
        lines.append(line.format(n=n))
        size, n = size + len(lines[-1]), n + 1
    return "".join(lines)


RECIPE = '[model]\nname = "llama3"\nflavor = "8B"\n[training]\nseq_len = 8192\n[parallelism]\n'
SCRIPT = "torchrun pretrain_gpt.py --num-layers 8 --hidden-size 1024 --num-attention-heads 16 "
VERL = "python3 -m verl.trainer.main_ppo actor_rollout_ref.rollout.n=8 trainer.nnodes=2 trainer.n_gpus_per_node=8 "
DOCUMENTS: Mapping[str, Mapping[str, str]] = {
    "toml": {
        "dotted key": filled("a.", "[model]\n", "b=1\n[parallelism]\ntensor_parallel_degree=1\n"),
        "dotted key of quoted parts": filled('"é" . ', RECIPE, "b=1\n"),
        "dotted table": filled("a.", RECIPE + "[", "b]\n"),
        "nested arrays": filled("[", RECIPE + "x = ", "]" * 90_000),
        "nested inline tables": filled("{a=", RECIPE + "x = ", "1" + "}" * 40_000),
        "digits": filled("9", RECIPE + "steps = "),
        "digits of base 16": filled("F", RECIPE + "steps = 0x"),
        "long key": filled("k", RECIPE, " = 1\n"),
        "many keys": RECIPE + numbered("k{n}=1\n")[: MOST_CHARACTERS - 200],
        "many tables": numbered("[a.b.c.t{n}]\nx=1\n"),
        "tables in a list": filled("[[a.b]]\nx.y.z=1\n", RECIPE),
        "open text": filled('\\"', RECIPE + 'x = """'),
        "brackets in texts": filled('"[[[[[[[[",', RECIPE + "x = [", "]\n"),
    },
    "yaml": {
        "anchors that double": "a0: &a0 [x, x]\n"
        + "".join(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]\n" for n in range(1, 60)),
        "merges that double": "a0: &a0 {x: 1}\n"
        + "".join(f"a{n}: &a{n} {{<<: [*a{n - 1}, *a{n - 1}]}}\n" for n in range(1, 60)),
        "long text under many names": filled("y", "a: &a '", "'\nb: [" + "*a, " * 9_000 + "*a]\n", MOST_CHARACTERS),
        "nested lists": filled("- "),
        "nested keys": filled("? "),
        "flow in flow": filled("[{a: ", "model: "),
        "digits of base 16": filled("F", "seq_length: 0x"),
        "digits of base 60": filled(":59", "%YAML 1.1\n---\na: 1"),
        "folded text": filled("word\n  ", "a: >\n  "),
        "block of blanks": filled("   \n", "a: |\n"),
        "escapes": filled("\\u0041", 'a: "', '"\n'),
        "comments": filled("# c\n", "model: a\n"),
        "many tags": numbered("%TAG !t{n}! tag:x,2000:\n") + "--- a\n",
        "many keys": numbered("k{n}: 1\n"),
    },
    "json": {
        "lists": filled("["),
        "objects": filled('{"a":'),
        "closed lists": "[" * 90_000 + "]" * 90_000,
        "repeated key at the end": "{"
        + numbered('"k{n}":1,')[: MOST_CHARACTERS - 50].rpartition(",")[0]
        + ',"k9":1,"k9":1}',
        "escapes": filled("\\u0041", '{"model": "', '"}'),
        "open text": filled('\\"', '{"model": "'),
        "digits": filled("9", '{"hidden_size": ', "}"),
        "long key": filled("k", '{"', '": 1}'),
        "many values": filled("1,", '{"layer_types": [', "1]}"),
        "unknown keys": '{"model": {"name": "a", '
        + numbered('"hiden_size{n}": 1, ')[: MOST_CHARACTERS - 60].rpartition(",")[0]
        + "}}",
    },
    "shell": {
        "substitutions": filled("$("),
        "brackets of sums": filled("(", SCRIPT + "--seq-length $((", "1" + ")" * 50_000),
        "parameters in parameters": filled("${a:-", "TP="),
        "functions in functions": filled("f() {\n"),
        "conditions in conditions": filled("if a; then\n"),
        "texts from here": filled("$(cat <<E\n"),
        "blanks after a text from here": filled(" ", SCRIPT + "--x $(cat <<E\na\nE", "x"),
        "tabs before a text's nameless end": filled("\t", "cat <<''\n", "x\n"),
        "texts of many names": filled("<<E", "cat ", "\na\n"),
        "a long name of a text": filled("E", "cat <<", "\na\n"),
        "doubling": "A0=x\n" + "".join(f"A{n}=$A{n - 1}$A{n - 1}\n" for n in range(1, 100)) + SCRIPT + "$A99",
        "functions that call two": "f0() { a; }\n"
        + "".join(f"f{n}() {{ f{n - 1}; f{n - 1}; }}\n" for n in range(1, 60))
        + "f59\n",
        "a function that calls itself": "f() { f; f; }\nf\n" + SCRIPT,
        "one flag again and again": filled("--a 1 ", SCRIPT + "--seq-length 8 --global-batch-size 8 ", size=50_000),
        "numbers beyond any": SCRIPT
        + "--seq-length 8 --expert-model-parallel-size "
        + "9" * 30
        + " --num-experts 8 --vocab-size "
        + "9" * 5_000,
        "unknown flags": SCRIPT + numbered("--flag-{n} 1 ")[: MOST_CHARACTERS - 200],
        "patterns": filled("*?", "A=aaaa\nB=${A%", "}\n" + SCRIPT + "$B"),
        "layout": filled("(t|", SCRIPT + "--pipeline-model-parallel-layout '", "'"),
        "powers": SCRIPT + "--seq-length $((9" + "**9" * 1_000 + "))",
        "lines that go on": filled("\\\n", SCRIPT),
    },
    "hydra": {
        "dotted key": filled("a.", VERL, "b=1\n"),
        "key of the actor": filled("actor.", VERL + "actor_rollout_ref.", "x=1\n"),
        "key with groups": filled("a@b/", VERL, "c=1\n"),
        "long key": filled("k", VERL, "=1\n"),
        "many keys": VERL + numbered("+k.a{n}=1 ")[: MOST_CHARACTERS - 200],
        "lists": filled("[", VERL + "a=", "\n"),
        "digits": filled("9", VERL + "data.train_batch_size=", "\n"),
        "quotes": filled("'\"'", VERL + "a=", "\n"),
    },
    "tables": {
        "columns": filled("a,", after="\n1,2\n", size=19_000),
        "many columns of many lines": filled(filled("1,", after="\n", size=19_000)),
        "quotes": filled('"",', "step,step_time_s\n"),
        "open quote": filled("x", 'step,step_time_s\n"', size=19_000),
        "rows": "step,step_time_s\n" + numbered("{n},1.5\n"),
        "log of one line": filled("elapsed time per iteration (ms): 1 | ", size=19_000),
        "log of many iterations": numbered(
            "iteration {n}/9 | elapsed time per iteration (ms): 1.0 | global batch size: 1 |\n"
        ),
        "out of memory, again": filled("out of memory. Tried to allocate 2.00 GiB (NPU 0; ", size=19_000),
        "bars": filled("|", "data_size(Bytes): | aveg_time(us): |\n"),
        "experts": "step,layer,expert,tokens\n" + numbered("0,0,{n},1\n"),
    },
}
