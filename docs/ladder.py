"""The published ladder of Pangu Ultra MoE, a section of docs/accuracy.md."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from autodeploy.analysis.ablation.cases import ASSUMPTIONS, CASES, read_case
from autodeploy.analysis.ablation.comparison_sides import Runs
from autodeploy.analysis.ablation.published import METRICS
from docs.schema_tables import table

if TYPE_CHECKING:
    from autodeploy.analysis.ablation.comparison_sides import Run
    from autodeploy.specs.published_effects import Case

DOCS = Path(__file__).resolve().parent
LADDER = "pangu_ultra_moe_ladder"
PUBLISHED = ((18.9, 0.61), (30.0, 1.46), (41.0, None))  # MFU in percent, million tokens a second


def ladder_section() -> str:
    """The three published points of Pangu Ultra MoE beside their predictions, under one set of assumptions."""
    case = read_case(CASES / f"{LADDER}.yaml")
    runs = Runs()
    points = points_of(case, runs)
    rows = [_row(run, *published) for run, published in zip(points, PUBLISHED, strict=True)]
    steps = []
    for effect in case.effects[len(PUBLISHED) :]:
        if effect.published is None or effect.band is None:
            continue
        value = METRICS[effect.metric](*runs.both(case, effect))
        verdict = "within" if effect.band.holds(value, effect.published) else "**outside**"
        steps.append((effect.feature, f"{effect.published:.3f}", f"{value:.3f}", f"{verdict} {effect.band}"))
    ratio = METRICS["throughput_ratio"](points[1], points[2])
    step = PUBLISHED[2][0] / PUBLISHED[1][0]
    misses = [] if ratio >= 0.9 * step else [_with_hidden_tp(points[2], ratio, step)]
    shared = (CASES / ASSUMPTIONS / f"{case.assumes}.yaml").relative_to(DOCS.parent)
    return "\n\n".join(
        [
            "## A published ladder: Pangu Ultra MoE 718B",
            "Three published points of one model on 800T A2 under one set of assumptions; features, the number of cards"
            f" and, at the third, the micro batch change ([the case](../examples/published/{LADDER}.yaml),"
            f" [what it assumes](../{shared}))."
            " This brackets and does not validate: global batch, recomputation, routing imbalance and chip grade are"
            " not published. MFU counts full attention and multi-token prediction at 294.9 TFLOP/s a card, the"
            " convention that the published pairs of MFU and tokens per second fit.",
            table(("cards", "published MFU", "predicted", "published tokens/s", "predicted"), rows).strip(),
            table(("ratio of throughput a card", "published", "predicted", "verdict"), steps).strip(),
            *misses,
        ]
    )


def points_of(case: Case, runs: Runs) -> list[Run]:
    """The three runs of the ladder: variants of its first figures."""
    return [runs.of(case, effect.variant) for effect in case.effects[: len(PUBLISHED)]]


def _with_hidden_tp(run: Run, ratio: float, published: float) -> str:
    """The last step of the ladder if the run hid its tensor-parallel communication altogether."""
    exposed, step = run.plan.breakdown.exposed_tp_s, run.plan.step_time_s
    hidden = ratio * step / (step - exposed)
    return (
        f"The prediction exposes {exposed:.2f} s of it in a step of {step:.2f} s. Were all of it hidden, the ratio "
        f"would be {hidden:.3f}, {100 * (hidden / published - 1):+.1f} % from the published one: this part alone is as "
        "large as the miss."
    )


def _row(run: Run, mfu: float, million_tokens: float | None) -> tuple[str, ...]:
    values = METRICS["mfu_full_attention_pct"](run, run), METRICS["million_tokens_per_s"](run, run)
    tokens = "not published" if million_tokens is None else f"{million_tokens:.2f} M"
    return f"{run.plan.num_npus_used:,}", f"{mfu:.1f} %", f"{values[0]:.1f} %", tokens, f"{values[1]:.2f} M"
