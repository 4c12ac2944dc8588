"""Which pipeline stage holds which layers of the model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from autodeploy.messages import label, text_of
from autodeploy.reports.figures.layout import LAYER_COLOURS, LAYER_INK, bar_trace, quiet_figure
from autodeploy.reports.labels import picture_words
from autodeploy.stack.schedules import schedule

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from autodeploy.messages import Language
    from autodeploy.reports.figures.layout import Figure
    from autodeploy.specs.planset import Plan


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

    Parameters
    ----------
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
