"""Can it start at all: flags against what the release registers, and against the rules of its validators."""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING

from autodeploy.checks.flag_rules import FlagValues, broken_flag_rules, flag_rules
from autodeploy.errors import SpecError
from autodeploy.messages import Message, joined
from autodeploy.messages.field_faults import MOST_HINTS
from autodeploy.specs.broken_rule import BrokenRule
from autodeploy.stack.releases import release_of, releases
from autodeploy.strategies.rules import load_rules

if TYPE_CHECKING:
    from collections.abc import Iterable

    from autodeploy.importers.launch_script import LaunchScript
    from autodeploy.specs.check import CheckLimits
    from autodeploy.stack.releases import Release
    from hardware_profiles import Profile

UNREGISTERED = "flag_is_registered"
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

    Raises
    ------
    SpecError
        with the closest names.
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

    Parameters
    ----------
    ranks : processes of the launch, where they are known.
    release : its name; None: the framework's default on these chips.
    """
    allowed = frozenset(f"--{flag.lstrip('-')}" for flag in limits.allow_flags)
    target = release_of(framework, chips.vendor, release)
    broken = [*_unregistered(script, target, allowed), *_values(script, target, allowed)]
    broken += broken_flag_rules(
        FlagValues(script, ranks, chips.generation), frozenset({target.name, *target.components})
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
    broken: list[BrokenRule] = []
    for name, given in script.flags.items():
        if name in release.flags or name in allowed:
            continue
        close = get_close_matches(name, release.flags, n=1, cutoff=0.8) if len(broken) < MOST_HINTS else []
        elsewhere = next((other for other in releases() if name in other.flags), None)
        said = {"release": release.title, "flag": name, "line": given.line}
        values: dict[str, bool | int | float | str] = {"flag": name, "line": given.line}
        text = Message("checks.registers_no_flag_line", **said)
        if elsewhere is not None:
            text = Message("checks.registers_no_flag_but", **said, other=elsewhere.title)
            values["registered_by"] = elsewhere.name
        elif close:
            text = Message("common.place", place=text, message=Message("common.did_you_mean", names=close[0]))
            values["did_you_mean"] = close[0]
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
