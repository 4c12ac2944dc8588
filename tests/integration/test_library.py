"""`import autodeploy`: the engine as a library says what the command line says."""

import importlib
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import autodeploy
from autodeploy.search import planner
from autodeploy.specs.reading import read_spec_file
from tests import factories

EXAMPLE = Path(__file__).parents[2] / "examples" / "llama2_70b_32.yaml"
STRATEGY = {"tp": 8, "pp": 2}


def document():
    return factories.spec_document() | {"strategy": STRATEGY}


def test_what_is_offered_is_there():
    for name in autodeploy.__all__:
        assert getattr(autodeploy, name) is not None
    assert set(autodeploy.__all__) <= set(dir(autodeploy))
    with pytest.raises(AttributeError, match="no attribute 'plans'"):
        autodeploy.plans  # noqa: B018


def test_importing_it_loads_no_engine():
    loaded = "import autodeploy, sys; print([m for m in ('numpy', 'pydantic', 'ortools', 'httpx') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", loaded], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_its_functions_are_what_they_were_after_every_submodule_was_imported():
    """A module of a function's name would take its place in the package as it is imported."""
    for found in pkgutil.walk_packages(autodeploy.__path__, "autodeploy."):
        if not found.name.endswith("__main__") and ".stand_ins" not in found.name:
            importlib.import_module(found.name)
    assert autodeploy.estimate(document()).step_time_s > 0
    assert autodeploy.check(document()).plan.step_time_s > 0
    assert callable(autodeploy.plan)
    assert autodeploy.Plan.__name__ == "Plan"


def test_a_file_a_document_and_a_spec_are_the_same_question(monkeypatch):
    asked = []
    monkeypatch.setattr(planner, "plan", lambda spec, **_: asked.append(spec))
    spec = read_spec_file(EXAMPLE)
    for source in (spec, EXAMPLE, str(EXAMPLE), spec.model_dump(mode="json")):
        autodeploy.plan(source)
    assert asked == [spec] * 4


def test_an_estimate_is_the_planners():
    asked = document()
    assert autodeploy.estimate(asked) == planner.estimate(autodeploy.library.spec_of(asked))


def test_bad_fields_are_named():
    with pytest.raises(autodeploy.SpecError) as refused:
        autodeploy.estimate(document() | {"training": {"seq_length": -1}})
    assert "/training/seq_length" in {error.path for error in refused.value.errors}


def test_a_check_of_a_document_holds_limits():
    search = {"effort": "fast", "fix": {"micro_batch_size": 1, "vpp": 1, "cp": 1, "schedule": "1f1b"}}
    small = factories.spec_document(model="llama2-7b", num_npus=8, global_batch_size=64, **search)
    asked = small | {"strategy": {"tp": 2, "pp": 2}}
    report = autodeploy.check(asked, limits=autodeploy.CheckLimits(max_memory=0.01))
    assert not report.passed
    assert {gate.name for gate in report.gates if not gate.passed} == {"memory"}
