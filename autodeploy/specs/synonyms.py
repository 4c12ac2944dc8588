"""The words that others have for a spec's fields: one table for hints and for the readers of configurations."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from autodeploy.messages import Message
from hardware_profiles.shipped_yaml import shipped

if TYPE_CHECKING:
    from collections.abc import Mapping

_PER_NODE = frozenset({"gpus_per_node", "npus_per_node", "cards_per_node", "nproc_per_node", "ntasks_per_node"})
_NODES = frozenset({"nodes", "num_nodes", "nnodes", "machines"})


@cache
def words_of_fields() -> Mapping[str, tuple[str, ...]]:
    """JSON pointer of a field -> the words that others have for it."""
    table: dict[str, str] = shipped("autodeploy.specs", "synonyms.yaml")
    return {pointer: tuple(words.split()) for pointer, words in table.items()}


@cache
def _fields() -> Mapping[str, tuple[str, ...]]:
    """Word -> the fields that it may stand for."""
    fields: dict[str, tuple[str, ...]] = {}
    for pointer, words in words_of_fields().items():
        for word in words:
            fields[word] = (*fields.get(word, ()), pointer)
    return fields


def synonym_hint(path: str, value: object) -> str:
    """The field that an unknown key of a spec means, where the key is somebody's word for it; else nothing.

    path : the JSON pointer of the key.
    value : what stands there; a number of nodes is told as the spec takes it.
    """
    section, _, key = path.rpartition("/")
    word = key.strip().lower().removeprefix("--").replace("-", "_")
    if word in _PER_NODE:
        return Message("specs.cards_of_node")
    meant = _fields().get(word, ())
    field = next((each for each in meant if each.rpartition("/")[0] == section), next(iter(meant), ""))
    if not field:
        return ""
    name = field.rpartition("/")[2] if field.startswith(f"{section}/") else field
    if word in _NODES and isinstance(value, int) and not isinstance(value, bool):
        return Message("specs.write_it", field=f"{name}: {value} nodes")
    return Message("specs.write_it", field=name)
