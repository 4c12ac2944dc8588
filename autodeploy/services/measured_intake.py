"""A measurement is checked against the plan it is said to be of."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field, ValidationError

from autodeploy.errors import FieldError, SpecError
from autodeploy.evaluation.inputs.build_context import profile_of
from autodeploy.importers.measured_file import read_measured_text
from autodeploy.messages import Message
from autodeploy.messages.field_faults import quoted
from autodeploy.services.run_evidence import problem_of
from autodeploy.specs.base import Document
from autodeploy.specs.measured_run import MeasuredRun
from autodeploy.specs.validation import field_errors

if TYPE_CHECKING:
    from autodeploy.specs.planset import Plan
    from autodeploy.specs.spec import Spec

# Beyond this factor between measured and predicted step a unit was mistaken, or it is another plan's run.
MAX_TIME_RATIO = 20.0


class MeasuredFile(Document):
    """The text of a file of measurements; operation and ranks of a collective benchmark that does not say them."""

    file: Annotated[str, Field(min_length=1, description="the text of a file of measurements")]
    op: Annotated[str | None, Field(max_length=200)] = None
    ranks: Annotated[int | None, Field(ge=2, le=200_000)] = None
    note: Annotated[str, Field(max_length=4000)] = ""


def measured_of_document(document: Any) -> MeasuredRun:
    """The measurement in a JSON body: its fields, or `{file: text}` with `op` and `ranks` where the text lacks them.

    Raises
    ------
    SpecError
        with every bad field, or the line of the text.
    """
    if not isinstance(document, Mapping):
        raise SpecError(
            Message("field_fault.is_no_mapping", value=quoted(document)),
            hint="step_time_s: 12.3, or file: the text of a log",
        )
    if "file" not in document:
        try:
            run = MeasuredRun.model_validate(document)
        except ValidationError as error:
            raise SpecError(errors=field_errors(error, model=MeasuredRun)) from error
        return run if run.original else run.model_copy(update={"original": dict(document)})
    try:
        asked = MeasuredFile.model_validate(document)
    except ValidationError as error:
        raise SpecError(errors=field_errors(error, model=MeasuredFile)) from error
    run = only_run(read_measured_text(asked.file, op=asked.op, ranks=asked.ranks))
    return run.model_copy(update={"note": asked.note}) if asked.note else run


def only_run(runs: tuple[MeasuredRun, ...]) -> MeasuredRun:
    """The one run of a file.

    Raises
    ------
    SpecError
        when its rows name several strategies.
    """
    if len(runs) != 1:
        raise SpecError(
            Message("services.strategies_in_one_file", count=len(runs)),
            hint=Message("services.one_plan_has_one_autodeploy_calibrate_takes_all"),
        )
    return runs[0]


def batch_of(plan: Plan) -> int:
    """Sequences of a step of the plan."""
    return plan.micro_batches * plan.strategy.micro_batch_size * (plan.strategy.dp or 1)


def measured_step_s(run: MeasuredRun, spec: Spec, plan: Plan) -> float | None:
    """Seconds of a measured step; from throughput where no time was given."""
    if run.step_time_s is not None or run.tokens_per_s_per_npu is None:
        return run.step_time_s
    return batch_of(plan) * spec.training.sample_tokens / run.tokens_per_s_per_npu / plan.num_npus_used


def check_run(run: MeasuredRun, spec: Spec, plan: Plan) -> None:
    """Refuses a measurement that is not this plan's.

    Raises
    ------
    SpecError
        naming each field that contradicts the plan.
    """
    planned: dict[str, int | None] = {
        **{name: getattr(plan.strategy, name) for name in ("tp", "pp", "vpp", "dp", "cp", "ep", "etp")},
        "micro_batch_size": plan.strategy.micro_batch_size,
        "num_npus": plan.num_npus_used,
        "seq_length": spec.training.seq_length,
        "global_batch_size": batch_of(plan),
    }
    hint = Message("services.link_run_to_plan_that_ran")
    errors = [
        FieldError(f"/strategy/{name}", Message("services.run_says_plan", one=value, other=planned[name]), hint)
        for name, value in run.strategy.items()
        if planned.get(name) is not None and planned[name] != value
    ]
    errors += [
        FieldError(f"/strategy/{name}", Message("field_fault.is_invalid", value=repr(name)), ", ".join(planned))
        for name in run.strategy
        if name not in planned
    ]
    step_s = measured_step_s(run, spec, plan)
    if step_s is not None and not 1.0 / MAX_TIME_RATIO < step_s / plan.step_time_s < MAX_TIME_RATIO:
        # A throughput of next to nothing makes a step of more seconds than a float can say.
        message = Message(
            "services.s_measured_s_predicted", measured=min(step_s, sys.float_info.max), predicted=plan.step_time_s
        )
        errors.append(FieldError("/step_time_s", message, Message("services.check_unit_and_whose_run_it_is")))
    if run.out_of_memory is not None:
        ranks = plan.num_npus_used * profile_of(spec.cluster).devices_per_npu
        if (problem := problem_of(run.out_of_memory, plan, ranks)) is not None:
            errors.append(problem)
    if errors:
        raise SpecError(errors=tuple(errors))
