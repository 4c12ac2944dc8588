"""Software stacks as documents: what is on unless a flag says otherwise, the number formats of states, and its band.

A shipped stack is a YAML under `stacks/`; one document may inherit another, whose facts it adds to, replaces or, by
null, takes away. `resolved` is the one reading of them: every door that prices a run asks it, and none asks for a
stack's name.
What flags switch is not said here: it follows from the features' records and the flags that a release registers.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from autodeploy.kit.errors import FieldError, SpecError
from autodeploy.messages import Message, joined, recovered
from autodeploy.stack.host import HOST_VALUES, HostSoftware
from hardware_profiles.reading import problems_of
from hardware_profiles.shipped_yaml import shipped_folder

if TYPE_CHECKING:
    from collections.abc import Iterator

Kind = Literal["code", "document", "record", "assumed"]
KINDS: Final = get_args(Kind)
SECTIONS: Final = ("features", "memory", "void", "formats", "settings", "host")
VALUED: Final = ("formats", "settings", "host")
# Number formats of states, and the word by which the formulas know each; the others change nothing.
FORMATS: Final[Mapping[str, Mapping[str, str]]] = {
    "gradients": {"as computed": "", "fp32": "fp32_gradients", "bf16": "bf16_gradients"},
    "weights": {"as computed": "", "fp8": "fp8_weights"},
    "moments": {"fp32": "", "bf16": "precision_aware_optimizer"},
    "masters": {"fp32": "", "remainders": "param_remainders"},
}
OF_FP16: Final = "fp32_gradients"  # changes FP16 runs alone, whose gradients are else summed in 16 bits
# Values that a name of a section can have; of numbers, what they are.
KNOWN_VALUES: Final[Mapping[str, Mapping[str, tuple[str, ...]]]] = {
    "formats": {name: tuple(words) for name, words in FORMATS.items()},
    "host": HOST_VALUES,
}
NOTES: Final = ("stack_note",)
"""Section of the texts of sources."""


@dataclass(frozen=True, slots=True)
class Run:
    """Facts of a run that those of a stack depend on.

    models : kinds that the model is of: moe, and those of its attention.
    named : features that the run says by name. date : a release or a day in a record's own words; None: not told.
    """

    precision: str = "bf16"
    models: frozenset[str] = frozenset()
    pp: int = 1
    etp: int = 1
    named: frozenset[str] = frozenset()
    flags: frozenset[str] = frozenset()
    date: str | None = None


class _Part(BaseModel):
    """A part of a stack's document; a key that it does not have is a fault."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Conditions(_Part):
    """Conditions of a fact on a run; all have to hold. named, not_named : a feature that it says or does not say."""

    model: str | None = None
    named: str | None = None
    not_named: str | None = None
    pp_at_least: int | None = None
    etp_at_least: int | None = None
    precision: str | None = None

    def hold(self, run: Run) -> bool:
        """Whether a run meets them."""
        return (
            self.precision in {None, run.precision}
            and (self.model is None or self.model in run.models)
            and run.pp >= (self.pp_at_least or 0)
            and run.etp >= (self.etp_at_least or 0)
            and (self.named is None or self.named in run.named)
            and self.not_named not in run.named
        )


class Fact(_Part):
    """One statement with its kind and source.

    when, before, since : conditions; all have to hold. unless : a named feature that says the opposite. off_by, on_by :
    the flag of a script that switches it against the default. dated : it holds for runs alone whose day is told.
    unit, interval : of a number, and its 80 % interval.
    """

    kind: Kind
    source: Annotated[str, Field(min_length=1)]
    value: Annotated[str, BeforeValidator(str)] = ""
    when: Conditions = Conditions()
    before: dict[str, Any] = {}
    since: dict[str, Any] = {}
    dated: bool = False
    unless: str = ""
    off_by: str = ""
    on_by: str = ""
    unit: str = ""
    interval: tuple[float, ...] = ()

    def holds(self, run: Run, released: Mapping[str, str]) -> bool:
        """Whether it is so for a run."""
        if self.before and not _is_before(run.date, self.before, released):
            return False
        if self.since and _is_before(run.date, self.since, released):
            return False
        if self.dated and not re.match(r"20\d\d", run.date or ""):
            return False
        if self.unless in run.named or self.off_by in run.flags or (self.on_by and self.on_by not in run.flags):
            return False
        return self.when.hold(run)


def _alternatives(facts: Any) -> Any:
    return facts if isinstance(facts, list) else [facts]


Facts = dict[str, Annotated[tuple[Fact, ...], BeforeValidator(_alternatives)]]
"""Facts by name, alternatives in order."""


class Stack(_Part):
    """A software stack, everything that it inherits included.

    family : the framework's name by which statistics group runs. target : the framework whose plans it runs; None:
    no launch target. default : whether that framework means it on these vendors' chips. as_of : the day or release that
    it stands for where a run tells none. trains : updates, of reinforcement learning; foreign, by kernels that no
    formula describes; else empty. runs : which records ran on it, by conditions.
    """

    name: str
    title: str
    family: str
    target: str | None = None
    default: bool = False
    vendors: tuple[str, ...] = ()
    releases: tuple[str, ...] = ()
    as_of: str | None = None
    trains: str = ""
    sources: dict[str, str] = {}
    runs: tuple[dict[str, Any], ...] = ()
    released: dict[str, str] = {}
    features: Facts = {}
    memory: Facts = {}
    void: Facts = {}
    formats: Facts = {}
    settings: Facts = {}
    host: Facts = {}

    @property
    def facts(self) -> dict[str, Facts]:
        """All facts by section."""
        return {section: getattr(self, section) for section in SECTIONS}

    @property
    def said(self) -> Message:
        """Title in any language; of a stack that does not ship its own."""
        return Message.of_record(f"stack_title.{self.name}", self.title)

    @property
    def meanings(self) -> dict[str, str]:
        """Meaning of the names by which sources begin."""
        return {name: recovered(meaning, NOTES) for name, meaning in self.sources.items()}

    def rows(self) -> list[tuple[str, str, str, str, str]]:
        """Section, name, value with its conditions, kind and source of every fact."""
        return [
            (section, name, _said(fact), fact.kind, recovered(fact.source, NOTES))
            for section in SECTIONS
            for name, facts in self.facts[section].items()
            for fact in facts
        ]


@dataclass(frozen=True, slots=True)
class Software:
    """A stack as one run has it.

    features : on without being named. memory : words that change memory alone, number formats of states among them.
    void : names of features that change nothing. settings : by name.
    """

    stack: Stack
    features: frozenset[str]
    memory: frozenset[str]
    void: frozenset[str]
    formats: Mapping[str, str]
    settings: Mapping[str, str]
    host: HostSoftware

    @property
    def band(self) -> str:
        """Band of the software factor."""
        return self.settings.get("band", "current")

    @property
    def dispatcher(self) -> str:
        """Dispatcher of experts' tokens where a launch names none."""
        return self.settings.get("dispatcher", "alltoall")


def resolved(stack: Stack, run: Run, overrides: Mapping[str, str] | None = None) -> Software:
    """Facts of a stack for a run: the one reading of stack documents.

    overrides : of single facts, by "section.name": on or off for features, a value for formats and settings.
    """
    if not overrides and shipped_stacks().get(stack.name) is stack:
        return _shipped(stack.name, run)
    return _resolved(stack, run, overrides or {})


@lru_cache(maxsize=1024)
def _shipped(name: str, run: Run) -> Software:
    """A stack of the package for a run: records are asked for theirs again and again."""
    return _resolved(shipped_stacks()[name], run, {})


def _resolved(stack: Stack, run: Run, overrides: Mapping[str, str]) -> Software:
    run = replace(run, date=run.date or stack.as_of)

    def first(facts: tuple[Fact, ...]) -> Fact | None:
        return next((each for each in facts if each.holds(run, stack.released)), None)

    held = {s: {n: fact for n, facts in named.items() if (fact := first(facts))} for s, named in stack.facts.items()}
    values = {section: {name: fact.value for name, fact in facts.items()} for section, facts in held.items()}
    for path, value in overrides.items():
        section, _, name = path.partition(".")
        named = values.get(section, {})
        if section in VALUED or value == "on":
            named[name] = value
        else:
            named.pop(name, None)
    formats, host = values["formats"], {name: fact.interval for name, fact in held["host"].items()}
    memory = {*values["memory"], *(words.get(formats.get(state, ""), "") for state, words in FORMATS.items())}
    memory -= {"", *([] if run.precision == "fp16" else [OF_FP16])}
    on, void = frozenset(values["features"]), frozenset(values["void"])
    of_host = HostSoftware.of(values["host"], host)
    return Software(stack, on, frozenset(memory), void, formats, values["settings"], of_host)


@cache
def shipped_stacks() -> Mapping[str, Stack]:
    """The stacks of the package, by name."""
    documents = _shipped_documents()
    return MappingProxyType({name: stack_of_document(documents[name], documents) for name in sorted(documents)})


@cache
def memory_facts() -> frozenset[str]:
    """Names of the facts of memory in the package's stacks: software has them, no launch names them."""
    return frozenset(name for stack in shipped_stacks().values() for name in stack.facts["memory"])


@cache
def _shipped_documents() -> Mapping[str, Any]:
    return {document["name"]: document for document in shipped_folder("autodeploy.stack", "stacks")}


def stack_of_document(document: Mapping[str, Any], documents: Mapping[str, Any] | None = None) -> Stack:
    """The stack that a document describes; what it inherits is one of the package's.

    Raises SpecError with every key that no stack has, fact without kind or source, and parent that is not there.
    """
    errors: list[FieldError] = []
    whole = _with_parents(document, _shipped_documents() if documents is None else documents, errors, ())
    read = {key: value for key, value in whole.items() if value is not None and key != "inherits"}
    for section in SECTIONS:
        if isinstance(facts := read.get(section), Mapping):  # a name without any takes away those that are inherited
            read[section] = {name: fact for name, fact in facts.items() if fact not in (None, [])}
    try:
        stack = Stack.model_validate({"family": str(whole.get("name", "")), **read})
        errors += _value_faults(stack)
    except ValidationError as error:
        place = re.compile(rf"^(/(?:{'|'.join(SECTIONS)})/[^/]+)/\d+")
        errors += [replace(each, path=place.sub(r"\1", each.path)) for each in problems_of(error)]
    if errors:
        raise SpecError(errors=tuple(errors))
    return stack


def _with_parents(
    document: Mapping[str, Any], documents: Mapping[str, Any], errors: list[FieldError], below: tuple[str, ...]
) -> dict[str, Any]:
    """A document over those that it inherits: mappings key by key, anything else whole; records are its own."""
    parent = document.get("inherits")
    if parent is None:
        return dict(document)
    if not isinstance(parent, str) or parent not in documents or parent in below:
        hint = Message("common.one_of", names=", ".join(sorted(documents)))
        errors.append(FieldError("/inherits", Message("field_fault.is_invalid", value=repr(parent)[:100]), hint))
        return dict(document)
    base = _with_parents(documents[parent], documents, errors, (*below, parent))
    merged = {key: value for key, value in base.items() if key != "runs"}
    for key, value in document.items():
        both = key in (*SECTIONS, "sources", "released") and isinstance(value, Mapping) and key in base
        merged[key] = {**(base[key] or {}), **value} if both else value
    return merged


def _value_faults(stack: Stack) -> Iterator[FieldError]:
    """Names and values that facts of number formats and of the host can't have."""
    for section, known in KNOWN_VALUES.items():
        for name, facts in stack.facts[section].items():
            if name not in known:
                hint = Message("common.one_of", names=", ".join(known))
                yield FieldError(f"/{section}/{name}", Message("common.unknown_key", name=repr(name)[:100]), hint)
                continue
            for value in (fact.value for fact in facts if not is_valid(section, name, fact.value)):
                hint = Message("common.one_of", names=", ".join(known[name]))
                message = Message("field_fault.is_invalid", value=repr(value)[:100])
                yield FieldError(f"/{section}/{name}/value", message, hint)


def is_valid(section: str, name: str, value: object) -> bool:
    """Whether a fact of formats or of the host can have a value: one of its words, or a number not below its least."""
    if len(words := KNOWN_VALUES[section][name]) > 1:
        return value in words
    try:
        return float(str(value)) >= (1.0 if name == "optimizer_threads" else 0.0)
    except ValueError:
        return False


def stack_named(name: str) -> Stack:
    """The shipped stack of that name, or the one that says nothing.

    Raises SpecError when there is none; the hint names them.
    """
    stack = NOTHING if name == NOTHING.name else shipped_stacks().get(name)
    if stack is None:
        message = Message("common.there_is_no", what="stack", name=repr(name[:100]))
        raise SpecError(message, path="/software", hint=Message("common.one_of", names=", ".join(shipped_stacks())))
    return stack


@cache
def opposites() -> frozenset[str]:
    """Names that only say that what some stack leaves out was on."""
    stacks = shipped_stacks().values()
    facts = (fact for stack in stacks for facts in stack.facts["features"].values() for fact in facts)
    return frozenset(fact.unless for fact in facts if fact.unless)


NOTHING: Final = Stack(name="none", title="no stack", family="")


def default_stack(target: str, vendor: str | None) -> Stack:
    """The stack that a framework means on a vendor's chips; of no framework, one that says nothing."""
    found = (stack for stack in shipped_stacks().values() if stack.default and stack.target == target)
    return next((stack for stack in found if vendor is None or vendor in stack.vendors), NOTHING)


def unnamed_features(target: str, vendor: str | None) -> frozenset[str]:
    """Features that a launch of a framework has on, on a vendor's chips, without being asked."""
    return resolved(default_stack(target, vendor), Run()).features


@lru_cache(maxsize=1024)
def stack_of_run(framework: str, source: str, vendor: str, generation: str, run: Run) -> Stack:
    """The stack that a record ran on: the most particular of those whose conditions it meets.

    framework : in the record's own words. generation : of its chip.
    """
    words = re.sub("[^a-z0-9]", "", framework.lower())
    best, weight = NOTHING, (-1, -1)
    for stack in shipped_stacks().values():
        if vendor not in stack.vendors:
            continue
        for each in stack.runs:
            prefix = max((len(name) for name in each.get("frameworks", ()) if words.startswith(name)), default=0)
            met = (
                ("frameworks" not in each or prefix > 0)
                and ("sources" not in each or any(part in source for part in each["sources"]))
                and ("generations" not in each or generation in each["generations"])
                and run.precision not in each.get("not_precisions", ())
                and not run.named & {*each.get("not_named", ())}
                and ("before" not in each or _is_before(run.date, each["before"], stack.released))
            )
            if met and (len(each), prefix) > weight:
                best, weight = stack, (len(each), prefix)
    return best


def _is_before(date: str | None, limit: Mapping[str, Any], released: Mapping[str, str]) -> bool:
    """Whether a release or a day, in a record's words, is before a limit.

    A limit with a release compares numbers of releases, and days with days; one without compares days, also those of
    releases whose day is known. What tells nothing is of today, or, where the limit says `undated`, before it.
    """
    text = (date or "").lower()
    if limit.get("undated") and not re.match(r"mas|dev|20|[rv]?\d{1,2}\.\d", text):
        return True
    if "release" in limit and (match := re.match(r"[vr]?(\d{1,2})\.(\d+)", text)):
        major, minor = str(limit["release"]).split(".")
        return (int(match[1]), int(match[2])) < (int(major), int(minor))
    if "release" in limit and text[:2] != "20":
        return False
    return _day(text, released) < str(limit["date"])


def _day(text: str, released: Mapping[str, str]) -> str:
    """The day of a release or of a date in words; a year alone is late in it, and what tells none is of 2025."""
    if match := re.match(r"(20\d\d)[-./](\d\d?)(?:[-./](\d\d?))?", text):
        return f"{match[1]}-{int(match[2]):02d}-{int(match[3] or 1):02d}"
    for name, day in released.items():
        if text.removeprefix("v").removeprefix("r").startswith(name):
            return day
    if match := re.match(r"(20\d\d)\b", text):
        return f"{match[1]}-{12 if match[1] < '2024' else 7:02d}-30"
    return "2025-01-01"


def _said(fact: Fact) -> str:
    """The value of a fact and what it depends on, in one line."""
    parts: list[str] = [f"{fact.value} {fact.unit}".strip() or Message("stack_fact.on")]
    if fact.interval:
        low, high = (f"{end:g}" for end in fact.interval)
        parts.append(Message("stack_fact.interval", low=low, high=high))
    when = fact.when.model_dump(exclude_unset=True)
    for name, condition in (("when", when), ("before", fact.before), ("since", fact.since)):
        if condition:
            conditions = joined(Message(f"stack_fact.if_{key}", value=str(value)) for key, value in condition.items())
            parts.append(Message(f"stack_fact.{name}", conditions=conditions))
    flags = {"off_by": fact.off_by, "on_by": fact.on_by}
    parts += [Message(f"stack_fact.{way}", flag=flag) for way, flag in flags.items() if flag]
    if fact.unless:
        parts.append(Message("stack_fact.unless", feature=fact.unless))
    return joined(parts, "semicolon")
