"""Composes exported launches of verl by verl's own configuration: `python verl_compose.py SCRIPT...`.

Run by the Python of an environment with verl 0.9 and hydra; nothing of this project is imported. A script is run with a
stand-in for Python that writes down its arguments; these are composed and resolved as verl's entry point does, and
checked by its `validate_config`. What a script asks its user for is made up, so that checks of a model's folder fail.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import verl
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf
from verl.utils.config import validate_config

ROOT = Path(verl.__file__).parent
ASKED = re.compile(r'^: "\$\{(\w+):\?', re.MULTILINE)


def arguments(script: Path) -> list[str]:
    """The arguments with which a script starts Python."""
    made_up = {name: "1" for name in ASKED.findall(script.read_text(encoding="utf-8"))}
    with tempfile.TemporaryDirectory() as folder:
        for name, body in (("python", f'printf "%s\\n" "$@" > {folder}/arguments'), ("ray", "exit 0")):
            stand_in = Path(folder, name)
            stand_in.write_text(f"#!/bin/bash\n{body}\n")
            stand_in.chmod(0o755)
        (Path(folder) / "python3").symlink_to(Path(folder) / "python")
        environment = {**os.environ, **made_up, "PATH": f"{folder}:{os.environ['PATH']}", "ALLOW_OTHER_RELEASE": "1"}
        subprocess.run(["bash", str(script)], env=environment, cwd=folder, check=True, stderr=subprocess.PIPE)
        return Path(folder, "arguments").read_text().splitlines()


def composed(given: list[str]) -> OmegaConf:
    """The configuration of these arguments, resolved."""
    module, *rest = given[given.index("-m") + 1 :]
    name, overrides = "ppo_trainer", []
    for word in rest:
        if word.startswith("--config-name="):
            name = word.partition("=")[2].removesuffix(".yaml")
        elif not word.startswith("--config-path="):
            overrides.append(word)
    parts = module.split(".")[1:-1]
    folder = ROOT / "trainer" / "config" if parts == ["trainer"] else ROOT.joinpath(*parts, "config")
    with initialize_config_dir(str(folder), version_base=None):
        config = compose(config_name=name, overrides=overrides)
    OmegaConf.resolve(config)
    return config


def main(scripts: list[str]) -> int:
    """Composes and validates every script; the exit code. 1: one is refused."""
    paths = [Path(script).resolve() for script in scripts]
    os.chdir(ROOT.parent)  # verl's search path is relative
    refused = False
    for path in paths:
        try:
            config = composed(arguments(path))
            actor = config.actor_rollout_ref.actor
            critic = config.algorithm.adv_estimator == "gae"
            validate_config(config, use_reference_policy=bool(actor.use_kl_loss), use_critic=critic)
            print(f"{path.name}: composed and validated")
        except Exception as error:
            refused = True
            print(f"{path.name}: {type(error).__name__} {str(error)[:300]}")
    return int(refused)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
