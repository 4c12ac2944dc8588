"""Writes what the parser of every release registers to autodeploy/stack/flags/NAME.csv.

    python -m tests.launch_check.flag_tables --megatron GITDIR --mindspeed GITDIR --mindspeed-llm GITDIR \\
        --mindformers GITDIR --verl GITDIR --mindspeed-rl GITDIR --torchtitan GITDIR --torchtitan-npu GITDIR \\
        [--release NAME ...] [--into FOLDER]

GITDIR: git directories with the commits that autodeploy/stack/releases.yaml names. Facts only: names, types, choices,
numbers of values and where they are registered; a release whose git directories are not given is left as it is.
"""

from __future__ import annotations

import argparse
import ast
import csv
import enum
import inspect
import multiprocessing
import pathlib
import sys
import tempfile
from typing import TYPE_CHECKING, Any

from autodeploy.stack.flag_tables import FLAG, RegisteredFlag
from autodeploy.stack.releases import Release, releases
from tests.launch_check.checkouts import checkouts
from tests.launch_check.frameworks import Frameworks
from tests.launch_check.fsdp2_keys import COMPONENT, fsdp2_keys
from tests.launch_check.mindformers_keys import mindformers_keys
from tests.launch_check.rl_keys import mindspeed_rl_keys, override_keys, verl_keys
from tests.launch_check.torchtitan_keys import COMPONENT as TORCHTITAN
from tests.launch_check.torchtitan_keys import torchtitan_keys

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

INTO = pathlib.Path(__file__).resolve().parents[2] / "autodeploy" / "stack" / "flags"
GIT_DIRS = (
    "megatron",
    "mindspeed",
    "mindspeed-llm",
    "mindformers",
    "verl",
    "mindspeed-rl",
    "torchtitan",
    "torchtitan-npu",
)
POST_TRAINING = ("verl", "mindspeed-rl")
_PLAIN = {int: "int", float: "float", str: "str", bool: "bool", None: "str"}


def registered_flags(frameworks: Frameworks) -> Iterator[RegisteredFlag]:
    """Every option string of the parser, aliases too, with where it is registered."""
    for action in frameworks.parser._actions:
        if isinstance(action, argparse._HelpAction):
            continue
        yield from _rows(frameworks, action)


def _rows(frameworks: Frameworks, action: argparse.Action) -> Iterator[RegisteredFlag]:
    component, source = _source(frameworks, action)
    for name in action.option_strings:
        yield RegisteredFlag(name, _type(action), _choices(action), _nargs(action), component, source)


def post_training_keys(
    frameworks: Frameworks, git_dirs: Mapping[str, str], commits: Mapping[str, str]
) -> Iterator[RegisteredFlag]:
    """Keys of verl or MindSpeed-RL, and the flags that they hand on to the parser."""
    if "mindspeed-rl" in commits:
        flags = {row.name: row for row in registered_flags(frameworks)}
        yield from mindspeed_rl_keys(git_dirs["mindspeed-rl"], commits["mindspeed-rl"], flags)
        return
    yield from verl_keys(git_dirs["verl"], commits["verl"])
    actions = [each for each in frameworks.parser._actions if not isinstance(each, argparse._HelpAction)]
    yield from override_keys(
        git_dirs["megatron"], commits["megatron"], actions, lambda action: next(_rows(frameworks, action))
    )


def _type(action: argparse.Action) -> str:
    if action.nargs == 0:
        return FLAG
    if action.type in _PLAIN:
        return _PLAIN[action.type]
    if any(isinstance(choice, enum.Enum) for choice in _listed(action)):
        return "enum"
    name = getattr(action.type, "__name__", "")
    return "" if name == "<lambda>" else name


def _listed(action: argparse.Action) -> list[Any]:
    try:
        return list(action.choices or ())
    except TypeError:
        return []


def _choices(action: argparse.Action) -> tuple[str, ...]:
    listed = _listed(action)
    found = [choice.name if isinstance(choice, enum.Enum) else choice for choice in listed]
    return tuple(str(choice) for choice in found if isinstance(choice, str | int | float))


def _nargs(action: argparse.Action) -> str:
    return "" if action.nargs in {None, 0} else str(action.nargs)


def _source(frameworks: Frameworks, action: argparse.Action) -> tuple[str, str]:
    place = frameworks.places[id(action)]
    file, line = place.file, place.line
    if place.made_from is not None:
        file, line = _field(place.made_from, action.dest) or (file, line)
    component, path = frameworks.relative(file)
    if component is None:
        raise ValueError(f"{action.option_strings} are registered in {file}, which is of no component")
    return component, f"{path}:{line}"


def _field(made_from: type, name: str) -> tuple[str, int] | None:
    """File and line of a data class's field, of itself or of what it inherits from."""
    for owner in made_from.__mro__:
        if name not in vars(owner).get("__annotations__", {}):
            continue
        lines, first = inspect.getsourcelines(owner)
        (node,) = ast.parse("".join(lines)).body
        assert isinstance(node, ast.ClassDef)
        for statement in node.body:
            if isinstance(statement, ast.AnnAssign) and ast.unparse(statement.target) == name:
                return str(inspect.getsourcefile(owner)), first + statement.lineno - 1
    return None


def table_text(rows: Iterable[RegisteredFlag], into: pathlib.Path) -> int:
    """Writes the rows by name; how many there are."""
    ordered = sorted(rows, key=lambda row: row.name)
    with into.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["flag", "type", "choices", "nargs", "registered_in", "source"])
        for row in ordered:
            writer.writerow([row.name, row.type, "|".join(row.choices), row.nargs, row.registered_in, row.source])
    return len(ordered)


def write_table(release: Release, git_dirs: Mapping[str, str], into: pathlib.Path) -> None:
    """The table of one release; its parser is loaded in this process."""
    path = into / f"{release.name}.csv"
    commits = {name: part.commit for name, part in release.components.items()}
    if "mindformers" in commits:
        count = table_text(mindformers_keys(git_dirs["mindformers"], commits["mindformers"]), path)
    elif COMPONENT in commits:
        count = table_text(fsdp2_keys(git_dirs[COMPONENT], commits[COMPONENT]), path)
    elif TORCHTITAN in commits:
        count = table_text(torchtitan_keys(git_dirs, commits), path)
    else:
        parsers = {name: commit for name, commit in commits.items() if name not in POST_TRAINING}
        with tempfile.TemporaryDirectory() as folder:
            frameworks = Frameworks(checkouts(git_dirs, parsers, pathlib.Path(folder).resolve() / "trees"))
            post_trains = len(parsers) < len(commits)
            rows = post_training_keys(frameworks, git_dirs, commits) if post_trains else registered_flags(frameworks)
            count = table_text({row.name: row for row in rows}.values(), path)
    print(f"{path.name}: {count} rows", flush=True)


def main(argv: list[str] | None = None) -> int:
    """Runs the command line; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in GIT_DIRS:
        parser.add_argument(f"--{name}", metavar="GITDIR")
    parser.add_argument("--release", action="append", choices=[release.name for release in releases()])
    parser.add_argument("--into", type=pathlib.Path, default=INTO)
    given = parser.parse_args(argv)
    git_dirs = {name: path for name in GIT_DIRS if (path := getattr(given, name.replace("-", "_")))}
    if "mindspeed-llm" in git_dirs:  # one repository has both backends
        git_dirs[COMPONENT] = git_dirs["mindspeed-llm"]
    bad = 0
    for release in releases():
        if given.release and release.name not in given.release:
            continue
        if missing := sorted(set(release.components) - set(git_dirs)):
            print(f"{release.name}: left as it is, needs --{' --'.join(missing)}")
            continue
        # Each in a process of its own: a framework's modules can be imported once.
        process = multiprocessing.get_context("fork").Process(
            target=write_table, args=(release, git_dirs, given.into.resolve())
        )
        process.start()
        process.join()
        bad += process.exitcode != 0
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
