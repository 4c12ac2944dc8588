"""`autodeploy db`: the database that keeps searches and plans."""

from __future__ import annotations

import json
import re
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path  # noqa: TC003 - typer reads annotations while the program runs
from typing import TYPE_CHECKING, Annotated, Any

import typer

from autodeploy.cli.options import Lang, LanguageOption
from autodeploy.kit.errors import SpecError
from autodeploy.messages import Message
from autodeploy.messages.field_faults import os_fault

if TYPE_CHECKING:
    from collections.abc import Iterator

    from autodeploy.service.store.database import Database

app = typer.Typer(no_args_is_help=True)

_HOURS = {"h": 1, "d": 24, "w": 24 * 7}
LARGEST_LINE = 64 * 2**20


@app.command()
def upgrade(
    no_copy: Annotated[bool, typer.Option("--no-copy", help="do not copy an SQLite file before migrating it")] = False,
    lang: Lang = LanguageOption.EN,
) -> None:
    """Migrate the database to this version; does nothing if it is up to date."""
    from autodeploy.cli.output import notify
    from autodeploy.kit.settings import load_settings
    from autodeploy.service.store.database import Database
    from autodeploy.service.store.migration import current_revision
    from autodeploy.service.store.migration import upgrade as migrate

    database = Database(load_settings().database_url)
    try:
        copy = migrate(database, copy=not no_copy)
        revision = current_revision(database)
    finally:
        database.close()
    if copy is not None:
        notify("database_copied", file=copy)
    notify("database_at", revision=revision)


@app.command()
def status(lang: Lang = LanguageOption.EN) -> None:
    """Print as JSON what the database holds and whether its revision is that of this version; exit code 4 if not."""
    from autodeploy.cli.exits import SERVICE_ERROR
    from autodeploy.cli.output import json_text, write_report
    from autodeploy.kit.settings import load_settings
    from autodeploy.service.store.database import Database
    from autodeploy.service.store.migration import HEAD_REVISION, current_revision

    settings = load_settings()
    database = Database(settings.database_url)
    try:
        revision = current_revision(database)
        document = {"database": "sqlite" if database.is_sqlite else "postgresql", "revision": revision}
        document |= {"needed_revision": HEAD_REVISION}
        is_current = revision == HEAD_REVISION
        if is_current:
            document |= _contents(database, settings.worker_alive_s)
    finally:
        database.close()
    write_report(json_text(document), None)
    if not is_current:
        raise typer.Exit(SERVICE_ERROR)


def _contents(database: Database, alive_s: float) -> dict[str, Any]:
    """Searches by status, how long the oldest has waited, live workers and their slots, size in bytes."""
    from autodeploy.service.runner.workers import Workers
    from autodeploy.service.store.base import now_in
    from autodeploy.service.store.searches import Searches

    with database.read() as session:
        now = now_in(session)
        oldest = Searches(session).oldest_queued_at()
        live = Workers(session).live(now, alive_s)
        return {
            "searches": Searches(session).count_by_status(),
            "oldest_queued_s": None if oldest is None else max(0.0, (now - oldest).total_seconds()),
            "live_workers": len(live),
            "slots": sum(each.slots for each in live),
            "bytes": database.size_bytes(session),
        }


@app.command(epilog="Example: autodeploy db downgrade 0005")
def downgrade(
    revision: Annotated[
        str, typer.Argument(help="revision that the older version needs; it states it when it refuses to start")
    ],
    yes: Annotated[bool, typer.Option("--yes", help="even if data is lost")] = False,
    lang: Lang = LanguageOption.EN,
) -> None:
    """Downgrade the database to an older revision. Stop servers and workers first."""
    from autodeploy.cli.output import notify
    from autodeploy.kit.errors import ConflictError
    from autodeploy.kit.settings import load_settings
    from autodeploy.service.store.database import Database
    from autodeploy.service.store.downgrade import downgrade as go_back
    from autodeploy.service.store.downgrade import losses_of_downgrade

    database = Database(load_settings().database_url)
    try:
        if not yes and (losses := losses_of_downgrade(database, revision)):
            raise ConflictError(
                Message("cli.going_back_to_would_lose", revision=revision, losses=", ".join(map(str, losses))),
                hint=Message("cli.autodeploy_db_export_file_keeps_it_yes_goes"),
            )
        copy = go_back(database, revision)
    finally:
        database.close()
    if copy is not None:
        notify("database_copied", file=copy)
    notify("database_at", revision=revision)


@app.command(epilog="Example: autodeploy db prune --older-than 90d --keep-tagged")
def prune(
    older_than: Annotated[str, typer.Option(help="minimum age: hours (12h), days (90d) or weeks (8w)")],
    keep_tagged: Annotated[bool, typer.Option("--keep-tagged", help="keep searches that have a tag")] = False,
    lang: Lang = LanguageOption.EN,
) -> None:
    """Delete finished searches older than the given age, with their plans."""
    from autodeploy.cli.output import notify
    from autodeploy.service.store.retention import prune as prune_searches

    age = read_age(older_than)
    with current_database() as database:
        pruned = prune_searches(database, before=database.now() - age, keep_tagged=keep_tagged)
    notify("deleted", what=pruned)


@app.command("export", epilog="Example: autodeploy db export backup.jsonl")
def export_file(
    file: Annotated[Path, typer.Argument(help="JSON Lines file to write, atomically")],
    lang: Lang = LanguageOption.EN,
) -> None:
    """Write all stored data to a file that only its owner reads; the service can keep running."""
    from autodeploy.cli.output import notify, replacing
    from autodeploy.service.store.dump import export_lines

    with current_database() as database, replacing(file, private=True) as stream:
        for line in export_lines(database):
            stream.write(json.dumps(line, separators=(",", ":"), ensure_ascii=False, allow_nan=False) + "\n")
    notify("written", file=file)


@app.command("import", epilog="Example: autodeploy db import backup.jsonl")
def import_file(
    file: Annotated[Path, typer.Argument(help="file written by `autodeploy db export`")], lang: Lang = LanguageOption.EN
) -> None:
    """Import what an exported file has and this database lacks; importing twice has no effect."""
    from autodeploy.cli.output import notify
    from autodeploy.service.store.dump import import_lines

    with current_database() as database:
        inserted = import_lines(database, _lines(file))
    notify("rows_added", rows=", ".join(f"{count} {table}" for table, count in inserted.items()) or 0)


@app.callback()
def group() -> None:
    """The database."""


def read_age(text: str, option: str = "--older-than") -> timedelta:
    """90d -> 90 days.

    Raises
    ------
    SpecError
        when it is no age.
    """
    match = re.fullmatch(r"(\d{1,6})([hdw])", text.strip())
    if match is None:
        message = Message("common.is_not_of_form", value=repr(text), form="NUMBER{h|d|w}")
        raise SpecError(message, path=option, hint=Message("common.such_as", example="90d"))
    return timedelta(hours=int(match[1]) * _HOURS[match[2]])


@contextmanager
def current_database() -> Iterator[Database]:
    """The database at this version's revision; an SQLite file is brought there."""
    from autodeploy.kit.settings import load_settings
    from autodeploy.service.store.database import Database
    from autodeploy.service.store.migration import require_current
    from autodeploy.service.store.migration import upgrade as migrate

    database = Database(load_settings().database_url)
    try:
        if database.is_sqlite:
            migrate(database)
        else:
            require_current(database)
        yield database
    finally:
        database.close()


def _lines(file: Path) -> Iterator[dict[str, Any]]:
    try:
        with file.open(encoding="utf-8") as stream:
            number = 0
            while text := stream.readline(LARGEST_LINE):
                number += 1
                line = json.loads(text)
                if not isinstance(line, dict):
                    raise SpecError(Message("importers.not_json_object"), path=f"{file.name}, line {number}")
                yield line
    except OSError as error:
        raise SpecError(Message("common.cannot_be_read", file=file, reason=os_fault(error))) from error
    except (ValueError, RecursionError) as error:
        raise SpecError(Message("importers.not_json_object"), path=f"{file.name}, line {number}") from error
