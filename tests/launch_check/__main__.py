"""Would a framework start these scripts? Its own parser and validators say so, without torch or a device.

    python -m tests.launch_check --megatron GITDIR [--mindspeed GITDIR] [--mindspeed-llm GITDIR] [--release NAME] SCRIPT

GITDIR: git directories (bare or not) of NVIDIA/Megatron-LM, Ascend/MindSpeed and Ascend/MindSpeed-LLM. The commits are
those of the release; `--...-ref` takes another one. Prints a line a script: OK, or the parser's or validator's words
with file and line. Exit 0: all start. `--self-test` runs MindSpeed-LLM's own examples/mcore/*/pretrain_*.sh instead.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import sys
import tempfile

from autodeploy.stack.releases import releases
from tests.launch_check.checkouts import FOLDERS, checkouts
from tests.launch_check.frameworks import Frameworks
from tests.launch_check.scripts import started

IN_EXAMPLES_ONLY = "--enable-hf2mg-convert"  # needs a checkpoint on disk


def main(argv: list[str] | None = None) -> int:
    """Runs the command line; the exit code."""
    by_name = {release.name: release for release in releases() if release.flags and not release.keys}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--release", choices=by_name, default="mindspeed-llm-master")
    for name in FOLDERS:
        parser.add_argument(f"--{name}", metavar="GITDIR")
        parser.add_argument(f"--{name}-ref", metavar="REF", help="absent: the release's commit")
    parser.add_argument("--self-test", action="store_true")
    parser.add_argument("scripts", nargs="*", type=pathlib.Path)
    given = vars(parser.parse_args(argv))
    components = by_name[given["release"]].components
    refs = {name: given[f"{name.replace('-', '_')}_ref"] or part.commit for name, part in components.items()}
    git_dirs = {name: given[name.replace("-", "_")] for name in refs}
    if missing := [name for name, path in git_dirs.items() if path is None]:
        parser.error(f"{given['release']} needs --" + " and --".join(missing))
    scripts = [script.resolve() for script in given["scripts"]]
    with tempfile.TemporaryDirectory() as folder:
        work = pathlib.Path(folder)
        trees = checkouts(git_dirs, refs, work / "trees")
        if given["self_test"]:
            scripts = sorted(trees["mindspeed-llm"].glob("examples/mcore/*/pretrain_*.sh"))
        frameworks = Frameworks(trees)
        os.chdir(work)
        bad = 0
        for script in scripts:
            found = started(script, work)
            if isinstance(found, str):
                said = found
            else:
                words = [word for word in found.argv if not (given["self_test"] and word == IN_EXAMPLES_ONLY)]
                said = frameworks.verdict(words, found.world, found.devices)
            bad += said != "OK"
            print(f"{script.name}: {said}", flush=True)
        print(f"{len(scripts) - bad} of {len(scripts)} would start")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
