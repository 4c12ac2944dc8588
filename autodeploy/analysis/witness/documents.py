"""Counts of one rank of a launch: as a framework was seen to make them, or as they are predicted."""

from __future__ import annotations

from typing import Literal

from autodeploy.specs.base import Document

Verdict = Literal["equal", "padding", "close", "differs", "stand_in"]


class Message(Document):
    """Equal messages of one step. size_bytes: output of a gather, input of a scatter, of all others what is sent."""

    group: str
    operation: str
    size_bytes: int
    calls: int


class Counts(Document):
    """State, messages and kept bytes of the first rank of a pipeline stage in one step.

    parameters, expert_parameters: by chunk. order: passes as they run, F0.3 being the forward pass of micro batch 3
    through chunk 0 and F1.0B0.2 two merged ones. kept_bytes: at the worst end of a pass.
    """

    stage: int
    parameters: tuple[int, ...] = ()
    expert_parameters: tuple[int, ...] = ()
    weight_bytes: int = 0
    gradient_bytes: int = 0
    optimizer_bytes: int = 0
    kept_bytes: int = 0
    order: tuple[str, ...] = ()
    messages: tuple[Message, ...] = ()

    @property
    def total_bytes(self) -> int:
        """States and what passes keep."""
        return self.weight_bytes + self.gradient_bytes + self.optimizer_bytes + self.kept_bytes


class Difference(Document):
    """One number, predicted and seen. decided_by: the stand-in that decides what is seen, where one does."""

    name: str
    predicted: str
    seen: str
    verdict: Verdict
    decided_by: str = ""


class StageReport(Document):
    """All numbers of a stage; `error` and `where` instead, where the framework stopped.

    unpredicted: messages that were seen and belong to no exchange that is predicted.
    """

    stage: int
    rank: int
    seconds: float
    numbers: tuple[Difference, ...] = ()
    unpredicted: tuple[Message, ...] = ()
    error: str = ""
    where: str = ""


class WitnessReport(Document):
    """Behaviour of a framework with a launch at toy widths. changed: flags that differ from the launch's own."""

    release: str
    commits: dict[str, str]
    ranks: int
    changed: dict[str, str]
    stages: tuple[StageReport, ...]

    @property
    def agrees(self) -> bool:
        """Whether every stage ran, and no number differs that the framework itself decides."""
        differing = (n for stage in self.stages for n in stage.numbers if n.verdict == "differs" and not n.decided_by)
        return not any(stage.error for stage in self.stages) and next(differing, None) is None
