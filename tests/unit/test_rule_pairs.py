"""Our rules judge launches as the frameworks' own validators do: the pairs of tests/launch_check/rule_pairs.yaml."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from autodeploy.analysis.launch_checks.flag_rules import flag_rules
from autodeploy.analysis.launch_checks.launch import Launch, launch_of
from autodeploy.analysis.launch_checks.legality import UNREGISTERED, WRONG_VALUE, judge_script
from autodeploy.formats.common.launch_script import read_launch_script
from autodeploy.formats.common.source import Source
from autodeploy.formats.megatron.script import reads
from autodeploy.kit.errors import SpecError, UnsupportedError
from autodeploy.search import planner
from autodeploy.space.rules import HELD_BY_FRAMEWORK, load_rules
from autodeploy.specs.answers import CheckLimits
from autodeploy.stack.memory_choices import MEMORY_CHOICES
from autodeploy.stack.releases import release_named, releases
from hardware_profiles import load_profile
from tests.launch_check.rule_pairs import DEVICES, document, environment_of, ranks_of, releases_of, words_of

RULES = {rule.name: rule for rule in load_rules()}
FLAG_RULES = {rule.name for rule in flag_rules()}
MEMORY = "memory: "
# As flags they are wider: swap of attention is a memory choice, closed by its own rule; plans choose their own group.
WIDER_AS_FLAGS = {"replicas_stay_on_the_device", "interleaving_fills_a_group"}


def cases(*, memory: bool) -> list[Any]:
    """Every pair under every release that it was tried under."""
    return [
        pytest.param(pair, release, id=f"{place}-{pair['rule']}-{release}")
        for place, pair in enumerate(document()["pairs"])
        for release in releases_of(pair)
        if pair["rule"].startswith(MEMORY) == memory
    ]


def script(pair: dict[str, Any], *changes: str) -> str:
    """The launch of a pair as a script."""
    words = [word if word.startswith("--") else f"'{word}'" for word in words_of(pair, *changes)]
    start = f"torchrun --nproc_per_node {DEVICES} --nnodes {ranks_of(pair) // DEVICES} pretrain_gpt.py"
    exports = "".join(f"export {name}={value}\n" for name, value in environment_of(pair, *changes).items())
    return exports + " ".join([start, *words])


@cache
def launched(text: str, cluster: str) -> Launch:
    """A launch on a cluster, whatever the release."""
    return launch_of(reads(Source(text, "run.sh")), cluster)


@cache
def judged(text: str, ranks: int, release: str) -> tuple[frozenset[str], frozenset[str], frozenset[str]]:
    """Rules over strategies and rules over flags that a launch breaks, and the memory choices that it could have.

    A launch that no spec can be made of breaks rules over flags alone.
    """
    named = release_named(release)
    vendor = "huawei" if named.has("mindspeed") else "nvidia"
    cluster = "ascend-800t-a2" if vendor == "huawei" else "nvidia-h100"
    chips = load_profile(cluster)
    by_flags = judge_script(read_launch_script(text), named.framework, chips, ranks, CheckLimits(), release)
    try:
        launch = launched(text, cluster)
        search = launch.spec.search.model_copy(update={"target": named.framework, "target_release": release})
        found = planner.launch_rules(launch.spec.model_copy(update={"search": search}))
    except (SpecError, UnsupportedError):
        return frozenset(), frozenset(rule.rule for rule in by_flags.broken), frozenset()
    return found.names, frozenset(rule.rule for rule in by_flags.broken), found.memory_choices


@pytest.mark.parametrize(("pair", "release"), cases(memory=False))
def test_a_launch_that_obeys_is_legal_and_one_that_breaks_the_rule_is_not(pair: dict[str, Any], release: str) -> None:
    ranks, rule = ranks_of(pair), pair["rule"]
    strategy, flags, _ = judged(script(pair, "obey"), ranks, release)
    assert not strategy | flags
    strategy, flags, _ = judged(script(pair, "obey", "break"), ranks, release)
    # A rule over strategies that has its name from a rule over flags does not read all of its flags.
    assert rule in (strategy if strategy and rule in RULES and rule not in WIDER_AS_FLAGS else flags)
    assert strategy - {rule} <= set(pair.get("also", ()))
    # The gate names the rule, or the flag that the parser does not know.
    assert rule in strategy | flags
    assert pair["at"] != "the parser" or flags & {UNREGISTERED, WRONG_VALUE}


@pytest.mark.parametrize(("pair", "release"), cases(memory=True))
def test_a_memory_choice_is_open_where_the_validators_take_it(pair: dict[str, Any], release: str) -> None:
    ranks, choice = ranks_of(pair), pair["rule"].removeprefix(MEMORY)
    strategy, flags, choices = judged(script(pair, "obey"), ranks, release)
    assert not strategy | flags
    assert choice in choices
    _, flags, choices = judged(script(pair, "obey", "break"), ranks, release)
    assert choice not in choices
    assert flags


def test_every_rule_is_tried_or_says_why_not() -> None:
    tried = {pair["rule"] for pair in document()["pairs"]}
    untried = document()["untried"]
    held = {name for name, rule in RULES.items() if rule.kind in HELD_BY_FRAMEWORK}
    memory = {f"{MEMORY}{name}" for name, each in MEMORY_CHOICES.items() if each.launch}
    assert (held | memory) - tried == set(untried)
    assert tried <= held | memory | FLAG_RULES
    assert all(str(reason).strip() for reason in untried.values())


def test_pairs_name_releases_that_exist() -> None:
    known = {release.name for release in releases()}
    assert {release for pair in document()["pairs"] for release in releases_of(pair)} <= known
    assert all(pair["says"] and pair["at"] for pair in document()["pairs"])
