"""Which flags put a plan's layers on its pipeline stages.

Even placement needs none but the degrees. Uneven placement: a layout string of stages in order (E embedding, t layer,
m multi-token prediction, L loss), a list of layers a stage without virtual stages, or layers that do nothing where the
schedule wants equal chunks (DualPipeV).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

from autodeploy.stack.schedules import schedule

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autodeploy.specs.planset import Plan


@dataclass(frozen=True, slots=True)
class Placement:
    """Layers by chunk, `chunks[v][s]` of stage s, and where multi-token prediction sits (stage index).

    folded : the model goes down the stages and back up.
    """

    chunks: tuple[tuple[int, ...], ...]
    mtp_stage: int
    folded: bool = False

    @property
    def is_even(self) -> bool:
        """Whether all chunks have as many layers, as the frameworks assume."""
        return len({layers for row in self.chunks for layers in row}) == 1

    @property
    def in_order(self) -> list[int]:
        """Layers of the chunks in the order a token meets them, where no schedule folds the model."""
        return [layers for row in self.chunks for layers in row]

    def layers_of_stage(self, stage: int) -> int:
        """Layers on the stage, all its chunks together."""
        return sum(row[stage] for row in self.chunks)

    def stages(self) -> list[list[int]]:
        """Indices of the layers on each stage, in model order."""
        layers: list[list[int]] = [[] for _ in self.chunks[0]]
        layer = 0
        for virtual, row in enumerate(self.chunks):
            turned = self.folded and virtual % 2 == 1
            for stage in reversed(range(len(row))) if turned else range(len(row)):
                layers[stage] += range(layer, layer + row[stage])
                layer += row[stage]
        return layers


def placement(plan: Plan, num_layers: int) -> Placement:
    """The plan's placement, from its stages or, where a plan has none, from its strategy."""
    strategy = plan.strategy
    kind = schedule(strategy.schedule)
    chunks_per_stage = kind.chunks or strategy.vpp
    if len(plan.stages) == strategy.pp:
        rows: list[Sequence[int]] = [stage.layers for stage in plan.stages]
    elif strategy.layers_per_stage is not None:
        rows = [(row,) if isinstance(row, int) else row for row in strategy.layers_per_stage]
    else:
        rows = [(layers,) for layers in _split(num_layers, strategy.pp)]
    rows = [_per_chunk(row, chunks_per_stage) for row in rows]
    mtp = [index for index, stage in enumerate(plan.stages) if "mtp" in stage.holds]
    return Placement(tuple(zip(*rows, strict=True)), mtp[0] if mtp else strategy.pp - 1, kind.folded)


def _per_chunk(row: Sequence[int], chunks: int) -> Sequence[int]:
    return row if len(row) == chunks else _split(sum(row), chunks)


def _split(layers: int, parts: int) -> tuple[int, ...]:
    return tuple(layers // parts + (part < layers % parts) for part in range(parts))


def layout_string(placed: Placement, num_mtp: int) -> str:
    """The layout of Megatron's `--pipeline-model-parallel-layout`: chunk v of stage s is entry v * pp + s."""
    stages = len(placed.chunks[0])
    last = len(placed.chunks) * stages - 1
    entries = []
    for index in range(last + 1):
        virtual, stage = divmod(index, stages)
        text = "E" if index == 0 else ""
        text += "t" * placed.chunks[virtual][stage]
        text += "m" * (num_mtp if virtual == len(placed.chunks) - 1 and stage == placed.mtp_stage else 0)
        text += "L" if index == last else ""
        entries.append(text)
    return _folded(entries)


def _folded(entries: list[str]) -> str:
    """Equal neighbours as `(ttt|)*4`; the last entry has no bar of its own."""
    parts = []
    for text, run in groupby(entries[:-1]):
        count = len(list(run))
        parts.append(f"({text}|)*{count}" if count > 2 else f"{text}|" * count)
    return "".join(parts) + entries[-1]


def dualpipev_order(placed: Placement) -> list[int]:
    """Layers of the chunks in the order a token meets them: down the stages, then back up."""
    down, up = placed.chunks
    return [*down, *reversed(up)]


def padded_layer(layers: int, noops: Sequence[int]) -> int:
    """Layers with padding up to the end of the first `layers` that do something."""
    total = layers
    for noop in sorted(noops):
        total += noop < total
    return total


def moves_dense_layers(placed: Placement, dense: int) -> bool:
    """Whether MindSpeed-LLM makes other layers than the first `dense` dense when a layout string places them.

    It numbers the layers of a chunk as if all chunks were alike: stage s of chunk v starts behind v (L // V) +
    s (L // P // V) layers, whatever the layout says. Source: MindSpeed-LLM transformer_block.py,
    _transformer_block_build_layers; MindSpeed transformer_block.py, _get_layer_offset.
    """
    virtual, stages, layers = len(placed.chunks), len(placed.chunks[0]), sum(placed.in_order)
    before = 0
    for v, row in enumerate(placed.chunks):
        for s, in_chunk in enumerate(row):
            reckoned = v * (layers // virtual) + s * (layers // stages // virtual)
            if min(in_chunk, max(0, dense - reckoned)) != min(in_chunk, max(0, dense - before)):
                return True
            before += in_chunk
    return False
