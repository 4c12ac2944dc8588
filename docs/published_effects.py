"""Published effects beside their predictions: docs/published_effects.md and the systems' table of README.

Run by `make published`.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from autodeploy.analysis.ablation.cases import CASES
from autodeploy.analysis.ablation.published import ablate_published
from autodeploy.messages import label
from docs.readme import READMES, Language, replace_parts
from docs.schema_tables import table

if TYPE_CHECKING:
    from collections.abc import Mapping

    from autodeploy.specs.published_effects import Outcome, PublishedReport, PublishedRow

DOCS = Path(__file__).resolve().parent
PAGE = DOCS / "published_effects.md"
HEAD = """\
# Published effects

Figures that articles and documentation state of a training system, and what the model predicts of each. Every input
of a case (`examples/published`) says where it is from, or how far it may lie; no number is
solved from the figure that it must reproduce, and nothing is fitted to an effect. A figure's band is two-sided. A
system is met where all of its figures that count are met; without a published figure it does not count. A miss names
one input: *confirmed* where another value of it alone meets the figure. `autodeploy ablate --published` prints this
page's figures; `python -m docs.published_signs` moves eight inputs of each by 20 % and compares its sign.
"""


def systems_table(report: PublishedReport, lang: Language) -> str:
    """What the figures make of each system, for README."""
    titles = ("system", "verdict", "figures met") if lang == "en" else ("系统", "结论", "达到的数值")
    rows = [
        (label(lang, f"system_{each.system}"), label(lang, each.verdict), f"{each.met} / {each.counted}")
        for each in report.systems
    ]
    return table(titles, rows).strip()


def page(report: PublishedReport) -> str:
    """The page: systems, figures, and each figure at both ends of its assumed inputs."""
    rows = [
        (
            label("en", f"system_{row.system}"),
            row.feature,
            row.says,
            "none" if row.published is None else f"{row.published:.4g} {row.unit}",
            f"{row.predicted:.4g}",
            row.band,
            label("en", row.verdict),
            _range(row),
        )
        for row in report.rows
    ]
    titles = ("system", "figure", "in the source's words", "published", "predicted", "band", "verdict", "over the ends")
    blocks = [HEAD.strip(), systems_table(report, "en"), "## Figures", table(titles, rows).strip(), *_misses(report)]
    blocks += ["## Ends of assumed inputs", "Each figure where one assumed input is at its end and all else as stated."]
    blocks.append(table(("figure", "inputs that move it", "that do not"), _ends(report)).strip())
    return "\n\n".join(blocks) + "\n"


def _range(row: PublishedRow) -> str:
    values = [row.predicted, *(each.predicted for each in row.ends if each.predicted is not None)]
    return f"{min(values):.4g} .. {max(values):.4g}"


def _misses(report: PublishedReport) -> list[str]:
    missed = [row for row in report.rows if row.verdict == "missed"]
    if not missed:
        return []
    rows = [(row.feature, *_cause(row)) for row in missed]
    return ["## Misses", table(("figure", "input flipped", "gives", "cause"), rows).strip()]


def _cause(row: PublishedRow) -> tuple[str, str, str]:
    if row.flip is None:
        return "", "", "not known"
    confirmed = "confirmed" if row.has_confirmed_cause else "not confirmed"
    return f"`{row.flip.input}` {row.flip.value}", _figure(row.flip), f"{confirmed}: {row.why}"


def _ends(report: PublishedReport) -> list[tuple[str, ...]]:
    """Of each figure with assumed inputs: those that move it with what it is at their ends, and those that do not."""
    rows: list[tuple[str, ...]] = []
    for row in report.rows:
        moving, still = [], []
        for path in dict.fromkeys(each.input for each in row.ends):
            ends = [each for each in row.ends if each.input == path]
            if all(_figure(each) == f"{row.predicted:.4g}" for each in ends):
                still.append(f"`{path}`")
            else:
                moving.append(f"`{path}` " + ", ".join(f"{_short(each.value)}: {_figure(each)}" for each in ends))
        if row.ends:
            rows.append((f"{row.case}: {row.feature}", "; ".join(moving), ", ".join(still)))
    return rows


def _short(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _figure(outcome: Outcome) -> str:
    return "does not run" if outcome.predicted is None else f"{outcome.predicted:.4g}"


def main(cases: Path = CASES, target: Path = PAGE, readmes: Mapping[Language, Path] = READMES) -> None:
    """Write the page, and the systems' table of each README."""
    report = ablate_published(cases)
    target.write_text(page(report), encoding="utf-8")
    for lang, path in readmes.items():
        text = path.read_text(encoding="utf-8")
        path.write_text(replace_parts(text, {"systems": f"\n\n{systems_table(report, lang)}\n\n"}), encoding="utf-8")


if __name__ == "__main__":
    main()
