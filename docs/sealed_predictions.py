"""Predictions of public launches whose speed nobody had published, sealed once and graded when a figure appears.

`python -m docs.sealed_predictions` writes docs/sealed_predictions.md from the sealed rows and the grades. `seal LIST
FOLDER` makes a further batch of rows: what is sealed is never written again.
"""

from __future__ import annotations

import hashlib
import json
import math
import sys
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any

import yaml

from autodeploy.reports.tables import Table, markdown

if TYPE_CHECKING:
    from collections.abc import Sequence

FOLDER = Path(__file__).resolve().parent / "sealed"
GRADES = FOLDER / "grades.yaml"
PAGE = Path(__file__).resolve().parent / "sealed_predictions.md"
LEAD = (
    "Public launches whose speed nobody had published when this release predicted them: vendor examples of this "
    "year on Atlas 800T A2 and on CloudMatrix 384, and a recipe of reinforcement learning, each read from its "
    "repository at a commit by the importers that read a user's files; later configurations of torchtitan-npu, read "
    "likewise, and of Megatron-Bridge, whose Python is transcribed to a spec (docs/sealed/specs). Nothing here is "
    "edited, only graded: each batch has a digest of its rows as they were sealed, and a test holds it. A grade needs "
    "a published figure with its "
    "source in docs/sealed/grades.yaml. Chips are those that a file names; where it names a generation alone, the"
    " usual grade of the profile. Intervals are of 80 %; without one that says anything (its ends a factor of six"
    " apart) a row is kept and told."
)


def digest_of(text: str) -> str:
    """SHA-256 of the sealed rows."""
    return hashlib.sha256(text.encode()).hexdigest()


def batches() -> list[tuple[Path, Path]]:
    """Rows and digest of every batch, the first one first."""
    found: list[tuple[Path, Path]] = []
    while (paths := _batch(len(found) + 1))[0].exists():
        found.append(paths)
    return found


def _batch(number: int) -> tuple[Path, Path]:
    mark = "" if number == 1 else f"_{number}"
    return FOLDER / f"predictions{mark}.jsonl", FOLDER / f"digest{mark}.txt"


def sealed() -> list[dict[str, Any]]:
    """The rows of all batches.

    Raises
    ------
    ValueError
        where they are no longer those that were sealed.
    """
    rows: list[dict[str, Any]] = []
    for path, digest in batches():
        text = path.read_text(encoding="utf-8")
        if digest_of(text) != digest.read_text(encoding="utf-8").strip():
            raise ValueError(f"the sealed rows of {path.name} were changed")
        rows += [json.loads(line) for line in text.splitlines()]
    return rows


def seal(launches: Sequence[dict[str, Any]], folder: Path) -> None:
    """Predict every launch and write the rows of a further batch with their digest.

    Parameters
    ----------
    launches : repository, commit, path and cluster of each; num_npus where the file has none; spec, a file of
        docs/sealed/specs, where a transcription is read instead. folder : with a checkout of each repository, by
        owner+name.

    Raises
    ------
    ValueError
        where one of them is sealed already.
    """
    before = sealed()
    known = {_name_of(row) for row in before}
    if again := [_name_of(launch) for launch in launches if _name_of(launch) in known]:
        raise ValueError(f"sealed already: {again[0]}")
    rows = [_predicted(f"S{len(before) + place:02}", launch, folder) for place, launch in enumerate(launches, start=1)]
    path, digest = _batch(len(batches()) + 1)
    with path.open("x", encoding="utf-8") as stream:
        stream.writelines(json.dumps(row, sort_keys=True) + "\n" for row in rows)
    digest.write_text(digest_of(path.read_text(encoding="utf-8")) + "\n", encoding="utf-8")


def _name_of(launch: dict[str, Any]) -> tuple[str, str, str]:
    """Name of a launch: two recipes may share a file."""
    return launch["repository"], launch["path"], launch.get("spec", "")


def _predicted(name: str, launch: dict[str, Any], folder: Path) -> dict[str, Any]:
    from autodeploy.formats.import_document import import_file
    from autodeploy.kit.version import ENGINE_VERSION
    from autodeploy.search import planner
    from autodeploy.specs.reading import read_spec_document

    file = folder / launch["repository"].replace("/", "+") / launch["path"]
    if "spec" in launch:
        text = (FOLDER / "specs" / launch["spec"]).read_text(encoding="utf-8")
        spec, unmodelled = read_spec_document(yaml.safe_load(text)), text.count("# Not in it:")
    else:
        imported = import_file(file)
        spec = imported.spec(launch["cluster"], None, launch.get("num_npus"))
        unmodelled = len(imported.diagnostics.doubts)
    plan = planner.estimate(spec)
    spec_hash, profile_hash, _ = planner.describe_hashes(spec)
    memory = plan.memory_interval
    return {
        "id": name,
        **launch,
        "file_sha256": hashlib.sha256(file.read_bytes()).hexdigest(),
        "framework": spec.search.target,
        "model": spec.model.name,
        "device": spec.cluster.device,
        "num_npus": plan.num_npus_used,
        "layout": {axis: getattr(plan.strategy, axis) for axis in ("tp", "pp", "vpp", "cp", "ep", "dp")},
        "step_time_s": _short(plan.step_time_s),
        "low_s": _short(plan.uncertainty.low_s),
        "high_s": _short(plan.uncertainty.high_s),
        "tokens_per_s_per_npu": _short(plan.tokens_per_s_per_npu),
        "peak_memory_gib": _short(plan.allocator_peak_gib),
        "memory_low_gib": None if memory is None else _short(memory.low_gib),
        "memory_high_gib": None if memory is None else _short(memory.high_gib),
        "p_fits": plan.p_fits,
        "unmodelled": unmodelled,
        "spec_hash": spec_hash,
        "profile_hash": profile_hash,
        "engine_version": ENGINE_VERSION,
    }


def _short(value: float) -> float:
    return float(f"{value:.5g}")


def grades() -> dict[str, dict[str, Any]]:
    """Published figures by the id of a row: step_time_s or tokens_per_s_per_npu, source, date."""
    return {row["id"]: row for row in yaml.safe_load(GRADES.read_text(encoding="utf-8")) or []}


def error_of(row: dict[str, Any], grade: dict[str, Any]) -> tuple[float, bool]:
    """Predicted over published speed less one, and whether the published step lies in the interval."""
    published_s = grade.get("step_time_s")
    if published_s is None:
        published_s = row["step_time_s"] * row["tokens_per_s_per_npu"] / grade["tokens_per_s_per_npu"]
    return published_s / row["step_time_s"] - 1.0, row["low_s"] <= published_s <= row["high_s"]


def page(rows: Sequence[dict[str, Any]], graded: dict[str, dict[str, Any]]) -> str:
    """The whole page."""
    cells = [_cells(row, graded.get(row["id"])) for row in rows]
    titles = [
        "",
        "launch",
        "cards",
        "step s (80 %)",
        "tokens/s a card",
        "peak GiB",
        "P(fits)",
        "published",
        "error",
        "inside",
    ]
    lines = [
        "<!-- Made by `python -m docs.sealed_predictions`. -->",
        "",
        "# Sealed predictions",
        "",
        fill(LEAD, 140),
        "",
        f"{len(rows)} launches, {len(graded)} graded.",
        "",
        *map(_batch_line, batches()),
        "",
        *markdown(Table(titles, cells, {2, 3, 4, 5, 6, 8})),
    ]
    text = "\n".join(lines) + "\n"
    for row in rows:
        name = row.get("spec", row["path"].rpartition("/")[2]).replace("_", "\\_")
        link = f"https://github.com/{row['repository']}/blob/{row['commit']}/{row['path']}"
        text = text.replace(f"@{row['id']}@", f"[{name}]({link})")
    return text


def _batch_line(batch: tuple[Path, Path]) -> str:
    path, _ = batch
    text = path.read_text(encoding="utf-8")
    first = json.loads(text.splitlines()[0])
    count = len(text.splitlines())
    return f"- {count} by {first['engine_version']}, SHA-256 of docs/sealed/{path.name}: `{digest_of(text)}`"


def _cells(row: dict[str, Any], grade: dict[str, Any] | None) -> list[str]:
    wide = math.log(row["high_s"] / row["low_s"]) > math.log(6.0)
    said = ["", "", ""]
    if grade is not None:
        error, inside = error_of(row, grade)
        said = [str(grade["source"]), f"{100 * error:+.1f} %", "yes" if inside else "no"]
    return [
        row["id"],
        f"@{row['id']}@ on {row['cluster']}",
        f"{row['num_npus']:,}",
        f"{row['step_time_s']:.4g} ({row['low_s']:.4g}-{row['high_s']:.4g}{', no prediction' if wide else ''})",
        f"{row['tokens_per_s_per_npu']:,.0f}",
        f"{row['peak_memory_gib']:.1f}",
        f"{100 * row['p_fits']:.0f} %",
        *said,
    ]


def main() -> None:
    """The page, or with `seal LIST FOLDER` the rows."""
    if sys.argv[1:2] == ["seal"]:
        seal(json.loads(Path(sys.argv[2]).read_text(encoding="utf-8")), Path(sys.argv[3]))
    PAGE.write_text(page(sealed(), grades()), encoding="utf-8")


if __name__ == "__main__":
    main()
