"""Scripts of launches before a plan's own are those that the frameworks' own parsers and validators started."""

from __future__ import annotations

import pytest

from autodeploy.analysis.launch_checks.legality import judge_script
from autodeploy.formats.common.launch_script import read_launch_script
from autodeploy.specs.answers import CheckLimits
from hardware_profiles import load_profile
from tests.launch_check.rungs import RELEASES, digest_of, recorded, scripts
from tests.support.rehearsed_plans import searched

pytestmark = pytest.mark.unit


@pytest.mark.parametrize("name", RELEASES)
def test_every_launch_is_one_that_its_framework_starts(name: str) -> None:
    found = recorded()[name]
    assert {launch: each["said"] for launch, each in found.items()} == dict.fromkeys(found, "OK")
    made = scripts(name)
    assert {launch: digest_of(text) for launch, text in made.items()} == {
        launch: each["flags"] for launch, each in found.items()
    }, "python -m tests.launch_check.rungs"


@pytest.mark.parametrize("name", RELEASES)
def test_no_rule_of_ours_is_broken_by_them_either(name: str) -> None:
    plan_set, _ = searched(name)
    target, chips = plan_set.search.spec["search"]["target"], load_profile(plan_set.search.spec["cluster"]["profile"])
    for text in scripts(name).values():
        script = read_launch_script(text)
        assert judge_script(script, target, chips, script.ranks, CheckLimits(), None).broken == ()


def test_a_digest_is_of_flags_and_ranks_alone() -> None:
    (text, *_) = scripts("dense H100").values()
    assert digest_of(f"{text}\n# a remark\n") == digest_of(text)
    assert digest_of(text.replace("--bf16", "--fp16")) != digest_of(text)
