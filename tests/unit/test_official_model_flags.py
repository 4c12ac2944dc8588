"""Exported scripts beside MindSpeed-LLM's own: every difference of the model's flags is listed with its reason."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from autodeploy.formats.common.launch_script import read_launch_script
from autodeploy.formats.import_document import import_document
from autodeploy.formats.registry import export
from autodeploy.specs.model import ModelSpec
from autodeploy.specs.presets import load_preset
from autodeploy.specs.spec import Spec
from autodeploy.specs.strategy import Strategy
from hardware_profiles.shipped_yaml import load_shipped_yaml
from tests import factories

FACTS = load_shipped_yaml(
    (Path(__file__).parents[1] / "launch_files" / "official_model_flags.yaml").read_text(encoding="utf-8")
)
SCRIPTS = FACTS["scripts"]
NOT_OF_THE_MODEL = (
    *("--nproc", "--nnodes", "--node_rank", "--master_", "--tensor-model", "--pipeline-model", "--context-parallel"),
    *("--expert-model", "--expert-tensor", "--sequence-parallel", "--num-layers", "--noop-layers", "--micro-batch"),
    *("--global-batch", "--train-iters", "--lr", "--min-lr", "--weight-decay", "--clip-grad", "--adam-", "--bf16"),
    *("--tokenizer", "--data-path", "--split", "--save", "--load", "--log-", "--eval-", "--seq-length", "--manual-gc"),
    *("--distributed", "--no-shared-storage", "--use-", "--no-masked", "--attention-softmax", "--ckpt-format"),
    *("--make-vocab", "--moe-token-dispatcher", "--moe-permut", "--moe-grouped", "--moe-alltoall", "--no-gradient"),
    *(
        "--async-save",
        "--mla-",
        "--seed",
        "--no-save",
        "--no-load",
        "--stage",
        "--recompute",
        "--no-create",
        "--accumulate-",
    ),
)
# Said in other words or not at all: what comes back from an official script is the same model.
SAID_OTHERWISE = frozenset({"--n-shared-experts", "--no-rope-fusion", "--ffn-hidden-size", "--moe-router-dtype"})
ONE_GROUP = frozenset({"--moe-router-num-groups", "--moe-router-group-topk"})


def strategy(model: ModelSpec) -> Strategy:
    """One stage of whole layers; experts over eight ranks."""
    return Strategy(
        tp=1,
        pp=1,
        dp=16,
        ep=8 if model.is_moe else 1,
        moe_dispatcher="alltoall" if model.is_moe else None,
        distributed_optimizer=True,
        layers_per_stage=(model.num_hidden_layers,),
    )


def exported(model: ModelSpec) -> dict[str, Any]:
    """The model's flags in an exported script, by name; True: without a value."""
    document = factories.spec_document() | {"model": model.model_dump(mode="json", exclude_unset=True)}
    document |= {"cluster": {"profile": "ascend-800t-a2", "num_npus": 16}}
    document |= {"search": {"target": "mindspeed-llm"}}
    spec = Spec.model_validate(document)
    plan = factories.plan(1, spec=spec, strategy=strategy(model), stages=(), run=None)
    text = export(factories.plan_set(1, spec=spec), plan, "mindspeed-llm").text
    return flags_of(text)


def flags_of(text: str) -> dict[str, Any]:
    given = read_launch_script(text, {}).flags
    return {
        name: number(flag.text) if flag.values else True
        for name, flag in given.items()
        if not name.startswith(NOT_OF_THE_MODEL)
    }


def number(value: Any) -> Any:
    """A number where the text is one; true and nothing stay."""
    try:
        return value if value is None or isinstance(value, bool) else float(value)
    except ValueError:
        return value


def official(facts: dict[str, Any]) -> dict[str, Any]:
    return {f"--{name}": number(value) for name, value in facts["flags"].items()}


@pytest.mark.parametrize("preset", SCRIPTS)
def test_a_preset_says_what_the_official_script_says(preset: str) -> None:
    theirs, ours = official(SCRIPTS[preset]), exported(load_preset(preset))
    listed = {f"--{name}": entry["value"] for name, entry in SCRIPTS[preset].get("ours", {}).items()}
    differing = {name: ours.get(name) for name in theirs.keys() | ours.keys() if theirs.get(name) != ours.get(name)}
    assert differing == {name: number(value) for name, value in listed.items()}


@pytest.mark.parametrize("preset", SCRIPTS)
def test_an_official_script_comes_back_with_its_recipe(preset: str) -> None:
    theirs, model = official(SCRIPTS[preset]), load_preset(preset)
    words = [f"{name} {'' if value is True else SCRIPTS[preset]['flags'][name[2:]]}" for name, value in theirs.items()]
    run = f"--num-layers {model.num_hidden_layers} --seq-length 4096 --micro-batch-size 1 --global-batch-size 64 --bf16"
    run += "" if {"--vocab-size", "--padded-vocab-size"} & theirs.keys() else f" --vocab-size {model.vocab_size}"
    imported = import_document(f"torchrun --nproc_per_node 8 pretrain_gpt.py {run} {' '.join(words)}\n", "run.sh")
    ours = exported(ModelSpec.model_validate(imported.document["model"]))
    assert ("--router-gating-in-fp32" in ours) == ("--moe-router-dtype" in theirs)
    for name, value in theirs.items():
        implied = name == "--kv-channels" and value * model.num_attention_heads == model.hidden_size
        if implied or name in SAID_OTHERWISE or (name in ONE_GROUP and value == 1):
            continue
        assert (name, ours.get(name)) == (name, value)
