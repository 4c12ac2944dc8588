"""Effects of a release's flags on a prediction: read, none, or not modelled; the release that is targeted."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Literal

from autodeploy.kit.errors import UnsupportedError
from autodeploy.messages import Message
from autodeploy.specs.diagnostics import NO_EFFECT
from autodeploy.specs.launched import unlaunched
from autodeploy.stack.frameworks import FRAMEWORKS
from autodeploy.stack.releases import releases
from hardware_profiles import ProfileError, load_profile
from hardware_profiles.shipped_yaml import shipped

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from autodeploy.specs.spec import Spec
    from autodeploy.stack.releases import Release
    from hardware_profiles import Profile


Kind = Literal["read", "no_effect", "unmodelled"]
_STAR = "*"


@dataclass(frozen=True, slots=True)
class FlagEffect:
    """Effect of a flag, its reason, and the values with which one that is not modelled changes nothing."""

    kind: Kind
    reason: str = NO_EFFECT
    harmless: tuple[str, ...] = ()

    def of_value(self, value: str) -> str | None:
        """Change of a prediction without the flag at this value; None where it changes nothing that is predicted."""
        if self.kind != "unmodelled":
            return None
        text = value.strip().strip("\"'").lower()
        return None if any(_is(text, harmless) for harmless in self.harmless) else self.reason


def _is(text: str, harmless: str) -> bool:
    return text.startswith(harmless[:-1]) if harmless.endswith(_STAR) else text == harmless


@cache
def flag_effects() -> Mapping[str, FlagEffect]:
    """Every flag whose effect is known, by name: what a release registers and no list has is read, or refused."""
    own = (each for each in releases() if each.table is None and FRAMEWORKS[each.framework].configured_by == "flags")
    effects = dict.fromkeys(_flags(tuple(own)), FlagEffect("read"))
    for name, group in shipped("autodeploy.formats", "flag_effects.yaml").items():
        effects |= {flag: FlagEffect("no_effect", _reason("effect", name, group)) for flag in group["flags"].split()}
    return effects | unmodelled_effects("unmodelled", shipped("autodeploy.formats", "unmodelled_flags.yaml"), "flags")


def _reason(section: str, name: str, group: Mapping[str, str]) -> str:
    return Message.of_record(f"{section}.{name}", group["reason"]) if "reason" in group else NO_EFFECT


# Flags that change the result of a launch and are not modelled.
def unmodelled_reason(flag: str, value: str) -> str | None:
    """Change of a prediction without this flag; None where it changes nothing that is predicted."""
    effect = flag_effects().get(flag)
    return None if effect is None else effect.of_value(value)


# What every key of a MindFormers configuration does to a prediction.
SECTIONS = frozenset(
    {
        *("model", "moe_config", "parallel", "parallel_config", "recompute_config", "swap_config"),
        *("runner_config", "monitor_config", "stable_rank_config"),
    }
)


@cache
def key_effects() -> Mapping[str, FlagEffect]:
    """Every key whose effect is known, by its last part, or by its path where that alone is meant."""
    document = shipped("autodeploy.formats", "key_effects.yaml")
    effects: dict[str, FlagEffect] = {}
    for name, group in document["no_effect"].items():
        reason = Message.of_record(f"effect.{name}", group["reason"])
        effects |= {key: FlagEffect("no_effect", reason) for key in group["keys"].split()}
    effects |= {key: FlagEffect("read", NO_EFFECT) for key in document["read"]["all"]["keys"].split()}
    return effects | unmodelled_effects("unmodelled", document["unmodelled"])


def unmodelled_effects(section: str, groups: Mapping[str, Any], words: str = "keys") -> dict[str, FlagEffect]:
    """Effects of keys that no prediction knows: of words `key` or `key=harmless,values` in groups of one reason."""
    effects = {}
    for name, group in groups.items():
        reason = Message.of_record(f"{section}.{name}", group["reason"])
        for word in group[words].split():
            key, _, harmless = word.partition("=")
            effects[key] = FlagEffect("unmodelled", reason, tuple(harmless.split(",")) if harmless else ())
    return effects


def key_effect(path: str) -> FlagEffect | None:
    """The effect of the key at a dotted path; None where nobody knows it."""
    section, dot, _ = path.partition(".")
    effects = key_effects()
    if path in effects:
        return effects[path]
    effect = effects.get(path.rpartition(".")[2])
    if effect is not None and effect.kind == "unmodelled":
        return effect
    return effect if not dot or section in SECTIONS else None


# Flags that any release of a framework registers, and whose launch they are.
def known_flags() -> frozenset[str]:
    """Names of all flags that a release registers."""
    return _flags(releases())


@cache
def _flags(of_releases: tuple[Release, ...]) -> frozenset[str]:
    return frozenset(flag for release in of_releases for flag in release.flags)


def framework_of_flags(given: Collection[str]) -> str:
    """The framework whose launch has these flags.

    MindSpeed-LLM where only it registers one of them, or where Megatron-LM alone does not register all and only
    MindSpeed beside it could.
    """
    with_flags = [release for release in releases() if release.flags]
    of_llm = _flags(tuple(r for r in with_flags if r.framework == "mindspeed-llm"))
    of_megatron = _flags(tuple(r for r in with_flags if r.framework == "megatron"))
    alone = _flags(tuple(r for r in with_flags if r.framework == "megatron" and len(r.components) == 1))
    flags = frozenset(given)
    if flags & (of_llm - of_megatron):
        return "mindspeed-llm"
    return "mindspeed-llm" if flags & of_llm - alone and not flags & (of_megatron - of_llm) else "megatron"


def refuse_unlaunched(spec: Spec, release: Release) -> None:
    """Refuses a model or a training that the release has no launch of, as searches for it do.

    Raises UnsupportedError: which names the field.
    """
    field = unlaunched(spec.model, spec.training, release)
    if field:
        raise UnsupportedError(
            Message("exporters.has_no_flag_in", framework=release.title, name=field),
            path="/" + field.partition(" ")[0].replace(".", "/"),
            hint=Message("exporters.export_to", names="json"),
        )


def profile_of(spec: Spec) -> Profile | None:
    """The spec's hardware profile; None where it can't be found any more."""
    try:
        return load_profile(spec.cluster.profile)
    except ProfileError:
        return None


def release_of_spec(spec: Spec, target: str) -> Release:
    """The release that the spec names or, where it names none, the framework's default on its chips.

    Raises UnsupportedError when nothing launches with that name.
    """
    profile = profile_of(spec)
    release = spec.search.release(profile.vendor if profile is not None else None, target)
    if release is None:
        raise UnsupportedError(Message("stack.has_no_release", framework=target), path="/to")
    return release
