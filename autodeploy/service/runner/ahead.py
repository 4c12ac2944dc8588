"""Questions that may be asked next, answered at idle priority so that the answers are there once they are asked."""

from __future__ import annotations

import logging
import threading
from concurrent.futures.process import BrokenProcessPool
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from autodeploy.kit.errors import AutoDeployError
from autodeploy.service.runner.call_pool import CallPool

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Iterator

    from autodeploy.kit.settings import Settings
    from autodeploy.service.runner.call_pool import KeptAnswers

    Question = tuple[Hashable, Callable[..., Any], tuple[Any, ...]]

log = logging.getLogger(__name__)

IDLE_NICENESS: Final = 19
MOST_SETS, MOST_OF_SET = 3, 80
PAUSE_S: Final = 0.02
QUIET_S: Final = 0.4
"""For so long nobody has asked anything that has to be computed, before something is computed ahead."""


class AskedAhead:
    """One process that answers sets of questions while no caller waits for an answer of the server.

    Of several sets one question each is answered in turn, the newest set first; the oldest of more than MOST_SETS is
    forgotten. What a caller asks meanwhile is answered where callers' questions are, whether or not it is being
    answered here.

    kept : where answers go. is_busy : whether somebody waits.
    """

    def __init__(self, settings: Settings, planner: str, kept: KeptAnswers, is_busy: Callable[[], bool]) -> None:
        one = settings.model_copy(update={"call_processes": 1})
        self._pool = CallPool(one, planner, niceness=IDLE_NICENESS)
        self._kept, self._is_busy = kept, is_busy
        self._changed = threading.Condition()
        self._sets: dict[Hashable, Iterator[Question]] = {}
        self._thread: threading.Thread | None = None
        self._ended = False
        self.answered = 0
        """Questions answered by now."""

    @property
    def open_sets(self) -> int:
        """Sets that have questions left."""
        return len(self._sets)

    def ask(self, name: Hashable, questions: Iterable[Question]) -> None:
        """Takes a set of questions, each a key of `kept`, a function and its arguments.

        A set of the same name that is not answered yet goes on, as the newest.

        questions : made one by one, in the order in which they are answered.
        """
        with self._changed:
            known = self._sets.pop(name) if name in self._sets else None
            self._sets[name] = islice(questions, MOST_OF_SET) if known is None else known
            for oldest in tuple(self._sets)[:-MOST_SETS]:
                del self._sets[oldest]
            if self._thread is None and not self._ended:
                self._thread = threading.Thread(target=self._answer_all, name="asked-ahead", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def close(self) -> None:
        """Ends the process and what it computes."""
        with self._changed:
            self._ended = True
            self._sets.clear()
            self._changed.notify_all()
        self._pool.close()

    def _answer_all(self) -> None:
        turn = 0
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._ended or self._sets)
                if self._ended:
                    return
                if self._is_busy():
                    self._changed.wait(PAUSE_S)
                    continue
                names = tuple(reversed(self._sets))
                name = names[turn % len(names)]
                questions = self._sets[name]
            turn += 1
            try:
                question = next(questions, None)
            except AutoDeployError:  # nothing that could be asked
                question = None
            if question is None:
                with self._changed:
                    if self._sets.get(name) is questions:
                        del self._sets[name]
                continue
            key, function, arguments = question
            if not self._kept.has(key):
                self._answer(key, function, arguments)

    def _answer(self, key: Hashable, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        try:
            self._kept.keep(key, lambda: self._pool.call(function, *arguments))
            self.answered += 1
        except (BrokenProcessPool, MemoryError, AutoDeployError) as error:
            log.debug("not answered ahead: %r", error)
