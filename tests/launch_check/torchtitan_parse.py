"""Puts configurations through torchtitan's own config manager and data classes, with torchtitan-npu's over them.

    python -m tests.launch_check.torchtitan_parse --torchtitan GITDIR --torchtitan-npu GITDIR FILE...

Exit 1 where a file is refused. Their own sources are run, with stand-ins for torch and tyro, which read no file;
nothing of them is kept. Degrees are held against the ranks by torchtitan's own rules of its device mesh.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tomllib
import types
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import MagicMock

from autodeploy.stack.releases import release_of
from tests.launch_check.torchtitan_keys import BASE, CLASSES, COMPONENT

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

MANAGER, MESH = "torchtitan/config/manager.py", "torchtitan/distributed/parallel_dims.py"


def source_text(git_dir: str, ref: str, path: str) -> str:
    """A file at a commit."""
    show = ["git", "-C", git_dir, "show", f"{ref}:{path}"]
    return subprocess.run(show, check=True, capture_output=True, text=True).stdout


def backend(git_dirs: Mapping[str, str], commits: Mapping[str, str]) -> tuple[Any, Any]:
    """The manager of the data classes of both, merged as a launch does it, and the rules of the device mesh."""
    for name in ("torch", "tyro", "torch.distributed", "torch.distributed.device_mesh", "torch.distributed.tensor"):
        sys.modules[name] = MagicMock()
    for name in ("", ".tools", ".config", ".tools.logging", ".tools.utils"):
        sys.modules["torchtitan" + name] = MagicMock()
    base = _run("torchtitan.config.job_config", source_text(git_dirs[BASE], commits[BASE], CLASSES[BASE]))
    manager = _run("torchtitan.config.manager", source_text(git_dirs[BASE], commits[BASE], MANAGER))
    extended = _run("custom_config", source_text(git_dirs[COMPONENT], commits[COMPONENT], CLASSES[COMPONENT]))
    mesh = _run("torchtitan.distributed.parallel_dims", source_text(git_dirs[BASE], commits[BASE], MESH))
    merged = manager.ConfigManager._merge_configs(base.JobConfig, extended.JobConfig)
    reader = object.__new__(manager.ConfigManager)
    return lambda document: reader._dict_to_dataclass(merged, document), mesh.ParallelDims


def _run(name: str, text: str) -> Any:
    module = types.ModuleType(name)
    module.__package__ = name.rpartition(".")[0]
    sys.modules[name] = module
    exec(compile(text, name, "exec", dont_inherit=True), module.__dict__)
    return module


def parsed(backend_: tuple[Any, Any], file: str, ranks: int | None = None) -> Any:
    """The configuration that torchtitan makes of a file; its degrees make up the ranks."""
    read, mesh = backend_
    config = read(tomllib.loads(Path(file).read_text(encoding="utf-8")))
    p = config.parallelism
    shards = p.data_parallel_shard_degree
    degrees = (p.data_parallel_replicate_degree, shards, p.context_parallel_degree, p.tensor_parallel_degree)
    rest = (p.pipeline_parallel_degree, p.expert_parallel_degree, p.expert_tensor_parallel_degree)
    product = degrees[0] * shards * degrees[2] * degrees[3] * rest[0]
    if shards != -1 or ranks is not None:
        mesh(*degrees, *rest, ranks if ranks is not None else product)
    return config


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--torchtitan", metavar="GITDIR", required=True)
    parser.add_argument("--torchtitan-npu", metavar="GITDIR", required=True)
    parser.add_argument("files", nargs="+")
    given = parser.parse_args(argv)
    commits = {name: part.commit for name, part in release_of(COMPONENT, None).components.items()}
    ready = backend({BASE: given.torchtitan, COMPONENT: given.torchtitan_npu}, commits)
    bad = 0
    for file in given.files:
        try:
            config = parsed(ready, file)
        except (ValueError, TypeError, AssertionError, OSError) as error:
            bad += 1
            print(f"{file}: refused: {error}")
            continue
        p = config.parallelism
        print(
            f"{file}: parsed, {config.model.name} {config.model.flavor}, dp {p.data_parallel_replicate_degree} x "
            f"{p.data_parallel_shard_degree}, tp {p.tensor_parallel_degree}, ep {p.expert_parallel_degree}"
        )
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
