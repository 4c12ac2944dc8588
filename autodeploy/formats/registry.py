"""Every format, a row each: what tells a file of it, what reads one and what writes a plan as one."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal

from autodeploy.stack.frameworks import DEFAULT, FRAMEWORKS, title_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from autodeploy.formats.common.import_result import ImportResult
    from autodeploy.formats.common.source import Source
    from autodeploy.messages import Language
    from autodeploy.specs.artefact import Artefact
    from autodeploy.specs.plan_details import PipelineTimeline
    from autodeploy.specs.planset import Plan, PlanSet


@dataclass(frozen=True, slots=True)
class Format:
    """One format. Functions are `module:name`, of a module below this package unless it is named in full.

    name : as `--to` takes it. called : by people, where it is not its framework's title.
    launches : the framework that launches it.
    detects : whether a Source is of it; refuses : raises of a Source that is named and not read.
    reads : the ImportResult of a Source that it detects. suffixes : of such files, as people choose them.
    writes : the Artefact of a PlanSet and its Plan, and of what it takes beside them.
    brings_launch : the script of a pre-training is in it.
    """

    name: str
    called: str = ""
    launches: str = ""
    detects: str = ""
    refuses: str = ""
    reads: str = ""
    suffixes: str = ".yaml,.yml"
    writes: str | Callable[[PlanSet, Plan], Artefact] = ""
    takes: Literal["language", "timeline", ""] = ""
    brings_launch: bool = False

    @property
    def title(self) -> str:
        """Its name as people write it."""
        return self.called or title_of(self.launches or self.name)

    @property
    def target(self) -> str | None:
        """The framework that launches what it holds; None where it is no launch."""
        return self.launches or (DEFAULT if self.brings_launch else None)

    @property
    def of_pre_training(self) -> bool:
        """Whether it has no meaning for a plan of post-training."""
        launches = bool(self.launches) and not FRAMEWORKS[self.launches].post_trains
        return launches or self.brings_launch or self.takes == "timeline"


def _framework(name: str, module: str, writer: str = "", **more: Any) -> Format:
    """A format of a framework whose module, or the reader in whose package, has `detects` and `reads`."""
    return Format(name, launches=name, detects=f"{module}:detects", reads=f"{module}:reads", writes=writer, **more)


def _own(name: str, called: str, detects: str, reads: str, suffixes: str, **more: Any) -> Format:
    """A document of ours, or a part of one."""
    where = "own_documents"
    return Format(name, called, detects=f"{where}:{detects}", reads=f"{where}:{reads}", suffixes=suffixes, **more)


_LAUNCH, _REPORTS = "megatron.launch_script", "autodeploy.reports.documents"
# A file is of the first format that detects it.
ROWS: tuple[Format, ...] = (
    Format("python", "Python", refuses="common.launch_script:refuse_python"),
    _framework("torchtitan-npu", "torchtitan.reader", "torchtitan.writer:export", suffixes=".toml"),
    _framework("verl", "verl.reader", "verl.writer:export", suffixes=".sh"),
    _framework("mindspeed-llm-fsdp2", "fsdp2.reader", "fsdp2.writer:export", suffixes=".sh,.yaml,.yml"),
    # Scripts of Megatron-LM too: which of both a script is for is found in it.
    _framework("mindspeed-llm", "megatron.script", f"{_LAUNCH}:export_mindspeed_llm", suffixes=".sh,.yaml,.yml"),
    Format("mindspeed-llm-flags", launches="mindspeed-llm", writes=f"{_LAUNCH}:export_mindspeed_llm_flags"),
    Format("megatron", launches="megatron", writes=f"{_LAUNCH}:export_megatron"),
    Format("megatron-flags", launches="megatron", writes=f"{_LAUNCH}:export_megatron_flags"),
    _framework("mindspeed-rl", "mindspeed_rl", "mindspeed_rl:export"),
    Format("foreign", "another framework's", refuses="common.launch_script:refuse_other_configuration"),
    _framework("mindformers", "mindformers.configuration", "mindformers.configuration:export"),
    Format("slurm", "Slurm", writes="megatron.slurm:export", brings_launch=True),
    Format("ascendjob", "AscendJob", writes="megatron.ascend_job:export", brings_launch=True),
    Format("chrome-trace", "Chrome trace", writes=f"{_REPORTS}:export_trace", takes="timeline"),
    _own("json", "PlanSet", "is_plan_set", "read_plan_set", ".json", writes=f"{_REPORTS}:export_json"),
    Format("csv", "CSV", writes=f"{_REPORTS}:export_csv"),
    Format("markdown", "Markdown", writes=f"{_REPORTS}:export_markdown", takes="language"),
    Format("html", "HTML", writes="api.ui.report_page:export", takes="language"),
    _own("config.json", "Hugging Face", "is_hf_config", "hf_model", ".json"),
    _own("spec", "spec", "is_spec", "read_spec", ".yaml,.yml,.json"),
)
_ORDER = (*FRAMEWORKS, "")
# Those that a plan is written in: launches in the order of their frameworks, then the others.
FORMATS = {row.name: row for row in sorted(ROWS, key=lambda row: _ORDER.index(row.launches)) if row.writes}


def function_of(name: str) -> Callable[..., Any]:
    """A function of a row."""
    module, _, function = name.partition(":")
    whole = module if module.startswith(("autodeploy.", "api.")) else f"autodeploy.formats.{module}"
    found: Callable[..., Any] = getattr(import_module(whole), function)
    return found


def read(source: Source) -> ImportResult | None:
    """The source as the first format reads it that detects it; None where none does.

    Raises SpecError with every bad field, or as a row refuses it.
    """
    for row in ROWS:
        if row.refuses:
            function_of(row.refuses)(source)
        elif row.detects and function_of(row.detects)(source):
            imported: ImportResult = function_of(row.reads)(source)
            return imported.with_doubts()
    return None


def written() -> dict[str, Format]:
    """Formats that a plan is written in by name, those of registered frameworks among them."""
    own = (each for each in FRAMEWORKS.values() if each.export is not None)
    return FORMATS | {each.name: Format(each.name, launches=each.name, writes=each.export or "") for each in own}


def formats_of(
    schedule: str, *, post_trains: bool = False, parts: int = 1, stages: int = 1, vendor: str | None = None
) -> tuple[str, ...]:
    """Formats that a plan with this schedule can be offered in, of pre-training or of post-training.

    parts : tp x pp, which some frameworks don't have. stages : pp alone. vendor : of the chips; None: any.
    """
    from autodeploy.stack.schedules import frameworks_with

    launchers = [name for name in frameworks_with(schedule, vendor) if FRAMEWORKS[name].post_trains is post_trains]
    launchers = [name for name in launchers if parts == 1 or not FRAMEWORKS[name].shards_alone]
    launchers = [name for name in launchers if stages == 1 or not FRAMEWORKS[name].one_stage]
    offered = [row for row in written().values() if not row.launches or row.launches in launchers]
    return tuple(row.name for row in offered if not (post_trains and row.of_pre_training))


def target_of(to: str) -> str | None:
    """The framework that launches what a format holds; None where it is no launch."""
    row = written().get(to)
    return row.target if row is not None else to if to in FRAMEWORKS else None


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
    from autodeploy.formats.common.flag_effects import profile_of
    from autodeploy.kit.errors import SpecError, UnsupportedError
    from autodeploy.messages import Message
    from autodeploy.specs.field_errors import did_you_mean
    from autodeploy.specs.spec import spec_of

    if (row := written().get(to)) is None:
        fault = Message("field_fault.is_invalid", value=repr(to[:100]))
        raise SpecError(fault, path="/to", hint=did_you_mean(to, tuple(written())))
    if row.of_pre_training and plan.strategy.rl is not None:
        profile = profile_of(spec_of(plan_set.search))
        vendor = profile.vendor if profile is not None else None
        names = [name for name in formats_of("1f1b", post_trains=True, vendor=vendor) if FORMATS[name].launches]
        raise UnsupportedError(
            Message("specs.no_reinforcement_learning", target=to),
            path="/to",
            hint=Message("exporters.export_to", names=" or ".join(names)),
        )
    beside: list[Any] = [lang] if row.takes == "language" else []
    if row.takes == "timeline":
        if timeline is None:
            raise UnsupportedError(Message("exporters.needs_simulated_pipeline", format=to), path="/to")
        beside = [timeline()]
    write = function_of(row.writes) if isinstance(row.writes, str) else row.writes
    artefact: Artefact = write(plan_set, plan, *beside)
    return artefact
