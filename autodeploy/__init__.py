"""AutoDeploy: the best parallel strategy for training a model on a cluster, with trusted time and memory.

import autodeploy

answer = autodeploy.plan("spec.yaml")
print(answer.plans[0].strategy, answer.plans[0].step_time_s)
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from autodeploy.client import AsyncClient, Client
    from autodeploy.kit.errors import SpecError
    from autodeploy.kit.version import ENGINE_VERSION as __version__
    from autodeploy.library import (
        ablate,
        check,
        compare,
        estimate,
        export,
        improve,
        picture,
        plan,
        recommend,
        validate,
        why_not,
    )
    from autodeploy.specs.answers import CheckLimits, CheckReport
    from autodeploy.specs.planset import Plan, PlanSet
    from autodeploy.specs.spec import Spec

__all__ = [
    "AsyncClient",
    "CheckLimits",
    "CheckReport",
    "Client",
    "Plan",
    "PlanSet",
    "Spec",
    "SpecError",
    "__version__",
    "ablate",
    "check",
    "compare",
    "estimate",
    "export",
    "improve",
    "picture",
    "plan",
    "recommend",
    "validate",
    "why_not",
]

# Loaded when they are asked for: `import autodeploy` takes milliseconds, and the client needs no solver.
# Where a name is: questions are in the library.
_LIVES_IN = {
    **dict.fromkeys(("Client", "AsyncClient"), "autodeploy.client"),
    **dict.fromkeys(("Plan", "PlanSet"), "autodeploy.specs.planset"),
    **dict.fromkeys(("CheckLimits", "CheckReport"), "autodeploy.specs.answers"),
    "Spec": "autodeploy.specs.spec",
    "SpecError": "autodeploy.kit.errors",
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return import_module("autodeploy.kit.version").ENGINE_VERSION
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_LIVES_IN.get(name, "autodeploy.library")), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
