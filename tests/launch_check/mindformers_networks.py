"""Records what MindFormers makes of the export of every preset, in mindformers_networks.yaml.

    python -m tests.launch_check.mindformers_networks --python PYTHON --mindformers GITDIR

PYTHON is the interpreter of an environment with MindSpore, numpy below 2, transformers and what `mindformers_build`
does not stand in for. A preset that AutoDeploy refuses is written under its publisher's names, so that MindFormers says
why itself.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import pathlib
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from typing import Any
from unittest import mock

from autodeploy.formats.mindformers import model as mindformers_model
from autodeploy.formats.registry import export
from autodeploy.kit.errors import UnsupportedError
from autodeploy.specs.launched import Network
from autodeploy.specs.presets import load_preset, preset_names
from autodeploy.specs.spec import Spec
from autodeploy.specs.strategy import Strategy
from autodeploy.specs.text_files import load_yaml
from autodeploy.stack.releases import release_named
from hardware_profiles.shipped_yaml import load_shipped_yaml
from tests import factories
from tests.launch_check.checkouts import checkout

ROOT = pathlib.Path(__file__).resolve().parents[2]
RECORDS = pathlib.Path(__file__).with_suffix(".yaml")
RELEASE = "mindformers-master"
STAGES = 4
# Names of Hugging Face (model_type, architectures), by what a preset's name begins with.
PUBLISHED = {
    "deepseek-v3.2": ("deepseek_v32", "DeepseekV32ForCausalLM"),
    "deepseek-v4": ("deepseek_v4", "DeepseekV4ForCausalLM"),
    "ernie": ("ernie4_5_moe", "Ernie4_5_MoeForCausalLM"),
    "gemma3": ("gemma3_text", "Gemma3ForCausalLM"),
    "glm-4.5": ("glm4_moe", "Glm4MoeForCausalLM"),
    "glm-5": ("glm_moe_dsa", "GlmMoeDsaForCausalLM"),
    "gpt-oss": ("gpt_oss", "GptOssForCausalLM"),
    "gpt3": ("gpt2", "GPT2LMHeadModel"),
    "kimi-linear": ("kimi_linear", "KimiLinearForCausalLM"),
    "llama4": ("llama4_text", "Llama4ForCausalLM"),
    "llama": ("llama", "LlamaForCausalLM"),
    "longcat": ("longcat_flash", "LongcatFlashForCausalLM"),
    "mixtral": ("mixtral", "MixtralForCausalLM"),
    "pangu-pro": ("PanguProMoE", "PanguProMoEForCausalLM"),
    "pangu-ultra-moe": ("pangu_ultra_moe", "PanguUltraMoEForCausalLM"),
    "pangu": ("pangu", "PanguForCausalLM"),
    "qwen2.5": ("qwen2", "Qwen2ForCausalLM"),
    "qwen3-next": ("qwen3_next", "Qwen3NextForCausalLM"),
    "qwen3.5": ("qwen3_5_text", "Qwen3_5ForCausalLM"),
    "step": ("step3p5", "Step3p5ForCausalLM"),
}


@dataclass(frozen=True)
class Outcome:
    """What MindFormers makes of a preset: a network with its parameters, or the words of a refusal.

    digest : of the section that it was built from; empty for a preset that is not exported.
    """

    preset: str
    digest: str = ""
    network: str = ""
    parameters: int = 0
    refused: str = ""


def outcomes() -> list[Outcome]:
    """All outcomes on record."""
    return [Outcome(**row) for row in load_shipped_yaml(RECORDS.read_text(encoding="utf-8"))["presets"]]


def exported(preset: str) -> str:
    """The preset's export, on four stages of uneven length where its layers do not divide."""
    model = load_preset(preset)
    document = factories.spec_document(model=model.model_dump(mode="json", exclude_unset=True), target="mindformers")
    spec = Spec.model_validate(document)
    layers = [model.num_hidden_layers // STAGES + (stage < model.num_hidden_layers % STAGES) for stage in range(STAGES)]
    ways = {"ep": 8, "moe_dispatcher": "alltoall"} if model.is_moe else {}
    recompute = {"granularity": "full", "num_layers": 2}
    shape = {"tp": 1, "pp": STAGES, "dp": 192, "layers_per_stage": layers, "features": ["flash_attention"]}
    strategy = Strategy.model_validate(shape | ways | {"recompute": recompute})
    plan = factories.plan(1, spec=spec, strategy=strategy, stages=(), run=None)
    return export(factories.plan_set(1, spec=spec), plan, "mindformers").text


def digest_of(text: str) -> str:
    """Of the model section, whatever the order of its keys."""
    section = json.dumps(load_yaml(text)["model"], sort_keys=True)
    return hashlib.sha256(section.encode()).hexdigest()[:16]


def _written(preset: str) -> tuple[str, str]:
    """The export and its digest; of a refused preset without a digest, under its publisher's names."""
    try:
        text = exported(preset)
    except UnsupportedError:
        names = next(names for start, names in PUBLISHED.items() if preset.startswith(start))
        other = Network(*names, experts="num_experts", of="")
        with (
            mock.patch.object(mindformers_model, "network_of", return_value=other),
            mock.patch.object(mindformers_model, "refuse_special_attention"),
        ):
            return exported(preset), ""
    return text, digest_of(text)


def main(argv: list[str] | None = None) -> int:
    """Runs the command line; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--mindformers", metavar="GITDIR", required=True)
    given = parser.parse_args(argv)
    commit = release_named(RELEASE).components["mindformers"].commit
    digests: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as folder:
        work = pathlib.Path(folder)
        source = checkout(given.mindformers, commit, ("mindformers", "configs"), work / "source")
        files = []
        for preset in preset_names():
            text, digests[preset] = _written(preset)
            files.append(work / f"{preset}.yaml")
            files[-1].write_text(text, encoding="utf-8")
        command = [given.python, "-m", "tests.launch_check.mindformers_build", str(source), *map(str, files)]
        environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT), "HOME": folder}
        done = subprocess.run(command, cwd=work, env=environment, capture_output=True, text=True, check=False)
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    if missing := digests.keys() - {row["file"] for row in rows}:
        print(f"{len(missing)} without an outcome: {done.stderr[-2000:]}")
        return 1
    _record(commit, [_outcome(row, digests[row["file"]]) for row in rows])
    taken = [row["file"] for row in rows if digests[row["file"]]]
    bad = [row for row in rows if (row["file"] in taken) != ("network" in row)]
    print(f"{len(taken) - len(bad)} of {len(rows)} presets build", *bad, sep="\n")
    return 1 if bad else 0


def _outcome(row: dict[str, Any], digest: str) -> dict[str, Any]:
    found = {name: value for name, value in row.items() if name != "file"}
    return {"preset": row["file"]} | ({"digest": digest} if digest else {}) | found


def _record(commit: str, rows: list[dict[str, Any]]) -> None:
    with RECORDS.open("w", encoding="utf-8") as out:
        out.write(
            "# What MindFormers' own code makes of the export of every preset, laid over its template of general\n"
            "# pretraining (`python -m tests.launch_check.mindformers_networks`): the network that it builds and its\n"
            "# trainable parameters, or its words; `digest`: of the exported model section.\n"
            f"commit: {commit}\npresets:\n"
        )
        for row in rows:
            out.write("  - {" + ", ".join(f"{key}: {json.dumps(value)}" for key, value in row.items()) + "}\n")


if __name__ == "__main__":
    sys.exit(main())
