"""The uncertain numbers of a spec: what those of the host rest on."""

from __future__ import annotations

import pytest

from autodeploy.costs.inputs.build_context import spec_context
from autodeploy.search.ranking.uncertainty_set import uncertainty_set
from autodeploy.specs.reading import read_spec_document
from hardware_profiles.loader import load_profile

SYNC = {"value": 20.0, "unit": "us", "kind": "measured", "source": "a probe"}


def numbers(profile_name: str, model: str, overlay: dict[str, object] | None = None) -> dict[str, str]:
    """Basis of each number of the box by name."""
    document = {
        "model": model,
        "cluster": {"profile": profile_name, "num_npus": 32},
        "training": {"seq_length": 4096, "global_batch_size": 64},
    }
    profile = load_profile(profile_name, overlay={"profile": profile_name, **overlay} if overlay else None)
    context = spec_context(read_spec_document(document), profile, frozenset())
    return {number.name: number.basis for number in uncertainty_set(profile, context).numbers}


@pytest.mark.parametrize("profile_name", ["ascend-800t-a2", "nvidia-h100", "nvidia-b200"])
def test_the_host_is_as_uncertain_as_its_prior_and_says_so(profile_name: str) -> None:
    found = numbers(profile_name, "qwen3-30b-a3b")
    assert found["host_sync"].startswith("prior: ")
    assert found["host_issue"].startswith("prior: ")
    assert not found["gemm"].startswith("prior: a round trip")


def test_a_measured_synchronisation_is_not_in_the_box() -> None:
    found = numbers("ascend-800t-a2", "qwen3-30b-a3b", {"host": {"sync_us": SYNC}})
    assert "host_sync" not in found
    assert "host_issue" in found


def test_a_dense_model_waits_for_no_host() -> None:
    assert "host_sync" not in numbers("ascend-800t-a2", "llama2-7b")
