"""Every flag of an exported script is one that its release's parser takes: registered, of its type, choice and limit.

The scripts are run in bash with a stand-in for torchrun, and the arguments that it sees are parsed by an `argparse`
parser made from the release's table (`autodeploy/stack/flags`), which knows nothing of the exporters.
"""

from __future__ import annotations

import argparse
import csv
import os
import shlex
import subprocess
from functools import cache
from importlib.resources import files

import pytest
from ruamel.yaml import YAML

from autodeploy.formats.common.launch_script import platform_keys
from autodeploy.formats.megatron.strategy import CP_ALGORITHMS
from autodeploy.formats.registry import export
from autodeploy.kit.errors import UnsupportedError
from autodeploy.specs.spec import Spec
from autodeploy.stack.features import FEATURES
from autodeploy.stack.releases import release_named, releases
from tests import factories

RELEASES = [release for release in releases() if release.flags and not release.keys]
NAMES = [release.name for release in RELEASES]
ASCEND = {"profile": "cloudmatrix-384", "num_npus": 384}
NVIDIA = {"profile": "nvidia-h100", "num_npus": 768}
DENSE = {
    "name": "dense",
    "hidden_size": 4096,
    "num_hidden_layers": 64,
    "num_attention_heads": 32,
    "num_key_value_heads": 16,
    "qk_norm": True,
    "intermediate_size": 14336,
    "vocab_size": 32000,
}
MOE = {
    **DENSE,
    "name": "moe",
    "n_routed_experts": 96,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 14336,
}
BARE = {"layers_per_stage": None, "swap": (), "swap_per_stage": None, "recompute": {}, "features": ()}
TYPES = {"int": int, "float": float}
STRATEGIES = {
    "1f1b": {"schedule": "1f1b", "vpp": 1},
    "interleaved": {"schedule": "interleaved", "vpp": 2},
    "adaptive_pipe": {"schedule": "adaptive_pipe", "vpp": 2},
    "dualpipev": {"schedule": "dualpipev", "vpp": 1},
    "ring": {"schedule": "1f1b", "vpp": 1, "cp": 4, "cp_algo": "ring", "dp": 6},
    "ulysses": {"schedule": "1f1b", "vpp": 1, "cp": 4, "cp_algo": "ulysses", "dp": 6},
    "hybrid": {"schedule": "1f1b", "vpp": 1, "cp": 4, "cp_algo": "hybrid", "ulysses_degree": 2, "dp": 6},
    "allgather": {"schedule": "1f1b", "vpp": 1, "moe_dispatcher": "allgather"},
    "sequence dispatcher": {"schedule": "1f1b", "vpp": 1, "moe_dispatcher": "alltoall_seq"},
    "reused parameters": {"schedule": "1f1b", "vpp": 1, "reuse_fp32_param": True},
    "swapped optimizer": {"schedule": "1f1b", "vpp": 1, "swap_optimizer": True},
    "swap": {"schedule": "1f1b", "vpp": 1, "swap": ("attention", "layer_input")},
}


DISPATCHERS = {
    "tp_extend_ep": {"moe_dispatcher": "alltoall_seq", "etp": 1},
    "hierarchical_a2a": {"moe_dispatcher": "hierarchical", "etp": 1},
}


class Parser(argparse.ArgumentParser):
    """Says what is wrong instead of ending the process."""

    def error(self, message):
        raise ValueError(message)


@cache
def parser_of(release):
    """A parser with the flags of the table."""
    parser = Parser(allow_abbrev=False, add_help=False)
    text = (files("autodeploy.stack") / "flags" / f"{release}.csv").read_text(encoding="utf-8")
    for row in csv.DictReader(text.splitlines()):
        name = row["flag"]
        if row["type"] == "flag":
            parser.add_argument(name, action="store_true", dest=name)
            continue
        convert = TYPES.get(row["type"], str)
        choices = [convert(choice) for choice in row["choices"].split("|")] if row["choices"] else None
        nargs = int(row["nargs"]) if row["nargs"].isdigit() else row["nargs"] or None
        parser.add_argument(name, dest=name, type=convert, choices=choices, nargs=nargs)
    return parser


def spec_of(release, model=None):
    """A spec for the release, on chips that it runs on."""
    search = {"target": release.framework, "target_release": release.name}
    cluster = NVIDIA if release.vendors is None and not release.has("mindspeed") else ASCEND
    document = factories.spec_document() | {"cluster": cluster, "search": search}
    if model is not None:
        document["model"] = model
    return Spec.model_validate(document)


# Each script in a subshell of one bash, beside what stands in for the programs that it starts.
RUN_EACH = """
torchrun() { printf '%s\\n' "$@" > "$script.caught"; }
git() { return 1; }  # nothing to look for
python() { return 1; }
for script in "$@"; do
    text=$(<"$script")
    (eval "$text") || exit
done
"""


def started(texts, folder):
    """Arguments of the trainer of each script."""
    scripts = [folder / f"{number}.sh" for number in range(len(texts))]
    for script, text in zip(scripts, texts, strict=True):
        script.write_text(text)
    asked = ("DATA_PATH", "TOKENIZER_PATH", "CKPT_SAVE_DIR", "MASTER_ADDR", "ROUTER_BALANCING")
    required = dict.fromkeys(asked, "none")
    required |= {"NODE_RANK": "0", "LR": "1e-4", "MIN_LR": "1e-5", "WARMUP_ITERS": "10", "ROTARY_BASE": "10000"}
    env = {"PATH": os.environ["PATH"], "TRAIN_ITERS": "10", **required}
    command = ["bash", "-c", RUN_EACH, "bash", *map(str, scripts)]
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = []
    for script in scripts:
        words = script.with_suffix(".sh.caught").read_text().splitlines()
        found.append(words[next(place for place, word in enumerate(words) if word.endswith(".py")) + 1 :])
    return found


def read(release, words):
    """The arguments as the release's parser takes them; ValueError in its words, or where a limit is broken."""
    args = vars(parser_of(release).parse_args(words))
    hot, experts = args.get("--balanced-moe-hot-expert-num"), args.get("--num-experts")
    if hot is not None and hot > experts // args["--expert-model-parallel-size"]:
        raise ValueError("hot experts: more than a rank has (MindSpeed features_manager/moe/balanced_moe.py)")
    layers, stages = args["--num-layers"], args["--pipeline-model-parallel-size"]
    chunk = args["--num-layers-per-virtual-pipeline-stage"]
    if chunk is not None and (layers // stages) % chunk:
        raise ValueError("layers of a stage are no whole number of chunks (megatron/training/arguments.py)")
    zero = args.get("--moe-zero-memory-num-layers")
    if zero is not None and zero > layers // stages:
        raise ValueError("more layers than a stage has (MindSpeed features_manager/moe/moe_zero_memory.py)")
    return args


@cache
def plan_set_of(release, model):
    """A PlanSet for a release and a model, both by name."""
    return factories.plan_set(1, spec=spec_of(release_named(release), MODELS[model]))


MODELS = {"moe": MOE, "dense": DENSE, None: None}


def exported(release, model=None, **strategy):
    plan_set = plan_set_of(release.name, None if model is None else model["name"])
    spec = Spec.model_validate(plan_set.search.spec)
    changes = {"tp": 4, "pp": 8, "dp": 24, "ep": 8, "etp": None} | strategy
    if model is not None and "n_routed_experts" not in model:
        changes |= {"ep": 1, "etp": None, "moe_dispatcher": None}
    document = factories.strategy(1).model_dump() | BARE | changes
    chosen = type(factories.strategy(1)).model_validate(document)
    plan = factories.plan(1, spec=spec, strategy=chosen, stages=(), run=None)
    return export(plan_set, plan, release.framework).text


@pytest.mark.parametrize("release", RELEASES, ids=NAMES)
@pytest.mark.parametrize("model", [MOE, DENSE, None], ids=["moe", "dense", "deepseek"])
def test_every_flag_of_a_script_is_one_of_its_release(release, model, tmp_path):
    if model is None and not release.registers("--multi-latent-attention"):
        with pytest.raises(UnsupportedError, match="unknown key --"):
            exported(release, model)
        return
    names = list(STRATEGIES)
    if not release.has("mindspeed"):
        names.remove("dualpipev")
        with pytest.raises(UnsupportedError, match="cannot launch schedule dualpipev"):
            exported(release, model, **STRATEGIES["dualpipev"])
    elif not release.registers("--context-parallel-algo", CP_ALGORITHMS["ulysses"]):
        names.remove("ulysses")
        with pytest.raises(UnsupportedError, match="cannot launch this plan: --context-parallel-algo takes one of"):
            exported(release, model, **STRATEGIES["ulysses"])
    scripts = [exported(release, model, **STRATEGIES[name]) for name in names]
    for name, words in zip(names, started(scripts, tmp_path), strict=True):
        args = read(release.name, words)
        assert args["--transformer-impl"] is not None
        assert (args.get("--schedules-method") == "dualpipev") == (name == "dualpipev")


@pytest.mark.parametrize("release", RELEASES, ids=NAMES)
def test_every_feature_that_a_release_launches_is_said_in_its_flags(release, tmp_path):
    scripts, flags = [], []
    for name, feature in FEATURES.items():
        variant = feature.variant(release)
        if variant is None or not variant.flags:
            continue
        model = DENSE if "dense" in feature.model else MOE
        on = (name, *feature.needs, *variant.needs)
        scripts.append(exported(release, model, schedule="1f1b", vpp=1, features=on, **DISPATCHERS.get(name, {})))
        flags.append([flag.flag for flag in variant.flags])
    said = 0
    for words, named in zip(started(scripts, tmp_path), flags, strict=True):
        args = read(release.name, words)
        said += any(args[flag] not in (None, False) for flag in named)
    assert said > 5


OLD = "--num-layers 64 --pipeline-model-parallel-size 8 --num-experts 96 --expert-model-parallel-size 32 "


@pytest.mark.parametrize(
    ("release", "words", "fault"),
    [
        (
            "mindspeed-llm-master",
            "--balanced-moe-experts --balanced-moe-hot-expert-num 3 --trans-hot-expert-group-num 3",
            "unrecognized arguments: --balanced-moe-experts --balanced-moe-hot-expert-num 3",
        ),
        ("mindspeed-llm-master", "--enable-expert-placement", "unrecognized arguments: --enable-expert-placement"),
        ("mindspeed-llm-master", "--moe-hierarchical-alltoallv", "unrecognized"),
        ("megatron-mindspeed-master", "--overlap-moe-expert-parallel-comm --delay-wgrad-compute", "unrecognized"),
        ("mindspeed-llm-master", "--swiglu 1", "unrecognized arguments: 1"),
        ("mindspeed-llm-master", "--moe-token-dispatcher-type hierarchical", "invalid choice"),
        ("mindspeed-llm-master", "--micro-batch-size one", "invalid int value"),
        ("mindspeed-llm-master", "--micro-batch-siz 1", "unrecognized arguments: --micro-batch-siz 1"),
        ("megatron-mindspeed-master", "--balanced-moe-experts --balanced-moe-hot-expert-num 4", "hot experts"),
    ],
)
def test_what_old_exports_wrote_is_refused(release, words, fault):
    """Words of scripts that did not start, and of mistakes: the reading above finds each."""
    with pytest.raises(ValueError, match=fault):
        read(release, shlex.split(OLD + words))
    assert read(release, shlex.split(OLD))["--num-experts"] == 96


def paths(document, prefix=""):
    for key, value in document.items():
        yield from paths(value, f"{prefix}{key}.") if isinstance(value, dict) else [prefix + key]


@pytest.mark.parametrize("strategy", ["1f1b", "interleaved", "ring", "ulysses", "swap"])
@pytest.mark.parametrize("model", [MOE, DENSE, None], ids=["moe", "dense", "deepseek"])
def test_every_key_of_mindformers_is_one_of_its_release(model, strategy):
    release = release_named("mindformers-master")
    text = exported(release, model, **STRATEGIES[strategy] | {"ulysses_degree": None})
    text_of_table = (files("autodeploy.stack") / "flags" / f"{release.name}.csv").read_text(encoding="utf-8")
    known = {row["flag"] for row in csv.DictReader(text_of_table.splitlines())} | platform_keys().keys()
    found = set(paths(YAML(typ="safe").load(text)))
    assert len(found) > 20
    assert found <= known
