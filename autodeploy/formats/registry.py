"""Formats by name. Modules are imported when first asked for."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, cast

from autodeploy.formats.common.flag_effects import profile_of
from autodeploy.kit.errors import SpecError, UnsupportedError
from autodeploy.messages import Message
from autodeploy.specs.artefact import Artefact
from autodeploy.specs.field_errors import did_you_mean
from autodeploy.specs.spec import spec_of
from autodeploy.stack.frameworks import DEFAULT, FRAMEWORKS
from autodeploy.stack.schedules import frameworks_with

if TYPE_CHECKING:
    from collections.abc import Callable

    from autodeploy.messages import Language
    from autodeploy.specs.plan_details import PipelineTimeline
    from autodeploy.specs.planset import Plan, PlanSet


@dataclass(frozen=True, slots=True)
class Format:
    """Place of an exporter, whether it is of the simulated pipeline, and the framework that launches what it writes.

    `brings_launch`: the script of a pre-training is in it. `for_people`: it speaks the reader's language.
    """

    module: str
    function: str = "export"
    of_timeline: bool = False
    launches: str = ""
    brings_launch: bool = False
    for_people: bool = False

    @property
    def of_pre_training(self) -> bool:
        """Whether it has no meaning for a plan of post-training."""
        launches = bool(self.launches) and not FRAMEWORKS[self.launches].post_trains
        return launches or self.brings_launch or self.of_timeline


LAUNCH_SCRIPT = "autodeploy.formats.megatron.launch_script"
FORMATS: dict[str, Format] = {
    "mindspeed-llm": Format(LAUNCH_SCRIPT, "export_mindspeed_llm", launches="mindspeed-llm"),
    "mindspeed-llm-flags": Format(LAUNCH_SCRIPT, "export_mindspeed_llm_flags", launches="mindspeed-llm"),
    "mindspeed-llm-fsdp2": Format("autodeploy.formats.fsdp2.writer", launches="mindspeed-llm-fsdp2"),
    "torchtitan-npu": Format("autodeploy.formats.torchtitan.writer", launches="torchtitan-npu"),
    "megatron": Format(LAUNCH_SCRIPT, "export_megatron", launches="megatron"),
    "megatron-flags": Format(LAUNCH_SCRIPT, "export_megatron_flags", launches="megatron"),
    "mindformers": Format("autodeploy.formats.mindformers.configuration", launches="mindformers"),
    "verl": Format("autodeploy.formats.verl.writer", launches="verl"),
    "mindspeed-rl": Format("autodeploy.formats.mindspeed_rl", launches="mindspeed-rl"),
    "slurm": Format("autodeploy.formats.megatron.slurm", brings_launch=True),
    "ascendjob": Format("autodeploy.formats.megatron.ascend_job", brings_launch=True),
    "chrome-trace": Format("autodeploy.reports.documents", "export_trace", of_timeline=True),
    "json": Format("autodeploy.reports.documents", "export_json"),
    "csv": Format("autodeploy.reports.documents", "export_csv"),
    "markdown": Format("autodeploy.reports.documents", "export_markdown", for_people=True),
    "html": Format("api.ui.report_page", for_people=True),
}


def formats_of(
    schedule: str, *, post_trains: bool = False, parts: int = 1, stages: int = 1, vendor: str | None = None
) -> tuple[str, ...]:
    """Formats that a plan with this schedule can be offered in, of pre-training or of post-training.

    parts : tp x pp, which some frameworks don't have. stages : pp alone. vendor : of the chips; None: any.
    """
    launchers = [name for name in frameworks_with(schedule, vendor) if FRAMEWORKS[name].post_trains is post_trains]
    launchers = [name for name in launchers if parts == 1 or not FRAMEWORKS[name].shards_alone]
    launchers = [name for name in launchers if stages == 1 or not FRAMEWORKS[name].one_stage]
    offered = [name for name, format_ in FORMATS.items() if not format_.launches or format_.launches in launchers]
    if post_trains:
        return tuple(name for name in offered if not FORMATS[name].of_pre_training)
    return (*offered, *own_exporters())


def target_of(to: str) -> str | None:
    """The framework that launches what a format holds; None where it is no launch."""
    if to in FORMATS:
        return FORMATS[to].launches or (DEFAULT if FORMATS[to].brings_launch else None)
    return to if to in FRAMEWORKS else None


def own_exporters() -> dict[str, Callable[[PlanSet, Plan], Artefact]]:
    """Exporters that registered frameworks bring, by the framework's name."""
    return {name: framework.export for name, framework in FRAMEWORKS.items() if framework.export is not None}


def export(
    plan_set: PlanSet,
    plan: Plan,
    to: str,
    *,
    timeline: Callable[[], PipelineTimeline] | None = None,
    lang: Language = "en",
) -> Artefact:
    """The plan in the format of that name.

    timeline : simulates the plan's pipeline; only formats of the pipeline call it.
    lang : of documents for people; what another program reads has none.

    Raises SpecError when there is no such format; the hint names close ones; UnsupportedError when the framework can't
    launch the plan, or the format needs a timeline and there is none.
    """
    own = own_exporters()
    if to in own:
        return own[to](plan_set, plan)
    if to not in FORMATS:
        raise SpecError(
            Message("field_fault.is_invalid", value=repr(to[:100])),
            path="/to",
            hint=did_you_mean(to, (*FORMATS, *own)),
        )
    chosen = FORMATS[to]
    if chosen.of_pre_training and plan.strategy.rl is not None:
        profile = profile_of(spec_of(plan_set.search))
        vendor = profile.vendor if profile is not None else None
        names = [name for name in formats_of("1f1b", post_trains=True, vendor=vendor) if FORMATS[name].launches]
        raise UnsupportedError(
            Message("specs.no_reinforcement_learning", target=to),
            path="/to",
            hint=Message("exporters.export_to", names=" or ".join(names)),
        )
    function = getattr(import_module(chosen.module), chosen.function)
    if chosen.for_people:
        return cast("Callable[[PlanSet, Plan, Language], Artefact]", function)(plan_set, plan, lang)
    if not chosen.of_timeline:
        return cast("Callable[[PlanSet, Plan], Artefact]", function)(plan_set, plan)
    if timeline is None:
        raise UnsupportedError(Message("exporters.needs_simulated_pipeline", format=to), path="/to")
    return cast("Callable[[PlanSet, Plan, PipelineTimeline], Artefact]", function)(plan_set, plan, timeline())


# Export of plans.
__all__ = ["FORMATS", "Artefact", "export"]
