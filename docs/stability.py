"""Writes docs/stability.md: how often the recommended plan is far behind the best of the world that turns out.

    python -m docs.stability [--draws 200] [--only NAME ...] [--specs FILE ...] [--results FILE] [--page FILE]

In joint draws of the error box, and with each of the most influential numbers alone at its 10th and 90th percentile, a
spec is searched again: what is best there, among plans that fit there, is held against the recommended plan and against
the one that is fastest by the predicted times. An hour on two cores; what a file of results has is not done again.
"""

from __future__ import annotations

import argparse
import json
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from statistics import NormalDist
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from ruamel.yaml import YAML

from autodeploy.search.ranking.explanation import degrees
from autodeploy.search.ranking.uncertainty import LEAST_P_FITS, memory_spread_of
from autodeploy.specs.reading import read_spec_file
from autodeploy.specs.spec import Spec, parse_spec
from docs.scenarios import Planned
from docs.schema_tables import table

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from autodeploy.costs.steps.scenarios import Scenario
    from cost_models.arrays import Floats

DOCS: Final = Path(__file__).resolve().parent
EXAMPLES: Final = DOCS.parent / "examples"
PAGE: Final = DOCS / "stability.md"
FROM_EXAMPLES: Final = (
    "deepseek_v3_cloudmatrix_384",
    "llama2_70b_32",
    "qwen3_235b_128",
    "pangu_ultra_moe_718b_6144",
)
LARGE_REGRET, MAX_SHARE_FAR, ERROR_AT_AN_END = 0.05, 0.20, 0.03
INFLUENTIAL: Final = 5
RANKINGS: Final = ("recommended", "fastest by prediction")
NORMAL: Final = NormalDist()
KNOWN_EVERY: Final = 4
LOST: Final = 9.99
"""Regret of a plan that does not fit in the world that turns out."""

HEADING = """<!-- Made by `make stability`. Change the code, not this page. -->

# Is the recommended plan good elsewhere?

Every spec is planned once. Then it is searched again in {draws} joint draws of its
[error box](reference/error_box.md). *Regret* is how much longer a plan takes there than the best one found there among
those that fit with 90 %: by a search of effort `fast` of the whole space, or among the plans that the ranking
considered. A plan counts as in the ranking: as itself or, where it does not fit, as the one that is launched instead.

In every fourth draw the peak of memory is drawn too, from the spread of the records' peaks, and the best one is that of
those that turn out to fit there. *Known to both*: so is the plan that is held against it, the fastest by the predicted
times of the plans that fit there, of those considered and of a search with that memory. *Known to the best alone*: what
a tenth of a chance to run out of memory costs against knowing it beforehand; a plan that does not fit there is lost,
and counts as far behind.

The last columns have one of the five most influential numbers alone at its 10th or 90th percentile. Aims: at most
{most:.0%} of draws with more than {far:.0%} regret; at the ends at most {end:.0%} in eleven of twelve specs.
"""


def specs() -> dict[str, Spec]:
    """All specs by name."""
    known = YAML(typ="safe").load((DOCS / "stability_specs.yaml").read_text(encoding="utf-8"))
    own = {name: parse_spec(document) for name, document in known.items()}
    return {name: read_spec_file(EXAMPLES / f"{name}.yaml") for name in FROM_EXAMPLES} | own


def held(name: str, spec: Spec, count: int) -> dict[str, Any]:
    """Regrets of the recommended plan and of the fastest one: in `count` draws, and by number and end.

    draws : against the best plan of those that fit with 90 %. memory_known : of every `KNOWN_EVERY`-th draw, with a
    peak drawn too and against the best plan that turns out to fit. known_to_both : the same of the plan that is
    predicted to be the fastest of those that turn out to fit.
    """
    planned = Planned(spec)
    advice = planned.advice
    box, first = advice.responses.box, advice.weighed[0].solved
    sigma = memory_spread_of(first.candidate, first.context).log_sigma
    chances = np.array([each.p_fits for each in advice.weighed])
    neutral = advice.weighed.index(advice.fastest)
    place_of = {each.row: place for place, each in enumerate(advice.weighed)}
    instead = [place_of[each.instead] for each in advice.weighed]

    predicted = np.array([each.step_s for each in advice.weighed])

    def regret(world: Scenario, times: Floats) -> list[float]:
        """In a world in which peaks must be expected to be at the percentile that is to fit."""
        best = min(planned.best_s(world, factor_of(LEAST_P_FITS)), float(times[chances >= LEAST_P_FITS].min()))
        # As in the ranking: one that may not fit counts as itself or as what is launched instead.
        own = chances * times + (1.0 - chances) * times[instead]
        return [_behind(float(own[place]), best) for place in (0, neutral)]

    def regret_known(world: Scenario, times: Floats, level: float) -> tuple[list[float], float]:
        """In a world in which peaks are at this percentile: as recommended, and as chosen where they are known."""
        fits = level <= chances
        fitting = np.where(fits, times, np.inf)
        place, again = int(np.where(fits, predicted, np.inf).argmin()), planned.planned_again(factor_of(level))
        chosen = float(fitting[place])
        if again is not None and not (fits[place] and predicted[place] <= again.solution.step_s):
            chosen = planned.time_s(again, world)
        best = min(planned.best_s(world, factor_of(level)), float(fitting.min()))
        return [_behind(float(fitting[place]), best) for place in (0, neutral)], _behind(chosen, min(best, chosen))

    def factor_of(level: float) -> float:
        """Peaks at a percentile of their spread over the predicted ones."""
        return float(np.exp(NORMAL.inv_cdf(level) * sigma))

    worlds = [box.world(row) for row in box.draws(count)]
    times = planned.known_s(worlds)
    draws = list(map(regret, worlds, times))
    sampled = slice(None, None, KNOWN_EVERY)
    levels = np.random.default_rng(1).permutation((np.arange(len(worlds[sampled])) + 0.5) / len(worlds[sampled]))
    known = list(map(regret_known, worlds[sampled], times[sampled], levels.tolist()))
    ends: dict[str, list[float]] = {}
    for number in np.argsort(-advice.responses.influence(), kind="stable")[:INFLUENTIAL].tolist():
        sides = box.ends()[2 * number : 2 * number + 2]
        for side, world, there in zip(("low", "high"), sides, planned.known_s(sides), strict=True):
            ends[f"{box.numbers[number].name} {side}"] = regret(world, there)
    return {
        "name": name,
        "plans": [degrees(planned.plan_of(place)) for place in (0, neutral)],
        "p_fits": chances[[0, neutral]].tolist(),
        "draws": draws,
        "memory_known": [regrets for regrets, _ in known],
        "known_to_both": [of_chosen for _, of_chosen in known],
        "ends": ends,
    }


def _behind(own_s: float, best_s: float) -> float:
    """Share by which a step takes longer than the best one; a plan that does not fit is lost, unless nothing does."""
    return 0.0 if own_s == best_s else round(min(LOST, max(0.0, own_s / best_s - 1.0)), 6)


def page(results: Iterable[dict[str, Any]]) -> str:
    """The page."""
    results = list(results)
    rows = []
    for each in results:
        draws, drawn_too, ends = np.array(each["draws"]), np.array(each["memory_known"]), each["ends"]
        both = f"{_far(each['known_to_both']):.1%}"
        for place, ranking in enumerate(RANKINGS):
            over, with_memory = draws[:, place], drawn_too[:, place]
            number, worst = max(ends.items(), key=lambda item: item[1][place])
            rows.append(
                (
                    each["name"] if place == 0 else "",
                    f"{ranking}: {each['plans'][place]}",
                    f"{each['p_fits'][place]:.0%}",
                    f"{_far(over):.1%}",
                    f"{np.median(over):.1%}",
                    both if place == 0 else "",
                    f"{_far(with_memory):.1%}",
                    f"{(with_memory >= LOST).mean():.1%}",
                    f"{worst[place]:.1%}",
                    number,
                )
            )
    head = (
        "Spec",
        "Plan",
        "P(fits)",
        f"> {LARGE_REGRET:.0%} behind",
        "median regret",
        f"> {LARGE_REGRET:.0%} behind, memory known to both",
        "to the best alone",
        "does not fit",
        "worst at an end",
        "number",
    )
    heading = HEADING.format(draws=len(results[0]["draws"]), most=MAX_SHARE_FAR, far=LARGE_REGRET, end=ERROR_AT_AN_END)
    return "\n".join([heading, table(head, rows), "", *_summary(results), ""])


def _far(regrets: Sequence[float] | Floats) -> float:
    """The share of draws with a large regret."""
    return float((np.asarray(regrets) > LARGE_REGRET).mean())


def _summary(specs: list[dict[str, Any]]) -> list[str]:
    lines = []
    for place, ranking in enumerate(RANKINGS):
        far, known = ([_far(np.array(each[kind])[:, place]) for each in specs] for kind in ("draws", "memory_known"))
        ends = [max(values[place] for values in each["ends"].values()) for each in specs]
        held_far, held_known = (sum(share <= MAX_SHARE_FAR for share in shares) for shares in (far, known))
        held_ends = sum(end <= ERROR_AT_AN_END for end in ends)
        lines.append(
            f"- {ranking}: far behind in at most {MAX_SHARE_FAR:.0%} of the draws in {held_far} of {len(specs)} specs "
            f"(worst {max(far):.1%}), with memory known to the best alone in {held_known} (worst {max(known):.1%}); "
            f"at most {ERROR_AT_AN_END:.0%} at the ends in {held_ends}."
        )
    both = [_far(each["known_to_both"]) for each in specs]
    held_both = sum(share <= MAX_SHARE_FAR for share in both)
    lines.append(f"- memory known to both: in {held_both} of {len(specs)} specs (worst {max(both):.1%}).")
    return lines


def main() -> None:
    """Hold every spec, and write the page where all were."""
    parser = argparse.ArgumentParser(prog="python -m docs.stability")
    parser.add_argument("--draws", type=int, default=200)
    parser.add_argument("--only", nargs="*", help="names of specs; the page is not written")
    parser.add_argument("--specs", nargs="*", type=Path, help="files of specs, in place of the twelve")
    parser.add_argument("--page", type=Path, default=PAGE)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--results", type=Path, help="JSON lines: what is there is not done again")
    asked = parser.parse_args()
    known: dict[str, dict[str, Any]] = {}
    if asked.results is not None and asked.results.exists():
        known = {each["name"]: each for each in map(json.loads, asked.results.read_text().splitlines())}
    every = {file.stem: read_spec_file(file) for file in asked.specs} if asked.specs else specs()
    names = asked.only or list(every)
    missing = [name for name in names if name not in known]
    with ProcessPoolExecutor(asked.processes) as pool:
        for each in pool.map(held, missing, [every[name] for name in missing], [asked.draws] * len(missing)):
            known[each["name"]] = each
            line = json.dumps(each)
            if asked.results is not None:
                with asked.results.open("a", encoding="utf-8") as kept:
                    kept.write(line + "\n")
            far = [round(_far(np.array(each["draws"])[:, place]), 4) for place in (0, 1)]
            sys.stdout.write(
                json.dumps({"spec": each["name"], "far_behind": dict(zip(RANKINGS, far, strict=True))}) + "\n"
            )
            sys.stdout.flush()
    if not asked.only:
        asked.page.write_text(page(known[name] for name in names), encoding="utf-8")


if __name__ == "__main__":
    main()
