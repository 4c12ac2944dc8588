"""An SQLite database as a file: closed to others from its first byte on, and copied before its tables change."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from typing import TYPE_CHECKING

from autodeploy.kit.errors import StorageFullError
from autodeploy.messages import Message

if TYPE_CHECKING:
    from pathlib import Path

OWNER_ONLY = 0o600


def make_private(path: Path) -> None:
    """Makes an empty file that only its owner reads, unless there is one: SQLite would go by the umask.

    The journals beside it get the mode of the file.
    """
    with contextlib.suppress(FileExistsError):
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, OWNER_ONLY))


def copy_beside(path: Path, revision: str) -> Path:
    """Copies what is committed to `<file>.<revision>`, replacing an older copy of that name; gives its path.

    Raises
    ------
    StorageFullError
        when there is no room for it.
    """
    copy = path.with_name(f"{path.name}.{revision}")
    unfinished = copy.with_name(f"{copy.name}.{os.getpid()}.part")
    unfinished.unlink(missing_ok=True)
    try:
        make_private(unfinished)
        with (
            contextlib.closing(sqlite3.connect(path)) as source,
            contextlib.closing(sqlite3.connect(unfinished)) as sink,
        ):
            source.backup(sink)
        unfinished.replace(copy)
    except (sqlite3.OperationalError, OSError) as error:
        raise StorageFullError(
            Message("store.no_copy_could_be_made_beside_and_so", path=path, reason=error),
            hint=Message("store.free_as_much_space_as_file_has_or"),
        ) from error
    finally:
        unfinished.unlink(missing_ok=True)
    return copy
