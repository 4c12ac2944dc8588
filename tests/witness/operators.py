"""Counts the operators that frameworks issue in a step of a plan on the CPU, and records them beside what is predicted.

python -m tests.witness.operators --trees DIR --python PYTHON [NAME...]

Plans of `plans.yaml` for NPUs that compute nothing again, and those of `operator_plans.yaml`; trees as for
`python -m tests.witness`. An operator is a call that writes device memory; a fused one of the NPU is one, views and
collectives are none, and the hook of a parameter's gradient counts as one, as it does in predictions.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from autodeploy.analysis.launch_checks.launch import launch_of
from autodeploy.analysis.witness import run, verify
from autodeploy.formats.import_document import import_document
from hardware_profiles.shipped_yaml import load_shipped_yaml
from tests.witness.__main__ import PLANS, TIMEOUT_S, script_of

if TYPE_CHECKING:
    from autodeploy.analysis.launch_checks.launch import Launch
    from autodeploy.analysis.witness.predicted import Prediction

ALONE = Path(__file__).with_name("operator_plans.yaml")
COUNTED = Path(__file__).with_name("operators.json")
# Counted to make the numbers of `autodeploy.costs.workload.host_operators`, and chosen before they were counted to hold
# these numbers against.
DERIVED = (
    *("llm_dense", "llm_moe", "core_dense", "core_moe", "llm_llama", "llm_ulysses", "llm_sft_packed", "llm_ring"),
    *("llm_moe_cut", "llm_mla", "core_ring", "llm_plain"),
)
HELD = ("held_ring", "held_moe", "held_core_moe", "held_ulysses")
STAGE = 0


@dataclass(frozen=True)
class Counted:
    """Operators of the first stage in all passes of one step: seen, and hooks of parameters' gradients."""

    release: str
    torch: str
    forward: int
    backward: int
    hooks: int


def launch_of_plan(name: str) -> Launch:
    """Launch of a plan by its exported script."""
    plans = {key: plan for file in (PLANS, ALONE) for key, plan in load_shipped_yaml(file.read_text("utf-8")).items()}
    return launch_of(import_document(script_of(plans[name]), f"{name}.sh"))


def prediction_of(name: str) -> Prediction:
    """Prediction of a plan at toy widths, which have the plan's own number of layers a stage and of experts."""
    launch = launch_of_plan(name)
    return verify.toy_prediction(launch, verify.release_of_launch(launch).name)[1]


def errors(name: str, counted: Counted) -> tuple[float, float]:
    """Predicted over counted - 1 of the forward and the backward passes."""
    forward, backward = prediction_of(name).issued(STAGE)
    return forward / counted.forward - 1.0, backward / (counted.backward + counted.hooks) - 1.0


def counted() -> dict[str, Counted]:
    """Counts as recorded, by plan."""
    return {name: Counted(**row) for name, row in json.loads(COUNTED.read_text("utf-8")).items()}


def count(name: str, trees: Path, python: str) -> Counted:
    """Runs a plan's first stage."""
    launch = launch_of_plan(name)
    release = verify.release_of_launch(launch)
    toy, _ = verify.toy_prediction(launch, release.name)
    given = {key: trees / f"{key}-{part.commit[:8]}" for key, part in release.components.items()}
    run.refuse_missing(python, given)
    with tempfile.TemporaryDirectory() as folder:
        answer, _ = run.run_rank(toy, given, 0, python=python, folder=Path(folder), timeout_s=TIMEOUT_S)
    if answer["error"]:
        raise SystemExit(f"{name}: {answer['error']} ({answer['where']})")
    last = max(each["step"] for each in answer["passes"])
    of_phase = {"forward": 0, "backward": 0}
    for step, phase, _, _, _, calls in answer["operators"]:
        if step == last and phase in of_phase:
            of_phase[phase] += calls
    passes = sum(each["step"] == last and each["kind"] == "F" for each in answer["passes"])
    hooks = passes * sum(len(chunk["names"]) for chunk in answer["chunks"]) // len(answer["chunks"])
    return Counted(release.name, answer["torch"], **of_phase, hooks=hooks)


def main(argv: list[str] | None = None) -> int:
    """Runs the command line; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trees", type=Path, required=True)
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("names", nargs="*")
    given = parser.parse_args(argv)
    found = counted() if COUNTED.is_file() else {}
    for name in given.names or (*DERIVED, *HELD):
        found[name] = count(name, given.trees, given.python)
        forward, backward = errors(name, found[name])
        print(f"{name}: {found[name]}, forward {100 * forward:+.1f} %, backward {100 * backward:+.1f} %", flush=True)
        rows = {key: asdict(row) for key, row in sorted(found.items())}
        COUNTED.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
