"""Features that are on: by the spec, the release's launches and the numerics."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, get_args

from autodeploy.kit.errors import FieldError, UnsupportedError
from autodeploy.messages import Message, joined
from autodeploy.stack.features import FEATURES, GROUPS, Numerics, expand, variants_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from autodeploy.specs.model import ModelSpec
    from autodeploy.specs.search import SearchSpec
    from autodeploy.specs.spec import Spec
    from autodeploy.stack.features import Feature, Variant
    from autodeploy.stack.releases import Release
    from hardware_profiles import Profile

_RANK = {name: rank for rank, name in enumerate(get_args(Numerics))}  # the strictest first
# Kinds of model that a record may name.
_KINDS: dict[str, Callable[[ModelSpec], bool]] = {
    "moe": lambda model: model.is_moe,
    "dense": lambda model: not model.is_moe,
    "computing": lambda model: model.n_zero_experts == 0,
    "shortcut": lambda model: model.shortcut_moe,
    "dropless": lambda model: model.capacity_factor is None,
}


def _is_a(model: ModelSpec, kind: str) -> bool:
    """Whether the model is of a kind: one of these, or by its attention."""
    return _KINDS[kind](model) if kind in _KINDS else kind in model.attention_names


_MAKERS = {"huawei": "Ascend", "nvidia": "NVIDIA"}


@dataclass(frozen=True, slots=True)
class FeatureChoice:
    """Features that are on, those that the search decides, and every switch with its reason.

    alternatives : other sets that `auto` may use, each legal by itself; the faster one is chosen for each strategy.
    """

    on: frozenset[str]
    switches: Mapping[str, str]
    off_reasons: dict[str, str]
    alternatives: tuple[frozenset[str], ...] = ()

    @property
    def off_everywhere(self) -> dict[str, str]:
        """Features that no alternative uses either, each with its reason."""
        on_somewhere = frozenset().union(*self.alternatives)
        return {name: reason for name, reason in self.off_reasons.items() if name not in on_somewhere}


def choose_features(search: SearchSpec, model: ModelSpec, profile: Profile, *, adapters: bool = False) -> FeatureChoice:
    """Resolve every feature's switch.

    `auto` is on where it is launchable, within the numerics asked for and useful to the model. Features that are axes
    of the search (schedules, dispatchers, algorithms, memory modes) stay open when they are on by auto; those that are
    faster for some strategies and slower for others stay open as `alternatives`.

    adapters : the run trains adapters beside a frozen model.

    Raises UnsupportedError with every feature that is on but not launchable, beyond the numerics, or without what it
    needs.
    """
    return _Chooser(search, model, profile, adapters=adapters).choice()


def choice_of(spec: Spec, profile: Profile, search: SearchSpec | None = None) -> FeatureChoice:
    """`choose_features` of a spec, with its own search or another."""
    return choose_features(search or spec.search, spec.model, profile, adapters=spec.training.in_part)


def launchable_features(release: Release | None) -> frozenset[str]:
    """Features that a release can launch; without one all that there are."""
    if release is None:
        return frozenset(FEATURES)
    return frozenset(name for name, variant in variants_of(release).items() if variant is not None)


def always_on(release: Release | None) -> frozenset[str]:
    """Features that a release has whatever its flags say; none without a release."""
    variants = {} if release is None else variants_of(release)
    return frozenset(name for name, variant in variants.items() if variant is not None and variant.always)


def _lacking(name: str, profile: Profile) -> Message:
    return Message.of_record(f"lacks.{profile.name}.{name}", profile.lacks[name])


class _Chooser:
    """The switches of one search, model and chip."""

    def __init__(self, search: SearchSpec, model: ModelSpec, profile: Profile, *, adapters: bool) -> None:
        self.search, self.model, self.profile, self.adapters = search, model, profile, adapters
        self.release = release = search.release(profile.vendor)
        self._variants = {} if release is None else variants_of(release)
        self.asked = {member: switch for name, switch in search.features.items() for member in expand(name)}

    def choice(self) -> FeatureChoice:
        on, reasons, errors = self._resolved(self.asked)
        if errors:
            raise UnsupportedError(errors=tuple(errors))
        switches = {name: self.asked.get(name, "auto") if name in on else "off" for name in FEATURES}
        return FeatureChoice(on, switches, reasons, self._alternatives(on))

    def _resolved(self, asked: Mapping[str, str]) -> tuple[frozenset[str], dict[str, str], list[FieldError]]:
        """Features that are on under these switches, why the others are not, and what is asked for but can't be."""
        on: set[str] = set()
        reasons: dict[str, str] = {}
        errors: list[FieldError] = []

        def refuse(name: str, reason: str, hint: str) -> None:
            asked_as = self._as_asked(name)
            said = reason if asked_as == name else Message("common.place", place=name, message=reason)
            errors.append(FieldError(f"/search/features/{asked_as}", said, hint))

        for name, feature in FEATURES.items():
            switch = asked.get(name, "auto")
            reason, always = self._why_not(feature), self._is_always_on(feature)
            if switch == "off" and always:
                refuse(
                    name,
                    Message("strategies.always_has_it", target=self.search.target),
                    Message("strategies.leave_it_at_auto"),
                )
            elif switch == "off":
                reasons[name] = Message("strategies.switched_off")
            elif switch == "auto" and reason is None and feature.only_asked and not always:
                reasons[name] = feature.only_asked
            elif reason is None:
                on.add(name)
            elif switch == "on":
                refuse(name, reason, self._hint(feature))
            else:
                reasons[name] = reason
        for name, feature in FEATURES.items():
            needed = next((each for each in self._needs(feature) if name in on and each not in on), None)
            if needed is None:
                continue
            reasons[name] = Message("common.it_needs_field", name=needed)
            if asked.get(name) == "on":
                refuse(name, reasons[name], Message("strategies.switch_on", feature=needed))
            on.discard(name)
        for second, feature in FEATURES.items():
            for first in self._rivals(feature):
                if first in on and second in on:
                    loser = first if asked.get(second) == "on" and asked.get(first) != "on" else second
                    on.discard(loser)
                    reasons[loser] = Message("common.excludes_it", what=second if loser == first else first)
        return frozenset(on), reasons, errors

    def _alternatives(self, on: frozenset[str]) -> tuple[frozenset[str], ...]:
        """The sets that result where one decided by time gives way to the other."""
        alternatives: list[frozenset[str]] = []
        asked = self.asked
        for second, feature in FEATURES.items():
            first = feature.decided_by_time_against
            if first not in on or "auto" not in {asked.get(first, "auto")} & {asked.get(second, "auto")}:
                continue
            other, _, errors = self._resolved({**asked, first: "off"})
            if not errors and second in other:
                alternatives.append(other)
        return tuple(alternatives)

    def _as_asked(self, name: str) -> str:
        """The key of the spec that switched the feature: its own name or its group's."""
        group = next((g for g, members in GROUPS.items() if name in members), name)
        return name if name in self.search.features else group

    def _needs(self, feature: Feature) -> tuple[str, ...]:
        variant = self._variant(feature)
        return (*feature.needs, *(() if variant is None else variant.needs))

    def _rivals(self, feature: Feature) -> tuple[str, ...]:
        variant = self._variant(feature)
        return (*feature.gives_way_to, *(() if variant is None else variant.gives_way_to))

    def _variant(self, feature: Feature) -> Variant | None:
        return self._variants.get(feature.name)

    def _is_launchable(self, feature: Feature) -> bool:
        if self.release is None:
            return True
        variant = self._variant(feature)
        if variant is None or (self.adapters and variant.whole_model):
            return False
        return all(_is_a(self.model, kind) for kind in variant.models)

    def _is_always_on(self, feature: Feature) -> bool:
        variant = self._variant(feature)
        return variant is not None and variant.always

    def _hint(self, feature: Feature) -> str:
        if not self._is_launchable(feature):
            return "search.target: any"
        too_loose = _RANK[feature.numerics] > _RANK[self.search.numerics]
        return f"search.numerics: {feature.numerics}" if too_loose else Message("strategies.leave_it_at_auto")

    def _why_not(self, feature: Feature) -> str | None:
        """Why a feature can't be on, or None."""
        search, profile = self.search, self.profile
        if not self._is_launchable(feature):
            return Message("strategies.cannot_launch_it", target=search.target)
        if _RANK[feature.numerics] > _RANK[search.numerics]:
            return Message("strategies.numerics_differ", one=feature.numerics, other=search.numerics)
        if search.deterministic_training and not feature.deterministic:
            return Message("strategies.nondeterministic_sums")
        if feature.vendors and profile.vendor not in feature.vendors:
            makers = joined([_MAKERS.get(vendor, vendor) for vendor in feature.vendors], "and")
            return Message("strategies.vendor_feature", makers=makers)
        lacking = next((_lacking(n, profile) for n in (feature.name, feature.mechanism) if n in profile.lacks), None)
        unfit = (reason for kind, reason in feature.model.items() if not _is_a(self.model, kind))
        return lacking or next(unfit, None)
