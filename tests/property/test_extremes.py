"""What a schema allows is predicted, planned or refused in the product's own words, at the ends of every number too."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from autodeploy.analysis.probe.document import ProbeFile
from autodeploy.kit.errors import AutoDeployError
from autodeploy.library import estimate, plan
from autodeploy.search.ranking.measured_speed import OwnRun
from autodeploy.specs.answers import CheckLimits, ClusterOffer
from autodeploy.specs.measured_run import MeasuredRun
from autodeploy.specs.measurements import GenerationRecord, RlRecord
from autodeploy.specs.presets import Preset
from autodeploy.specs.questions import RecommendRequest
from autodeploy.specs.reading import read_spec_document
from autodeploy.specs.record import Record
from autodeploy.specs.spec import Spec
from hardware_profiles import load_profile
from hardware_profiles.generation import GenerationDocument
from hardware_profiles.schema import ProfileDocument
from tests.support.examples import examples
from tests.support.extremes import numeric_fields, with_value

if TYPE_CHECKING:
    from pydantic import BaseModel

DOCUMENTS: tuple[type[BaseModel], ...] = (
    *(Spec, Record, RlRecord, GenerationRecord, MeasuredRun, OwnRun, ProbeFile, Preset, CheckLimits, ClusterOffer),
    *(RecommendRequest, ProfileDocument, GenerationDocument),
)
FIELDS = numeric_fields(Spec.model_json_schema())

DENSE: dict[str, Any] = {
    **{"name": "any", "hidden_size": 512, "num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 4},
    **{"vocab_size": 32_000, "intermediate_size": 1024},
}
EXPERTS: dict[str, Any] = {
    **{**DENSE, "n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 256, "n_shared_experts": 1},
    **{"first_k_dense_replace": 1, "num_nextn_predict_layers": 1, "n_group": 4, "topk_group": 2},
}
RUN: dict[str, Any] = {
    "phases": [
        {"tokens": 1e11, "ramp": {"start": 16, "increment": 16, "tokens": 1e9}},
        {"tokens": 1e10, "seq_length": 8192, "global_batch_size": 64},
    ],
    **{"npu_failure_interval_h": 1e5, "restart_s": 600.0, "storage_gb_per_s": 10.0, "checkpoint_interval_s": 1800.0},
    **{"price_per_npu_hour": 1.0, "npu_power_w": 500.0, "price_per_kwh": 0.1, "recovered_share": 0.5, "reboot_s": 9.0},
}
RL: dict[str, Any] = {
    **{"prompts_per_step": 64, "responses_per_prompt": 4, "prompt_length": {"mean": 512.0, "max": 1024}},
    **{"response_length": {"mean": 1024.0, "max": 4096, "cv": 0.8}, "prompt_correlation": 0.3, "updates_per_step": 2},
}


def document(model: dict[str, Any], strategy: dict[str, Any], **training: Any) -> dict[str, Any]:
    """A spec with a number in every section."""
    return {
        "model": model,
        "cluster": {
            **{"profile": "ascend-800t-a2", "num_npus": 16, "slowest_device_factor": 1.1},
            **{"leaf": {"nodes": 1, "oversubscription": 2.0}, "overrides": {"devices.910B2.hbm_gb_per_s": 1500.0}},
        },
        "training": {"seq_length": 4096, "global_batch_size": {"value": 64, "tolerance_pct": 0.0}, **training},
        "run": RUN,
        "search": {"memory_limit_gib": 50.0},
        "strategy": {"micro_batch_size": 1, **strategy},
    }


def of_one_card(model: dict[str, Any]) -> dict[str, Any]:
    """The least work there is."""
    return {
        "model": {**model, **dict.fromkeys([key for key in DENSE if key != "name"], 1)},
        "cluster": {"profile": "ascend-800t-a2", "num_npus": 1},
        "training": {"seq_length": 1, "global_batch_size": 1},
        "strategy": {"micro_batch_size": 1},
    }


FACTORS = {
    name: {"value": value, "at_ep": 8} for name, value in (("routing_imbalance", 1.3), ("routing_imbalance_peak", 2.0))
}
ONE = {"n_routed_experts": 1, "num_experts_per_tok": 1, "moe_intermediate_size": 1}
SPECS: dict[str, dict[str, Any]] = {
    "dense": document(
        {**DENSE, "sliding_window": 1024, "recipe": {"rope_theta": 1e4, "partial_rotary_factor": 0.5}},
        {"tp": 2, "pp": 2, "recompute": {"granularity": "full", "num_layers": 1}},
        recipe={"lr": 1e-4},
    ),
    "experts": document({**EXPERTS, "capacity_factor": 1.5}, {"pp": 2, "ep": 4}, **FACTORS),
    "documents": document(EXPERTS, {"ep": 8, "cp": 2}, sequence_length_histogram={"512": 3.0, "4096": 1.0}),
    "one expert": document({**EXPERTS, **ONE, "n_group": 1, "topk_group": 1}, {}, **FACTORS),
    "every expert": document(
        {**EXPERTS, "num_experts_per_tok": 8, "topk_group": 4}, {"tp": 2, "ep": 8, "sequence_parallel": True}
    ),
    "least": of_one_card({"name": "least"}),
    "least with an expert": of_one_card({"name": "least", **ONE}),
    "rl": {
        **document(DENSE, {"tp": 2, "rl": {"generation": {"tp": 2, "memory_fraction": 0.8, "max_num_seqs": 64}}}),
        "training": {"kind": "rl_post_training", "rl": RL},
    },
}


del SPECS["rl"]["run"]


def finite(value: Any) -> bool:
    """Whether a document has finite numbers alone."""
    if isinstance(value, dict):
        return all(map(finite, value.values()))
    if isinstance(value, list | tuple):
        return all(map(finite, value))
    return not isinstance(value, float) or math.isfinite(value)


def predicted(spec: dict[str, Any]) -> bool:
    """Whether it is predicted, in finite numbers; False: refused in words. Anything else raises."""
    try:
        found = estimate(read_spec_document(json.loads(json.dumps(spec))))
    except AutoDeployError:
        return False
    assert finite(found.model_dump(mode="json")), spec
    return True


@pytest.mark.parametrize("model", DOCUMENTS)
def test_positive_numbers_of_documents_have_a_least_value(model):
    unbounded = [
        "/".join(map(str, field.path))
        for field in numeric_fields(model.model_json_schema())
        if field.schema["type"] == "number" and field.schema.get("exclusiveMinimum") == 0
    ]
    assert unbounded == []


@pytest.mark.parametrize("name", SPECS)
def test_the_documents_themselves_are_predicted(name):
    assert predicted(SPECS[name])


# Every field of them, and those of a run, of generation and of the search beside a model.
@pytest.mark.parametrize("section", ["run", "search", "cluster", "training"])
def test_numbers_at_their_ends_are_predicted_or_refused_in_words(section):
    tried = 0
    for field in FIELDS:
        if field.path[0] == section and field.schema["type"] == "number":
            for end in field.ends:
                for spec in (SPECS["experts"], SPECS["rl"]):
                    if (changed := with_value(spec, field.path, end)) is not None:
                        predicted(changed)
                        tried += 1
                        break
    assert tried >= 5, section


@settings(max_examples=examples(60), phases=[Phase.generate])
@given(st.sampled_from(sorted(SPECS)), st.sampled_from(FIELDS), st.data())
def test_any_field_at_an_end_is_predicted_or_refused_in_words(name, field, data):
    if field.ends and (changed := with_value(SPECS[name], field.path, data.draw(st.sampled_from(field.ends)))):
        predicted(changed)


LEAST_WIDTHS = {
    **{"hidden_size": [1, 2, 128], "num_attention_heads": [1, 2], "num_key_value_heads": [1], "vocab_size": [1, 2]},
    **{"num_hidden_layers": [1, 2, 3], "intermediate_size": [1, 64], "n_routed_experts": [1, 2, 4]},
    **{"num_experts_per_tok": [1, 2, 4], "moe_intermediate_size": [1, 2], "first_k_dense_replace": [0, 1]},
    **{"n_shared_experts": [0, 1], "num_nextn_predict_layers": [0, 1]},
}
LEAST_STRATEGIES = st.fixed_dictionaries({axis: st.sampled_from([1, 2]) for axis in ("tp", "pp", "ep", "cp")})


@settings(max_examples=examples(40), phases=[Phase.generate])
@given(
    st.fixed_dictionaries({name: st.sampled_from(sizes) for name, sizes in LEAST_WIDTHS.items()}),
    LEAST_STRATEGIES,
    st.sampled_from([1, 2, 4]),
    st.sampled_from([1, 2, 64]),
)
def test_the_smallest_models_and_clusters_are_predicted_or_refused_in_words(model, strategy, cards, length):
    spec = of_one_card({"name": "small"})
    predicted(
        {
            **{**spec, "model": {"name": "small", **model}, "strategy": strategy},
            "cluster": {"profile": "ascend-800t-a2", "num_npus": cards},
            "training": {"seq_length": length, "global_batch_size": 4},
        }
    )


@pytest.mark.parametrize("cards", [1, 2])
@pytest.mark.parametrize("chosen", [(1, 1), (2, 2), (2, 1)])
def test_a_search_of_the_least_model_with_experts_has_plans(chosen, cards):
    experts, taken = chosen
    spec = of_one_card({"name": "least", **ONE})
    spec["model"] |= {"n_routed_experts": experts, "num_experts_per_tok": taken, "hidden_size": 64}
    spec["cluster"]["num_npus"], spec["training"]["global_batch_size"] = cards, 4
    found = plan(read_spec_document({**spec, "strategy": None, "search": {"effort": "fast", "top_k": 1}}))
    assert found.status in {"optimal", "feasible", "infeasible"}
    assert finite(found.model_dump(mode="json"))


@pytest.mark.parametrize(
    "path", ["devices.910B2.peak_tflops.bf16", "devices.910B2.hbm_gb_per_s", "devices.910B2.hbm_gib"]
)
@pytest.mark.parametrize("value", [5e-324, 1e-300, 1e-6, 1e9, 1e308])
def test_a_number_of_the_hardware_at_its_ends_is_predicted_or_refused_in_words(path, value):
    assert path in load_profile("ascend-800t-a2").quantities
    spec = SPECS["experts"]
    predicted({**spec, "cluster": {"profile": "ascend-800t-a2", "num_npus": 16, "overrides": {path: value}}})
