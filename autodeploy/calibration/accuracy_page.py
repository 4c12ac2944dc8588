"""The accuracy page as Markdown."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from autodeploy.calibration.accuracy_errors import Errors, Ordered, Runs, errors_of
from autodeploy.calibration.accuracy_misses import INTERVAL, interval_miss, left_aside, met
from autodeploy.calibration.accuracy_sets import A100, ASCEND, H100
from autodeploy.calibration.accuracy_shared import (
    SERIES,
    SHARED_TITLES,
    contradictions,
    pairs_by_sharing,
    placed_ahead,
    shared_node_rows,
)
from autodeploy.calibration.accuracy_splits import share_inside
from autodeploy.calibration.accuracy_texts import (
    HEADING,
    HOW,
    NOT_COVERED,
    NOT_MODELLED,
    PARAMETERS_INTRO,
    SHARED_INTRO,
    SHARED_NOTES,
    UNEXPLAINED,
    UNEXPLAINED_RUN,
    WORST_INTRO,
)
from autodeploy.calibration.accuracy_worst import diagnoses, doubted, listed, misses, parts_of
from autodeploy.calibration.unmeasured import extent_words

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from autodeploy.calibration.accuracy_measures import Measures
    from autodeploy.calibration.accuracy_splits import Held, SplitErrors
    from autodeploy.calibration.accuracy_worst import Miss
    from autodeploy.calibration.calibrate import Calibration
    from autodeploy.calibration.unmeasured import UnmeasuredReport

WORST = 10


@dataclass(frozen=True, slots=True)
class Aim:
    """Upper limits of errors that are aimed at; None where there is none."""

    mape: float | None = None
    p90: float | None = None

    def words(self) -> str:
        """The aim as a cell."""
        limits = [("mean", self.mape), ("p90", self.p90)]
        return ", ".join(f"{name} ≤ {100 * limit:.0f} %" for name, limit in limits if limit is not None) or "report"

    def verdict(self, errors: Errors) -> str:
        """Whether the errors meet the aim; a miss says in what."""
        pairs = [("mean", self.mape, errors.mape), ("p90", self.p90, errors.p90_ape)]
        missed = [name for name, limit, value in pairs if limit is not None and value > limit]
        return "-" if self == Aim() else f"**missed** ({', '.join(missed)})" if missed else "met"


def page(measures: Measures, more: Sequence[str] = ()) -> str:
    """The whole page; `more` sections follow the worst records."""
    parts = [HEADING, _times(measures), _carried(measures), _memory(measures), _orders(measures)]
    parts.append(_shared(measures.runs[A100]))
    parts += [_intervals(measures), HOW, _parameters(measures.calibrations.values())]
    parts += [_worst(measures), *more, NOT_MODELLED, NOT_COVERED, _unmeasured(measures.unmeasured)]
    return "\n\n".join(part.strip() for part in parts) + "\n"


def table(titles: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A Markdown table."""
    lines = [titles, ["---"] * len(titles), *rows]
    return "\n".join("| " + " | ".join(str(cell).replace("|", "\\|") for cell in line) + " |" for line in lines)


def percent(value: float) -> str:
    """A share in per cent with one decimal."""
    return f"{100 * value:.1f} %"


def signed(value: float) -> str:
    """A signed share in per cent with one decimal."""
    return f"{100 * value:+.1f} %"


def _cells(errors: Errors) -> list[str]:
    return [percent(errors.mape), percent(errors.median_ape), percent(errors.p90_ape), signed(errors.bias)]


ERROR_TITLES = ("mean (MAPE)", "median", "90th percentile", "bias")


def _times(measures: Measures) -> str:
    sets = [
        ("Ascend 800T A2, all", measures.runs[ASCEND], Aim(0.06, 0.12)),
        ("Ascend 800T A2, experts", measures.moe, Aim(0.09)),
        ("A100", measures.runs[A100], Aim(0.06, 0.13)),
        ("H100", measures.runs[H100], Aim()),
    ]
    rows: list[list[str]] = []
    for name, runs, aim in sets:
        seen, left_out = errors_of(runs.in_sample), errors_of(runs.left_out)
        rows.append([name, str(seen.n), "in sample", *_cells(seen), "", ""])
        rows.append([name, str(left_out.n), "family left out", *_cells(left_out), aim.words(), aim.verdict(left_out)])
    found = measures.never_fitted
    rows.append(["B200", str(found.n), "never fitted", *_cells(found), "report", "-"])
    titles = ("set", "runs", "prediction", *ERROR_TITLES, "aim", "verdict")
    text = f"## Time\n\n{table(titles, rows)}\n\n"
    return text + _without_doubted(sets)


def _without_doubted(sets: Sequence[tuple[str, Runs, Aim]]) -> str:
    rows = []
    for name, runs, aim in sets:
        doubt = doubted(runs)
        if any(doubt) and aim != Aim():
            rest = runs.of([not mark for mark in doubt])
            errors = errors_of(rest.left_out)
            rows.append([name, str(sum(doubt)), str(errors.n), *_cells(errors), aim.verdict(errors)])
            if name.endswith("experts"):
                rows.append(_without_the_unexplained(name, rest, aim, sum(doubt)))
    titles = ("set", "left aside", "runs", *ERROR_TITLES, "verdict")
    return (
        "### What keeps Ascend from its aims\n\nThe figures without the records whose own source or repeats contradict "
        "them. They stay in the fit and in every other figure, and were looked at because they are far off, "
        "so this table flatters.\n\n"
        f"{table(titles, rows)}\n\nThe records left aside, their error with the family left out, and why:\n\n"
        f"{left_aside(runs for name, runs, _ in sets if not name.endswith('experts'))}\n\n{UNEXPLAINED}"
    )


def _without_the_unexplained(name: str, runs: Runs, aim: Aim, aside: int) -> list[str]:
    """A set without the one run that forbids its aim."""
    rest = runs.of([record.id != UNEXPLAINED_RUN for record in runs.records])
    errors = errors_of(rest.left_out)
    return [f"{name}, without `{UNEXPLAINED_RUN}`", str(aside + 1), str(errors.n), *_cells(errors), aim.verdict(errors)]


def _carried(measures: Measures) -> str:
    found = measures.carried
    anchored = found.after_anchor
    verdict = "met" if anchored.mape <= 0.15 else "**missed**"
    rows = [
        ["as carried over", str(found.plain.n), *_cells(found.plain), "report", "-"],
        ["after one anchor record", str(anchored.n), *_cells(anchored), "mean ≤ 15 %", verdict],
        [
            "after one anchor record of another model",
            str(found.after_anchor_other_model.n),
            *_cells(found.after_anchor_other_model),
            "report",
            "-",
        ],
    ]
    return (
        "## A device never seen: H100 from A100's fit\n\n"
        "H100's own priors times A100's fitted factors on computation and memory streams; rates of links stay its own. "
        f"The spread (log standard deviation) is {percent(found.spread)}. One anchor record sets a common factor for "
        "the others; rows count every pair of anchor and other record. Four of the five runs are one configuration in "
        "four "
        f"releases, so the last row says more than the one above it.\n\n"
        f"{table(('prediction', 'cases', *ERROR_TITLES, 'aim', 'verdict'), rows)}"
    )


def _memory(measures: Measures) -> str:
    rows = []
    for profile, name in ((ASCEND, "Ascend 800T A2"), (H100, "H100")):
        errors, aim = measures.memory[profile], Aim(0.09)
        rows.append([name, str(errors.n), *_cells(errors), aim.words(), aim.verdict(errors)])
    return (
        "## Memory\n\nPeak of the framework's allocator in runs of a few iterations (first-step rule). Nothing in "
        "memory "
        f"is fitted, so every figure is out of sample.\n\n"
        f"{table(('set', 'runs', *ERROR_TITLES, 'aim', 'verdict'), rows)}"
    )


def _orders(measures: Measures) -> str:
    pairs = measures.pairs
    total = Ordered(*(sum(getattr(p, f) for p in pairs.values()) for f in ("pairs", "in_sample", "left_out")))
    rows = []
    for name, each in (("Ascend 800T A2", pairs[ASCEND]), ("A100", pairs[A100]), ("all", total)):
        shares = [percent(n / each.pairs) if each.pairs else "-" for n in (each.in_sample, each.left_out)]
        verdict = "-" if not each.pairs else "met" if each.left_out >= 0.9 * each.pairs else "**missed**"
        rows.append([name, str(each.pairs), *shares, "≥ 90 %", verdict])
    groups = [
        [
            g.name,
            str(g.layouts),
            f"{g.tau:.2f}",
            percent(g.regret),
            "tau ≥ 0.6, regret ≤ 2 %",
            "met" if g.tau >= 0.6 and g.regret <= 0.02 else "**missed**",
        ]
        for g in measures.groups
    ]
    return (
        "## Order of strategies\n\nPairs of different strategies of one model on one cluster and release (one source, "
        "one software band) whose measured time per token differs by more than 7 %, and how many are ordered right:\n\n"
        f"{table(('set', 'pairs', 'in sample', 'family left out', 'aim', 'verdict'), rows)}\n\n"
        "Groups of at least five layouts at equal batch, family left out. Regret is how much longer the layout "
        "predicted fastest ran than the layout measured fastest:\n\n"
        f"{table(('group', 'layouts', 'Kendall tau', 'regret', 'aim', 'verdict'), groups)}"
    )


def _shared(runs: Runs) -> str:
    whole, wrong_whole, others, wrong_others = pairs_by_sharing(runs)
    against = ", ".join(f"`{small}` against `{large}`" for small, large in contradictions(runs))
    counts = (
        f"Of the pairs of {SERIES}, {wrong_whole} of {whole} are ordered wrong where one tensor-parallel group fills "
        f"each node, and {wrong_others} of the other {others}."
    )
    return (
        f"### What keeps A100 from its aims\n\n{counts} {SHARED_INTRO.replace('PAIRS', against)}\n\n"
        f"{table(SHARED_TITLES, shared_node_rows(runs))}\n\n{SHARED_NOTES.replace('AHEAD', _ahead(runs))}"
    )


def _ahead(runs: Runs) -> str:
    """The layouts that the model places before the one that ran fastest."""
    best, ahead = placed_ahead(runs)
    each = ", ".join(
        f"`{r.id}` (TP{r.strategy.tp} PP{r.strategy.pp}, micro batch {r.strategy.micro_batch_size}, ran "
        f"{100 * longer:.1f} % longer)"
        for r, longer in ahead
    )
    return f"before the fastest, `{best}`: {each}"


def _intervals(measures: Measures) -> str:
    rows, missed = [], []
    for profile, name in ((ASCEND, "Ascend 800T A2"), (A100, "A100"), (H100, "H100")):
        errors = errors_of(measures.runs[profile].left_out)
        held = measures.held[profile]
        rows.append([f"{name}, family left out", "-", *_split_cells(errors, held)])
        missed.append(interval_miss(f"{name}, family left out", held))
    rows += [_split_row(split) for split in measures.splits]
    missed += [interval_miss(_split_name(split), split.held) for split in measures.splits]
    why = "\n".join(f"- {text}" for text in missed if text)
    loose = "\n".join(_loose(split) for split in measures.splits)
    titles = ("set", "fitted to", "predicted", *ERROR_TITLES, "inside the 80 % interval", "aim", "verdict")
    return (
        "## Larger clusters than fitted, and intervals\n\nThe interval of each prediction comes from the records its "
        "fit has seen: the spread of their left-out residuals in the class, widened with the distance "
        "from them. What a doubling of the cluster costs is measured on splits at every smaller size; for a split's "
        f"own row its large clusters are left out of that. The share inside should be 80 %.\n\n"
        f"{table(titles, rows)}\n\n{why}\n{loose}"
    )


def _split_row(found: SplitErrors) -> list[str]:
    fitted = f"{found.fitted} runs ≤ {found.split.at_most} cards"
    return [_split_name(found), fitted, *_split_cells(found.errors, found.held)]


def _split_name(found: SplitErrors) -> str:
    name = {A100: "A100", ASCEND: "Ascend 800T A2"}[found.split.profile]
    return f"{name}, ≥ {found.split.at_least} cards"


def _loose(found: SplitErrors) -> str:
    names = ", ".join(f"`{name}`" for name in found.unidentified) or "none"
    cards = f"at most {found.split.at_most} cards of {found.split.profile}"
    return f"- Parameters that runs on {cards} leave about as uncertain as their priors: {names}."


def _split_cells(errors: Errors, held: Sequence[Held]) -> list[str]:
    (low, high), inside = INTERVAL, share_inside(held)
    verdict = "met" if met(inside) else "**missed** (too narrow)" if inside < low else "**missed** (too wide)"
    return [f"{errors.n} runs", *_cells(errors), percent(inside), f"{100 * low:.0f}-{100 * high:.0f} %", verdict]


def _parameters(calibrations: Iterable[Calibration]) -> str:
    parts = [PARAMETERS_INTRO]
    for each in calibrations:
        sigma = np.sqrt(np.diag(each.fit.covariance))
        rows = [
            [p.name, f"{np.exp(value):.3f}", f"{100 * spread:.0f} %", f"{100 * p.prior_sigma:.0f} %", p.meaning]
            for p, value, spread in zip(each.fit.parameters, each.fit.log_factors, sigma, strict=True)
        ]
        parts.append(f"### {each.profile.name}: {len(each.records)} runs")
        parts.append(table(("parameter", "factor on the prior", "±", "prior ±", "meaning"), rows))
    return "\n\n".join(parts)


def _worst(measures: Measures) -> str:
    ranked = listed(misses(measures.runs.values()), WORST)
    lines, shown = [], dict[str, str]()
    for number, miss in enumerate(ranked, start=1):
        written = diagnoses().get(miss.record.id)
        words = written.text if written else "No diagnosis yet."
        first = shown.setdefault(words, miss.record.id)
        lines.append(_worst_line(number, miss, words if first == miss.record.id else f"As `{first}`."))
    return f"{WORST_INTRO}\n\n" + "\n".join(lines)


def _worst_line(number: int, miss: Miss, words: str) -> str:
    record, written = miss.record, diagnoses().get(miss.record.id)
    where = {"record": "the record", "model": "the model", "coverage": "too few records"}
    cause = where[written.cause] if written else "not diagnosed"
    again = f", with {miss.repeats} repeats alike" if miss.repeats else ""
    strategy = record.strategy
    layout = " ".join(
        f"{n.upper()}{getattr(strategy, n)}" for n in ("tp", "pp", "cp", "ep") if getattr(strategy, n) > 1
    )
    title = f"{record.model.name} on {record.cluster.num_npus} cards, {layout or 'data parallel only'}"
    errors = f"{signed(miss.left_out)} left out, {signed(miss.in_sample)} in sample"
    return f"{number}. **{title}** (`{record.id}`{again}): {errors}. Cause: {cause}. {words} {parts_of(miss.record)}"


def _unmeasured(report: UnmeasuredReport) -> str:
    rows = [
        [c.profile, c.kind, f"`{c.number}` ({c.number_kind})", f"{c.unmeasured} of {c.shapes}", extent_words(c.extent)]
        for c in report.classes
        if c.unmeasured
    ]
    titles = ("profile", "class", "number that stands in", "shapes", "reaching")
    return (
        "## Shapes and message sizes without a measured efficiency\n\nWhat the records' operators and exchanges use "
        "beyond any measured point of the profile: there the prediction rests on a curve that is fitted to whole runs "
        f"or assumed. `autodeploy validate -f json` lists each shape.\n\n{table(titles, rows)}"
    )
