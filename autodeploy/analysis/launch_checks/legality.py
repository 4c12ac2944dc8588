"""Can it start at all: flags against what the release registers, and against the rules of its validators."""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING

from autodeploy.analysis.launch_checks.baseline import flag_changes_between
from autodeploy.analysis.launch_checks.flag_rules import FlagValues, broken_flag_rules, flag_rules
from autodeploy.analysis.launch_checks.launch import ranks_of
from autodeploy.formats.common.flag_effects import framework_of_flags, unmodelled_reason
from autodeploy.formats.common.import_result import marked_cluster, release_of_marks
from autodeploy.formats.common.launch_script import FOREIGN
from autodeploy.formats.megatron.script import read_launch
from autodeploy.kit.errors import SpecError
from autodeploy.kit.version import ENGINE_VERSION
from autodeploy.messages import Message, joined
from autodeploy.messages.field_faults import MOST_HINTS
from autodeploy.space.rules import load_rules
from autodeploy.specs.answers import Changes, CheckReport, Gate
from autodeploy.specs.diagnostics import BrokenRule
from autodeploy.stack.releases import framework_for, release_of, releases
from hardware_profiles import list_profiles, load_profile

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from autodeploy.analysis.launch_checks.baseline import Baseline
    from autodeploy.formats.common.launch_script import GivenFlag, LaunchScript
    from autodeploy.specs.answers import CheckLimits
    from autodeploy.stack.releases import Release
    from hardware_profiles import Profile


UNREGISTERED = "flag_is_registered"
MOST_NAMED = 12
WRONG_VALUE = "flag_takes_value"


@dataclass(frozen=True, slots=True)
class FlagVerdict:
    """The release that a script was held against, and what it breaks."""

    release: Release
    broken: tuple[BrokenRule, ...]


def known_rules() -> tuple[str, ...]:
    """Names of every rule that a launch can break."""
    names = {UNREGISTERED, WRONG_VALUE, *(rule.name for rule in flag_rules()), *(rule.name for rule in load_rules())}
    return tuple(sorted(names))


def refuse_unknown_rules(allowed: Iterable[str], path: str = "/limits/allow_rules") -> None:
    """Raises where a rule is allowed that does not exist.

    Raises SpecError with the closest names.
    """
    names = known_rules()
    for name in allowed:
        if name not in names:
            close = get_close_matches(name, names, n=3, cutoff=0.4)
            see = Message("common.see", source="docs/reference/legality_rules.md")
            hint = Message("common.did_you_mean", names=joined(close, "or")) if close else see
            raise SpecError(Message("field_fault.is_invalid", value=repr(name[:100])), path=path, hint=hint)


def judge_script(
    script: LaunchScript,
    framework: str,
    chips: Profile,
    ranks: int | None,
    limits: CheckLimits,
    release: str | None = None,
) -> FlagVerdict:
    """The command line of a script against the release that it is for.

    ranks : processes of the launch, where they are known.
    release : its name; None: the framework's default on these chips.
    """
    allowed = frozenset(f"--{flag.lstrip('-')}" for flag in limits.allow_flags)
    target = release_of(framework, chips.vendor, release)
    broken = [] if script.is_spelled else [*_unregistered(script, target, allowed), *_values(script, target, allowed)]
    broken += broken_flag_rules(
        FlagValues(script, ranks, chips.generation), target.names | frozenset(target.components)
    )
    return FlagVerdict(target, tuple(broken))


def with_allowed(broken: Iterable[BrokenRule], limits: CheckLimits) -> tuple[BrokenRule, ...]:
    """Each rule once, those that may be broken marked."""
    kept: dict[tuple[str, str], BrokenRule] = {}
    seen: set[str] = set()
    for rule in broken:
        if rule.rule in seen and rule.rule not in {UNREGISTERED, WRONG_VALUE}:
            continue
        seen.add(rule.rule)
        kept.setdefault((rule.rule, rule.text), rule.model_copy(update={"allowed": rule.rule in limits.allow_rules}))
    return tuple(kept.values())


def _unregistered(script: LaunchScript, release: Release, allowed: frozenset[str]) -> list[BrokenRule]:
    """Flags that the release's parser refuses; those that no release knows, as a fork's, are one finding."""
    broken: list[BrokenRule] = []
    own: list[GivenFlag] = []
    for name, given in script.flags.items():
        if name in release.flags or name in allowed:
            continue
        elsewhere = next((other for other in releases() if name in other.flags), None)
        looked_for = elsewhere is None and len(broken) < MOST_HINTS
        close = get_close_matches(name, release.flags, n=1, cutoff=0.8) if looked_for else []
        said = {"release": release.title, "flag": name, "line": given.line}
        values: dict[str, bool | int | float | str] = {"flag": name, "line": given.line}
        if elsewhere is not None:
            text = Message("checks.registers_no_flag_but", **said, other=elsewhere.title)
            values["registered_by"] = elsewhere.name
        elif close:
            text = Message("checks.registers_no_flag_line", **said)
            text = Message("common.place", place=text, message=Message("common.did_you_mean", names=close[0]))
            values["did_you_mean"] = close[0]
        else:
            own.append(given)
            continue
        broken.append(BrokenRule(rule=UNREGISTERED, text=text, values=values))
    if own:
        named = joined(Message("checks.line", flag=given.name[:60], line=given.line) for given in own[:MOST_NAMED])
        text = Message("checks.registers_none_of", release=release.title, count=len(own), flags=named)
        values = {"flag": own[0].name, "line": own[0].line, "count": len(own)}
        broken.append(BrokenRule(rule=UNREGISTERED, text=text, values=values))
    return broken


def _values(script: LaunchScript, release: Release, allowed: frozenset[str]) -> list[BrokenRule]:
    """Flags whose number of values, type or choice the parser refuses."""
    broken = []
    for name, given in script.flags.items():
        if name in allowed or name not in release.flags or given.unknown:
            continue
        words, registered = [value.text.strip() for value in given.values], release.flags[name]
        if registered.type == "str" and not registered.choices and not registered.nargs:
            words = words[:1]  # a place to be filled in, as `--load your checkpoint path` of the published scripts
        fault = registered.fault(words)
        if fault is not None:
            values: dict[str, bool | int | float | str] = {"flag": name, "value": given.text, "line": given.line}
            broken.append(
                BrokenRule(rule=WRONG_VALUE, text=Message("checks.line", flag=fault, line=given.line), values=values)
            )
    return broken


# The check of a script that can't be predicted.
# Where the number of cards is missing because the ranks contradict the degrees, the broken rule says so.
CARDS = "/cluster/num_npus"
RELEASE = "/search/target_release"


def check_unread(
    text: str,
    refusal: SpecError,
    limits: CheckLimits,
    *,
    variables: Mapping[str, str] | None = None,
    cluster: str | None = None,
    num_npus: int | None = None,
    baseline: Baseline | None = None,
    own_profiles: bool = True,
    folder: Path | None = None,
) -> CheckReport:
    """The report of a script that no spec could be made of, where it breaks a rule that says why it can't start.

    refusal : why there is no spec.
    own_profiles : whether the cluster may be a file; not for a request from the network.
    folder : where files are looked for that the script names.

    Raises SpecError: the refusal, where the text is no script, names no chips, or breaks no rule that it may not break.
    """
    refuse_unknown_rules(limits.allow_rules)
    if refusal.errors[0].path in {RELEASE, FOREIGN}:
        raise refusal
    try:
        script = read_launch(text, variables, folder)
    except SpecError:
        raise refusal from None
    own = marked_cluster(text) or {}
    profile = cluster or own.get("profile")
    if profile is None or (not own_profiles and profile not in list_profiles()):
        raise refusal
    ranks = ranks_of(script, profile, num_npus if num_npus is not None or cluster else own.get("num_npus"))
    release = release_of_marks(text)
    vendor = load_profile(profile).vendor
    framework = release.framework if release is not None else framework_for(framework_of_flags(script.flags), vendor)
    named = None if release is None else release.name
    verdict = judge_script(script, framework, load_profile(profile), ranks, limits, named)
    broken = with_allowed(verdict.broken, limits)
    failing = sum(not rule.allowed for rule in broken)
    if not failing:
        raise refusal
    flags = {flag.name: flag.text for flag in script.flags.values()}
    return CheckReport(
        passed=False,
        source="launch-script",
        engine_version=ENGINE_VERSION,
        limits=limits,
        release=verdict.release.title,
        unpredicted="" if refusal.errors[0].path == CARDS else str(refusal),
        gates=(legality_gate(broken),),
        changes=None if baseline is None else _changes(baseline, flags),
        broken_rules=broken,
        unmodelled=tuple(_unmodelled(script)),
        flags=flags,
    )


def legality_gate(broken: tuple[BrokenRule, ...]) -> Gate:
    """Passed where no rule is broken that may not be broken."""
    failing = sum(not rule.allowed for rule in broken)
    return Gate(name="legality", passed=not failing, value=failing, limit=0.0)


def _changes(baseline: Baseline, flags: Mapping[str, str]) -> Changes:
    return Changes(name=baseline.name, fields=flag_changes_between(baseline.flags, flags))


def _unmodelled(script: LaunchScript) -> Iterator[str]:
    """Flags that change the result and are not modelled, as `Diagnostics.doubts` says them."""
    for name, given in script.flags.items():
        reason = unmodelled_reason(name, given.text)
        if reason is not None:
            yield f"{given.place} {given.text or 'on'}: {reason}"
