"""Exported files save as often as the report of the run assumes."""

from __future__ import annotations

import re
import tomllib
from typing import TYPE_CHECKING, Any

import pytest

from autodeploy.formats.registry import export
from autodeploy.specs.presets import load_preset
from autodeploy.specs.spec import Spec
from autodeploy.specs.text_files import load_yaml
from tests import factories

if TYPE_CHECKING:
    from autodeploy.specs.planset import Plan, PlanSet

pytestmark = pytest.mark.unit

RUNS: list[dict[str, Any]] = [
    {},
    {"checkpoint_interval_s": 4080},
    {"checkpoint_interval_s": 1},  # below a step
    {"failure_interval_h": 24},
    {"npu_failure_interval_h": 2e5, "storage_gb_per_s": 400},
    {"checkpoint": "asynchronous"},
]


def planned(run: dict[str, Any], target: str, *, tokens: bool = True, **search: Any) -> tuple[PlanSet, Plan]:
    document = factories.spec_document(target=target, **search) | ({"run": run} if run else {})
    if not tokens:
        document["training"].pop("tokens")
    spec = Spec.model_validate(document)
    plan_set = factories.plan_set(4, spec=spec)
    return plan_set, plan_set.plans[3]


def interval_of(plan: Plan) -> float:
    assert plan.run is not None
    return plan.run.checkpoint_interval_s


@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize("to", ["mindspeed-llm", "megatron", "ascendjob"])
def test_a_script_saves_at_the_planned_interval(to: str, run: dict[str, Any]) -> None:
    plan_set, plan = planned(run, "mindspeed-llm")
    (steps,) = re.findall(r"SAVE_INTERVAL:-(\d+)\}", export(plan_set, plan, to).text)
    assert int(steps) == plan.save_steps
    assert int(steps) >= 1
    assert abs(int(steps) * plan.step_time_s - interval_of(plan)) <= plan.step_time_s / 2 or int(steps) == 1


@pytest.mark.parametrize("run", RUNS)
def test_a_file_of_mindformers_names_the_planned_interval(run: dict[str, Any]) -> None:
    plan_set, plan = planned(run, "mindformers")
    assert f"every {plan.save_steps} steps: save_checkpoint_steps" in export(plan_set, plan, "mindformers").text


def test_without_a_run_a_script_saves_as_before() -> None:
    plan_set, plan = planned({}, "mindspeed-llm", tokens=False)
    assert plan.save_steps is None
    assert "SAVE_INTERVAL:-1000}" in export(plan_set, plan, "mindspeed-llm").text
    assert "save_checkpoint_steps" not in export(plan_set, plan, "mindformers").text


@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize(
    ("to", "preset", "shape"),
    [("mindspeed-llm-fsdp2", "qwen3-8b", {"ep": 1}), ("torchtitan-npu", "deepseek-v3", {"ep": 8})],
)
def test_a_file_of_fsdp2_saves_at_the_planned_interval(
    to: str, preset: str, shape: dict[str, Any], run: dict[str, Any]
) -> None:
    model = load_preset(preset).model_copy(update={"num_nextn_predict_layers": 0})
    plan_set, plan = planned(run, to, model=model.model_dump(mode="json", exclude_unset=True))
    flat = {"tp": 1, "pp": 1, "dp": 768, "layers_per_stage": None, "recompute": {}, "swap": (), "schedule": "1f1b"}
    flat |= {"vpp": 1, "etp": None, "fsdp": True, "features": ("torch_fsdp2",)} | shape
    plan = plan.model_copy(update={"strategy": factories.strategy(1, **flat)})
    text = export(plan_set, plan, to).text
    if to == "torchtitan-npu":
        assert tomllib.loads(text)["checkpoint"] == {"enable": True, "interval": plan.save_steps}
    else:
        assert load_yaml(text)["training"]["save_steps"] == plan.save_steps
