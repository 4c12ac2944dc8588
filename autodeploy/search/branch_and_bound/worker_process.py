"""A second process beside a search, made from the first at its first question: it knows all that was known by then.

What it is asked runs while the first goes on. The answers are those of the first, whoever computes them: where no
second process can be had, a question is answered at once, by the same code on a copy of its own.
"""

from __future__ import annotations

import contextlib
import gc
import os
import pickle
import platform
import signal
import warnings
from collections import deque
from typing import TYPE_CHECKING, Any, Concatenate, Final, Generic, ParamSpec, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.connection import Connection

W = TypeVar("W")
P = ParamSpec("P")
T = TypeVar("T")

POLL_S: Final = 0.02
"""How often a wait looks whether it is to be cancelled."""
LARGE_QUESTION_BYTES: Final = 2**16
"""Bytes of a question that may not fit the pipe: asked when nothing is on its way back, or both would wait."""


class Future(Generic[T]):
    """A question that was asked: a method of the worker with its arguments, and the answer once there is one."""

    def __init__(self, process: WorkerProcess[Any], method: Callable[..., T], args: tuple[Any, ...]) -> None:
        self._process, self.method, self.args = process, method, args
        self.answers: list[T | _Raised] = []

    def ready(self) -> bool:
        """Whether there is an answer by now."""
        return self._process.answered(self, wait=False)

    def result(self) -> T | None:
        """Waits for the answer; None when the search is cancelled meanwhile."""
        if not self._process.answered(self, wait=True):
            return None
        answer = self.answers[0]
        if isinstance(answer, _Raised):
            raise answer.error
        return answer


class WorkerProcess(Generic[W]):
    """Calls methods of a worker, one after the other, in a process that is made here where that is allowed.

    worker : made from what the search knows; nobody else calls it. It must tell by `stopped` when to give up.
    parallel : whether a second process may be made. later : not before `share` is called.
    """

    def __init__(
        self, worker: W, *, parallel: bool, should_cancel: Callable[[], bool] | None, later: bool = False
    ) -> None:
        self._worker, self._should_cancel = worker, should_cancel
        self._asked: deque[Future[Any]] = deque()  # without an answer, in order
        self._pid: int | None = None
        self._pipe: Connection | None = None
        # Elsewhere system libraries do not survive a fork, or there is none.
        self._allowed = parallel and platform.system() == "Linux"
        self.parallel = self._allowed and not later
        """Whether it computes while the caller does."""

    def share(self) -> None:
        """From now on a second process computes, where one may be made: there is work enough to pay for it."""
        self.parallel = self._allowed

    def begin(self, method: Callable[Concatenate[W, P], T], *args: P.args, **none: P.kwargs) -> Future[T]:
        """Ask for a method of the worker with arguments that can be pickled."""
        assert not none, "arguments go by position"
        begun = Future(self, method, args)
        if self.parallel and self._pipe is None:
            self._fork()
        if self._pipe is None:
            begun.answers.append(method(self._worker, *args, **none))
        else:
            self._send(begun)
        return begun

    def _send(self, begun: Future[Any]) -> None:
        question = pickle.dumps((begun.method.__name__, begun.args), pickle.HIGHEST_PROTOCOL)
        if len(question) > LARGE_QUESTION_BYTES and self._asked:
            self.answered(self._asked[-1], wait=True)
        self._asked.append(begun)
        try:
            if self._pipe is not None:
                self._pipe.send_bytes(question)
                return
        except OSError:
            pass
        self._lost()

    def answered(self, begun: Future[Any], *, wait: bool) -> bool:
        """Whether a question is answered; with wait, not before it is, unless the search is cancelled."""
        while not begun.answers:
            if self._pipe is None or (wait and self._should_cancel is not None and self._should_cancel()):
                return False
            if not self._pipe.poll(POLL_S if wait else 0.0):
                if not wait:
                    return False
                continue
            try:
                answer = pickle.loads(self._pipe.recv_bytes())
            except (EOFError, OSError):
                self._lost()
                continue
            self._asked.popleft().answers.append(answer)
        return True

    def close(self) -> None:
        """End the process; what was asked and not answered is forgotten."""
        if self._pipe is not None:
            self._pipe.close()
            self._pipe = None
        if self._pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(self._pid, 0)
            self._pid = None

    def __enter__(self) -> WorkerProcess[W]:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _lost(self) -> None:
        """The process died: what it owes is computed here."""
        self.close()
        self._allowed = self.parallel = False
        while self._asked:
            begun = self._asked.popleft()
            begun.answers.append(begun.method(self._worker, *begun.args))

    def _fork(self) -> None:
        from multiprocessing import Pipe

        parent_end, child_end = Pipe()
        parent = os.getpid()
        with warnings.catch_warnings():
            # A fork copies the calling thread alone. The copy computes and writes to its pipe: it needs no lock that
            # another thread may hold.
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
        if pid:
            child_end.close()
            self._pid, self._pipe = pid, parent_end
            return
        status = 1
        try:
            parent_end.close()
            gc.freeze()  # what both know is nobody's garbage, and a look at it would copy it
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that waits for the answers
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            self._serve(child_end, parent)
            status = 0
        finally:
            os._exit(status)  # nothing of the first process is closed, flushed or written twice

    def _serve(self, pipe: Connection, parent: int) -> None:
        """Answers questions until nobody asks any more."""
        worker: Any = self._worker
        stopped = worker.stopped
        worker.stopped = lambda: os.getppid() != parent or stopped()
        while True:
            try:
                name, args = pickle.loads(pipe.recv_bytes())
            except (EOFError, OSError):
                return
            answer: Any
            try:
                answer = getattr(worker, name)(*args)
            except Exception as error:  # the one who asked is to see it
                answer = _Raised(error)
            try:
                pipe.send_bytes(pickle.dumps(answer, pickle.HIGHEST_PROTOCOL))
            except OSError:
                return


class _Raised:
    """An error instead of an answer."""

    def __init__(self, error: Exception) -> None:
        self.error = error
