"""`autodeploy serve`: the API and the pages."""

from __future__ import annotations

from typing import Annotated

import typer

app = typer.Typer()


@app.command(epilog="Example: autodeploy serve --port 8080")
def serve(
    host: Annotated[
        str | None, typer.Option(help="address to listen on; default: AUTODEPLOY_HOST or 127.0.0.1")
    ] = None,
    port: Annotated[int | None, typer.Option(min=0, max=65_535, help="default: AUTODEPLOY_PORT or 8000")] = None,
) -> None:
    """Serve the API and the pages until Ctrl-C."""
    from api.server import serve as run
    from autodeploy.settings import load_settings

    changes = {key: value for key, value in (("host", host), ("port", port)) if value is not None}
    run(load_settings(**changes))
