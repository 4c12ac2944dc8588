"""Software that runs a plan or ran a record: a stack's document, one of its releases, and what is otherwise."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BeforeValidator, Field

from autodeploy.kit.errors import FieldError, SpecError
from autodeploy.messages import Message
from autodeploy.specs.base import Document, omitted
from autodeploy.specs.field_errors import did_you_mean
from autodeploy.stack.features import FEATURES
from autodeploy.stack.gradient_sums import EXPERTS_FUSED, PLAIN_APART, WORDS, in_mindspeed
from autodeploy.stack.software import (
    KNOWN_VALUES,
    SECTIONS,
    Run,
    Software,
    Stack,
    default_stack,
    is_valid,
    opposites,
    resolved,
    shipped_stacks,
    stack_named,
    stack_of_document,
    stack_of_run,
)
from hardware_profiles.loader import load_profile

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from autodeploy.specs.measurements import RlRecord
    from autodeploy.specs.model import ModelSpec
    from autodeploy.specs.record import Record
    from autodeploy.specs.strategy import Strategy


def release_of(record: Record | RlRecord) -> Software:
    """The software of a record: the stack that it names, else that of its framework's and source's words, as of its
    date.
    """
    run = run_of(
        record.model, record.training.precision, record.strategy, frozenset(record.strategy.features), date=record.date
    )
    if record.software is not None:
        return software_for(record.software, record.software.document(), run)
    profile = load_profile(record.cluster.profile, calibrated=False)
    return software_for(
        None, stack_of_run(record.framework, record.source, profile.vendor, profile.generation, run), run
    )


def stack_of(record: Record) -> str:
    """The framework by which statistics group a record, whatever the spelling."""
    return release_of(record).stack.family


def in_graph_mode(record: Record) -> bool:
    """Whether the stack of a record compiles the step."""
    return "graph_mode" in release_of(record).settings


def features_of(record: Record) -> frozenset[str]:
    """Everything that was on in a record's run."""
    software, named = release_of(record), frozenset(record.strategy.features)
    on = (named - software.void) | software.features
    if software.settings.get("gradient_sums") == "mindspeed":
        on = on - {EXPERTS_FUSED} | in_mindspeed(
            "grouped_gemm" in named,
            plain_apart=PLAIN_APART in on,
            experts_fused=bool(named & {EXPERTS_FUSED, "fused_gradient_accumulation"}),
        )
    return on - opposites()


# Facts that runs may name beside the features: mechanisms that cost or save without a switch here.
RELEASE_FACTS = frozenset(
    {
        *("graph_mode", "fused_cross_entropy", "fused_rotary", "unfused_rotary", "dropout", "attention_dropout"),
        *("square_alibi", "casts_router", "padded_heads", "padded_values"),
        *("fused_gradient_accumulation", *WORDS),
        *("unfused_optimizer", "whole_vocabulary"),
        *("replicated_dispatch", "scatter_gather_sends", "copied_logits", "copied_update", "torch_loss"),
        *("cuda_graphs", "cross_entropy_in_place", "torch_compile", "torch_attention", "weight_casts"),
    }
)


class SoftwareSpec(Document):
    """A software stack, by name or as its own document, at one of its releases, with facts that are otherwise."""

    stack: Annotated[
        str | dict[str, Any],
        Field(description="name of a stack, a YAML file of an own one beside the spec, or its document"),
    ]
    release: Annotated[
        str | None,
        Field(max_length=100, description="release or day that facts are read as of; absent: the stack's own"),
    ] = None
    overrides: Annotated[
        dict[str, str],
        Field(
            description="single facts by `section.name`: on or off for features, a value for formats, settings and host"
        ),
    ] = {}

    def document(self) -> Stack:
        """The stack itself.

        Raises SpecError with every fault, under /software/stack.
        """
        try:
            return stack_named(self.stack) if isinstance(self.stack, str) else stack_of_document(self.stack)
        except SpecError as error:
            inline = not isinstance(self.stack, str)
            faults = (FieldError(f"/software/stack{e.path if inline else ''}", e.message, e.hint) for e in error.errors)
            raise SpecError(errors=tuple(faults)) from error


def _by_name(value: Any) -> Any:
    return {"stack": value} if isinstance(value, str) else value


SoftwareField = Annotated[
    SoftwareSpec | None,
    BeforeValidator(_by_name, json_schema_input_type=SoftwareSpec | str | None),
    omitted(
        "the software that runs it: a stack's name, or {stack, release, overrides}; absent: that of the "
        "launch target on these chips"
    ),
]


def stack_for(software: SoftwareSpec | None, target: str, vendor: str) -> Stack:
    """The stack that is named, else the one that a launch target means on a vendor's chips."""
    return default_stack(target, vendor) if software is None else software.document()


def software_for(software: SoftwareSpec | None, stack: Stack, run: Run) -> Software:
    """Facts of a stack for a run, with the release and overrides of a spec or record; what these have on is named."""
    if software is None:
        return resolved(stack, run)
    on = {path.partition(".")[2] for path, value in software.overrides.items() if value == "on"}
    run = replace(run, date=software.release or run.date, named=run.named | on)
    return resolved(stack, run, software.overrides)


def run_of(
    model: ModelSpec,
    precision: str,
    strategy: Strategy | None,
    features: Collection[str],
    *,
    date: str | None = None,
    flags: frozenset[str] = frozenset(),
) -> Run:
    """Facts of one run that facts of a stack depend on."""
    pp, etp = (1, 1) if strategy is None else (strategy.pp, strategy.etp or 1)
    kinds = model.attention_names | ({"moe"} if model.is_moe else set())
    return Run(precision, kinds, pp, etp, frozenset(features), flags, date)


def software_faults(software: SoftwareSpec | None, vendor: str | None) -> list[FieldError]:
    """Parts of a spec's software that no stack has, each under its own field."""
    if software is None:
        return []
    try:
        stack = software.document()
    except SpecError as error:
        return list(error.errors)
    errors = [_override_fault(path, value) for path, value in software.overrides.items()]
    if vendor is not None and vendor not in stack.vendors:
        names = ", ".join(name for name, each in shipped_stacks().items() if vendor in each.vendors)
        message = Message("stack.release_excludes_vendor", name=stack.name, vendor=vendor)
        errors.append(FieldError("/software/stack", message, Message("common.one_of", names=names)))
    return [error for error in errors if error is not None]


def _override_fault(path: str, value: str) -> FieldError | None:
    """Fault of one overridden fact."""
    section, _, name = path.partition(".")
    if section == "features" and name in FEATURES:
        hint = Message("common.one_of", names=f"search.features.{name}, strategy.features")
        return FieldError(
            f"/software/overrides/{path}", Message("profiles.unknown_number", name=repr(path)[:100]), hint
        )
    pointer = f"/software/overrides/{path}"
    if section not in SECTIONS or not name:
        hint = Message("common.one_of", names=", ".join(f"{each}.NAME" for each in SECTIONS))
        return FieldError(pointer, Message("profiles.unknown_number", name=repr(path)[:100]), hint)
    known = _known(section)
    if name not in known:
        return FieldError(
            pointer, Message("profiles.unknown_number", name=repr(name)[:100]), did_you_mean(name, [*known])
        )
    values = KNOWN_VALUES[section][name] if section in KNOWN_VALUES else ("on", "off")
    if section != "settings" and not (is_valid(section, name, value) if section in KNOWN_VALUES else value in values):
        hint = Message("common.one_of", names=", ".join(values))
        return FieldError(pointer, Message("field_fault.is_invalid", value=repr(value)[:100]), hint)
    return None


def _known(section: str) -> Mapping[str, Any]:
    """Names that facts of a section have, in any shipped stack."""
    if section in KNOWN_VALUES:
        return KNOWN_VALUES[section]
    named = RELEASE_FACTS if section == "features" else ()
    return dict.fromkeys([*named, *(name for stack in shipped_stacks().values() for name in stack.facts[section])])
