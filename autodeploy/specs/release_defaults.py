"""The software that a record ran on: its stack, resolved for its run, and the features that were on.

A record names what its script says; what its stack had on without being named, its formats and its band are facts of
the stack's document (`autodeploy.stack.software`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from autodeploy.specs.software import run_of, software_for
from autodeploy.stack.gradient_sums import EXPERTS_FUSED, PLAIN_APART, in_mindspeed
from autodeploy.stack.software import opposites, stack_of_run
from hardware_profiles.loader import load_profile

if TYPE_CHECKING:
    from autodeploy.specs.record import Record
    from autodeploy.stack.software import Software


def release_of(record: Record) -> Software:
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
