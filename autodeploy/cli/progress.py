"""What a search is doing, on stderr: one live line on a terminal, a few plain lines elsewhere."""

from __future__ import annotations

import signal
import sys
from typing import TYPE_CHECKING, Any

from autodeploy.cli.options import current_language
from autodeploy.cli.output import loudness, notify, talk
from autodeploy.messages import label, text_of
from autodeploy.reports.wording import command_text, report_text

if TYPE_CHECKING:
    from types import FrameType, TracebackType
    from typing import Self

    from rich.status import Status

    from autodeploy.messages import Language
    from autodeploy.search.planner import Progress


QUIET_S = 5.0  # so long without a line, and the next report is shown whatever it says


def progress_text(progress: Progress, lang: Language = "en") -> str:
    """Counts by fate, the best so far and the proven gap, in one line."""
    parts = [command_text(lang, "strategies", count=f"{progress.enumerated:,}")]
    fates = ("rejected", "too_big", "pruned", "solved")
    parts += [f"{label(lang, name)} {count:,}" for name in fates if (count := getattr(progress, name))]
    if progress.incumbent_s is not None:
        parts.append(text_of(lang, "progress.best_so_far", step=progress.incumbent_s))
    if progress.gap is not None:
        parts.append(f"{label(lang, 'gap')} {100 * progress.gap:.1f} %")
    return f"{progress.elapsed_s:5.1f} s  " + report_text(lang, "comma").join(parts)


class SearchTalk:
    """Shows progress, and turns the first Ctrl-C into a wish to stop (the best plan so far is kept)."""

    def __init__(self) -> None:
        self._lang = current_language()
        self._status: Status | None = None
        self._before: Any = None
        self._stop = False
        self._said_s = 0.0

    def __enter__(self) -> Self:
        if sys.stderr.isatty() and loudness() == "normal":
            from rich.console import Console

            self._status = Console(stderr=True).status(label(self._lang, "search"))
            self._status.start()
        self._before = signal.signal(signal.SIGINT, self._on_interrupt)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        signal.signal(signal.SIGINT, self._before)
        if self._status is not None:
            self._status.stop()

    def _on_interrupt(self, number: int, frame: FrameType | None) -> None:
        if self._stop:
            raise KeyboardInterrupt
        self._stop = True
        notify("stopping")

    def should_cancel(self) -> bool:
        """Whether the person asked to stop."""
        return self._stop

    def __call__(self, progress: Progress) -> None:
        text = progress_text(progress, self._lang)
        if self._status is not None:
            from rich.markup import escape

            self._status.update(escape(text))
        elif (
            loudness() == "verbose"
            or progress.kind in {"enumerated", "incumbent", "finished"}
            or progress.elapsed_s - self._said_s >= QUIET_S
        ):
            self._said_s = progress.elapsed_s
            talk(text)
