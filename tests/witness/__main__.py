"""Runs plans of `plans.yaml` by their frameworks on the CPU, prints what differs, and records what was seen.

python -m tests.witness --trees DIR --python PYTHON [NAME...]

DIR has a folder for each commit that releases name: megatron-COMMIT, mindspeed-COMMIT, mindspeed-llm-COMMIT, each from
`git archive`, where COMMIT is its first eight letters.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from autodeploy.analysis.launch_checks.launch import launch_of
from autodeploy.analysis.witness import run, seen, verify
from autodeploy.formats.import_document import import_document
from autodeploy.formats.registry import export
from autodeploy.search import planner
from autodeploy.specs.planset import plan_set_of_one
from autodeploy.specs.reading import read_spec_document
from hardware_profiles import load_profile
from hardware_profiles.shipped_yaml import load_shipped_yaml
from tests import factories
from tests.witness.records import Record, Stage, compared, records

PLANS = Path(__file__).with_name("plans.yaml")
TIMEOUT_S = 900.0


def script_of(document: dict[str, Any]) -> str:
    """The exported launch of a spec with a strategy."""
    spec = read_spec_document(document)
    plan = planner.estimate(spec)
    found = plan_set_of_one(factories.plan_set().search, spec, plan, spec.search.objective)
    return export(found, plan, spec.search.target).text


def _shortened(document: dict[str, Any]) -> dict[str, Any]:
    """The spec with a batch that fills the pipeline: what passes keep grows no more after that."""
    strategy, training = document["strategy"], document["training"]
    cluster = document["cluster"]
    ranks = cluster["num_npus"] * load_profile(cluster["profile"]).devices_per_npu
    replicas = ranks // (strategy["tp"] * strategy["pp"] * strategy.get("cp", 1))
    rounds = 2 if strategy.get("vpp", 1) > 1 else 1
    batch = min(training["global_batch_size"], rounds * strategy["pp"] * replicas)
    return {**document, "training": {**training, "global_batch_size": batch}}


def judge() -> None:
    """Holds all records against what is predicted today, without running anything."""
    for one in records():
        prediction = one.prediction()
        stages = []
        for stage in one.stages:
            rows = [row for row in compared(prediction, stage, real_widths=one.real_widths) if row.verdict == "differs"]
            for row in rows:
                told = f"{row.name}: predicted {row.predicted[:40]}, seen {row.seen[:40]}"
                print(f"{one.name} stage {stage.counts.stage} {told}", flush=True)
            stages.append(replace(stage, differs=tuple(row.name for row in rows)))
        replace(one, stages=tuple(stages)).write()


def record(
    name: str, document: dict[str, Any], trees: Path, python: str, named: set[int] | None, *, real: bool
) -> bool:
    """Runs and records a plan, at toy widths or its own; whether every stage ran."""
    launch = launch_of(import_document(script_of(_shortened(document) if real else document), f"{name}.sh"))
    release = verify.release_of_launch(launch)
    toy, prediction = verify.toy_prediction(launch, release.name, real_widths=real)
    components = {key: part.commit for key, part in release.components.items()}
    given = {key: trees / f"{key}-{commit[:8]}" for key, commit in components.items()}
    run.refuse_missing(python, given)
    stages = []
    with tempfile.TemporaryDirectory() as folder:
        for stage in sorted({0, prediction.stages // 2, prediction.stages - 1} if named is None else named):
            rank = stage * (toy.ranks // prediction.stages)
            answer, seconds = run.run_rank(toy, given, rank, python=python, folder=Path(folder), timeout_s=TIMEOUT_S)
            if answer["error"]:
                print(f"{name} stage {stage}: {answer['error']} ({answer['where']})", flush=True)
                return False
            one = Stage(seen.seen_counts(answer, stage), answer["padding_bytes"], ())
            rows = [row for row in compared(prediction, one, real_widths=real) if row.verdict == "differs"]
            print(f"{name} stage {stage}, {seconds:.0f} s: {len(rows)} differ", flush=True)
            for row in rows:
                print(f"    {row.name}: predicted {row.predicted[:60]}, seen {row.seen[:60]}", flush=True)
            stages.append(Stage(one.counts, one.padding_bytes, tuple(row.name for row in rows)))
    script = verify.marked_script(toy, launch, release.name).splitlines()
    command = f"python -m tests.witness --trees DIR --python PYTHON {'--real-widths ' * real}{name}"
    label = f"{name}_real" if real else name
    Record(label, release.name, components, answer["torch"], command, tuple(script), tuple(stages), real).write()
    return True


def main(argv: list[str] | None = None) -> int:
    """Runs the command line; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trees", type=Path)
    parser.add_argument("--judge", action="store_true", help="run nothing: hold the records against the model")
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--real-widths", action="store_true", help="tensors of true sizes without numbers")
    parser.add_argument(
        "--stage", type=lambda word: {int(word)}, help="this one alone; else the first, a middle, the last"
    )
    parser.add_argument("names", nargs="*")
    given = parser.parse_args(argv)
    if given.judge:
        judge()
        return 0
    if given.trees is None:
        parser.error("--trees is needed to run a framework")
    plans = load_shipped_yaml(PLANS.read_text(encoding="utf-8"))
    wanted = given.names or list(plans)
    return (
        0
        if all(
            [
                record(name, plans[name], given.trees, given.python, given.stage, real=given.real_widths)
                for name in wanted
            ]
        )
        else 1
    )


if __name__ == "__main__":
    sys.exit(main())
