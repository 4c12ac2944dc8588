"""Hostile files: every reader of documents and launch scripts must refuse them at once."""

from __future__ import annotations

import json
import time

from autodeploy.formats.import_document import import_document
from autodeploy.kit.errors import AutoDeployError

LIMIT_S = 1.0
BOMB = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "\n".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 12)
)
HF = {"architectures": ["LlamaForCausalLM"], "model_type": "llama"}
SCRIPT = "torchrun pretrain_gpt.py --tensor-model-parallel-size {} --num-layers 8\n"
HOSTILE = {
    "deep JSON": "[" * 200_000,
    "deep JSON objects": '{"a":' * 100_000,
    "deep YAML": "a: " + "[" * 50_000,
    "deep YAML blocks": "\n".join(" " * n + "a:" for n in range(2000)),
    "alias bomb": BOMB,
    "huge integer": json.dumps(HF | {"hidden_size": 1})[:-1] + ', "vocab_size": ' + "9" * 200_000 + "}",
    "huge float": json.dumps(HF)[:-1] + ', "hidden_size": 1e999}',
    "many layers": json.dumps(HF | {"num_hidden_layers": 10**15, "hidden_size": 10**15}),
    "command substitution": "TP=$(rm -rf /)\n" + SCRIPT.format("$TP"),
    "backticks": SCRIPT.format("`id`"),
    "huge power": "TP=$((9**9**9**9))\n" + SCRIPT.format("$TP"),
    "doubling": "A0=xxxxxxxxxx\n"
    + "\n".join(f'A{n}="$A{n - 1}$A{n - 1}$A{n - 1}$A{n - 1}"' for n in range(1, 40))
    + "\n"
    + SCRIPT.format("$A39"),
    "open quote": "torchrun pretrain_gpt.py --a '" + "x" * 500_000,
    "python object": "!!python/object/apply:os.system ['id']",
}


def refusal_s(name: str) -> float:
    """How much processor time the refusal of that file takes, in seconds.

    Raises
    ------
    AssertionError
        when it is not refused.
    """
    started_s = time.process_time()
    try:
        import_document(HOSTILE[name]).spec()
    except AutoDeployError:
        return time.process_time() - started_s
    raise AssertionError(f"{name} is taken for a spec")
