"""The probe as one file: the template with a spec's measurements in it."""

from __future__ import annotations

import json
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from autodeploy.errors import SpecError
from autodeploy.evaluation.inputs.build_context import profile_of
from autodeploy.messages import Message
from autodeploy.planner import lowered
from autodeploy.probe.shapes import DTYPES, Wanted, measurements_of, of_every_machine
from autodeploy.specs.spec import spec_hash

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autodeploy.specs.planset import Plan
    from autodeploy.specs.spec import Spec

TEMPLATE = "script_template.py"
_MARK = 'REQUEST_JSON = r"""'
MOST_PLANS = 3


def request_of(spec: Spec, plans: Sequence[Plan], *, nodes: int = 1, ranks: int | None = None) -> dict[str, Any]:
    """What to measure for the best of a spec's plans.

    Parameters
    ----------
    plans : best first; the first three count. nodes, ranks : of the launch that will measure; without `ranks`, all of
        the nodes'.

    Raises
    ------
    SpecError
        where there is no plan to take shapes from.
    """
    if not plans:
        raise SpecError(Message("common.no_plan_fits"))
    profile = profile_of(spec.cluster)
    wanted = Wanted(ranks or nodes * profile.ranks_per_node)
    for plan in plans[:MOST_PLANS]:
        measurements_of(*lowered(spec, plan), wanted)
    of_every_machine(wanted)
    return {
        "spec_hash": spec_hash(spec),
        "model": spec.model.name,
        "profile": profile.name,
        "device": profile.device(spec.cluster.device).name,
        "precision": spec.training.precision,
        "dtype": DTYPES[spec.training.precision],
        "plans": [plan.plan_id for plan in plans[:MOST_PLANS]],
        "cut_groups": wanted.cut,
        "measurements": _in_turns(list(wanted.found.values())),
    }


def _in_turns(measurements: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What counts most of each kind first, kinds in turns: where time runs out every kind has been measured."""
    kinds: dict[str, list[dict[str, Any]]] = {}
    for each in measurements:
        kinds.setdefault(each["kind"], []).append(each)
    rows = [sorted(members, key=lambda one: -one["count"]) for members in kinds.values()]
    longest = max(map(len, rows), default=0)
    ordered = [
        row[place * len(row) // longest]
        for place in range(longest)
        for row in rows
        if place == 0 or place * len(row) // longest != (place - 1) * len(row) // longest
    ]
    assert len(ordered) == len(measurements)
    return ordered


def script_of(request: dict[str, Any]) -> str:
    """The script that measures a request, as text."""
    template = (files("autodeploy.probe") / TEMPLATE).read_text(encoding="utf-8")
    start = template.index(_MARK) + len(_MARK)
    end = template.index('"""', start)
    return template[:start] + "\n" + json.dumps(request, indent=1, ensure_ascii=True) + "\n" + template[end:]
