"""Records of what frameworks were seen to do with plans, and the same predicted anew."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autodeploy.analysis.launch_checks.launch import launch_of
from autodeploy.analysis.witness.compare import differences
from autodeploy.analysis.witness.documents import Counts, Difference
from autodeploy.analysis.witness.predicted import Prediction
from autodeploy.formats.import_document import import_document

FOLDER = Path(__file__).parent / "records"


@dataclass(frozen=True)
class Stage:
    """One stage of a plan as it was seen, and the numbers in which the prediction differs from that."""

    counts: Counts
    padding_bytes: int
    differs: tuple[str, ...]


@dataclass(frozen=True)
class Record:
    """A plan at toy widths, run by its framework: `script` is the launch that both sides are of."""

    name: str
    release: str
    commits: dict[str, str]
    torch: str
    command: str
    script: tuple[str, ...]
    stages: tuple[Stage, ...]
    real_widths: bool = False

    @classmethod
    def read(cls, path: Path) -> Record:
        """The record in a file."""
        given: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        stages = tuple(
            Stage(Counts.model_validate(one["counts"]), one["padding_bytes"], tuple(one["differs"]))
            for one in given.pop("stages")
        )
        return cls(**{**given, "script": tuple(given["script"]), "stages": stages})

    def write(self) -> None:
        """Writes it under its name."""
        FOLDER.mkdir(exist_ok=True)
        stages = [
            {
                "counts": one.counts.model_dump(mode="json"),
                "padding_bytes": one.padding_bytes,
                "differs": list(one.differs),
            }
            for one in self.stages
        ]
        document = {**vars(self), "script": list(self.script), "stages": stages}
        (FOLDER / f"{self.name}.json").write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")

    def prediction(self) -> Prediction:
        """What is predicted of the same launch today."""
        return Prediction.of(launch_of(import_document("\n".join(self.script) + "\n", f"{self.name}.sh")))


def compared(prediction: Prediction, stage: Stage, *, real_widths: bool) -> tuple[Difference, ...]:
    """All numbers of a stage, predicted today and seen then."""
    predicted = prediction.counts(stage.counts.stage)
    return differences(predicted, stage.counts, stage.padding_bytes, "", real_widths=real_widths)


def records() -> list[Record]:
    """All records, by name."""
    return [Record.read(path) for path in sorted(FOLDER.glob("*.json"))]
