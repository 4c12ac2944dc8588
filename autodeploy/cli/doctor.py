"""`autodeploy doctor`: is everything here that a search needs?"""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from autodeploy.cli.exits import SERVICE_ERROR

if TYPE_CHECKING:
    from collections.abc import Callable

app = typer.Typer()


@app.command()
def doctor() -> None:
    """Check versions, solver, hardware profiles, presets and database. Exit code 4: something is wrong."""
    from autodeploy.cli.output import write_report

    checks: list[tuple[str, Callable[[], str]]] = [
        ("python", _python),
        ("packages", _packages),
        ("profiles", _profiles),
        ("models", _models),
        ("database", _database),
    ]
    lines, healthy = [], True
    for name, check in checks:
        try:
            lines.append(f"ok    {name}: {check()}")
        except Exception as error:
            healthy = False
            lines.append(f"wrong {name}: {error}")
    write_report("\n".join(lines), None)
    if not healthy:
        raise typer.Exit(SERVICE_ERROR)


def _python() -> str:
    import platform

    return f"{platform.python_version()} on {platform.machine()}"


def _packages() -> str:
    from importlib.metadata import version

    return ", ".join(f"{name} {version(name)}" for name in ("autodeploy", "numpy", "ortools", "pydantic", "sqlalchemy"))


def _profiles() -> str:
    from hardware_profiles import list_profiles, load_profile

    return ", ".join(f"{name} {load_profile(name).content_hash[:8]}" for name in list_profiles())


def _models() -> str:
    from autodeploy.specs.presets import list_presets

    return f"{len(list_presets())} presets"


def _database() -> str:
    """The address is left out: it may hold a password."""
    from autodeploy.settings import load_settings
    from autodeploy.store.database import Database
    from autodeploy.store.migrate import is_current

    settings = load_settings()
    if not settings.has_database():
        return "SQLite, not there yet: its first use makes it"
    database = Database(settings.database_url)
    try:
        if not database.ping():
            raise RuntimeError("can't be reached")
        state = "up to date" if is_current(database) else "behind: run `autodeploy db upgrade`"
    finally:
        database.close()
    return f"{'SQLite' if settings.is_sqlite else 'PostgreSQL'}, {state}"
