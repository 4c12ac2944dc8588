"""`autodeploy worker`: runs searches that servers send."""

from __future__ import annotations

from typing import Annotated

import typer

from autodeploy.cli.output import log_changes
from autodeploy.messages import Message

app = typer.Typer()

LOOK_S = 1.0


@app.command(epilog="Example: autodeploy worker --workers 2")
def worker(
    workers: Annotated[
        int | None, typer.Option(min=1, max=256, help="concurrent searches; default: AUTODEPLOY_WORKERS or 1")
    ] = None,
) -> None:
    """Run searches that servers send, until Ctrl-C; for AUTODEPLOY_JOBS=procrastinate on PostgreSQL."""
    import signal
    import threading

    from api.worker_health import serving_health
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
                raise AutoDeployError(Message("cli.processes_for_searches_do_not_start"), hint="autodeploy doctor")
