"""Holds searches to the strategies of measured runs with experts: a search of the same job is to find a plan that is no
slower, by the same prices. A JSON line a job, at last their counts.

`python -m tests.soak.measured_strategies [RECORD ...]`; without ids every shipped run that a spec can say. A job is a
model, cluster, batch and software; its measured strategies are priced and the fastest of them that fits is compared
with the fastest plan found. Exit code 1 where one is beaten by more than MOST, unless it uses what the certificate
says it does not search.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from typing import TYPE_CHECKING, Final

from autodeploy.calibration.record_prediction import predict_record
from autodeploy.calibration.shipped.tables import shipped_records
from autodeploy.kit.errors import SpecError
from autodeploy.search import planner
from tests.support.record_specs import spec_of_record

if TYPE_CHECKING:
    from collections.abc import Iterable

    from autodeploy.specs.planset import Plan
    from autodeploy.specs.record import Record
    from autodeploy.specs.spec import Spec

MOST: Final = 0.03
"""By how much a measured strategy may be faster than the plan found, relative."""


def tell(line: dict[str, object]) -> None:
    """Prints a JSON line."""
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


def jobs(records: Iterable[Record]) -> dict[str, dict[str, Spec]]:
    """Specs of measured strategies by id of their run, together where everything but the strategy is the same."""
    found: dict[str, dict[str, Spec]] = {}
    for record in records:
        if not record.model.is_moe or record.measured.step_time_s is record.measured.tokens_per_s_per_npu is None:
            continue
        try:
            spec = spec_of_record(predict_record(record).record)
        except SpecError as error:
            tell({"run": record.id, "not_a_spec": error.errors[0].path})
            continue
        found.setdefault(json.dumps(searched(spec).model_dump(mode="json"), sort_keys=True), {})[record.id] = spec
    return found


def searched(spec: Spec) -> Spec:
    """The job of a measured strategy with all of it open; the same cards and batch, by predicted times alone."""
    search = spec.search.model_copy(update={"risk": "neutral", "top_k": 1})
    return spec.model_copy(update={"strategy": None, "search": search})


def judge(measured: dict[str, Spec]) -> str:
    """The verdict on a job: none of it fits, found, beaten, or nothing found."""
    priced: dict[str, Plan] = {name: planner.estimate(spec) for name, spec in measured.items()}
    fitting = {name: plan for name, plan in priced.items() if plan.fits}
    result = planner.plan(searched(next(iter(measured.values()))))
    name, best = min((fitting or priced).items(), key=lambda item: item[1].step_time_s)
    line = {"run": name, "of": len(priced), "fits": bool(fitting), "priced_s": best.step_time_s}
    if not result.plans:
        verdict = "nothing found"
    else:
        found = result.plans[0]
        over = found.step_time_s / best.step_time_s - 1.0
        line |= {"found_s": found.step_time_s, "over": over, "status": result.status}
        verdict = "found" if over <= MOST else "beaten" if fitting else "none fits"
        if verdict == "beaten":
            line |= {"measured": best.strategy.model_dump(mode="json", exclude_defaults=True)}
            line |= {"plan": found.strategy.model_dump(mode="json", exclude_defaults=True)}
            line |= {"not_searched": result.optimality.not_searched}
    tell(line | {"verdict": verdict})
    return verdict


def main(only: Iterable[str]) -> int:
    """Every job, or those with one of these runs."""
    names = set(only)
    groups = [group for group in jobs(shipped_records()).values() if not names or names & group.keys()]
    verdicts = Counter(map(judge, groups))
    tell({"jobs": len(groups), **verdicts})
    return 1 if not groups or verdicts["beaten"] or verdicts["nothing found"] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
