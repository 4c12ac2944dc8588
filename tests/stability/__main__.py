"""`python -m tests.stability`: how often the recommended plan is far behind the best of the world that turns out.

One JSON line a figure. In each of many joint draws of the error box, and with each of the most influential numbers
alone at its 10th and 90th percentile, the spec is searched again: what is best there, among plans that fit there, is
compared with the recommended plan and with the one that is fastest by the predicted times (the neutral ranking).
"""

from __future__ import annotations

import argparse
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import NormalDist
from typing import TYPE_CHECKING

import numpy as np
from ruamel.yaml import YAML

from autodeploy.importers.spec_file import read_spec_file
from autodeploy.specs.spec import Spec, parse_spec
from tests.stability.other_worlds import Planned
from tests.support.figures import report

if TYPE_CHECKING:
    from autodeploy.evaluation.worlds import World

HERE = Path(__file__).resolve().parent
EXAMPLES = HERE.parents[1] / "examples"
FROM_EXAMPLES = (
    "deepseek_v3_cloudmatrix_384",
    "llama2_70b_32",
    "qwen3_235b_128",
    "pangu_ultra_moe_718b_6144",
)
FAR = 0.05
INFLUENTIAL = 5
NORMAL = NormalDist()


def specs() -> dict[str, Spec]:
    """All specs by name."""
    known = YAML(typ="safe").load((HERE / "specs.yaml").read_text(encoding="utf-8"))
    own = {name: parse_spec(document) for name, document in known.items()}
    return {name: read_spec_file(EXAMPLES / f"{name}.yaml") for name in FROM_EXAMPLES} | own


@dataclass(frozen=True)
class Regrets:
    """Of the recommended plan and of the neutral one, as shares: over draws, and by number at its ends."""

    draws: tuple[tuple[float, float], ...]
    ends: dict[str, tuple[float, float]]


def regrets_of(name: str, count: int) -> Regrets:
    """Search a spec in `count` draws and at the ends of its most influential numbers."""
    planned = Planned(specs()[name])
    advice = planned.advice
    box, sigma = advice.responses.box, advice.log_sigmas[0]
    chances = np.array([each.p_fits for each in advice.weighed])
    neutral = advice.weighed.index(advice.fastest)

    def regret(world: World, level: float) -> tuple[float, float]:
        """In a world in which peaks are at this percentile of their spread; a plan that does not fit is lost."""
        known = np.where(level <= chances, planned.known_s(world), np.inf)
        factor = float(np.exp(NORMAL.inv_cdf(level) * sigma))
        best = min(planned.best_s(world, factor), float(known.min()))
        return known[0] / best - 1.0, known[neutral] / best - 1.0

    draws = box.draws(count)
    levels = np.random.default_rng(1).permutation((np.arange(count) + 0.5) / count)
    over = tuple(regret(box.world(row), float(level)) for row, level in zip(draws, levels, strict=True))
    ends = {}
    influential = np.argsort(-advice.responses.influence(), kind="stable")[:INFLUENTIAL]
    for number in influential.tolist():
        worlds = box.ends()[2 * number : 2 * number + 2]
        ends |= {
            f"{box.numbers[number].name} {side}": regret(world, 0.5)
            for side, world in zip(("low", "high"), worlds, strict=True)
        }
    return Regrets(over, ends)


def main() -> None:
    """All figures."""
    parser = argparse.ArgumentParser(prog="python -m tests.stability")
    parser.add_argument("--draws", type=int, default=200)
    parser.add_argument("--only", nargs="*", help="names of specs")
    parser.add_argument("--processes", type=int, default=2)
    asked = parser.parse_args()
    names = asked.only or list(specs())
    with ProcessPoolExecutor(asked.processes) as pool:
        for name, found in zip(names, pool.map(regrets_of, names, [asked.draws] * len(names)), strict=True):
            for place, ranking in enumerate(("recommended", "neutral")):
                over = np.array([each[place] for each in found.draws])
                report(f"{ranking}_far_behind", float((over > FAR).mean()), "fraction of draws", name)
                report(f"{ranking}_does_not_fit", float(np.isinf(over).mean()), "fraction of draws", name)
                report(f"{ranking}_median_regret", float(np.median(over)), "fraction", name)
                worst = max(found.ends.items(), key=lambda item: item[1][place])
                report(f"{ranking}_worst_regret_at_an_end", worst[1][place], "fraction", f"{name}, {worst[0]}")


if __name__ == "__main__":
    main()
