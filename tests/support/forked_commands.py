"""A command for scripts to call that is answered by forks of the tests' own process, which has imported everything."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
import tempfile
import threading
import traceback
import warnings
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

# Without `site`, whose folders and packages take longer to look through than the rest.
PROGRAM = """#!{python} -IS
import json, os, socket, sys
words = json.dumps([sys.argv, os.getcwd(), dict(os.environ)]).encode()
with socket.socket(socket.AF_UNIX) as asked:
    asked.connect({address!r})
    socket.send_fds(asked, [len(words).to_bytes(4, "big")], [0, 1, 2])
    asked.sendall(words)
    sys.exit(asked.recv(1)[0])
"""


@contextmanager
def forked_command(path: Path, run: Callable[[], None]) -> Iterator[None]:
    """A program at `path` that calls `run` as a new interpreter would: arguments, folder, variables and streams are the
    caller's, and its exit code is that of `run`.
    """
    with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as listener:
        address = str(Path(folder) / "asked")
        listener.bind(address)
        listener.listen()
        path.write_text(PROGRAM.format(python=sys.executable, address=address))
        path.chmod(0o755)
        answering = threading.Thread(target=_answer, args=(listener, run))
        answering.start()
        try:
            yield
        finally:
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            answering.join()


def _answer(listener: socket.socket, run: Callable[[], None]) -> None:
    while True:
        try:
            asked, _ = listener.accept()
        except OSError:
            return  # nobody asks any more
        with asked:
            size, streams, *_ = socket.recv_fds(asked, 4, 3)
            with asked.makefile("rb") as words:
                told = json.loads(words.read(int.from_bytes(size, "big")))
            with warnings.catch_warnings():
                # The copy needs no lock that another thread of the tests may hold.
                warnings.simplefilter("ignore", DeprecationWarning)
                pid = os.fork()
            if not pid:
                _become(run, streams, *told)
            for stream in streams:
                os.close(stream)
            asked.sendall(bytes([os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) % 256]))


def _become(
    run: Callable[[], None], streams: list[int], arguments: list[str], folder: str, variables: dict[str, str]
) -> NoReturn:
    code = 1
    try:
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
        sys.stdin, sys.stdout, sys.stderr = (os.fdopen(n, mode, closefd=False) for n, mode in enumerate("rww"))
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(variables)
        sys.argv = arguments
        run()
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
