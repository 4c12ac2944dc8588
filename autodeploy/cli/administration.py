"""`autodeploy db`, `keys`, `audit`, `doctor`: the database, its keys and its log, the state of an installation."""

from __future__ import annotations

import getpass
import json
import re
from contextlib import closing, contextmanager
from datetime import timedelta
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from autodeploy.cli.exits import SERVICE_ERROR
from autodeploy.cli.options import Lang, LanguageOption, ListFormat, SimpleFormat, language
from autodeploy.kit.errors import SpecError
from autodeploy.messages import Message
from autodeploy.messages.field_faults import os_fault

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from autodeploy.kit.settings import Settings
    from autodeploy.messages import Language
    from autodeploy.service.store.database import Database


database_app = typer.Typer(no_args_is_help=True)

_HOURS = {"h": 1, "d": 24, "w": 24 * 7}
LARGEST_LINE = 64 * 2**20


@database_app.command()
def upgrade(
    no_copy: Annotated[bool, typer.Option("--no-copy", help="do not copy an SQLite file before migrating it")] = False,
    lang: Lang = LanguageOption.EN,
) -> None:
    """Migrate the database to this version; does nothing if it is up to date."""
    from autodeploy.cli.output import notify
    from autodeploy.service.store.migration import current_revision
    from autodeploy.service.store.migration import upgrade as migrate

    with any_database() as (database, _):
        copy = migrate(database, copy=not no_copy)
        revision = current_revision(database)
    if copy is not None:
        notify("database_copied", file=copy)
    notify("database_at", revision=revision)


@database_app.command()
def status(lang: Lang = LanguageOption.EN) -> None:
    """Print as JSON what the database holds and whether its revision is that of this version; exit code 4 if not."""
    from autodeploy.cli.output import json_text, write_report
    from autodeploy.service.store.migration import HEAD_REVISION, current_revision

    with any_database() as (database, settings):
        revision = current_revision(database)
        document = {"database": "sqlite" if database.is_sqlite else "postgresql", "revision": revision}
        document |= {"needed_revision": HEAD_REVISION}
        is_current = revision == HEAD_REVISION
        if is_current:
            document |= _contents(database, settings.worker_alive_s)
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


@database_app.command(epilog="Example: autodeploy db downgrade 0005")
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
    from autodeploy.service.store.dump import downgrade as go_back
    from autodeploy.service.store.dump import losses_of_downgrade

    with any_database() as (database, _):
        if not yes and (losses := losses_of_downgrade(database, revision)):
            raise ConflictError(
                Message("cli.downgrade_loses", revision=revision, losses=", ".join(map(str, losses))),
                hint=Message("cli.export_before_downgrade"),
            )
        copy = go_back(database, revision)
    if copy is not None:
        notify("database_copied", file=copy)
    notify("database_at", revision=revision)


@database_app.command(epilog="Example: autodeploy db prune --older-than 90d --keep-tagged")
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


@database_app.command("export", epilog="Example: autodeploy db export backup.jsonl")
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


@database_app.command("import", epilog="Example: autodeploy db import backup.jsonl")
def import_file(
    file: Annotated[Path, typer.Argument(help="file written by `autodeploy db export`")], lang: Lang = LanguageOption.EN
) -> None:
    """Import what an exported file has and this database lacks; importing twice has no effect."""
    from autodeploy.cli.output import notify
    from autodeploy.service.store.dump import import_lines

    with current_database() as database:
        inserted = import_lines(database, _lines(file))
    notify("rows_added", rows=", ".join(f"{count} {table}" for table, count in inserted.items()) or 0)


@database_app.callback()
def group() -> None:
    """The database."""


def read_age(text: str, option: str = "--older-than") -> timedelta:
    """90d -> 90 days.

    Raises SpecError when it is no age.
    """
    match = re.fullmatch(r"(\d{1,6})([hdw])", text.strip())
    if match is None:
        message = Message("common.is_not_of_form", value=repr(text), form="NUMBER{h|d|w}")
        raise SpecError(message, path=option, hint=Message("common.such_as", example="90d"))
    return timedelta(hours=int(match[1]) * _HOURS[match[2]])


@contextmanager
def any_database() -> Iterator[tuple[Database, Settings]]:
    """The database of the settings at any revision; read as if without workers: nobody runs searches here."""
    from autodeploy.kit.settings import load_settings
    from autodeploy.service.store.database import Database

    settings = load_settings(jobs="embedded")
    with closing(Database(settings.database_url)) as database:
        yield database, settings


@contextmanager
def current_database() -> Iterator[Database]:
    """The database at this version's revision; an SQLite file is brought there."""
    from autodeploy.kit.settings import load_settings
    from autodeploy.service.store.migration import ready_database

    with closing(ready_database(load_settings(jobs="embedded").database_url)) as database:
        yield database


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


keys_app = typer.Typer(no_args_is_help=True)


class KeyScope(StrEnum):
    """Rights of a key."""

    READ = "read"
    WRITE = "write"
    CALIBRATE = "calibrate"
    ADMIN = "admin"


@keys_app.command(epilog="Example: autodeploy keys create ci --team vision --scope write --max-searches 4")
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
    from autodeploy.cli.output import notify, write_report
    from autodeploy.service.requests.callers import AccessService

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


@keys_app.command(epilog="Example: autodeploy keys logout key_01m3xk7pq2w9a4fh")
def logout(
    key_id: Annotated[str, typer.Argument(metavar="KEY_ID", help="id of the key")], lang: Lang = LanguageOption.EN
) -> None:
    """Log out every browser that logged in with a key; the key itself stays valid."""
    from autodeploy.cli.output import notify
    from autodeploy.service.requests.callers import AccessService

    with current_database() as database:
        ended = AccessService(database).end_sessions(key_id)
        note_here(database, "key.logout", key_id, sessions=ended)
    notify("deleted", what=ended)


@keys_app.command("ls")
def list_keys(output_format: SimpleFormat = ListFormat.TABLE, lang: Lang = LanguageOption.EN) -> None:
    """List the keys: team, scope, last use, when they expire, whether they are revoked."""
    from autodeploy.cli.output import json_text, table_text, write_report
    from autodeploy.reports.wording import command_text
    from autodeploy.service.requests.callers import AccessService

    with current_database() as database:
        keys = AccessService(database).list()
    if output_format is ListFormat.JSON:
        write_report(json_text([{name: value for name, value in key if name != "own"} for key in keys]), None)
        return
    moments = ("created_at", "last_used_at", "expires_at", "revoked_at")
    days = {"created_at", "expires_at"}  # without the hour, for the width of a terminal
    rows = [
        [
            *(k.id, k.name, k.team, k.scope),
            *(_moment(getattr(k, m), hour=m not in days) for m in moments),
            str(k.max_searches or "-"),
        ]
        for k in keys
    ]
    names = ("key", "name", "team", "scope", "created", "last_used", "expires", "revoked", "most_searches")
    columns = command_text.each(language(lang), *names)
    write_report(table_text(columns, rows, spare=(4, 5, 8, 6, 2, 7)), None)


def _moment(moment: str | None, *, hour: bool) -> str:
    """Day of a moment as it is told, and perhaps hour and minute."""
    return "-" if moment is None else moment[: 16 if hour else 10].replace("T", " ")


@keys_app.command(epilog="Example: autodeploy keys revoke key_01m3xk7pq2w9a4fh")
def revoke(
    key_id: Annotated[str, typer.Argument(metavar="KEY_ID", help="key id from `keys ls`, key_...")],
    lang: Lang = LanguageOption.EN,
) -> None:
    """Revoke a key immediately and permanently; its searches are kept."""
    from autodeploy.cli.output import talk
    from autodeploy.reports.wording import command_text, titled
    from autodeploy.service.requests.callers import AccessService

    with current_database() as database:
        AccessService(database).revoke(key_id)
        note_here(database, "key.revoke", key_id)
    talk(titled(language(lang), command_text(language(lang), "revoked"), key_id))


audit_app = typer.Typer(no_args_is_help=True)


def note_here(database: Database, action: str, object_id: str, **detail: Any) -> None:
    """Notes a change that the command line makes in the database itself, with the account that makes it."""
    from autodeploy.kit.logs import log_warnings
    from autodeploy.service.requests.callers import ANYONE, COMMAND_LINE, AuditLog

    log_warnings()
    try:
        account = getpass.getuser()
    except (OSError, KeyError):  # an account without a name, as in containers
        account = ""
    AuditLog(database).note(
        ANYONE, client=COMMAND_LINE, action=action, object_id=object_id, author=account, detail=detail or None
    )


@audit_app.command("ls", epilog="Example: autodeploy audit ls --object srch_01m3xk7pq2w9a4fh")
def list_changes(
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
    from autodeploy.cli.output import json_text, table_text, write_report
    from autodeploy.reports.wording import command_text
    from autodeploy.service.requests.callers import AuditFilter, AuditLog

    with current_database() as database:
        entries = AuditLog(database).list(AuditFilter(key_id, author, team, action, object_id), limit=limit).items
    if output_format is ListFormat.JSON:
        write_report(json_text([entry.model_dump() for entry in entries]), None)
        return
    rows = [
        [
            entry.created_at[:19].replace("T", " "),
            *(getattr(entry, name) or "-" for name in ("author", "team", "client", "action", "object_id")),
            str(entry.status or "-"),
        ]
        for entry in entries
    ]
    titles = [*command_text.each(language(lang), "time", "author", "team", "source", "action"), "ID", "HTTP"]
    write_report(table_text(titles, rows, spare=(3, 2, 6)), None)


@audit_app.command("prune", epilog="Example: autodeploy audit prune --older-than 52w")
def prune_audit(
    older_than: Annotated[str, typer.Option(help="minimum age: hours (12h), days (90d) or weeks (52w)")],
    lang: Lang = LanguageOption.EN,
) -> None:
    """Delete entries older than the given age."""
    from autodeploy.cli.output import notify
    from autodeploy.service.requests.callers import AuditLog

    age = read_age(older_than)
    with current_database() as database:
        pruned = AuditLog(database).prune(before=database.now() - age)
        note_here(database, "audit.prune", older_than, entries=pruned)
    notify("deleted", what=pruned)


doctor_app = typer.Typer()


@doctor_app.command()
def doctor(
    cluster: Annotated[
        str | None,
        typer.Option("--cluster", metavar="PROFILE", help="instead: the environment of this node for launches"),
    ] = None,
    lang: Lang = LanguageOption.EN,
) -> None:
    """Check versions, solver, hardware profiles, presets and database. Exit code 4: something is wrong."""
    from autodeploy.cli.output import write_report
    from autodeploy.messages import in_language
    from autodeploy.reports.wording import check_text, command_text, titled

    spoken = language(lang)
    if cluster is not None:
        write_report(environment_advice(cluster, spoken), None)
        return
    checks: list[tuple[str, Callable[[Language], str]]] = [
        ("python", _python),
        ("packages", _packages),
        ("profile", _profiles),
        ("model", _models),
        ("database", _database),
    ]
    lines, healthy = [], True
    for name, check in checks:
        try:
            verdict, detail = "passed", check(spoken)
        except Exception as error:
            healthy = False
            verdict, detail = "failed", in_language(str(error), spoken)
        title = command_text(spoken, name) if name in command_text else name
        lines.append(f"{check_text(spoken, verdict)}  {titled(spoken, title, detail)}")
    write_report("\n".join(lines), None)
    if not healthy:
        raise typer.Exit(SERVICE_ERROR)


def environment_advice(profile: str, lang: Language) -> str:
    """The variables that launches on a profile's chips set, beside this node's own, with what each is worth."""
    from autodeploy.messages import Message, in_language
    from autodeploy.reports.wording import check_text, command_text, titled
    from hardware_profiles import load_profile

    lines, own = [], _given_environment()
    for variable in load_profile(profile).document.environment:
        here = own.get(variable.name)
        verdict = "passed" if here == variable.value else "failed"
        words = {"name": variable.name, "value": variable.value, "here": here or command_text(lang, "not_set")}
        said = command_text(lang, "environment_here", **words)
        if variable.worth:
            worth = Message.of_record(f"worth.{variable.name}", variable.worth)
            said = titled(lang, said, in_language(worth, lang))
        lines.append(f"{check_text(lang, verdict)}  {said}")
    return "\n".join(lines)


def _given_environment() -> dict[str, str]:
    """The environment that this process was started with: it has changed its own threads since."""
    import os

    try:
        text = Path("/proc/self/environ").read_text(encoding="utf-8", errors="replace")
    except OSError:  # no Linux
        return dict(os.environ)
    return {name: value for name, equals, value in (line.partition("=") for line in text.split("\0")) if equals}


def _python(_: Language) -> str:
    import platform

    return f"{platform.python_version()}, {platform.machine()}"


def _packages(_: Language) -> str:
    from importlib.metadata import version

    return ", ".join(f"{name} {version(name)}" for name in ("autodeploy", "numpy", "ortools", "pydantic", "sqlalchemy"))


def _profiles(_: Language) -> str:
    from hardware_profiles import list_profiles, load_profile

    return ", ".join(f"{name} {load_profile(name).content_hash[:8]}" for name in list_profiles())


def _models(_: Language) -> str:
    from autodeploy.specs.presets import list_presets

    return str(len(list_presets()))


def _database(lang: Language) -> str:
    """The address is left out: it may hold a password."""
    from autodeploy.kit.settings import load_settings
    from autodeploy.messages import text_of
    from autodeploy.reports.wording import command_text
    from autodeploy.service.store.database import Database
    from autodeploy.service.store.migration import is_current

    settings = load_settings()
    if not settings.has_database():
        return command_text(lang, "no_database_yet")
    with closing(Database(settings.database_url)) as database:
        if not database.ping():
            raise RuntimeError(text_of(lang, "problem.unavailable"))
        current = is_current(database)
    kind = "SQLite" if settings.is_sqlite else "PostgreSQL"
    return kind if current else command_text(lang, "database_behind", kind=kind)
