"""Pipeline schedules as launches see them: the records of `cost_models`, and the flags that ask a framework for each.

A schedule that is a feature too has its flags in the feature's record. A release launches a schedule where it registers
all flags of one of its variants.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from autodeploy.stack.features import FEATURES, Variant
from autodeploy.stack.records import known
from autodeploy.stack.releases import releases
from cost_models.schedule.kinds import schedule as schedule  # exporters use no formula themselves
from cost_models.schedule.placement import sizes_from as sizes_from

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from autodeploy.stack.releases import Release

_BY_PLACEMENT: Final = tuple(Variant(component, by="placement") for component in ("megatron", "mindformers"))
# Layers are on one stage, in their order.
_UNSTAGED: Final = tuple(Variant(component, by="placement") for component in ("mindspeed-llm-fsdp2", "torchtitan-npu"))
_LAUNCHES: Final[dict[str, tuple[Variant, ...]]] = {"1f1b": (*_BY_PLACEMENT, *_UNSTAGED), "interleaved": _BY_PLACEMENT}


def variants_of(name: str) -> tuple[Variant, ...]:
    """Launches of the schedule of that name by component; none where no public release has it."""
    if name in _LAUNCHES:
        return _LAUNCHES[name]
    return FEATURES[name].launch if name in FEATURES else ()


def variant_of(name: str, stack: Release) -> Variant | None:
    """Launch of the schedule by a release; None where it can't."""
    return next((each for each in variants_of(name) if each.fits(stack)), None)


def frameworks_with(name: str, vendor: str | None = None) -> tuple[str, ...]:
    """Frameworks of which some release, for a vendor's chips, launches the schedule, in order."""
    frameworks = [each.framework for each in releases() if each.runs_on(vendor) and variant_of(name, each) is not None]
    return tuple(dict.fromkeys(frameworks))


def launched(name: str, *variants: Variant) -> AbstractContextManager[None]:
    """Knows how a registered schedule is launched, as long as the context lasts.

    Raises ValueError where that is known already.
    """
    return known(_LAUNCHES, {name: variants}, taken=[name] if variants_of(name) else ())
