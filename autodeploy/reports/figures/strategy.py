"""Pictures of a strategy: layers on stages, groups of devices on nodes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from autodeploy.messages import label, text_of
from autodeploy.reports.figures.layout import LAYER_COLOURS, LAYER_INK, bar_trace, quiet_figure
from autodeploy.reports.wording import picture_words
from autodeploy.stack.schedules import schedule

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from autodeploy.messages import Language
    from autodeploy.reports.figures.layout import Figure
    from autodeploy.specs.planset import Plan
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
    """Place of a rank in every group."""
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


@dataclass(frozen=True, slots=True)
class Run:
    """Neighbouring layers of one kind that one virtual stage holds, numbered from 0."""

    stage: int
    chunk: int
    first_layer: int
    num_layers: int
    kind: str


def layer_runs(plan: Plan, dense_layers: Collection[int]) -> tuple[Run, ...]:
    """The runs of layers in the order of the model.

    The model passes all stages once for each chunk; DualPipeV comes back through its second chunk in reverse
    (github.com/deepseek-ai/DualPipe).
    """
    runs: list[Run] = []
    first = 0
    for stage, chunk, count in _in_model_order(plan):
        for layer in range(first, first + count):
            kind = "dense" if layer in dense_layers else "moe"
            last = runs[-1] if runs else None
            if last is not None and (last.stage, last.chunk, last.kind) == (stage, chunk, kind):
                runs[-1] = Run(stage, chunk, last.first_layer, last.num_layers + 1, kind)
            else:
                runs.append(Run(stage, chunk, layer, 1, kind))
        first += count
    return tuple(runs)


def _in_model_order(plan: Plan) -> Iterator[tuple[int, int, int]]:
    chunks = max((len(stage.layers) for stage in plan.stages), default=0)
    for chunk in range(chunks):
        order = range(len(plan.stages))
        backwards = schedule(plan.strategy.schedule).folded and chunk % 2 == 1
        for stage in reversed(order) if backwards else order:
            layers = plan.stages[stage].layers
            if chunk < len(layers):
                yield stage, chunk, layers[chunk]


ROW_PX = 20
MANY_STAGES = 16
"""With more of them a row each would be a field of dots."""


def layers_on_stages(plan: Plan, dense_layers: Collection[int] = (), lang: Language = "en") -> Figure:
    """A row for each stage, the model's layers from left to right; what else a stage holds stands at its name.

    dense_layers : numbers, from 0, of the layers without routed experts.
    """
    words = picture_words(lang)
    if len(plan.stages) > MANY_STAGES:
        return _layers_held(plan, dense_layers, words)
    names = [_stage_name(index, stage.holds, lang) for index, stage in enumerate(plan.stages)]
    runs = layer_runs(plan, dense_layers)
    traces = []
    for kind, colour in LAYER_COLOURS.items():
        rows = [run for run in runs if run.kind == kind]
        if rows:
            traces.append(
                bar_trace(
                    name=words[f"layer_{kind}"],
                    meta=kind,
                    orientation="h",
                    base=[run.first_layer for run in rows],
                    x=[run.num_layers for run in rows],
                    y=[names[run.stage] for run in rows],
                    customdata=[_words_of(run, words) for run in rows],
                    text=[str(run.num_layers) for run in rows],
                    textposition="inside",
                    insidetextanchor="middle",
                    textangle=0,
                    insidetextfont={"color": LAYER_INK[kind]},
                    marker={"color": colour, "line": {"width": 1, "color": "rgba(255, 255, 255, 0.7)"}},
                    hovertemplate="%{customdata}<extra></extra>",
                )
            )
    return quiet_figure(
        traces,
        x_title=words["layer"],
        y_title="",
        height_px=130 + ROW_PX * max(1, len(names)),
        barmode="overlay",
        bargap=0.18,
        yaxis={
            "type": "category",
            "categoryorder": "array",
            "categoryarray": names,
            "autorange": "reversed",
            "dtick": 1,
            "tickfont": {"size": 12},
        },
        showlegend=True,
        meta={"narrow": {"yaxis.tickvals": names, "yaxis.ticktext": [str(index) for index in range(len(names))]}},
    )


def _layers_held(plan: Plan, dense_layers: Collection[int], words: dict[str, str]) -> Figure:
    """A column for each stage, a block for each run of layers that it holds, the earliest at the bottom."""
    by_kind: dict[str, list[Run]] = {kind: [] for kind in LAYER_COLOURS}
    bases: dict[Run, int] = {}
    heights = [0] * len(plan.stages)
    for run in layer_runs(plan, dense_layers):
        bases[run] = heights[run.stage]
        heights[run.stage] += run.num_layers
        by_kind[run.kind].append(run)
    traces = [
        bar_trace(
            name=words[f"layer_{kind}"],
            meta=kind,
            base=[bases[run] for run in rows],
            x=[str(run.stage) for run in rows],
            y=[run.num_layers for run in rows],
            customdata=[_words_of(run, words) for run in rows],
            marker={"color": LAYER_COLOURS[kind], "line": {"width": 1, "color": "rgba(255, 255, 255, 0.7)"}},
            hovertemplate="%{customdata}<extra></extra>",
        )
        for kind, rows in by_kind.items()
        if rows
    ]
    return quiet_figure(
        traces,
        x_title=words["stage"],
        y_title=words["layers"],
        height_px=300,
        barmode="overlay",
        bargap=0.2,
        xaxis={
            "type": "category",
            "categoryorder": "array",
            "categoryarray": [str(stage) for stage in range(len(plan.stages))],
            "showgrid": False,
        },
        showlegend=True,
    )


def _stage_name(index: int, holds: tuple[str, ...], lang: Language) -> str:
    held = text_of(lang, "list.comma").join(label(lang, f"layer_{part}") for part in holds)
    return f"{label(lang, 'stage')} {index}" + (f" · {held}" if held else "")


def _words_of(run: Run, words: dict[str, str]) -> str:
    last = run.first_layer + run.num_layers - 1
    return (
        f"{words['stage']} {run.stage}, {words['chunk']} {run.chunk}: "
        f"{words['layers']} {run.first_layer}–{last} ({words[f'layer_{run.kind}']})"
    )
