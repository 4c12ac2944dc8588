"""`autodeploy doctor`: is everything here that a search needs?"""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from autodeploy.cli.exits import SERVICE_ERROR
from autodeploy.cli.options import Lang, LanguageOption, language

if TYPE_CHECKING:
    from collections.abc import Callable

    from autodeploy.messages import Language

app = typer.Typer()


@app.command()
def doctor(lang: Lang = LanguageOption.EN) -> None:
    """Check versions, solver, hardware profiles, presets and database. Exit code 4: something is wrong."""
    from autodeploy.cli.output import write_report
    from autodeploy.messages import in_language
    from autodeploy.reports.wording import check_text, command_text, titled

    spoken = language(lang)
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
    database = Database(settings.database_url)
    try:
        if not database.ping():
            raise RuntimeError(text_of(lang, "problem.unavailable"))
        current = is_current(database)
    finally:
        database.close()
    kind = "SQLite" if settings.is_sqlite else "PostgreSQL"
    return kind if current else command_text(lang, "database_behind", kind=kind)
