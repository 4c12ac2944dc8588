"""`autodeploy serve`: the API and the pages."""

from __future__ import annotations

from typing import Annotated

import typer

from autodeploy.cli.options import Lang, LanguageOption, current_language
from autodeploy.cli.output import log_changes, loudness

app = typer.Typer()


@app.command(epilog="Example: autodeploy serve --port 8080")
def serve(
    host: Annotated[
        str | None, typer.Option(help="address to listen on; default: AUTODEPLOY_HOST or 127.0.0.1")
    ] = None,
    port: Annotated[int | None, typer.Option(min=0, max=65_535, help="port; default: AUTODEPLOY_PORT or 8000")] = None,
    lang: Lang = LanguageOption.EN,
) -> None:
    """Serve the API and the pages until Ctrl-C. The log goes to stderr; stdout says where to open the pages."""
    from importlib.metadata import version

    _say("serve_starts", version=version("autodeploy"))
    from api.server import serve as run
    from autodeploy.kit.settings import load_settings

    changes = {key: value for key, value in (("host", host), ("port", port)) if value is not None}
    run(load_settings(**changes, **log_changes()), when_ready=lambda address: _say("serve_ready", address=address))


def _say(key: str, **values: object) -> None:
    """A line to the person who started the server; the log is for those who keep it running."""
    from autodeploy.reports.wording import command_text

    if loudness() == "quiet":
        return
    typer.echo(command_text(current_language(), key, **values))
