"""The recipe of a model in a launch script: flags of the release, variables that are asked for, notes."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest

from autodeploy.formats.common.launch_script import read_launch_script
from autodeploy.formats.import_document import import_document
from autodeploy.formats.megatron.launch_script import asked_for
from autodeploy.formats.registry import export
from autodeploy.specs.presets import load_preset
from autodeploy.specs.recipe import Recipe
from autodeploy.specs.spec import Spec, parse_spec, spec_hash
from autodeploy.specs.strategy import Strategy
from tests import factories

if TYPE_CHECKING:
    from autodeploy.specs.model import ModelSpec

GPUS = {"profile": "nvidia-h100", "num_npus": 16}
ASCEND = {"profile": "ascend-800t-a2", "num_npus": 16}


def exported(
    model: ModelSpec, target: str = "mindspeed-llm", *, cluster: Any = ASCEND, ep: int = 8, **training: Any
) -> Any:
    searched = "mindspeed-llm" if target == "ascendjob" else target
    document = factories.spec_document(model=model.model_dump(mode="json", exclude_unset=True), target=searched)
    document |= {"cluster": cluster}
    document["training"] = {"seq_length": 4096, "global_batch_size": 64, **training}
    spec = Spec.model_validate(document)
    ways = {"ep": ep, "moe_dispatcher": "alltoall"} if model.is_moe else {}
    layers = (model.num_hidden_layers,)
    strategy = Strategy.model_validate({"tp": 1, "pp": 1, "dp": 16, "layers_per_stage": layers, **ways})
    plan = factories.plan(1, spec=spec, strategy=strategy, stages=(), run=None)
    return export(factories.plan_set(1, spec=spec), plan, target)


def flags(model: ModelSpec, target: str = "mindspeed-llm", **changes: Any) -> dict[str, str]:
    return {
        name: given.text
        for name, given in read_launch_script(exported(model, target, **changes).text, {}).flags.items()
    }


def told(preset: str, **recipe: Any) -> ModelSpec:
    """The preset with another recipe; None takes a field away."""
    model = load_preset(preset)
    fields = model.recipe_or_default.model_dump() | recipe
    return model.model_copy(update={"recipe": Recipe.model_validate(fields)})


def bare(preset: str) -> ModelSpec:
    return load_preset(preset).model_copy(update={"recipe": None})


# -- documents -------------------------------------------------------------------------------------------------


def test_documents_without_a_recipe_are_as_before() -> None:
    spec = parse_spec(factories.spec_document())
    dumped = spec.model_dump(mode="json")
    assert "recipe" not in dumped["model"]
    assert "recipe" not in dumped["training"]
    empty = factories.spec_document(model={**dumped["model"], "recipe": {"rope_theta": None}})
    assert spec_hash(parse_spec(empty)) == spec_hash(spec)


def test_a_change_of_a_preset_keeps_the_rest_of_its_recipe() -> None:
    document = factories.spec_document(model={"preset": "deepseek-v3", "recipe": {"initializer_range": 0.006}})
    recipe = parse_spec(document).model.recipe_or_default
    assert (recipe.initializer_range, recipe.rope_theta, recipe.has_expert_bias) == (0.006, 10_000, True)


# -- what is asked for ------------------------------------------------------------------------------------------


def test_only_what_nobody_told_is_asked_for() -> None:
    needed = (
        "DATA_PATH",
        "TOKENIZER_PATH",
        "CKPT_SAVE_DIR",
        "MASTER_ADDR",
        "NODE_RANK",
        "LR",
        "MIN_LR",
        "WARMUP_ITERS",
    )
    text = exported(load_preset("qwen3-30b-a3b")).text
    assert asked_for(text) == (*needed, "TRAIN_ITERS")
    assert "ROUTER_BALANCING" not in text
    assert asked_for(exported(bare("qwen3-30b-a3b")).text) == (*needed, "ROTARY_BASE", "TRAIN_ITERS")
    assert 'ROUTER_BALANCING="${ROUTER_BALANCING:-aux_loss}"' in exported(bare("qwen3-30b-a3b")).text


def test_a_told_schedule_is_not_asked_for() -> None:
    recipe = {"lr": 1.25e-6, "min_lr": 1.25e-7, "lr_warmup_fraction": 0.01, "weight_decay": 0.01}
    artefact = exported(load_preset("llama3-8b"), tokens=1e9, recipe=recipe)
    assert asked_for(artefact.text) == ("DATA_PATH", "TOKENIZER_PATH", "CKPT_SAVE_DIR", "MASTER_ADDR", "NODE_RANK")
    given = {name: flag.text for name, flag in read_launch_script(artefact.text, {}).flags.items()}
    assert (given["--lr"], given["--lr-warmup-fraction"], given["--weight-decay"]) == ("1.25e-06", "0.01", "0.01")
    assert "--lr-warmup-iters" not in given
    back = import_document(artefact.text, "run.sh").document["training"]["recipe"]
    assert {name: back[name] for name in recipe} == recipe


def test_a_job_hands_on_what_its_script_asks_for() -> None:
    for model, asks in ((load_preset("llama3-8b"), False), (bare("llama3-8b"), True)):
        job = exported(model, "ascendjob")
        assert ("name: ROTARY_BASE" in job.text) is asks
        assert "name: LR" in job.text
        assert "name: MASTER_ADDR" not in job.text


def test_notes_name_what_nobody_told() -> None:
    assert not any("model.recipe" in note for note in exported(load_preset("deepseek-v3")).notes)
    found = [note for note in exported(bare("qwen3-30b-a3b")).notes if "model.recipe" in note]
    names = "rms_norm_eps, initializer_range, scoring_func, router_aux_loss_coef"
    assert found == [f"{names} not given (model.recipe): defaults are used"]
    assert any("weight_decay, clip_grad" in note for note in exported(load_preset("llama3-8b")).notes)


# -- positions ---------------------------------------------------------------------------------------------------


def test_llama3_positions_in_the_words_of_each_framework() -> None:
    own, core = flags(load_preset("llama3.1-8b")), flags(load_preset("llama3.1-8b"), "megatron")
    assert (own["--rope-scaling-type"], own["--original-max-position-embeddings"]) == ("llama3", "8192")
    assert (own["--low-freq-factor"], own["--high-freq-factor"]) == ("1", "4")
    assert "--use-rope-scaling" in core
    assert core["--rope-scaling-factor"] == "8"
    other = told("llama3.1-8b", rope_scaling={"rope_type": "llama3", "factor": 8, "low_freq_factor": 2})
    assert "no flag sets low_freq_factor 2: set it in the model's code" in exported(other, "megatron").notes


def test_yarn_of_latent_attention() -> None:
    own, core = flags(load_preset("kimi-k2")), flags(load_preset("kimi-k2"), "megatron")
    assert (own["--rope-scaling-factor"], own["--beta-fast"], own["--rope-scaling-mscale"]) == ("32", "1", "1")
    assert (core["--rotary-scaling-factor"], core["--mscale"], core["--mscale-all-dim"]) == ("32", "1", "1")
    notes = exported(load_preset("kimi-k2"), "megatron").notes
    assert "no flag sets beta_fast 1: set it in the model's code" in notes


def test_yarn_elsewhere() -> None:
    scaling = {"rope_type": "yarn", "factor": 4, "original_max_position_embeddings": 32_768}
    model = told("qwen3-8b", rope_scaling=scaling)
    # MindSpeed-LLM takes the factor from the longest context.
    assert flags(model)["--max-position-embeddings"] == "131072"
    gpu = flags(model, "megatron", cluster=GPUS)
    assert (gpu["--position-embedding-type"], gpu["--yarn-original-max-position-embeddings"]) == ("yarn", "32768")
    note = "no flag sets rope_type yarn: set it in the model's code"
    assert note in exported(model, "megatron").notes


@pytest.mark.parametrize(
    ("recipe", "target", "expected"),
    [
        (
            {"rope_scaling": {"rope_type": "linear", "factor": 2}},
            "megatron",
            {"--rotary-seq-len-interpolation-factor": "2"},
        ),
        ({"rope_scaling": {"rope_type": "dynamic", "factor": 2}}, "mindspeed-llm", {"--dynamic-factor": "2"}),
        ({"partial_rotary_factor": 0.5, "rope_interleave": True}, "mindspeed-llm", {"--use-glm-rope": ""}),
        ({"partial_rotary_factor": 0.5, "rope_interleave": True}, "megatron", {"--rotary-interleaved": ""}),
        ({"attention_bias": True, "attention_out_bias": True}, "mindspeed-llm", {"--add-dense-bias": ""}),
        ({"more_flags": (("--scale-emb", "12"),)}, "mindspeed-llm", {"--scale-emb": "12"}),
        (
            {"embedding_multiplier": 78.38367176906169},
            "mindspeed-llm",
            {"--embedding-multiplier-scale": "78.38367176906169"},
        ),
    ],
)
def test_what_few_models_say(recipe: dict[str, Any], target: str, expected: dict[str, str]) -> None:
    found = flags(told("llama3-8b", **recipe), target)
    assert {name: found.get(name) for name in expected} == expected


def test_longrope_keeps_every_digit() -> None:
    scaling = {"rope_type": "longrope", "long_factor": (1.0299999713897705, 2), "short_factor": (1, 1)}
    scaling |= {"original_max_position_embeddings": 4096, "freqs_type": "outer"}
    found = flags(told("llama3-8b", rope_scaling=scaling))
    assert (found["--long-factor"], found["--longrope-freqs-type"]) == ("1.0299999713897705,2", "outer")


# -- the router ---------------------------------------------------------------------------------------------------


def test_groups_are_limited_greedily_where_the_validator_lets_them() -> None:
    model, flag = load_preset("deepseek-v2"), "--moe-router-load-balancing-type"
    assert flags(model, ep=8)[flag] == "group_limited_greedy"
    assert "--moe-router-pre-softmax" not in flags(model, ep=8)
    few = flags(model, ep=2)  # its validator wants more ranks than groups that a token may reach
    assert (few[flag], "--seq-aux" in few, "--moe-router-pre-softmax" in few) == ("none", True, True)
    note = "no flag sets topk_method: group_limited_greedy: set it in the model's code"
    assert note in exported(model, ep=2).notes
    assert flags(model, "megatron", ep=8)[flag] == "seq_aux_loss"


@pytest.mark.parametrize(
    ("recipe", "capacity", "balancing", "normalised"),
    [
        ({}, None, "aux_loss", True),
        ({"routed_scaling_factor": 2.5}, None, "aux_loss", False),  # it would undo the scaling
        ({}, 1.5, "aux_loss", False),  # a token without experts would be divided by nothing
        ({"router_aux_loss_coef": 0}, None, "none", True),
        ({"router_balancing": "softmax_topk"}, None, "softmax_topk", True),
        ({"norm_topk_prob": False}, None, "aux_loss", False),
    ],
)
def test_scores_add_up_to_one(recipe: dict[str, Any], capacity: float | None, balancing: str, normalised: bool) -> None:
    model = told("qwen3-30b-a3b", **recipe).model_copy(update={"capacity_factor": capacity})
    found = flags(model)
    assert found["--moe-router-load-balancing-type"] == balancing
    assert ("--norm-topk-prob" in found) is normalised
    assert ("--moe-router-pre-softmax" in found) is (model.recipe_or_default.norm_topk_prob is False)


def test_what_a_release_does_not_register_is_a_note() -> None:
    model = told("qwen3-30b-a3b", router_balancing="pai_megatron_aux_loss", shared_expert_gate=True)
    notes = exported(model, "megatron").notes
    assert "no flag sets --shared-expert-gate: set it in the model's code" in notes
    said = "no flag sets --moe-router-load-balancing-type pai_megatron_aux_loss: set it in the model's code"
    assert said in notes


def test_a_layer_specification_travels() -> None:
    module = "mindspeed_llm.tasks.models.spec.bailing_spec layer_spec"
    assert flags(told("llama3-8b", layer_spec=module))["--spec"] == module
    assert re.search(r"--transformer-impl local", exported(load_preset("llama3-8b")).text)


@pytest.mark.parametrize(
    ("target", "cluster", "flag"),
    [
        ("mindspeed-llm", ASCEND, "--fix-router"),
        ("megatron", GPUS, "--moe-router-force-load-balancing"),
        ("mindformers", ASCEND, "moe_router_force_expert_balance: true"),
    ],
)
def test_forced_routing_is_launched_as_it_is_predicted(target: str, cluster: Any, flag: str) -> None:
    for router, launched in (("forced", True), (None, False)):
        artefact = exported(load_preset("qwen3-30b-a3b"), target, cluster=cluster, router=router)
        assert (flag in artefact.text) is launched
        if launched and target != "mindformers":
            document = import_document(artefact.text, "launch.sh").document
            assert document["training"]["router"] == "forced"
