"""The check of a script that can't be predicted: its command line alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autodeploy.checks.baseline import flag_changes_between
from autodeploy.checks.launch import ranks_of
from autodeploy.checks.legality import judge_script, refuse_unknown_rules, with_allowed
from autodeploy.engine import ENGINE_VERSION
from autodeploy.errors import SpecError
from autodeploy.importers.known_flags import framework_of_flags
from autodeploy.importers.launch_script import read_launch_script
from autodeploy.importers.marks import marked_cluster, release_of_marks
from autodeploy.importers.unmodelled_flags import unmodelled_reason
from autodeploy.specs.check import Changes, CheckReport, Gate
from autodeploy.stack.releases import framework_for
from hardware_profiles import list_profiles, load_profile

# Where the number of cards is missing because the ranks contradict the degrees, the broken rule says so.
CARDS = "/cluster/num_npus"

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from autodeploy.checks.baseline import Baseline
    from autodeploy.importers.launch_script import LaunchScript
    from autodeploy.specs.broken_rule import BrokenRule
    from autodeploy.specs.check import CheckLimits


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
) -> CheckReport:
    """The report of a script that no spec could be made of, where it breaks a rule that says why it can't start.

    Parameters
    ----------
    refusal : why there is no spec.
    own_profiles : whether the cluster may be a file; not for a request from the network.

    Raises
    ------
    SpecError
        the refusal, where the text is no script, names no chips, or breaks no rule that it may not break.
    """
    refuse_unknown_rules(limits.allow_rules)
    try:
        script = read_launch_script(text, variables)
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
