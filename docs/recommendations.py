"""Writes docs/recommendations.md: what is recommended for known trainings, what speaks against it, and public recipes.

    python -m docs.recommendations

Eight searches, up to minutes together. Everything on the page is of the answers themselves.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from autodeploy.reports.plan_report import evidence_line, evidence_table
from autodeploy.reports.recommendation import (
    counterfactual_lines,
    fastest_line,
    other_fastest,
    reference_line,
    rescaled_line,
    risk_line,
    valley_line,
)
from autodeploy.reports.wording import chance, choices, degrees, percent, seconds, system_title
from autodeploy.search.planner import plan
from autodeploy.specs.reading import read_spec_document, read_spec_file
from docs.objections import RULES, objections
from docs.schema_tables import table

if TYPE_CHECKING:
    from collections.abc import Iterable

    from autodeploy.specs.planset import Fastest, Plan, PlanSet
    from autodeploy.specs.spec import Spec

DOCS: Final = Path(__file__).resolve().parent
EXAMPLES: Final = DOCS.parent / "examples"
PAGE: Final = DOCS / "recommendations.md"
NOTE: Final = "<!-- Made by `python -m docs.recommendations` from the code. Change the code, not this page. -->"
MOST_EVIDENCE: Final = 6
HEAD: Final = """# Recommended plans

For trainings that people know: the recommended plan, the one that is fastest by prediction, and the public recipe, or
what else stands beside the plans. Times have 80 % intervals; beside *MFU* stands the highest that a published run of
the class reached. How plans are found and ranked: [the search and its bound](explanation/search.md).

What an experienced engineer would object to follows from rules over what the plan says of itself. An objection is no
error: it says what to look at before a launch. The rules:

"""


@dataclass(frozen=True, slots=True)
class Case:
    """One training: its title and its spec, as a document or as the name of an example."""

    title: str
    spec: dict[str, Any] | str

    def read(self) -> Spec:
        """The spec, validated."""
        if isinstance(self.spec, str):
            return read_spec_file(EXAMPLES / f"{self.spec}.yaml")
        return read_spec_document(self.spec)


def _trained(model: str, profile: str, num_npus: int, seq_length: int, global_batch_size: int) -> dict[str, Any]:
    return {
        "model": model,
        "cluster": {"profile": profile, "num_npus": num_npus},
        "training": {"seq_length": seq_length, "global_batch_size": global_batch_size},
    }


A3: Final = "cloudmatrix-384"
A2: Final = "ascend-800t-a2"
CASES: Final = (
    Case("DeepSeek-V3 on 384 cards", "deepseek_v3_cloudmatrix_384"),
    Case("DeepSeek-V3 on 256 cards", _trained("deepseek-v3", A3, 256, 4096, 3840)),
    Case("Kimi-K2 on 384 cards", _trained("kimi-k2", A3, 384, 4096, 7680)),
    Case("Qwen3-235B on 128 cards", "qwen3_235b_128"),
    Case("Qwen3-235B on 256 cards", _trained("qwen3-235b-a22b", A2, 256, 4096, 1024)),
    Case("Llama 3.1 405B on 512 cards", _trained("llama3.1-405b", A2, 512, 8192, 1024)),
    Case("Pangu Ultra MoE 718B on 6,144 cards", "pangu_ultra_moe_718b_6144"),
    Case("Mixtral 8x7B on 64 cards", _trained("mixtral-8x7b", A2, 64, 4096, 512)),
)


def section(case: Case, spec: Spec, plan_set: PlanSet) -> str:
    """The Markdown of one training."""
    batch = spec.training.global_batch_size.value
    asked = (
        f"{system_title(spec.cluster.profile)}, {spec.cluster.num_npus:,} cards, {spec.training.seq_length:,} tokens, "
        f"global batch {batch:,}, target {spec.search.target}"
    )
    head = f"## {case.title}\n\n{asked}.\n\n"
    if not plan_set.plans:
        return f"{head}Nothing fits.\n"
    best = plan_set.plans[0]
    parts = [_beside(plan_set)]
    # What every section would say alike stands at the top of the page.
    lines = (of(plan_set, "en") for of in (rescaled_line, fastest_line, valley_line, reference_line))
    parts += [f"{_sentence(line)}\n" for line in lines if line is not None]
    parts += ["".join(f"- {_sentence(line)}\n" for line in counterfactual_lines(plan_set, "en"))]
    against = objections(best, spec)
    parts.append(_listed("What an experienced engineer would object to", against or ("None of the rules objects.",)))
    parts.append(_evidence(best))
    return head + "\n".join(parts)


def _beside(plan_set: PlanSet) -> str:
    """The recommended plan, the fastest by prediction and the public recipe or other reference, side by side."""
    best, other = plan_set.plans[0], other_fastest(plan_set)
    columns = [("recommended", _plan_cells(best))]
    if other is not None:
        ranked = next((each for each in plan_set.plans if each.plan_id == other.plan_id), None)
        columns.append(("fastest by prediction", _fastest_cells(other) if ranked is None else _plan_cells(ranked)))
    if plan_set.reference is not None:
        columns.append((plan_set.reference.label or "for comparison", _plan_cells(plan_set.reference)))
    rows = [(name, *(cells.get(name, "") for _, cells in columns)) for name in ROWS]
    return table(("", *(title for title, _ in columns)), [row for row in rows if any(row[1:])])


ROWS: Final = (
    *("layout", "schedule and memory", "step, s", "80 % interval, s", "tokens/s per card", "MFU, %"),
    *("highest measured MFU, %", "memory, GiB", "P(fits)", "expected step, s", "regret at the 80th percentile, %"),
    "not covered by any run",
)


def _plan_cells(plan: Plan) -> dict[str, str]:
    """What a column says of a plan; nothing where the plan doesn't."""
    best = plan.best_measured_mfu
    cells = {
        "layout": degrees(plan.strategy),
        "schedule and memory": choices(plan.strategy, "en"),
        "step, s": seconds(plan.step_time_s),
        "80 % interval, s": f"{seconds(plan.uncertainty.low_s)} to {seconds(plan.uncertainty.high_s)}",
        "tokens/s per card": f"{plan.tokens_per_s_per_npu:,.0f}",
        "MFU, %": percent(plan.mfu),
        "highest measured MFU, %": "" if best is None else f"{percent(best.highest)} ({best.record})",
        "memory, GiB": f"{plan.peak_memory_gib:.1f} of {plan.memory_limit_gib:.1f}",
        "P(fits)": "" if plan.p_fits is None else chance(plan.p_fits),
    }
    if plan.expected_step_time_s is not None:
        cells["expected step, s"] = seconds(plan.expected_step_time_s)
    if plan.regret_p80_pct is not None:
        cells["regret at the 80th percentile, %"] = f"{plan.regret_p80_pct:.1f}"
    if plan.evidence:
        missing = [f"{each.axis} {each.value}" for each in plan.evidence if each.runs == 0]
        cells["not covered by any run"] = ", ".join(name.removeprefix("feature ") for name in missing) or "nothing"
    return cells


def _fastest_cells(fastest: Fastest) -> dict[str, str]:
    return {
        "layout": degrees(fastest.strategy),
        "schedule and memory": choices(fastest.strategy, "en"),
        "step, s": seconds(fastest.step_time_s),
        "P(fits)": chance(fastest.p_fits),
    }


def _evidence(best: Plan) -> str:
    """What published runs say of the recommended plan: the nearest run, and the axes and features with fewest runs."""
    near = best.uncertainty.nearest_record
    said = [f"the interval rests on {best.uncertainty.basis}"] + ([f"the nearest run is {near}"] if near else [])
    line = evidence_line(best, "en")
    parts = [f"**What the evidence says.** {_sentence('; '.join([*([line] if line else []), *said]))}\n"]
    evidence = evidence_table(best, "en")
    if evidence.rows:
        parts.append(table(evidence.titles, evidence.rows[:MOST_EVIDENCE]))
    return "\n".join(parts)


def _listed(title: str, texts: tuple[str, ...]) -> str:
    return f"**{title}.**\n\n" + "".join(f"- {text}\n" for text in texts)


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:].rstrip('.')}."


def page(answers: list[tuple[Case, Spec, PlanSet]]) -> str:
    """The whole page; how plans are ranked is said once, by the first answer."""
    ranked = risk_line(answers[0][2], "en")
    head = HEAD + "".join(f"- {rule}\n" for rule in RULES) + (f"\n{_sentence(ranked)}\n" if ranked else "")
    sections = [section(case, spec, plan_set) for case, spec, plan_set in answers]
    return f"{NOTE}\n\n{head}\n" + "\n".join(sections)


def main(cases: Iterable[Case] = CASES, file: Path = PAGE) -> None:
    """Search every case and write the page."""
    answers = []
    for case in cases:
        spec = case.read()
        answers.append((case, spec, plan(spec)))
    file.write_text(page(answers), encoding="utf-8")


if __name__ == "__main__":
    main()
