"""Layers on stages as launch flags state them: layouts, lists, padding with layers that do nothing."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

from autodeploy.messages import Message
from autodeploy.specs.model import MAX_LAYERS
from autodeploy.stack.schedules import schedule

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autodeploy.formats.common.value_readers import FlagReader
    from autodeploy.specs.planset import Plan


FIELD = "/strategy/layers_per_stage"
_GROUP = re.compile(r"\(([^()]*)\)(?:\*(\d{1,4}))?|([EtmL|])\*(\d{1,4})")
_SYMBOLS = frozenset("EtmL|")
_MAX_LAYOUT = 20_000

Chunks = list[int]
"""Layers of the chunks in the order a token meets them."""


def counted_ends(reader: FlagReader) -> tuple[bool, bool]:
    """Whether the embedding and the loss count as a layer where layers are spread over the chunks."""
    embedding = reader.switch("--account-for-embedding-in-pipeline-split", FIELD)
    return embedding, reader.switch("--account-for-loss-in-pipeline-split", FIELD)


def read_chunks(
    reader: FlagReader, pp: int, layers: int, chunks_per_stage: int, ends: tuple[bool, bool]
) -> tuple[int, Chunks | None]:
    """Layers of the model without padding, and of each chunk; None where they are spread evenly.

    layers : what `--num-layers` says, padding counted.
    chunks_per_stage : virtual stages; 2 for DualPipeV, whose chunks go down the stages and back up.
    ends : whether the embedding and the loss count as layers. Source: transformer_layer.py, as in `_ends`.
    """
    noops = _noop_layers(reader, layers)
    real = layers - len(noops)
    if (text := reader.text("--pipeline-model-parallel-layout", FIELD)) is not None:
        return real, layout_chunks(reader, text)
    if given := reader.words("--num-layer-list", FIELD):
        return real, _numbers(reader, "--num-layer-list", given)
    if (text := reader.text("--pipeline-num-transformer-layers", FIELD)) is not None:
        return real, _rows(reader, text, pp)
    if (uneven := _ends(reader, pp, layers, chunks_per_stage)) is not None:
        return real, uneven
    count, whole, before = pp * chunks_per_stage, layers + sum(ends), int(ends[0])
    if whole % count:
        flag = "--num-layers"
        reader.log.contradict(
            reader.script.flags[flag].place, FIELD, whole, Message("common.does_not_divide", part=count, whole=whole)
        )
        return real, None
    each = whole // count
    # Places of the chunks that no layer of the model fills.
    idle = [*range(before), *(before + noop for noop in noops), *range(before + layers, whole)]
    filled = [each - sum(place // each == chunk for place in idle) for chunk in range(count)]
    return real, filled if idle and count > 1 else None


def rows_of_stages(chunks: Chunks, pp: int, *, v_shape: bool) -> list[list[int]]:
    """Chunks by stage: chunk c is on stage c % pp; in a V the second half comes back up."""
    rows: list[list[int]] = [[] for _ in range(pp)]
    for index, layers in enumerate(chunks):
        turn, place = divmod(index, pp)
        rows[pp - 1 - place if v_shape and turn % 2 else place].append(layers)
    return rows


def layout_chunks(reader: FlagReader, text: str) -> Chunks:
    """Layers of each entry of a layout such as `Et*3|(tt|)*29,m|L`."""
    flag = "--pipeline-model-parallel-layout"
    plain = expanded_layout(text)
    if plain is None:
        reader.fail(flag, Message("field_fault.at_most_entries", bound=f"{_MAX_LAYOUT:,}"))
    unknown = set(plain) - _SYMBOLS
    if unknown:
        reader.fail(flag, Message("importers.unexpected", token=repr(min(unknown))), "E,t,m,L,|")
    return layers_of_entries(plain)


def layers_of_entries(plain: str) -> Chunks:
    """Layers of each entry of a layout that is written out."""
    return [entry.count("t") for entry in plain.split("|")]


def expanded_layout(text: str) -> str | None:
    """A layout with its repetitions written out; None where that is longer than any pipeline."""
    plain = text.strip("\"'").replace(",", "")
    for _ in range(8):
        expanded = _GROUP.sub(_repeat, plain)
        if len(expanded) > _MAX_LAYOUT:
            return None
        if expanded == plain:
            break
        plain = expanded
    return plain


def _repeat(match: re.Match[str]) -> str:
    return (match[1] or "") * int(match[2] or 1) if match[3] is None else match[3] * int(match[4])


def _noop_layers(reader: FlagReader, layers: int) -> list[int]:
    given = reader.words("--noop-layers", "/model/num_hidden_layers")
    numbers = sorted(set(_numbers(reader, "--noop-layers", given))) if given else []
    if numbers and numbers[-1] >= layers:
        reader.fail("--noop-layers", Message("common.is_outside", value=numbers[-1], range=f"[0, {layers - 1}]"))
    return numbers


def noop_numbers(reader: FlagReader) -> frozenset[int]:
    """Numbers, padding counted, of the layers that do nothing."""
    flag = reader.script.flags.get("--noop-layers")
    words = {word for word in flag.text.replace(",", " ").split() if word.isdigit()} if flag is not None else set[str]()
    return frozenset(int(word) for word in words if len(word) <= len(str(MAX_LAYERS)))


def noops_before(reader: FlagReader, layer: int) -> int:
    """Layers that do nothing among the first ones."""
    return sum(number < layer for number in noop_numbers(reader))


def _numbers(reader: FlagReader, flag: str, given: tuple[str, ...]) -> list[int]:
    for word in given:
        if not word.isdigit() or len(word) > 5:
            reader.fail(flag, Message("field_fault.is_no_whole_number", value=repr(word[:40])))
    if len(given) > MAX_LAYERS:
        reader.fail(flag, Message("field_fault.at_most_entries", bound=f"{MAX_LAYERS:,}"))
    return [int(word) for word in given]


def _rows(reader: FlagReader, text: str, pp: int) -> Chunks:
    """A list of stages, each a list of its virtual stages."""
    flag = "--pipeline-num-transformer-layers"
    try:
        rows = json.loads(text)
    except (ValueError, RecursionError):
        rows = None
    if not isinstance(rows, list):
        reader.fail(flag, Message("field_fault.is_no_list", value=repr(text[:40])))
    if len(rows) != pp:
        reader.fail(flag, Message("common.entries_expected", count=pp, found=len(rows)))
    rows = [row if isinstance(row, list) else [row] for row in rows]
    flat = [layers for row in rows for layers in row]
    if len({len(row) for row in rows}) != 1 or not all(type(n) is int and 0 <= n <= MAX_LAYERS for n in flat):
        reader.fail(flag, Message("field_fault.is_invalid", value=repr(text[:40])))
    return [row[turn] for turn in range(len(rows[0])) for row in rows]


def _ends(reader: FlagReader, pp: int, layers: int, chunks_per_stage: int) -> Chunks | None:
    """First and last stage as given, the rest evenly between them; each stage's layers evenly over its chunks.

    Source: Megatron-LM core_v0.12.1, transformer_block.py, get_num_layers_to_build, and transformer_config.py.
    """
    first = reader.number("--decoder-first-pipeline-num-layers", FIELD)
    last = reader.number("--decoder-last-pipeline-num-layers", FIELD)
    if first is None and last is None:
        return None
    flag = f"--decoder-{'last' if first is None else 'first'}-pipeline-num-layers"
    middle, rest = pp - (first is not None) - (last is not None), layers - (first or 0) - (last or 0)
    if middle < 0 or rest < 0 or rest % max(middle, 1) or (rest and not middle):
        reader.fail(flag, Message("importers.uneven_layers", layers=rest, count=max(0, middle)))
    start, end = ([] if n is None else [n] for n in (first, last))
    stages = [*start, *([rest // max(middle, 1)] * middle), *end]
    if uneven := [stage for stage in stages if stage % chunks_per_stage]:
        spread = Message("importers.uneven_layers", layers=uneven[0], count=chunks_per_stage)
        reader.fail(flag, spread)
    return [stage // chunks_per_stage for stage in stages] * chunks_per_stage


# Which flags put a plan's layers on its pipeline stages.
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
