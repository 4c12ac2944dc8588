"""Which device of which node does what: parallel groups in the frameworks' rank order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from autodeploy.reports.figures.layout import bar_trace, quiet_figure
from autodeploy.reports.labels import picture_words

if TYPE_CHECKING:
    from autodeploy.messages import Language
    from autodeploy.reports.figures.layout import Figure
    from autodeploy.specs.strategy import Strategy

MOST_NAMED = 12  # stages in the legend; of more, the shades alone tell
MOST_NODES = 64
LABEL_PX = 18  # that a node's number needs
CELL = 0.94  # of a device's width
_FIRST, _LAST = (0xC9, 0xDC, 0xF3), (0x2A, 0x55, 0x8F)  # red, green and blue of the first and the last stage


@dataclass(frozen=True, slots=True)
class Place:
    """The coordinates of a rank. Innermost first: tp, cp, dp, pp; for experts etp, ep, edp, pp."""

    tp: int
    cp: int
    dp: int
    pp: int
    ep: int
    edp: int


@dataclass(frozen=True, slots=True)
class GroupSpan:
    """One kind of group: its size, how many there are, and how many nodes the first one touches."""

    name: str
    size: int
    groups: int
    first_ranks: tuple[int, ...]
    nodes: int


def place_of(rank: int, strategy: Strategy) -> Place:
    """Where a rank stands in every group."""
    stage_ranks = strategy.tp * strategy.cp * (strategy.dp or 1)
    stride = strategy.stage_stride(stage_ranks * strategy.pp)
    # Which stage, and which of the stage's ranks.
    replica, rest = divmod(rank, stride * strategy.pp)
    pp, inside = rest // stride, replica * stride + rest % stride
    etp = strategy.etp or strategy.tp
    return Place(
        tp=inside % strategy.tp,
        cp=inside // strategy.tp % strategy.cp,
        dp=inside // (strategy.tp * strategy.cp),
        pp=pp,
        ep=inside // etp % strategy.ep,
        edp=inside // (etp * strategy.ep),
    )


def group_spans(strategy: Strategy, devices_per_node: int) -> tuple[GroupSpan, ...]:
    """Every kind of group that has more than one member, from the innermost to the outermost."""
    dp = strategy.dp or 1
    stage_ranks = strategy.tp * strategy.cp * dp
    world = stage_ranks * strategy.pp
    etp = strategy.etp or strategy.tp
    outside = strategy.pp if strategy.stages_inside else 1
    kinds = [("TP", strategy.tp, 1), ("CP", strategy.cp, strategy.tp)]
    kinds.append(("DP", dp, strategy.tp * strategy.cp * outside))
    if strategy.ep > 1:
        holders = etp * strategy.ep
        kinds += [("EP", strategy.ep, etp), ("EDP", stage_ranks // holders, holders * outside)]
    kinds.append(("PP", strategy.pp, strategy.stage_stride(world)))
    spans = []
    for name, size, stride in kinds:
        if size > 1:
            ranks = tuple(member * stride for member in range(size))
            nodes = len({rank // devices_per_node for rank in ranks})
            spans.append(GroupSpan(name, size, world // size, ranks, nodes))
    return tuple(spans)


def groups_on_nodes(strategy: Strategy, devices_per_node: int, lang: Language = "en") -> Figure:
    """A row for each node, a cell for each device: the later its pipeline stage, the darker. At most 64 nodes."""
    words = picture_words(lang)
    world = strategy.tp * strategy.cp * (strategy.dp or 1) * strategy.pp
    ranks = range(min(world, MOST_NODES * devices_per_node))
    places = [place_of(rank, strategy) for rank in ranks]
    nodes = -(-len(ranks) // devices_per_node)
    row_px = 18 if nodes <= 16 else 9
    stages = []
    for stage in range(places[-1].pp + 1):
        of_stage = [rank for rank in ranks if places[rank].pp == stage]
        cells = bar_trace(
            name=f"{words['stage']} {stage}",
            meta=f"stage {stage}",
            orientation="h",
            base=[rank % devices_per_node for rank in of_stage],
            x=[CELL] * len(of_stage),
            y=[rank // devices_per_node for rank in of_stage],
            customdata=[_words(rank, places[rank], strategy) for rank in of_stage],
            marker={"color": _colour(stage, strategy.pp), "line": {"width": 0}},
            hovertemplate="%{customdata}<extra></extra>",
        )
        stages.append(cells)
    return quiet_figure(
        stages,
        x_title=words["device"],
        y_title=words["node"],
        height_px=120 + row_px * max(4, nodes),
        barmode="overlay",
        bargap=0.12,
        yaxis={"autorange": "reversed", "dtick": -(-LABEL_PX // row_px)},
        xaxis={
            "tickvals": [device + CELL / 2 for device in range(devices_per_node)],
            "ticktext": [str(device) for device in range(devices_per_node)],
            "range": [0, devices_per_node],
        },
        showlegend=1 < strategy.pp <= MOST_NAMED,
    )


def _colour(stage: int, stages: int) -> str:
    """From the light to the dark end of the scale."""
    share = stage / max(1, stages - 1)
    mixed = [round(a + share * (b - a)) for a, b in zip(_FIRST, _LAST, strict=True)]
    return "#" + "".join(f"{part:02x}" for part in mixed)


def _words(rank: int, place: Place, strategy: Strategy) -> str:
    parts = [f"rank {rank}", f"PP {place.pp}", f"DP {place.dp}", f"TP {place.tp}"]
    parts += [f"CP {place.cp}"] if strategy.cp > 1 else []
    parts += [f"EP {place.ep}", f"EDP {place.edp}"] if strategy.ep > 1 else []
    return ", ".join(parts)
