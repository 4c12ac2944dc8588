"""`autodeploy db`: the database that keeps searches and plans."""

from __future__ import annotations

import typer

app = typer.Typer(no_args_is_help=True)


@app.command()
def upgrade() -> None:
    """Bring the database to this version's tables; nothing happens when it is there already."""
    from autodeploy.cli.output import talk
    from autodeploy.settings import load_settings
    from autodeploy.store.database import Database
    from autodeploy.store.migrate import upgrade as migrate

    database = Database(load_settings().database_url)
    try:
        migrate(database)
    finally:
        database.close()
    talk("the database is up to date")


@app.callback()
def group() -> None:
    """The database."""
