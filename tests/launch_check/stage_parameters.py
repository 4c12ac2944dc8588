"""Records of what frameworks build, in stage_parameters.yaml, beside the strategies that they built.

    python -m tests.launch_check.stage_parameters [--python PYTHON] [--release NAME] --megatron GITDIR ... FILE...

FILE: specs, whose best plan is exported and built, or launch scripts. PYTHON is the interpreter of an environment that
has what `meta_build` needs. A case takes the place of the one of the same name; scripts that can't be built are told.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from typing import Any

from autodeploy.analysis.launch_checks.launch import launch_of
from autodeploy.formats.import_document import import_file
from autodeploy.formats.registry import export
from autodeploy.search import planner
from autodeploy.specs.reading import read_spec_file
from autodeploy.specs.spec import Spec
from autodeploy.stack.releases import release_named
from hardware_profiles.shipped_yaml import load_shipped_yaml
from tests.launch_check.checkouts import FOLDERS

ROOT = pathlib.Path(__file__).resolve().parents[2]
RECORDS = pathlib.Path(__file__).with_suffix(".yaml")
# What of a strategy decides which parameters a rank has.
SHAPE = ("tp", "pp", "vpp", "cp", "ep", "etp", "schedule", "layers_per_stage")
HEAD = """\
# Parameters on the first rank of every pipeline stage [stage][chunk], as the frameworks' own code built them on torch's
# meta device (`python -m tests.launch_check.stage_parameters`): layers of a chunk, parameters, routed experts' alone.
# `source`: a spec of specs/ whose best plan was exported, or a script of the framework itself.
"""


@dataclass(frozen=True)
class Case:
    """One strategy of one model, and what was built of it."""

    name: str
    release: str
    source: str
    model: dict[str, Any] | str
    strategy: dict[str, Any]
    layers: list[list[int]]
    parameters: list[list[int]]
    expert_parameters: list[list[int]]

    @property
    def spec(self) -> Spec:
        """A spec with the strategy, on as many cards as it needs."""
        taken = self.strategy
        ranks = taken["pp"] * max(taken["tp"] * taken["cp"], taken["ep"] * taken["etp"])
        return Spec.model_validate(
            {
                "model": self.model,
                "cluster": {"profile": "ascend-800t-a2", "num_npus": ranks},
                "training": {"seq_length": 4096, "global_batch_size": ranks * taken["pp"] * taken["vpp"] * 2},
                "search": {"target": release_named(self.release).framework, "target_release": self.release},
                "strategy": taken,
            }
        )


def cases() -> list[Case]:
    """All cases on record."""
    return [Case(**case) for case in load_shipped_yaml(RECORDS.read_text(encoding="utf-8"))]


def _of_spec(path: pathlib.Path, folder: pathlib.Path) -> tuple[pathlib.Path, dict[str, Any]]:
    spec = read_spec_file(path)
    found = planner.plan(spec)
    plan = found.plans[0]
    script = folder / f"{path.stem}.sh"
    script.write_text(export(found, plan, spec.search.target).text)
    model = path.read_text().partition("model: ")[2].partition("\n")[0]
    taken = plan.strategy.model_dump(mode="json")
    return script, {"source": path.stem, "model": model, "strategy": {key: taken[key] for key in SHAPE}}


def _of_script(path: pathlib.Path) -> dict[str, Any]:
    imported = import_file(path)
    strategy = imported.document["strategy"]
    ranks = strategy["tp"] * strategy["pp"] * strategy.get("cp", 1) * strategy.get("ep", 1)
    spec = launch_of(imported, "ascend-800t-a2", num_npus=imported.ranks or ranks).spec
    assert spec.strategy is not None
    taken = spec.strategy.model_dump(mode="json")
    taken["etp"] = taken["etp"] or taken["tp"]
    model = spec.model.model_dump(mode="json", exclude_unset=True, exclude={"recipe"})
    return {"source": path.name, "model": model, "strategy": {key: taken[key] for key in SHAPE}}


def _built(python: str, options: list[str], script: pathlib.Path) -> list[dict[str, Any]]:
    command = [python, "-m", "tests.launch_check.meta_build", *options, str(script)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return [json.loads(line) for line in done.stdout.splitlines()] or [{"error": done.stderr[-300:]}]


def _grid(rows: list[dict[str, Any]], field: str) -> list[list[int]]:
    stages = range(max(row["stage"] for row in rows) + 1)
    return [[row[field] for row in rows if row["stage"] == stage] for stage in stages]


def main(argv: list[str] | None = None) -> int:
    """Runs the command line; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--release", default="mindspeed-llm-master")
    for name in FOLDERS:
        parser.add_argument(f"--{name}", metavar="GITDIR")
    parser.add_argument("files", nargs="+", type=pathlib.Path)
    given = parser.parse_args(argv)
    options = ["--release", given.release]
    for name in FOLDERS:
        if path := getattr(given, name.replace("-", "_")):
            options += [f"--{name}", path]
    found = {case.name: vars(case) for case in cases()} if RECORDS.exists() else {}
    bad = 0
    with tempfile.TemporaryDirectory() as folder:
        for path in given.files:
            if path.suffix == ".sh":
                script, case = path.resolve(), _of_script(path)
            else:
                script, case = _of_spec(path, pathlib.Path(folder))
            rows = _built(given.python, options, script)
            if errors := [row["error"] for row in rows if "error" in row]:
                print(f"{path.name}: {errors[0]}")
                bad += 1
                continue
            name = path.stem.removeprefix("pretrain_")
            fields = ("layers", "parameters", "expert_parameters")
            found[name] = {"name": name, "release": given.release, **case} | {f: _grid(rows, f) for f in fields}
            print(f"{path.name}: {len(rows)} chunks")
    with RECORDS.open("w", encoding="utf-8") as out:
        out.write(HEAD)
        for _, case in sorted(found.items()):
            _write(case, out)
    return 1 if bad else 0


def _write(case: dict[str, Any], out: Any) -> None:
    out.write("\n")
    for number, (key, value) in enumerate(case.items()):
        mark = "- " if number == 0 else "  "
        if key in ("layers", "parameters", "expert_parameters"):
            out.write(f"{mark}{key}:\n" + "".join(f"    - {json.dumps(row)}\n" for row in value))
        else:
            out.write(f"{mark}{key}: {json.dumps(value)}\n")


if __name__ == "__main__":
    sys.exit(main())
