"""Do the frameworks' own validators hold the legality rules? Every pair of rule_pairs.yaml, tried on a release.

    python -m tests.launch_check.try_rules --release NAME --megatron GITDIR [--mindspeed GITDIR --mindspeed-llm GITDIR]

Git directories as in `python -m tests.launch_check`. Prints each pair that is not judged as it says, then how many are.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import sys
import tempfile

from autodeploy.stack.releases import release_named
from tests.launch_check.checkouts import FOLDERS, checkouts
from tests.launch_check.frameworks import Frameworks
from tests.launch_check.rule_pairs import DEVICES, EVERY, TRIED, document, environment_of, is_for, ranks_of, words_of


def main(argv: list[str] | None = None) -> int:
    """Runs the command line; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--release", choices=TRIED, default=EVERY[0])
    parser.add_argument(
        "--pairs-of", choices=TRIED, help="pairs that another release judged; absent: those that it is like"
    )
    for name in FOLDERS:
        parser.add_argument(f"--{name}", metavar="GITDIR")
    given = vars(parser.parse_args(argv))
    refs = {name: part.commit for name, part in release_named(given["release"]).components.items()}
    git_dirs = {name: given[name.replace("-", "_")] for name in refs}
    if missing := [name for name, path in git_dirs.items() if path is None]:
        parser.error(f"{given['release']} needs --" + " and --".join(missing))
    pairs = [
        pair
        for pair in document()["pairs"]
        if is_for(pair, given["pairs_of"] or given["release"]) and "built" not in pair
    ]
    with tempfile.TemporaryDirectory() as folder:
        frameworks = Frameworks(checkouts(git_dirs, refs, pathlib.Path(folder) / "trees"))
        os.chdir(folder)
        bad = 0
        for pair in pairs:
            ranks = ranks_of(pair)
            obeying, breaking = (
                frameworks.verdict(words_of(pair, *changes), ranks, DEVICES, environment_of(pair, *changes))
                for changes in (("obey",), ("obey", "break"))
            )
            if obeying != "OK" or pair["says"] not in breaking:
                bad += 1
                print(f"{pair['rule']}\n  obeys it: {obeying}\n  breaks it: {breaking}", flush=True)
    print(f"{len(pairs) - bad} of {len(pairs)} pairs are judged as they say by {given['release']}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
