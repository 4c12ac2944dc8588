"""`autodeploy audit`: who did what."""

from __future__ import annotations

import getpass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from autodeploy.cli.database import read_age
from autodeploy.cli.options import Lang, LanguageOption, ListFormat, SimpleFormat, language

if TYPE_CHECKING:
    from autodeploy.service.store.database import Database

app = typer.Typer(no_args_is_help=True)


def note_here(database: Database, action: str, object_id: str, **detail: Any) -> None:
    """Notes a change that the command line makes in the database itself, with the account that makes it."""
    from autodeploy.kit.logs import log_warnings
    from autodeploy.service.callers.access import ANYONE
    from autodeploy.service.callers.audit import COMMAND_LINE, AuditLog

    log_warnings()
    try:
        account = getpass.getuser()
    except (OSError, KeyError):  # an account without a name, as in containers
        account = ""
    AuditLog(database).note(
        ANYONE, client=COMMAND_LINE, action=action, object_id=object_id, author=account, detail=detail or None
    )


@app.command("ls", epilog="Example: autodeploy audit ls --object srch_01m3xk7pq2w9a4fh")
def list_all(
    object_id: Annotated[
        str | None, typer.Option("--object", metavar="ID", help="changes to one search, run or key")
    ] = None,
    key_id: Annotated[str | None, typer.Option("--key", metavar="KEY_ID", help="changes by one key")] = None,
    author: Annotated[str | None, typer.Option("--author", help="changes by keys of this name")] = None,
    team: Annotated[str | None, typer.Option("--team", help="changes by keys of this team")] = None,
    action: Annotated[str | None, typer.Option("--action", help="kind of change, e.g. search.cancel")] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, max=10_000, help="number of entries to show")] = 50,
    output_format: SimpleFormat = ListFormat.TABLE,
    lang: Lang = LanguageOption.EN,
) -> None:
    """List changes, newest first: time, author, source, action and HTTP status."""
    from dataclasses import asdict

    from autodeploy.cli.database import current_database
    from autodeploy.cli.output import json_text, table_text, write_report
    from autodeploy.reports.wording import command_text
    from autodeploy.service.callers.audit import AuditFilter, AuditLog
    from autodeploy.service.store.base import iso

    with current_database() as database:
        entries = AuditLog(database).list(AuditFilter(key_id, author, team, action, object_id), limit=limit).items
    if output_format is ListFormat.JSON:
        write_report(json_text([asdict(entry) | {"created_at": iso(entry.created_at)} for entry in entries]), None)
        return
    rows = [
        [
            f"{entry.created_at:%Y-%m-%d %H:%M:%S}",
            *(getattr(entry, name) or "-" for name in ("author", "team", "client", "action", "object_id")),
            str(entry.status or "-"),
        ]
        for entry in entries
    ]
    names = ("time", "author", "team", "source", "action")
    write_report(table_text([*(command_text(language(lang), name) for name in names), "ID", "HTTP"], rows), None)


@app.command(epilog="Example: autodeploy audit prune --older-than 52w")
def prune(
    older_than: Annotated[str, typer.Option(help="minimum age: hours (12h), days (90d) or weeks (52w)")],
    lang: Lang = LanguageOption.EN,
) -> None:
    """Delete entries older than the given age."""
    from autodeploy.cli.database import current_database
    from autodeploy.cli.output import notify
    from autodeploy.service.callers.audit import AuditLog

    age = read_age(older_than)
    with current_database() as database:
        pruned = AuditLog(database).prune(before=database.now() - age)
        note_here(database, "audit.prune", older_than, entries=pruned)
    notify("deleted", what=pruned)
