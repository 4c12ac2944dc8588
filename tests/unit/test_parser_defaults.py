"""Values of frameworks for what a launch leaves out stand in one document of the stack, and nowhere beside it."""

from __future__ import annotations

import pytest

from autodeploy.formats.common.launch_script import GivenFlag, LaunchScript
from autodeploy.formats.common.value_readers import FlagReader
from autodeploy.formats.shell.values import Run, Value
from autodeploy.stack import flag_tables
from autodeploy.stack.releases import releases
from hardware_profiles.shipped_yaml import shipped

DOCUMENT = shipped("autodeploy.stack", "parser_defaults.yaml")
REGISTERED = {name for release in releases() for name in (*release.flags, *release.keys)}


@pytest.mark.parametrize("framework", DOCUMENT)
def test_each_is_of_a_flag_or_key_that_a_release_registers(framework: str) -> None:
    assert [name for name in DOCUMENT[framework]["values"] if name not in REGISTERED] == []
    assert DOCUMENT[framework]["source"]


def test_a_launch_that_leaves_a_flag_out_has_the_documents_value(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flag_tables, "shipped", lambda *_: {"Megatron": {"values": {"--moe-router-topk": 7}}})
    flag_tables.defaults_of.cache_clear()
    try:
        silent = FlagReader(LaunchScript("", {}))
        assert silent.number("--moe-router-topk", "/model/num_experts_per_tok") == 7
        assert [note.value for note in silent.log.finish().defaulted] == ["7"]
        given = GivenFlag("--moe-router-topk", (Value((Run("3", 0),)),), 1, 1)
        said = FlagReader(LaunchScript("", {given.name: given}))
        assert said.number("--moe-router-topk", "/model/num_experts_per_tok") == 3
        assert said.log.finish().defaulted == ()
    finally:
        flag_tables.defaults_of.cache_clear()
