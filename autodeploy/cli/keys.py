"""`autodeploy keys`: who may use the server."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from autodeploy.cli.options import Lang, LanguageOption, ListFormat, SimpleFormat, language

if TYPE_CHECKING:
    from datetime import datetime

app = typer.Typer(no_args_is_help=True)


class KeyScope(StrEnum):
    """What a key allows."""

    READ = "read"
    WRITE = "write"
    CALIBRATE = "calibrate"
    ADMIN = "admin"


@app.command(epilog="Example: autodeploy keys create ci --team vision --scope write --max-searches 4")
def create(
    name: Annotated[str, typer.Argument(metavar="NAME", help="name of the key's owner")],
    scope: Annotated[
        KeyScope,
        typer.Option(
            help="read: read its team's searches and runs; write: also submit, annotate, cancel, store runs; "
            "calibrate: its runs also recalibrate predictions; admin: everything, for all teams"
        ),
    ] = KeyScope.READ,
    team: Annotated[str, typer.Option(metavar="TEAM", help="team whose searches and runs it can access")] = "default",
    max_searches: Annotated[
        int | None, typer.Option(min=1, help="most searches queued or running; default: AUTODEPLOY_KEY_SEARCHES")
    ] = None,
    max_spec_bytes: Annotated[
        int | None, typer.Option(min=1024, help="largest request body; default: AUTODEPLOY_BODY_LIMIT_BYTES")
    ] = None,
    max_running: Annotated[int | None, typer.Option(min=1, help="most searches running; default: no limit")] = None,
    max_time_limit_s: Annotated[
        float | None, typer.Option(min=1, help="longest time limit of a search, in seconds; default: the server's")
    ] = None,
    expires: Annotated[
        str | None, typer.Option(help="how long it is valid: hours (12h), days (90d) or weeks (8w); default: for ever")
    ] = None,
    lang: Lang = LanguageOption.EN,
) -> None:
    """Create an API key and print it once; only its hash is stored."""
    from autodeploy.cli.audit import note_here
    from autodeploy.cli.database import current_database, read_age
    from autodeploy.cli.output import notify, write_report
    from autodeploy.service.callers.access import AccessService

    expires_in = None if expires is None else read_age(expires, "--expires")
    with current_database() as database:
        key, view = AccessService(database).create(
            name,
            scope.value,
            team=team,
            max_searches=max_searches,
            max_spec_bytes=max_spec_bytes,
            max_running=max_running,
            max_time_limit_s=max_time_limit_s,
            expires_in=expires_in,
        )
        note_here(database, "key.create", view.id, key=name, of_team=team, scope=scope.value)
    write_report(key, None)
    notify("keep_key", key_id=view.id)


@app.command(epilog="Example: autodeploy keys logout key_01m3xk7pq2w9a4fh")
def logout(
    key_id: Annotated[str, typer.Argument(metavar="KEY_ID", help="id of the key")], lang: Lang = LanguageOption.EN
) -> None:
    """Log out every browser that logged in with a key; the key itself stays valid."""
    from autodeploy.cli.audit import note_here
    from autodeploy.cli.database import current_database
    from autodeploy.cli.output import notify
    from autodeploy.service.callers.access import AccessService

    with current_database() as database:
        ended = AccessService(database).end_sessions(key_id)
        note_here(database, "key.logout", key_id, sessions=ended)
    notify("deleted", what=ended)


@app.command("ls")
def list_all(output_format: SimpleFormat = ListFormat.TABLE, lang: Lang = LanguageOption.EN) -> None:
    """List the keys: team, scope, last use, when they expire, whether they are revoked."""
    from dataclasses import asdict

    from autodeploy.cli.database import current_database
    from autodeploy.cli.output import json_text, table_text, write_report
    from autodeploy.reports.wording import command_text
    from autodeploy.service.callers.access import AccessService
    from autodeploy.service.store.base import iso

    with current_database() as database:
        keys = AccessService(database).list()
    moments = ("created_at", "last_used_at", "expires_at", "revoked_at")
    if output_format is ListFormat.JSON:
        documents = [asdict(k) | {m: iso(t) if (t := getattr(k, m)) else None for m in moments} for k in keys]
        write_report(json_text(documents), None)
        return
    days = {"created_at", "expires_at"}  # without the hour, for the width of a terminal
    rows = [
        [k.id, k.name, k.team, k.scope, *(_moment(getattr(k, m), hour=m not in days) for m in moments)] for k in keys
    ]
    names = ("key", "name", "team", "scope", "created", "last_used", "expires", "revoked")
    columns = [command_text(language(lang), n) for n in names]
    write_report(table_text(columns, rows), None)


def _moment(moment: datetime | None, *, hour: bool) -> str:
    return "-" if moment is None else f"{moment:%Y-%m-%d %H:%M}" if hour else f"{moment:%Y-%m-%d}"


@app.command(epilog="Example: autodeploy keys revoke key_01m3xk7pq2w9a4fh")
def revoke(
    key_id: Annotated[str, typer.Argument(metavar="KEY_ID", help="key id from `keys ls`, key_...")],
    lang: Lang = LanguageOption.EN,
) -> None:
    """Revoke a key immediately and permanently; its searches are kept."""
    from autodeploy.cli.audit import note_here
    from autodeploy.cli.database import current_database
    from autodeploy.cli.output import talk
    from autodeploy.reports.wording import command_text, titled
    from autodeploy.service.callers.access import AccessService

    with current_database() as database:
        AccessService(database).revoke(key_id)
        note_here(database, "key.revoke", key_id)
    talk(titled(language(lang), command_text(language(lang), "revoked"), key_id))
