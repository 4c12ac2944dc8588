"""Environment advice: every variable says what it is worth, in scripts and against a node's own environment."""

from __future__ import annotations

import subprocess
import sys

import pytest

from autodeploy.formats.import_document import import_document
from autodeploy.formats.registry import export
from autodeploy.messages.catalogue import is_text
from cost_models.host_bound import issue_s
from hardware_profiles import load_profile
from tests.support.rehearsed_plans import searched

pytestmark = pytest.mark.unit
TOPICS = ("OMP_NUM_THREADS", "CPU_AFFINITY_CONF", "TASK_QUEUE_ENABLE", "PYTORCH_NPU_ALLOC_CONF")


@pytest.mark.parametrize("name", ["dense A2", "dense A3"])
def test_scripts_say_what_each_variable_is_worth_and_are_read_back(name):
    plan_set, plan = searched(name)
    text = export(plan_set, plan, "mindspeed-llm").text
    lines = {line.split("=")[0].removeprefix("export "): line for line in text.splitlines() if line[:7] == "export "}
    assert all("  # " in lines[topic] for topic in TOPICS)
    assert import_document(text).environment["TASK_QUEUE_ENABLE"] == "2"


def test_every_worth_has_its_chinese():
    for profile in ("ascend-800t-a2", "cloudmatrix-384", "nvidia-h100"):
        for variable in load_profile(profile).document.environment:
            assert not variable.worth or is_text("zh", f"worth.{variable.name}")


def test_what_is_said_of_host_and_queue_is_what_the_formulas_say():
    profile = load_profile("ascend-800t-a2")
    worth = {each.name: each.worth for each in profile.document.environment}
    host = profile.document.host
    away = 1.0 - 1.0 / host.numa_nodes_per_node.value
    share, ratio = host.issue_memory_share.value, host.remote_memory_ratio.value
    bound = 1.0 - share + share * (1.0 - away + away * ratio)
    assert f"{bound:.2f} times" in worth["CPU_AFFINITY_CONF"]
    assert f"{float(issue_s(1.0, 0.0, 0) / issue_s(1.0, 0.0, 2)):.1f} times" in worth["TASK_QUEUE_ENABLE"]


def test_a_node_is_held_against_them():
    command = [sys.executable, "-m", "autodeploy", "doctor", "--cluster", "ascend-800t-a2"]
    answer = subprocess.run(command, env={"TASK_QUEUE_ENABLE": "2"}, capture_output=True, text=True, check=True)
    verdicts = {line.split("=")[0].split()[1]: line.split()[0] for line in answer.stdout.splitlines()}
    assert verdicts["TASK_QUEUE_ENABLE"] == "PASS"
    assert verdicts["OMP_NUM_THREADS"] == "FAIL"
