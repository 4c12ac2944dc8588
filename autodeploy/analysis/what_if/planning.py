"""Interface of these questions to the planner."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from autodeploy.search.planner import LaunchRules
    from autodeploy.specs.planset import Plan, PlanSet
    from autodeploy.specs.spec import Spec


class WhatIfPlanner(Protocol):
    """The functions of `autodeploy.search.planner` that are called here."""

    def plan(self, spec: Spec, *, alone: bool = False) -> PlanSet: ...

    def estimate(self, spec: Spec, *, features: frozenset[str] | None = None) -> Plan: ...

    def launch_rules(self, spec: Spec, *, features: frozenset[str] | None = None) -> LaunchRules: ...

    def place(self, spec: Spec, *, features: frozenset[str] | None = None) -> Plan | None: ...

    def fastest_s(self, spec: Spec) -> float | None: ...
