"""FSDP2 plans of `titan_plans.yaml` stepped by torchtitan 0.3 on the CPU, and what was seen beside what is predicted.

python -m tests.witness.titan --python PYTHON [NAME...]

PYTHON is that of an environment with torchtitan 0.3 and torch for the CPU. Nothing else is needed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autodeploy.analysis.launch_checks.launch import Launch
from autodeploy.analysis.witness.predicted import ELEMENT_BYTES, Prediction
from autodeploy.specs.reading import read_spec_document
from hardware_profiles.shipped_yaml import load_shipped_yaml

if TYPE_CHECKING:
    from autodeploy.specs.spec import Spec

FOLDER = Path(__file__).parent
RECORDS = FOLDER / "titan_records.json"
PROGRAM = FOLDER / "titan_rank.py"
TOKEN_COUNT_BYTES = 8  # of a batch, summed up over its ranks once a step


def plans() -> dict[str, dict[str, Any]]:
    """All plans, by name."""
    return load_shipped_yaml((FOLDER / "titan_plans.yaml").read_text(encoding="utf-8"))


def spec_of(plan: dict[str, Any]) -> Spec:
    """The spec of a plan."""
    return read_spec_document({name: part for name, part in plan.items() if name != "rank"})


def request_of(plan: dict[str, Any], out: Path) -> dict[str, Any]:
    """torchtitan's settings of a plan."""
    spec, model = spec_of(plan), plan["model"]
    strategy = spec.strategy
    assert strategy is not None
    shards = spec.cluster.num_npus // (strategy.tp * strategy.dp_replicate)
    sizes = {
        "n_layers": "num_hidden_layers",
        "dim": "hidden_size",
        "n_heads": "num_attention_heads",
        "n_kv_heads": "num_key_value_heads",
        "head_dim": "head_dim",
        "hidden_dim": "intermediate_size",
        "vocab_size": "vocab_size",
        "num_experts": "n_routed_experts",
        "top_k": "num_experts_per_tok",
        "moe_hidden_dim": "moe_intermediate_size",
    }
    return {
        "world": spec.cluster.num_npus,
        "rank": plan["rank"],
        "full": strategy.recompute.granularity == "full",
        "model": {theirs: model[ours] for theirs, ours in sizes.items() if ours in model},
        "training": {
            "seq_len": spec.training.seq_length,
            "local_batch_size": strategy.micro_batch_size,
            "global_batch_size": plan["training"]["global_batch_size"],
        },
        "parallelism": {
            "data_parallel_replicate_degree": strategy.dp_replicate,
            "data_parallel_shard_degree": shards,
            "tensor_parallel_degree": strategy.tp,
            "expert_parallel_degree": strategy.ep,
            "fsdp_reshard_after_forward": "never" if "keep_gathered" in strategy.features else "always",
        },
        "out": str(out),
    }


@dataclass(frozen=True)
class Rank:
    """Bytes of sharded weights and optimizer states of a rank, and its messages of a step."""

    weight_bytes: int
    optimizer_bytes: int
    messages: dict[tuple[str, str, int], int]


def predicted(plan: dict[str, Any]) -> Rank:
    """A rank as predicted; weights that stay gathered are left out, for torch's sharded parameters do not hold them."""
    spec = spec_of(plan)
    assert spec.strategy is not None
    counts = Prediction.of(Launch(spec)).counts(0)
    gathered = ELEMENT_BYTES * counts.parameters[0] if "keep_gathered" in spec.strategy.features else 0
    messages = {(m.group, m.operation, m.size_bytes): m.calls for m in counts.messages}
    return Rank(counts.weight_bytes - gathered, counts.optimizer_bytes, messages)


def seen(record: dict[str, Any]) -> Rank:
    """A rank as torchtitan was seen to run it, without sums of a batch's tokens."""
    messages = {tuple(m[:3]): m[3] for m in record["messages"] if m[2] != TOKEN_COUNT_BYTES}
    return Rank(record["weight_bytes"], record["optimizer_bytes"], messages)


def differences(ours: Rank, there: Rank) -> list[str]:
    """The numbers that differ, but for gradients of weights that tensor parallel ranks hold whole: nothing predicts
    these messages.
    """
    found = [
        f"{name}: predicted {getattr(ours, name)}, seen {getattr(there, name)}"
        for name in ("weight_bytes", "optimizer_bytes")
        if getattr(ours, name) != getattr(there, name)
    ]
    for key in sorted(ours.messages.keys() | there.messages.keys()):
        mine, theirs = ours.messages.get(key, 0), there.messages.get(key, 0)
        if mine != theirs and (mine or key[:2] != ("tp", "all_reduce")):
            found.append(f"{key}: predicted {mine}, seen {theirs}")
    return found


def run(name: str, plan: dict[str, Any], python: str) -> dict[str, Any]:
    """The answer of one rank of a plan."""
    with tempfile.TemporaryDirectory() as folder:
        out, asked = Path(folder) / "answer.json", Path(folder) / "request.json"
        asked.write_text(json.dumps(request_of(plan, out)))
        environment = {**os.environ, "TORCH_COMPILE_DISABLE": "1", "PYTHONDONTWRITEBYTECODE": "1"}
        subprocess.run([python, str(PROGRAM), str(asked)], env=environment, cwd=folder, check=True, stderr=sys.stderr)
        return {"command": f"python -m tests.witness.titan --python PYTHON {name}", **json.loads(out.read_text())}


def main(argv: list[str] | None = None) -> int:
    """Runs the command line; the exit code. 1: something differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", required=True)
    parser.add_argument("names", nargs="*")
    given = parser.parse_args(argv)
    recorded = json.loads(RECORDS.read_text()) if RECORDS.exists() else {}
    differ = False
    for name, plan in plans().items():
        if given.names and name not in given.names:
            continue
        recorded[name] = run(name, plan, given.python)
        found = differences(predicted(plan), seen(recorded[name]))
        differ |= bool(found)
        print(f"{name}: {'; '.join(found) or 'equal'}", flush=True)
    RECORDS.write_text(json.dumps(recorded, indent=1) + "\n", encoding="utf-8")
    return int(differ)


if __name__ == "__main__":
    sys.exit(main())
