"""`autodeploy serve` and `worker`."""

from __future__ import annotations

from typing import Annotated

import typer

from autodeploy.cli.options import Lang, LanguageOption, current_language
from autodeploy.cli.output import log_changes, verbosity
from autodeploy.messages import Message

serve_app = typer.Typer()


@serve_app.command(epilog="Example: autodeploy serve --port 8080")
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

    if verbosity() == "quiet":
        return
    typer.echo(command_text(current_language(), key, **values))


worker_app = typer.Typer()

LOOK_S = 1.0


@worker_app.command(epilog="Example: autodeploy worker --workers 2")
def worker(
    workers: Annotated[
        int | None, typer.Option(min=1, max=256, help="concurrent searches; default: AUTODEPLOY_WORKERS or 1")
    ] = None,
) -> None:
    """Run searches that servers send, until Ctrl-C; for AUTODEPLOY_JOBS=procrastinate on PostgreSQL."""
    import signal
    import threading

    from api.http.metrics import serving_health
    from autodeploy.kit.errors import AutoDeployError
    from autodeploy.kit.logs import configure_logging
    from autodeploy.kit.settings import load_settings
    from autodeploy.service.session import open_services

    settings = load_settings(**({} if workers is None else {"workers": workers}), **log_changes())
    configure_logging(settings)
    stopped = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopped.set())
    with open_services(settings, as_worker=True) as services, serving_health(services):
        while not stopped.wait(LOOK_S):
            if services.runner is None or not services.runner.is_alive():
                raise AutoDeployError(Message("cli.no_search_processes"), hint="autodeploy doctor")
