"""Launches before three plans' own, held against the parsers and validators of their frameworks.

    python -m tests.launch_check.rungs --megatron GITDIR --mindspeed GITDIR --mindspeed-llm GITDIR

Records in rungs.yaml what each framework says of each script, and a digest of the command line that it was asked. A
framework changes modules as it is loaded, so each release has a process of its own.
"""

from __future__ import annotations

import argparse
import hashlib
import pathlib
import subprocess
import sys
import tempfile
from typing import Any

import yaml

from autodeploy.analysis.rehearsal.rehearse import launches_before, rehearse
from autodeploy.formats.common.launch_script import read_launch_script
from autodeploy.formats.registry import export
from autodeploy.search import planner
from tests.launch_check.checkouts import FOLDERS
from tests.support.rehearsed_plans import searched

FOUND = pathlib.Path(__file__).with_name("rungs.yaml")
HEADING = """\
# Verdict of the frameworks' parsers and validators on the launches before three plans' own, beside a digest of the
# command line (`python -m tests.launch_check.rungs`). A changed export asks for a new run.
"""
RELEASES = {"experts A2": "mindspeed-llm-master", "MLA A3": "mindspeed-llm-master", "dense H100": "megatron-main"}


def scripts(name: str) -> dict[str, str]:
    """The script of every launch before a plan's own, by the launch's name."""
    plan_set, plan = searched(name)
    target = str(plan_set.search.spec["search"]["target"])
    made = {nodes: rehearse(plan_set, plan, nodes, planner) for nodes in launches_before(plan_set, plan)}
    return {nodes: export(each.plan_set, each.plan, target).text for nodes, each in made.items()}


def digest_of(script: str) -> str:
    """Digest of the flags that a script gives its trainer, and of its ranks."""
    read = read_launch_script(script)
    flags = {name: each.text for name, each in sorted(read.flags.items())}
    return hashlib.sha256(repr((read.ranks, flags)).encode()).hexdigest()[:16]


def recorded() -> dict[str, dict[str, dict[str, str]]]:
    """Verdict and digest by plan and launch."""
    found: dict[str, dict[str, dict[str, str]]] = yaml.safe_load(FOUND.read_text(encoding="utf-8"))
    return found


def asked(release: str, texts: dict[str, str], git_dirs: dict[str, str]) -> dict[str, str]:
    """Verdict of a release's own parser and validators on each script."""
    with tempfile.TemporaryDirectory() as folder:
        paths = {name: pathlib.Path(folder) / f"{name}.sh" for name in texts}
        for name, path in paths.items():
            path.write_text(texts[name], encoding="utf-8")
        given = [word for name, path in git_dirs.items() for word in (f"--{name}", path)]
        command = [sys.executable, "-m", "tests.launch_check", "--release", release, *given, *map(str, paths.values())]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    said = dict(line.split(".sh: ", 1) for line in done.stdout.splitlines() if ".sh: " in line)
    if said.keys() != texts.keys():
        raise RuntimeError(done.stderr[-2000:])
    return said


def main() -> int:
    """Asks the frameworks and records; 1 where one of them would not start a script."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in FOLDERS:
        parser.add_argument(f"--{name}", metavar="GITDIR", required=True)
    given = {name.replace("_", "-"): path for name, path in vars(parser.parse_args()).items()}
    found: dict[str, Any] = {}
    for name, release in RELEASES.items():
        texts = scripts(name)
        of_release = {"megatron": given["megatron"]} if release == "megatron-main" else given
        said = asked(release, texts, of_release)
        found[name] = {nodes: {"flags": digest_of(texts[nodes]), "said": said[nodes]} for nodes in texts}
        sys.stdout.write("".join(f"{name}, {nodes}: {each['said']}\n" for nodes, each in found[name].items()))
    FOUND.write_text(HEADING + yaml.safe_dump(found, sort_keys=False, width=1000), encoding="utf-8")
    return int(any(each["said"] != "OK" for launches in found.values() for each in launches.values()))


if __name__ == "__main__":
    sys.exit(main())
