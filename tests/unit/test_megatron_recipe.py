"""What a launch script says of the model besides its shape travels with the model."""

from __future__ import annotations

from typing import Any

import pytest

from autodeploy.formats.import_document import import_document
from autodeploy.formats.registry import export
from autodeploy.kit.errors import SpecError
from autodeploy.search.planner import estimate
from autodeploy.specs.model import ModelSpec
from autodeploy.specs.planset import plan_set_of_one
from autodeploy.specs.reading import read_spec_document
from autodeploy.specs.recipe import Recipe, RopeScaling
from tests import factories

SHAPE = (
    "--num-layers 4 --hidden-size 64 --ffn-hidden-size 160 --num-attention-heads 8 --seq-length 128 --vocab-size 1000"
    " --micro-batch-size 1 --global-batch-size 8 --swiglu --bf16 --position-embedding-type rope"
    " --disable-bias-linear --normalization RMSNorm --untie-embeddings-and-output-weights"
)
EXPERTS = " --num-experts 8 --moe-router-topk 2 --moe-ffn-hidden-size 24"
DEFAULTS: dict[str, Any] = {
    "rope_theta": 10_000,
    "normalization": "RMSNorm",
    "rms_norm_eps": 1e-5,
    "initializer_range": 0.02,
    "attention_bias": False,
    "mlp_bias": False,
    "attention_dropout": 0.1,
    "hidden_dropout": 0.1,
}


def imported(flags: str, shape: str = SHAPE) -> Any:
    return import_document(f"torchrun --nproc_per_node 8 pretrain_gpt.py {shape} {flags}\n", "run.sh")


def recipe_of(flags: str, shape: str = SHAPE) -> Recipe:
    return ModelSpec.model_validate(imported(flags, shape).document["model"]).recipe_or_default


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        ("", {}),
        ("--rotary-base 500000 --norm-epsilon 1e-6", {"rope_theta": 500_000, "rms_norm_eps": 1e-6}),
        ("--init-method-std 0.01 --attention-dropout 0", {"initializer_range": 0.01, "attention_dropout": 0}),
        ("--add-qkv-bias --add-dense-bias", {"attention_bias": True, "attention_out_bias": True}),
        ("--rotary-percent 0.5 --use-glm-rope", {"partial_rotary_factor": 0.5, "rope_interleave": True}),
        ("--max-position-embeddings 4096", {"max_position_embeddings": 4096}),
        ("--spec some.module layer_spec", {"layer_spec": "some.module layer_spec"}),
        (
            "--add-rmsnorm-offset --scale-emb 12",
            {"more_flags": (("--add-rmsnorm-offset",), ("--scale-emb", "12"))},
        ),
    ],
)
def test_dense_models(flags: str, told: dict[str, Any]) -> None:
    assert recipe_of(flags) == Recipe.model_validate(DEFAULTS | told)


@pytest.mark.parametrize(
    ("flags", "scaling"),
    [
        (
            "--rope-scaling-type llama3 --rope-scaling-factor 8.0 --low-freq-factor 1.0 --high-freq-factor 4.0"
            " --original-max-position-embeddings 8192",
            {"rope_type": "llama3", "factor": 8, "low_freq_factor": 1, "high_freq_factor": 4}
            | {"original_max_position_embeddings": 8192},
        ),
        (
            "--use-rope-scaling",
            {"rope_type": "llama3", "factor": 8, "low_freq_factor": 1, "high_freq_factor": 4}
            | {"original_max_position_embeddings": 8192},
        ),
        (
            "--rope-scaling-type yarn --rope-scaling-factor 40 --beta-fast 32 --beta-slow 1 --rope-scaling-mscale 0.707"
            " --rope-scaling-mscale-all-dim 0.707 --rope-scaling-original-max-position-embeddings 4096",
            {"rope_type": "yarn", "factor": 40, "beta_fast": 32, "beta_slow": 1, "mscale": 0.707}
            | {"mscale_all_dim": 0.707, "original_max_position_embeddings": 4096},
        ),
        (
            "--rotary-scaling-factor 40 --mscale 1.0 --mscale-all-dim 1.0",
            {"rope_type": "yarn", "factor": 40, "beta_fast": 32, "beta_slow": 1, "mscale": 1, "mscale_all_dim": 1}
            | {"original_max_position_embeddings": 4096},
        ),
        ("--rotary-seq-len-interpolation-factor 4", {"rope_type": "linear", "factor": 4}),
        ("--dynamic-factor 2", {"rope_type": "dynamic", "factor": 2}),
        (
            "--rope-scaling-type longrope --long-factor 1,2 --short-factor 1,1 --long-mscale 1.2 --short-mscale 1.2"
            " --longrope-freqs-type outer --rope-scaling-original-max-position-embeddings 4096",
            {"rope_type": "longrope", "long_factor": (1, 2), "short_factor": (1, 1), "long_mscale": 1.2}
            | {"short_mscale": 1.2, "freqs_type": "outer", "original_max_position_embeddings": 4096},
        ),
    ],
)
def test_scaled_positions(flags: str, scaling: dict[str, Any]) -> None:
    assert recipe_of(flags).rope_scaling == RopeScaling.model_validate(scaling)


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        ("", {"router_balancing": "aux_loss"}),
        (
            "--moe-router-load-balancing-type none --moe-router-score-function sigmoid --moe-router-enable-expert-bias"
            " --moe-router-topk-scaling-factor 2.5 --norm-topk-prob --seq-aux --moe-aux-loss-coeff 0.0001"
            " --moe-router-dtype fp32 --moe-router-bias-update-rate 0.001",
            {"router_balancing": "none", "scoring_func": "sigmoid", "topk_method": "noaux_tc", "seq_aux": True}
            | {"routed_scaling_factor": 2.5, "norm_topk_prob": True, "router_aux_loss_coef": 1e-4}
            | {"router_dtype": "fp32", "router_bias_update_rate": 1e-3},
        ),
        (
            "--moe-router-pre-softmax --moe-z-loss-coeff 1e-3 --moe-input-jitter-eps 0.01 --shared-expert-gate",
            {"router_balancing": "aux_loss", "norm_topk_prob": False, "router_z_loss_coef": 1e-3}
            | {"router_jitter_noise": 0.01, "shared_expert_gate": True},
        ),
        ("--router-gating-in-fp32", {"router_balancing": "aux_loss", "router_dtype": "fp32"}),
    ],
)
def test_routers(flags: str, told: dict[str, Any]) -> None:
    assert recipe_of(EXPERTS + " " + flags) == Recipe.model_validate(DEFAULTS | told)


def test_biases_are_everywhere_unless_disabled() -> None:
    told = recipe_of("", SHAPE.replace(" --disable-bias-linear", ""))
    assert (told.attention_bias, told.attention_out_bias, told.mlp_bias) == (True, True, True)


def test_a_value_that_only_the_environment_knows_stays_untold() -> None:
    told = recipe_of('--rotary-base "${ROTARY_BASE}" --norm-epsilon "${EPSILON:-1e-6}"')
    assert told.rope_theta is None
    assert told.rms_norm_eps == 1e-6


def test_what_is_not_carried_is_told() -> None:
    found = imported(EXPERTS + " --moe-router-load-balancing-type by_hand").diagnostics.unmodelled
    assert [note.value for note in found] == ["by_hand"]


def test_a_mistake_names_its_place() -> None:
    with pytest.raises(SpecError, match=r"line 1, column \d+: --norm-epsilon: 'small' is not a number"):
        imported("--norm-epsilon small")


@pytest.mark.parametrize("target", ["mindspeed-llm", "megatron"])
def test_biases_of_distances_are_read_and_written_instead_of_rotations(target: str) -> None:
    model = imported("", SHAPE.replace(" rope", " alibi")).document["model"]
    assert model["alibi"] is True
    assert "rope_theta" not in (model.get("recipe") or {})
    document = {
        "model": model,
        "cluster": {"profile": "ascend-800t-a2", "num_npus": 8},
        "training": {"seq_length": 128, "global_batch_size": 8},
        "search": {"target": target},
        "strategy": {"tp": 8, "pp": 1, "features": ["flash_attention"]},
    }
    spec = read_spec_document(document)
    chosen = estimate(spec)
    written = export(
        plan_set_of_one(factories.plan_set().search, spec, chosen, spec.search.objective), chosen, target
    ).text
    assert "--position-embedding-type alibi" in written
    assert "--use-rotary-position-embeddings" not in written
