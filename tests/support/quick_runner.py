"""A runner of searches as a program of its own: its settings, as JSON, and its planner are its arguments."""

from __future__ import annotations

import sys
import threading

from autodeploy.kit.settings import Settings
from autodeploy.service.session import open_services


def run() -> None:
    """Runs searches until it is killed."""
    settings = Settings.model_validate_json(sys.argv[1])
    as_worker = settings.jobs == "procrastinate"
    with open_services(settings, with_runner=True, as_worker=as_worker, planner=sys.argv[2]):
        threading.Event().wait()


if __name__ == "__main__":
    run()
