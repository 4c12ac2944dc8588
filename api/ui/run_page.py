"""Texts of the run of weeks: its figures, where its days go, its phases and what it assumes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from api.ui.search_page import Share
from autodeploy.reports.run_facts import checkpoint_line, cost_words, prior_in_words, prior_note, run_facts
from autodeploy.reports.wording import degrees

if TYPE_CHECKING:
    from autodeploy.messages import Language
    from autodeploy.specs.planset import Plan
    from autodeploy.specs.training_run import TrainingRun

# Part of the run, the key of its name, and the colour of the step's part that it is most like.
PARTS = (
    ("training_days", "new.training", "compute_s"),
    ("checkpoint_days", "checkpoint", "exposed_swap_s"),
    ("lost_work_days", "run.lost_work", "recompute_s"),
    ("restart_days", "run.restart", "pipeline_bubble_s"),
    ("layout_change_days", "run.layout_change", "imbalance_s"),
)


@dataclass(frozen=True, slots=True)
class RunPage:
    """A run as the template shows it."""

    run: TrainingRun
    tokens: float
    facts: tuple[str, ...]
    shares: tuple[Share, ...]
    phases: tuple[tuple[int, str], ...]
    priors: tuple[tuple[str, str, str], ...]
    cost: str
    checkpoints: str


def run_page(plan: Plan | None, lang: Language, names: dict[str, str]) -> RunPage | None:
    """The run of a plan; None where its spec says nothing of one. `names` holds the texts of the page."""
    run = plan.run if plan is not None else None
    if plan is None or run is None:
        return None
    own = degrees(plan.strategy)
    phases = ((n, own if p.strategy is None else degrees(p.strategy)) for n, p in enumerate(run.phases, start=1))
    return RunPage(
        run=run,
        tokens=sum(phase.tokens for phase in run.phases),
        facts=tuple(run_facts(run, lang)),
        shares=_shares(run, names),
        phases=tuple(phases),
        priors=tuple((prior_in_words(p, lang), p.kind, prior_note(p, lang)) for p in run.priors),
        cost=cost_words(run, lang),
        checkpoints=checkpoint_line(run, lang),
    )


def _shares(run: TrainingRun, names: dict[str, str]) -> tuple[Share, ...]:
    shares: list[Share] = []
    start = 0.0
    for field, name, colour in PARTS:
        amount = getattr(run, field)
        if run.days and amount:
            shares.append(Share(colour, names[name], amount, amount / run.days, start))
            start += amount / run.days
    return tuple(shares)
