"""The accuracy page as Markdown: aims first, then experts, memory, intervals, dense runs and the worst records."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from autodeploy.calibration.families import family_of
from autodeploy.calibration.record_prediction import is_update_phase
from autodeploy.calibration.shipped.overhead_fit import shipped_rl
from autodeploy.calibration.shipped.tables import shipped_records
from autodeploy.costs.inputs.context import PRETRAINING
from docs.accuracy_page.aims import by_configuration
from docs.accuracy_page.classes import NAMES as INTERVALS
from docs.accuracy_page.classes import scores, scores_by_class
from docs.accuracy_page.errors import errors_of
from docs.accuracy_page.host_constants import host_constants
from docs.accuracy_page.misses import left_aside
from docs.accuracy_page.null_models import beside, carried_errors, kinds_of_rows, peer_errors
from docs.accuracy_page.sets import A100, ASCEND, B200, H100
from docs.accuracy_page.shared import SERIES, SHARED_TITLES, pairs_by_sharing, shared_node_rows
from docs.accuracy_page.splits import share_inside
from docs.accuracy_page.texts import (
    BESIDE_INTRO,
    CLASSES_INTRO,
    EXPERTS_INTRO,
    HEADING,
    HOST_CONSTANTS_INTRO,
    HOW,
    INTERVALS_INTRO,
    KINDS_INTRO,
    MEMORY_INTRO,
    NOT_COVERED,
    NOT_MODELLED,
    SHARED_NOTES,
    WORST_INTRO,
)
from docs.accuracy_page.worst import diagnoses, doubted, listed, misses, parts_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from autodeploy.specs.record import Record
    from docs.accuracy_page.aims import Line
    from docs.accuracy_page.classes import LeftOut
    from docs.accuracy_page.errors import Errors, Runs
    from docs.accuracy_page.measures import Measures
    from docs.accuracy_page.splits import Held, SplitErrors
    from docs.accuracy_page.worst import Miss

WORST_SHOWN = 5
FAR_GIB = 0.08  # error of a peak from which its run is listed
NAMES = {ASCEND: "800T A2 and A3", A100: "A100", H100: "H100", B200: "B200"}


def page(measures: Measures, *, first: Sequence[Line] = (), last: Sequence[Line] = (), more: Sequence[str] = ()) -> str:
    """The whole page.

    Parameters
    ----------
    first, last : figures before and after those of the records. more : sections after the worst records.
    """
    parts = [HEADING, aims_table([*first, *measures.board, *last]), _kinds(measures), _experts(measures)]
    parts += [
        _memory(measures.peaks),
        _intervals(measures),
        _classes(measures.classes),
        _dense(measures),
        _beside(measures),
        _orders(measures),
        _worst(measures),
        *more,
    ]
    parts += [NOT_MODELLED, NOT_COVERED, HOW]
    return "\n\n".join(part.strip() for part in parts) + "\n"


def table(titles: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A Markdown table."""
    lines = [titles, ["---"] * len(titles), *rows]
    return "\n".join("| " + " | ".join(str(cell).replace("|", "\\|") for cell in line) + " |" for line in lines)


def aims_table(lines: Iterable[Line]) -> str:
    """Every judged figure beside its aim."""
    verdicts = {True: "met", False: "**missed**", None: "-"}
    rows = [(line.figure.strip(), line.now, line.aim, verdicts[line.met]) for line in lines if line.aim != "told"]
    return table(("figure", "now", "aim", "verdict"), rows)


def percent(value: float) -> str:
    """A share in per cent with one decimal."""
    return f"{100 * value:.1f} %"


def signed(value: float) -> str:
    """A signed share in per cent with one decimal."""
    return f"{100 * value:+.1f} %"


def _cells(errors: Errors) -> list[str]:
    return [percent(errors.mape), percent(errors.median_ape), percent(errors.p90_ape), signed(errors.bias)]


ERROR_TITLES = ("mean (MAPE)", "median", "90th percentile", "bias")


def _experts(measures: Measures) -> str:
    """Every run with experts on Ascend, by model and number format on H100, and what is told apart."""
    runs = measures.runs[ASCEND]
    inside = runs.of([r.model.is_moe for r in runs.records])
    intervals = {each.record.id: each for each in measures.held[ASCEND]}
    rows = [
        [*_run_cells(r), signed(np.expm1(-out)), signed(np.expm1(-seen)), "yes" if intervals[r.id].inside else "**no**"]
        for r, out, seen in zip(inside.records, inside.left_out, inside.in_sample, strict=True)
    ]
    apart = [
        [*_run_cells(r), signed(np.expm1(-x)), "in no fit", "-"]
        for r, x in zip(measures.apart.records, measures.apart.left_out, strict=True)
        if r.model.is_moe
    ]
    titles = ("run", "model", "cards", "layout", "family left out", "in sample", "inside its interval")
    texts = diagnoses()
    causes, first = [_without_doubted(measures, inside)], dict[str, str]()
    for record in measures.apart.records:
        if record.model.is_moe and record.id in texts:
            text = texts[record.id].text
            if first.setdefault(text, record.id) == record.id:
                name = "Update phases" if is_update_phase(record) else f"`{record.id}`"
                causes.append(f"- **{name}**: {text}")
    out, seen = measures.h100.values()
    groups = [[name, each.n, signed(each.bias), signed(seen[name].bias)] for name, each in out.items()]
    h100 = table(("experts on H100", "runs", *measures.h100), groups)
    return "\n\n".join(
        [f"## Experts and CloudMatrix 384\n\n{EXPERTS_INTRO}", table(titles, rows + apart), "\n".join(causes), h100]
    )


def _without_doubted(measures: Measures, inside: Runs) -> str:
    """The figures of experts on Ascend without runs whose own source contradicts or does not vouch for them."""
    rest = inside.of([not mark for mark in doubted(inside)])
    errors, aside = errors_of(rest.left_out), [r for r in inside.records if r not in rest.records]
    aside += [r for r in measures.apart.records if r.model.is_moe and not is_update_phase(r)]
    names = ", ".join(f"`{record.id}`" for record in aside)
    worst = int(np.argmax(np.abs(np.expm1(-rest.left_out))))
    fewer = errors_of(np.delete(rest.left_out, worst))
    return (
        f"- Without {names}, whose sources contradict themselves or do not vouch for the configuration: mean "
        f"{percent(errors.mape)}, 90th percentile {percent(errors.p90_ape)} of {errors.n} runs; without the farthest "
        f"of them, `{rest.records[worst].id}`, {percent(fewer.mape)} and {percent(fewer.p90_ape)}."
    )


def _kinds(measures: Measures) -> str:
    """Each kind of run beside dense pre-training of today."""
    rows = []
    for each in measures.kinds:
        aim = "-" if each.group.at_most is None else percent(each.group.at_most)
        single = ", ".join(f"`{name}` {signed(error)}" for name, error in each.errors.items())
        rows.append([each.group.name, each.group.fit, len(each.errors), percent(each.mean), aim, single])
    titles = ("kind of run", "fit", "runs", "mean error", "at most", "each run")
    return f"## By kind of run\n\n{KINDS_INTRO}\n\n{table(titles, rows)}\n\n{_host_constants()}"


def _host_constants() -> str:
    """Numbers of the host that are fitted, beside the sources of the stacks that have them."""
    rows = []
    for each in host_constants(shipped_records(), shipped_rl()):
        low, high = each.fact.interval
        value = f"{each.fact.value} {each.fact.unit} (80 %: {low:g} to {high:g})"
        rows.append([f"`{each.name}`", value, ", ".join(each.stacks), len(each.sources), ", ".join(each.sources)])
    titles = ("number of the host", "value", "stacks with runs that have it", "sources of their runs", "which")
    return f"{HOST_CONSTANTS_INTRO}\n\n{table(titles, rows)}"


def _classes(found: Sequence[LeftOut]) -> str:
    """Intervals of classes that were left out whole, beside models that know less."""
    every, by_class = scores(found), scores_by_class(found)
    titles = ("intervals", "runs inside", "median upper / lower", "mean score", "classes inside", "their mean score")
    rows = []
    for kind, name in INTERVALS.items():
        of_classes = [each[kind] for _, each in by_class.values()]
        inside, score = (float(np.mean([getattr(s, what) for s in of_classes])) for what in ("inside", "score"))
        one = every[kind]
        rows.append(
            [name, percent(one.inside), f"{one.ratio:.2f}", f"{one.score:.3f}", percent(inside), f"{score:.3f}"]
        )
    each_titles = ("class left out", "configurations", "inside", "upper / lower", "score", "one width", "nearest")
    each_rows = [
        [
            name,
            count,
            percent(of["ours"].inside),
            f"{of['ours'].ratio:.2f}",
            *(f"{of[kind].score:.3f}" for kind in INTERVALS),
        ]
        for name, (count, of) in by_class.items()
    ]
    return f"### Classes left out whole\n\n{CLASSES_INTRO}\n\n{table(titles, rows)}\n\n{table(each_titles, each_rows)}"


def _beside(measures: Measures) -> str:
    """The same runs by models that know less."""
    records = [*(r for runs in measures.runs.values() for r in runs.records), *measures.apart.records]
    carried, kinds = carried_errors(), kinds_of_rows()
    groups: dict[str, list[str]] = {}
    for record in records:
        maker = "NVIDIA" if record.cluster.profile.startswith("nvidia") else "Ascend"
        kind = "experts" if record.model.is_moe else "dense"
        groups.setdefault(f"{maker}, {kinds.get(record.id, PRETRAINING)}, {kind}", []).append(record.id)
    rows = [(name, "nearest record's utilisation", beside(ids, carried)) for name, ids in groups.items()]
    peers = peer_errors(records)
    rows += [("what it can say", name, beside(errors, errors)) for name, (_, errors) in peers.items()]
    cells = [(name, null, e.runs, percent(e.predicted), percent(e.null)) for name, null, e in rows if e is not None]
    told = [
        f"`{name}` is {peer['repository']} @{peer['commit'][:8]}: `{peer['command']}`; {peer['inputs']}."
        for name, (peer, _) in peers.items()
    ]
    titles = ("set", "null model", "runs", "predicted, mean", "null model, mean")
    return "\n\n".join([f"## Beside models that know less\n\n{BESIDE_INTRO}", table(titles, cells), *told])


def _run_cells(record: Record) -> list[str]:
    return [f"`{record.id}`", record.model.name or "", f"{record.cluster.num_npus} {_chip(record)}", layout_of(record)]


def _chip(record: Record) -> str:
    return "A3" if record.cluster.profile != ASCEND else "A2"


def layout_of(record: Record) -> str:
    """Degrees above one."""
    strategy = record.strategy
    degrees = (f"{n.upper()}{getattr(strategy, n)}" for n in ("tp", "pp", "cp", "ep") if getattr(strategy, n) > 1)
    return " ".join(degrees) or "data parallel only"


def _memory(peaks: Sequence[tuple[Record, float, float]]) -> str:
    far = sorted((each for each in peaks if abs(each[2]) > FAR_GIB), key=lambda each: each[2])
    rows = [[f"`{r.id}`", f"{peak:.1f}", f"{peak * (1 + error):.1f}", signed(error)] for r, peak, error in far]
    texts = [f"- `{r.id}`: {diagnoses()[r.id].text}" for r, _, _ in far if r.id in diagnoses()]
    titles = ("run", "measured GiB", "predicted GiB", "error")
    parts = [f"## Memory\n\n{MEMORY_INTRO}", table(titles, rows), "\n".join(texts)]
    return "\n\n".join(part for part in parts if part)


def _intervals(measures: Measures) -> str:
    rows = []
    for profile, name in NAMES.items():
        for kind, moe in (("experts", True), ("dense", False)):
            intervals = by_configuration([h for h in measures.held[profile] if h.record.model.is_moe is moe])
            if intervals:
                rows.append([f"{name}, {kind}, family left out", *_held_cells(intervals)])
    rows += [[_split_name(split), *_held_cells(split.held)] for split in measures.splits]
    titles = ("set", "runs", "inside", "median half-width", "p90 of the errors")
    return f"## Intervals\n\n{INTERVALS_INTRO}\n\n{table(titles, rows)}"


def _held_cells(intervals: Sequence[Held]) -> list[str]:
    width = float(np.median([np.sinh(h.half_width) for h in intervals]))
    p90 = errors_of(np.array([h.residual for h in intervals])).p90_ape
    return [str(len(intervals)), percent(share_inside(intervals)), percent(width), percent(p90)]


def _split_name(of_split: SplitErrors) -> str:
    return f"{NAMES[of_split.split.profile]}, ≥ {of_split.split.at_least} cards by a fit to ≤ {of_split.split.at_most}"


def _dense(measures: Measures) -> str:
    rows = []
    for profile, name in NAMES.items():
        runs = measures.runs[profile]
        plain = runs.of([not r.model.is_moe for r in runs.records])
        rest = plain.of([not mark for mark in doubted(plain)])
        rows.append([f"{name}, family left out", str(len(plain.records)), *_cells(errors_of(plain.left_out))])
        if len(rest.records) < len(plain.records):
            title = f"{name}, without runs that contradict themselves"
            rows.append([title, str(len(rest.records)), *_cells(errors_of(rest.left_out))])
    runs = measures.runs[B200]
    errors = errors_of(runs.of([r.model.is_moe for r in runs.records]).left_out)
    rows.append([f"{NAMES[B200]}, experts, family left out", str(errors.n), *_cells(errors)])
    aside = left_aside(measures.runs.values())
    return (
        f"## Dense runs\n\n{table(('set', 'runs', *ERROR_TITLES), rows)}\n\n"
        "Runs that their own source or a repeat contradicts stay in the fit and in every other figure. They were "
        f"examined because they are far off, so the row without them flatters:\n\n{aside}"
    )


def _orders(measures: Measures) -> str:
    ascend, pairs = measures.pairs[ASCEND], measures.pairs[A100]
    runs = measures.runs[A100]
    whole, wrong_whole, others, wrong_others = pairs_by_sharing(runs)
    return (
        "## Order of strategies\n\nPairs of different strategies of one model on one cluster and release whose "
        "measured time per token differs by more than 7 %, family left out: the order is right for "
        f"{ascend.left_out} of {ascend.pairs} on Ascend and {pairs.left_out} of {pairs.pairs} on A100. "
        "Which strategy of each group the rankings choose, and at what cost: [strategies chosen](backtest.md).\n"
        f"Of the pairs of {SERIES}, {wrong_whole} of {whole} are in the wrong order where one tensor-parallel group "
        f"fills each node, and {wrong_others} of the other {others}. {SHARED_NOTES}\n\n"
        f"{table(SHARED_TITLES, shared_node_rows(runs))}"
    )


def _worst(measures: Measures) -> str:
    ranked = listed(misses(measures.runs.values()), WORST_SHOWN)
    lines, shown = [], dict[str, str]()
    for number, miss in enumerate(_one_a_family(ranked), start=1):
        written = diagnoses().get(miss.record.id)
        words = written.text if written else ""
        first = shown.setdefault(words or miss.record.id, miss.record.id)
        lines.append(_worst_line(number, miss, words if first == miss.record.id else f"As `{first}`."))
    return f"{WORST_INTRO}\n\n" + "\n".join(lines)


def _one_a_family(ranked: Sequence[Miss]) -> list[Miss]:
    """The worst configuration of each family of models on each device."""
    misses_of_families: dict[tuple[str, str], Miss] = {}
    for miss in ranked:
        misses_of_families.setdefault((miss.record.cluster.profile, family_of(miss.record)), miss)
    return list(misses_of_families.values())


def _worst_line(number: int, miss: Miss, words: str) -> str:
    record = miss.record
    again = f", with {miss.repeats} repeats alike" if miss.repeats else ""
    title = f"{record.model.name} on {record.cluster.num_npus} cards, {layout_of(record)}"
    errors = f"{signed(miss.left_out)} left out, {signed(miss.in_sample)} in sample"
    return f"{number}. **{title}** (`{record.id}`{again}): {errors}. {words} {parts_of(miss.record)}".replace("  ", " ")
