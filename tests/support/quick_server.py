"""A server with the quick planner, as a program; its settings come from its environment."""

from __future__ import annotations

from api.server import serve
from autodeploy.kit.settings import Settings

QUICK = "tests.quick_planner"


def run() -> None:
    """Serves until it is told to stop."""
    serve(Settings(), planner=QUICK)


if __name__ == "__main__":
    run()
