"""A row of a format's table of keys is read and written: of each format one that it does not have."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from autodeploy.formats.common.key_table import Key, KeyTable
from autodeploy.formats.common.value_readers import KeyReader
from autodeploy.formats.fsdp2 import keys as fsdp2
from autodeploy.formats.mindspeed_rl import TABLE as MINDSPEED_RL
from autodeploy.formats.torchtitan import keys as torchtitan
from autodeploy.formats.verl import keys as verl
from autodeploy.formats.verl.reader import OverrideReader, _flag
from autodeploy.kit.errors import SpecError
from autodeploy.specs.spec import spec_of
from tests.support.rl_plans import DENSE, rl_plan_set
from tests.support.sharded_plans import sharded_plan_set

WORDS = {"ulysses": ("a2a", "alltoall"), "ring": ("p2p",)}


def test_words_beside_the_first_are_told_as_predicted_like_it() -> None:
    table = KeyTable(
        "own", {"a.size": 4}, (Key("a.size", "strategy.cp", int), Key("a.kind", "strategy.cp_algo", WORDS))
    )
    reader = KeyReader({"a": {"kind": "alltoall"}})
    assert table.of(reader).section("strategy") == {"cp": 4, "cp_algo": "ulysses"}
    found = reader.log.finish()
    assert [note.field for note in found.defaulted] == ["/strategy/cp"]
    assert [(note.source, note.value) for note in found.unmodelled] == [("/a/kind", "alltoall")]
    for word in ("none", ["p2p"], 3):
        with pytest.raises(SpecError):
            table.of(KeyReader({"a": {"kind": word}})).section("strategy")


def test_a_row_under_a_condition_is_read_where_it_holds() -> None:
    rows = (Key("a.size", "strategy.cp", int), Key("a.kind", "strategy.cp_algo", WORDS, "cp > 1"))
    for size, algorithm in ((1, None), (2, "ring")):
        values = KeyTable("own", {}, rows).of(KeyReader({"a": {"size": size, "kind": "p2p"}}), cp=1)
        assert values.section("strategy").get("cp_algo") == algorithm


def test_an_unknown_word_of_a_feature_leaves_it_off() -> None:
    row = Key("a.kept", "features.keep_gathered", {True: ("never",), False: ("always",)})
    for word, on in (("never", {"keep_gathered"}), ("always", set()), ("sometimes", set()), (["never"], set())):
        assert KeyTable("own", {}, (row,)).of(KeyReader({"a": {"kept": word}})).features() == on


@pytest.mark.parametrize(("table", "section"), [(fsdp2.TABLE, "training"), (torchtitan.TABLE, "optimizer")])
def test_one_more_row_is_written_and_read_back(table: KeyTable, section: str) -> None:
    more = replace(table, keys=(*table.keys, Key(f"{section}.made_up", "strategy.sequence_parallel", bool)))
    plan_set = sharded_plan_set("torchtitan-npu")
    strategy = plan_set.plans[0].strategy.model_copy(update={"sequence_parallel": True})
    document: dict[str, Any] = more.written(spec_of(plan_set.search), strategy, {})
    assert document[section]["made_up"] is True
    assert more.of(KeyReader(document), moe=False, cp=1).section("strategy")["sequence_parallel"] is True


def test_one_more_row_of_post_training_is_written_and_read_back() -> None:
    plan_set, plan = rl_plan_set(DENSE, "verl", "cloudmatrix-384")
    spec, field = spec_of(plan_set.search), "strategy.rl.generation.made_up"
    own = Key("rollout.made_up.deep", field, int)
    for table in (verl.GENERATION, MINDSPEED_RL):
        more = replace(table, keys=(own,))
        assert more.written(spec, plan.strategy, {field: 3}) == {"rollout": {"made_up": {"deep": 3}}}
        pairs = more.pairs(spec, plan.strategy, {field: 3})
        given = OverrideReader({path: _flag(path, str(value), 1) for path, value in pairs.items()})
        assert more.of(given).section("strategy.rl.generation") == {"made_up": 3}
