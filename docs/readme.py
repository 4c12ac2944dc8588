"""Brings the measured parts of README.md and README.zh.md up to date: the first result and the accuracy.

A part stands between `<!-- name -->` and `<!-- /name -->`. Run by `make docs`.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from ruamel.yaml import YAML

if TYPE_CHECKING:
    from autodeploy.calibration.validation import Statistics, ValidationReport

Language = Literal["en", "zh"]
ROOT = Path(__file__).resolve().parent.parent
READMES: dict[Language, Path] = {"en": ROOT / "README.md", "zh": ROOT / "README.zh.md"}
EXAMPLE = ROOT / "examples" / "deepseek_v3_cloudmatrix_384.yaml"
RECORDS = {"Ascend": "ascend.jsonl", "NVIDIA": "nvidia.jsonl"}
FITTED = {"800T A2": "ascend-800t-a2", "A100": "nvidia-a100-80g", "H100": "nvidia-h100"}
TITLES = {
    "en": (
        "records",
        "quantity",
        "runs",
        "sources",
        "median error",
        "mean",
        "90th percentile",
        "bias",
        "nearest MFU carried over",
    ),
    "zh": ("记录", "指标", "条数", "来源", "误差中位数", "平均", "90 分位", "偏差", "最近记录的 MFU"),
}
QUANTITIES = {
    "en": {
        **{
            "kind pretraining": "time of pre-training",
            "kind sharded": "time, fully sharded",
            "kind tuning": "time of tuning",
        },
        **{"kind updates": "time of RL updates"},
        **{"kind foreign": "time, kernels without a formula", "memory": "memory"},
    },
    "zh": {
        **{"kind pretraining": "预训练时间", "kind sharded": "全分片时间", "kind tuning": "微调时间"},
        **{"kind updates": "强化学习更新时间", "kind foreign": "无公式算子的时间", "memory": "显存"},
    },
}
SECONDS = re.compile(r"\d+(?:\.\d+)? s\b")


def validated() -> dict[str, ValidationReport]:
    """What `autodeploy validate` says of each shipped file."""
    from autodeploy.calibration.validation import validate
    from autodeploy.specs.record import read_records

    folder = ROOT / "autodeploy" / "calibration" / "records"
    return {name: validate(read_records(folder / file)) for name, file in RECORDS.items()}


def accuracy(reports: dict[str, ValidationReport]) -> dict[Language, dict[str, str]]:
    """What the reports and the overlays say, as text of each language."""
    experts = reports["Ascend"].summary.by_class["moe"]
    texts: dict[Language, dict[str, str]] = {}
    for language in READMES:
        words = _experts(experts, language)
        texts[language] = {"accuracy": _table(reports, language), "left_out": _left_out(language), "experts": words}
    return texts


def _table(reports: dict[str, ValidationReport], language: Language) -> str:
    titles = TITLES[language]
    lines = ["", "| " + " | ".join(titles) + " |", "|" + " --- |" * len(titles)]
    for name, report in reports.items():
        for quantity, title in QUANTITIES[language].items():
            summary = report.summary
            each: Statistics | None = summary.memory if quantity == "memory" else summary.by_class.get(quantity)
            if each is not None:
                sources = _sources(RECORDS[name], quantity)
                errors = " | ".join(f"{100 * value:.1f} %" for value in (each.median_ape, each.mape, each.p90_ape))
                bias, null = f"{100 * each.bias:+.1f} %", _null(RECORDS[name], quantity)
                lines.append(f"| {name} | {title} | {each.n} | {sources} | {errors} | {bias} | {null} |")
    return "\n".join([*lines, "", ""])


@cache
def _sources(file: str, quantity: str) -> int:
    """From how many sources the records of a kind are, or those with a memory."""
    from autodeploy.calibration.record_prediction import counts_for_time, kind_of_record
    from autodeploy.specs.record import read_records

    return len(
        {
            record.source.split("@")[0].split()[0]
            for record in read_records(ROOT / "autodeploy" / "calibration" / "records" / file)
            if (record.measured.peak_memory_gib is not None if quantity == "memory" else counts_for_time(record))
            and (quantity == "memory" or quantity == f"kind {kind_of_record(record)}")
        }
    )


def _null(file: str, quantity: str) -> str:
    """Mean error where the utilisation of the nearest record of another family of models is carried over."""
    from autodeploy.specs.record import read_records
    from docs.accuracy_page.null_models import beside, carried_errors, kinds_of_rows

    kinds = kinds_of_rows()
    records = read_records(ROOT / "autodeploy" / "calibration" / "records" / file)
    found = beside((r.id for r in records if f"kind {kinds.get(r.id)}" == quantity), carried_errors())
    return "-" if found is None else f"{100 * found.null:.0f} %"


def _left_out(language: Language) -> str:
    names = []
    for title, profile in FITTED.items():
        path = ROOT / "hardware_profiles" / "data" / "calibrated" / f"{profile}.yaml"
        report = YAML(typ="safe").load(path.read_text(encoding="utf-8"))["report"]
        error, runs = f"{report['left_out_mape_pct']:.1f} %", report["records"]
        names.append(f"{error} on {title} ({runs} runs)" if language == "en" else f"{title} {error}（{runs} 条）")
    return ", ".join(names) if language == "en" else "、".join(names)


def _experts(each: Statistics, language: Language) -> str:
    median, mean, high = (f"{100 * value:.1f} %" for value in (each.median_ape, each.mape, each.p90_ape))
    if language == "en":
        return f"{each.n} runs, median error of time {median}, mean {mean}, 90th percentile {high}"
    return f"{each.n} 条记录，时间误差中位数 {median}，平均 {mean}，90 分位 {high}"


def first_result() -> dict[Language, dict[str, str]]:
    """The report of the example in each language, and how long the search took."""
    from autodeploy.reports.first_report import render_first
    from autodeploy.search.planner import plan
    from autodeploy.specs.reading import read_spec_file

    plan_set = plan(read_spec_file(EXAMPLE))
    seconds = f"{plan_set.timing.total_s:.1f} s"
    return {
        language: {
            "first_result": f"\n\n```text\n{render_first(plan_set, language).rstrip()}\n```\n\n",
            "search_time": seconds,
        }
        for language in READMES
    }


def replace_parts(text: str, parts: dict[str, str]) -> str:
    """The text with each named part replaced.

    Raises
    ------
    ValueError
        when the text lacks a part.
    """
    for name, part in parts.items():
        pattern = re.compile(rf"(<!-- {name} -->).*?(<!-- /{name} -->)", re.DOTALL)
        if not pattern.search(text):
            raise ValueError(f"there is no part {name!r}")
        text = pattern.sub(lambda found, part=part: f"{found[1]}{part}{found[2]}", text)  # type: ignore[misc]
    return text


def main() -> None:
    """Write what differs; a result that differs in seconds only stays."""
    measured, results = accuracy(validated()), first_result()
    for language, path in READMES.items():
        old = path.read_text(encoding="utf-8")
        text = replace_parts(old, measured[language])
        again = replace_parts(text, results[language])
        shown = again if _without_times(again) != _without_times(text) else text
        if shown != old:
            path.write_text(shown, encoding="utf-8")


def _without_times(text: str) -> str:
    return "\n".join(line for line in text.splitlines() if "search_time" not in line and not _counts(line))


def _counts(line: str) -> bool:
    """Whether a line of the report holds the time of the search."""
    return bool(SECONDS.search(line)) and ("strategies in" in line or "内枚举" in line)


if __name__ == "__main__":
    main()
