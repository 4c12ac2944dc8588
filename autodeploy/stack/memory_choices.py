"""Memory choices as records, recomputed or swapped instead of kept: words, flags, and releases that launch them.

What a choice frees and repeats is said by the kinds of layers that have it (`costs/workload/memory_choices.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from autodeploy.stack.features import Variant, variant_rows
from autodeploy.stack.records import read_records
from hardware_profiles.shipped_yaml import shipped


@dataclass(frozen=True, slots=True)
class MemoryRecord:
    """One choice of a layer; a layer's class may have any number of its layers with it.

    swap : as strategies name what is swapped; "": it is recomputed. switch : feature that has to be on; "": none.
    words : that records of runs have for it. megatron : word of --recompute-modules. flag : MindSpeed's own; counted :
    with a number of layers beside it. experts : layers without experts have nothing of it.
    own_layer : a swap that the framework waits for at the end of its layer's forward pass, and starts to bring back at
        beginning of its layer's backward pass.
    shares : it frees and replays tensors and operators in part (`LayerTable.by_operator`).
    """

    name: str
    swap: str = ""
    switch: str = ""
    words: tuple[str, ...] = ()
    megatron: str = ""
    flag: str = ""
    counted: bool = False
    experts: bool = False
    own_layer: bool = False
    shares: bool = False
    launch: tuple[Variant, ...] = ()


_ROWS: Final = shipped("autodeploy.stack", "memory_choices.yaml")["choices"]
_RECORDS: Final = ({"name": name, **row, "launch": variant_rows(name, row)} for name, row in _ROWS.items())
MEMORY_CHOICES: Final = {each.name: each for each in read_records(MemoryRecord, _RECORDS)}
WHOLE: Final = "full"  # recomputes a whole layer
RECOMPUTED: Final = {name: each for name, each in MEMORY_CHOICES.items() if not each.swap and name != WHOLE}
SWAPPED: Final = {each.swap: each for each in MEMORY_CHOICES.values() if each.swap}
