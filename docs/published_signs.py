"""Signs of published figures under inputs a fifth more and less, against those written down before they were run.

`python -m docs.published_signs` prints every figure by every input, and exits with 1 where a sign is neither as written
down first nor amended with a reason.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ruamel.yaml import YAML

from autodeploy.analysis.ablation.cases import laid_over, read_cases
from autodeploy.analysis.ablation.comparison_sides import Change, Runs
from autodeploy.analysis.ablation.published import predicted_of
from hardware_profiles.loader import load_profile

if TYPE_CHECKING:
    from collections.abc import Iterator

    from autodeploy.specs.published_effects import Case, Effect

EXPECTED: Final = Path(__file__).with_suffix(".yaml")
STEP: Final = 0.2
STILL: Final = 5e-4
"""Change of a figure, over its size, below which it stays."""


def expected() -> tuple[dict[str, list[str]], dict[str, dict[str, str]], dict[str, dict[str, str]]]:
    """Paths of each input, the signs of each case's figures as first written down, a character an input, and those that
    were amended with a reason.
    """
    document = YAML(typ="safe").load(EXPECTED.read_text(encoding="utf-8"))
    first = {
        case: {figure: "".join(text.split()) for figure, text in figures.items()}
        for case, figures in document["figures"].items()
    }
    amended = {
        case: {figure: "".join(each["signs"].split()) for figure, each in figures.items()}
        for case, figures in document["amended"].items()
    }
    return document["inputs"], first, amended


def found(case: Case, effect: Effect, paths: list[str], runs: Runs) -> str:
    """The sign of a figure from `1 - STEP` to `1 + STEP` of an input; 0 too where the case does not have the input."""
    low, high = (predicted_of(_scaled(case, paths, factor), effect, runs) for factor in (1.0 - STEP, 1.0 + STEP))
    if abs(high - low) <= STILL * max(abs(low), abs(high), STILL):
        return "0"
    return "+" if high > low else "-"


def _scaled(case: Case, paths: list[str], factor: float) -> Case:
    for path in paths:
        if "/" in path:
            spec = Change(path, factor, factor=True).times("spec", case.spec)
            case = case.model_copy(update={"spec": _above_one(spec)})
        elif (value := _number(case, path)) is not None:
            changed = {"cluster": {"overrides": {path: value * factor}}}
            case = case.model_copy(update={"spec": laid_over(case.spec, changed)})
    return case


def _above_one(spec: dict[str, dict[str, float]]) -> dict[str, dict[str, float]]:
    """The spec with an imbalance of at least one, and a peak of at least that."""
    training = spec["training"]
    if "routing_imbalance" not in training:
        return spec
    mean = max(1.0, training["routing_imbalance"])
    peak = max(mean, training.get("routing_imbalance_peak", mean))
    return laid_over(spec, {"training": {"routing_imbalance": mean, "routing_imbalance_peak": peak}})


def _number(case: Case, path: str) -> float | None:
    """The number of a path of the case's profile, as the case has it."""
    cluster = case.spec["cluster"]
    own = cluster.get("overrides", {}).get(path)
    if own is not None:
        return float(own)
    quantity = load_profile(cluster["profile"]).quantities.get(path)
    return None if quantity is None else float(quantity.value)


def compared() -> Iterator[tuple[str, str, str, str]]:
    """Case, figure, and its signs as first written down and as found, a character an input."""
    inputs, signs, _ = expected()
    cases = {case.case: case for case in read_cases()}
    runs = Runs()
    for name, figures in signs.items():
        effects = {effect.feature: effect for effect in cases[name].effects}
        for figure, text in figures.items():
            all_found = "".join(found(cases[name], effects[figure], paths, runs) for paths in inputs.values())
            yield name, figure, text, all_found


def main() -> int:
    """Print the table; 1 where a sign is neither as written down first nor as amended."""
    others = unexplained = counted = 0
    inputs, _, amended = expected()
    sys.stdout.write(f"{'first':10}{'found':10}{', '.join(inputs)}\n")
    for name, figure, text, all_found in compared():
        differ = sum(one not in (other, ".") for one, other in zip(text, all_found, strict=True))
        explained = amended.get(name, {}).get(figure) == all_found
        others, counted = others + differ, counted + sum(one != "." for one in text)
        unexplained += 0 if explained else differ
        mark = "" if not differ else "amended " if explained else "! "
        sys.stdout.write(f"{text:10}{all_found:10}{mark}{name}: {figure}\n")
    sys.stdout.write(
        f"{counted - others} of {counted} as first written, {others - unexplained} amended with a reason\n"
    )
    return 1 if unexplained else 0


if __name__ == "__main__":
    sys.exit(main())
