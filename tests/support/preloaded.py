"""Imported once by the process from which tests fork: what programs and processes of searches import and make ready."""

from __future__ import annotations

import gc
import tempfile
from pathlib import Path

import psycopg  # noqa: F401
import pytest

import api.app
import api.server
import autodeploy.cli.main
import autodeploy.search.planner
import autodeploy.service.runner.distributed
import autodeploy.service.runner.processes
import tests.quick_planner
import tests.support.forked_processes
from api.ui.rendering import warm_up
from autodeploy.kit.settings import Settings
from autodeploy.service import calls
from autodeploy.service.session import open_services
from autodeploy.service.store.database import Database
from autodeploy.service.store.migration import upgrade
from autodeploy.specs.spec import parse_spec
from tests import factories
from tests.support import made_once
from tests.support.short_pauses import shorten

shorten()
for_good = pytest.MonkeyPatch()
made_once.compile_statements_once(for_good)
made_once.read_routes_once(for_good)
warm_up()
calls.make_ready("autodeploy.search.planner")
autodeploy.search.planner.plan(parse_spec(calls.SMALL_SPEC | {"search": {"effort": 0.02, "top_k": 1}}), alone=True)
with tempfile.TemporaryDirectory() as directory:
    settings = Settings(database_url=f"sqlite:///{Path(directory) / 'autodeploy.db'}")
    database = Database(settings.database_url, pool_size=1)
    upgrade(database)
    api.app.create_app(settings, database=database)
    database.close()
    with open_services(settings, planner=tests.quick_planner.__name__) as services:
        services.searches.plan_and_store(factories.spec())
# What is here stays: a pass of the collector in a forked process would copy all of it.
gc.collect()
gc.freeze()
