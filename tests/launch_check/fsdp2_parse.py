"""Puts configurations through the parser and the argument classes of MindSpeed-LLM's FSDP2 backend, as it starts.

    python -m tests.launch_check.fsdp2_parse --mindspeed-llm GITDIR FILE...

Exit 1 where the backend refuses a file, or leaves one of its keys unused. Its own source is run, with a stand-in for
the version of transformers; nothing of it is kept.
"""

from __future__ import annotations

import argparse
import sys
import types
from dataclasses import field, make_dataclass
from typing import TYPE_CHECKING, Any

from autodeploy.stack.releases import release_of
from tests.launch_check.fsdp2_keys import ARGUMENTS, COMPONENT, SECTIONS, source_text

if TYPE_CHECKING:
    from collections.abc import Sequence

GIVEN = ("--model.model_name_or_path=weights", "--training.output_dir=output")  # what every launch says itself


class _Log:
    """Keeps what the backend says of arguments that nothing uses."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def __getattr__(self, _: str) -> Any:
        return lambda text, *more: self.said.append(str(text))


def backend(git_dir: str, ref: str) -> tuple[Any, _Log]:
    """The module of the argument classes, and what it logs."""
    log = _Log()
    logging = types.ModuleType("mindspeed_llm.fsdp2.utils.logging")
    logging.get_logger = lambda *_: log  # type: ignore[attr-defined]
    transformers = types.ModuleType("transformers")
    transformers.__version__ = "5.8.1"  # type: ignore[attr-defined]
    module = types.ModuleType("fsdp2_arguments")
    stand_ins = {"transformers": transformers, logging.__name__: logging, module.__name__: module}
    stand_ins |= {name: types.ModuleType(name) for name in ("mindspeed_llm", "mindspeed_llm.fsdp2")}
    stand_ins["mindspeed_llm.fsdp2.utils"] = types.ModuleType("mindspeed_llm.fsdp2.utils")
    sys.modules.update(stand_ins)
    exec(compile(source_text(git_dir, ref), ARGUMENTS, "exec"), module.__dict__)
    return module, log


def parsed(module: Any, log: _Log, file: str) -> tuple[Any, list[str]]:
    """The arguments that the backend makes of a file, and the complaints about keys that nothing uses."""
    classes = {section: getattr(module, name) for section, name in SECTIONS.items()}
    root = make_dataclass("Arguments", [(name, each, field(default_factory=each)) for name, each in classes.items()])
    log.said.clear()
    before, sys.argv = sys.argv, ["train_fsdp2.py", file, *GIVEN]
    try:
        return module.fsdp2_parse_args(root), [text for text in log.said if "not used" in text]
    finally:
        sys.argv = before


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mindspeed-llm", metavar="GITDIR", required=True)
    parser.add_argument("files", nargs="+")
    given = parser.parse_args(argv)
    commit = release_of(COMPONENT, None).components[COMPONENT].commit
    module, log = backend(given.mindspeed_llm, commit)
    bad = 0
    for file in given.files:
        try:
            arguments, unused = parsed(module, log, file)
        except (SystemExit, ValueError, TypeError, AttributeError) as error:
            bad += 1
            print(f"{file}: refused: {error}")
            continue
        bad += bool(unused)
        degrees = {name: getattr(arguments.parallel, name) for name in ("fsdp_size", "ep_size", "cp_size")}
        print(f"{file}: {unused or 'parsed'}, {degrees}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
