"""What `check` and `improve` share: the launch in a file, read here or sent to a server."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

if TYPE_CHECKING:
    from collections.abc import Callable

    from autodeploy.checks import Launch
    from autodeploy.client import Client
    from autodeploy.services import Services

Report = TypeVar("Report")
LaunchFile = Annotated[
    Path, typer.Argument(metavar="FILE", help="spec with a strategy, launch script (.sh) or MindFormers YAML")
]


@dataclass(frozen=True, slots=True)
class LaunchOptions:
    """A file and what it does not say: variables as NAME=VALUE, and the cluster it is for."""

    file: Path
    settings: list[str] | None
    cluster: str | None
    device: str | None
    num_npus: int | None

    def read(self) -> Launch:
        """The launch in the file.

        Raises
        ------
        SpecError
            with line and column, or with every bad or missing field.
        """
        from autodeploy.checks import launch_of
        from autodeploy.cli.import_file import read_foreign

        return launch_of(read_foreign(self.file, self.settings), self.cluster, self.device, self.num_npus)

    def on_server(self, server: str, ask: Callable[[Client, dict[str, Any]], Report], **more: Any) -> Report:
        """What a server answers to the text of the file; `more` is the rest of the request."""
        from autodeploy.cli.import_file import variables_of
        from autodeploy.cli.remote import connect
        from autodeploy.importers.documents import read_text

        request = {
            "file": read_text(self.file),
            "filename": self.file.name,
            "variables": variables_of(self.settings),
            "cluster": self.cluster,
            "device": self.device,
            "num_npus": self.num_npus,
            **more,
        }
        with connect(server) as client:
            return ask(client, {name: value for name, value in request.items() if value is not None})


def with_database(launch: Launch, ask: Callable[[Services], Report], *, always: bool = False) -> Report | None:
    """The answer with the database open, where it has a say: in an overlay of the launch's cluster, or `always`.

    None where it has none, so that nothing that talks to a database is imported.
    """
    from autodeploy.settings import load_settings

    settings = load_settings()
    if not always and not (launch.spec.cluster.overlay == "auto" and settings.has_database()):
        return None
    from autodeploy.services.session import open_services

    with open_services(settings) as services:
        return ask(services)
