"""Imported once by the process from which tests fork: what programs and processes of searches import and make ready."""

from __future__ import annotations

import autodeploy.cli.main
import autodeploy.jobs.pool_process
import autodeploy.planner
import tests.quick_planner  # noqa: F401
from api.ui.warm_up import warm_up
from autodeploy.services import calls
from autodeploy.specs.spec import parse_spec

warm_up()
calls.make_ready("autodeploy.planner")
autodeploy.planner.plan(parse_spec(calls.SMALL | {"search": {"effort": 0.02, "top_k": 1}}), alone=True)
