"""The release of a framework that an export is for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autodeploy.errors import UnsupportedError
from autodeploy.messages import Message
from autodeploy.specs.launched import unlaunched
from autodeploy.stack.releases import frameworks_for, release_of
from hardware_profiles import ProfileError, load_profile

if TYPE_CHECKING:
    from collections.abc import Mapping

    from autodeploy.specs.spec import Spec
    from autodeploy.specs.strategy import Strategy
    from autodeploy.stack.releases import Release
    from hardware_profiles import Profile


def refuse_axes(strategy: Strategy, target: str, launched: Mapping[str, bool]) -> None:
    """Refuses a plan for the first axis whose value the target can't launch."""
    for axis, can in launched.items():
        if not can:
            value = getattr(strategy, axis)
            said = ", ".join(value) if isinstance(value, tuple) else value
            fault = Message("exporters.cannot_launch_axis", target=target, axis=axis, value=said)
            raise UnsupportedError(fault, path=f"/strategy/{axis}", hint=f"search.target: {target}")


def refuse_unlaunched(spec: Spec, release: Release) -> None:
    """Refuses a model or a training that the release has no launch of, as searches for it do.

    Raises
    ------
    UnsupportedError
        which names the field.
    """
    field = unlaunched(spec.model, spec.training, release)
    if field:
        raise UnsupportedError(
            Message("exporters.has_no_flag_in", framework=release.title, name=field),
            path="/" + field.partition(" ")[0].replace(".", "/"),
            hint=Message("exporters.export_to", names=", ".join((*_others(spec, release), "json"))),
        )


def _others(spec: Spec, release: Release) -> list[str]:
    """Frameworks with a default release for the spec's chips that launches it."""
    profile = profile_of(spec)
    vendor = profile.vendor if profile is not None else None
    names = frameworks_for(release.framework, vendor)
    return [name for name in names if not unlaunched(spec.model, spec.training, release_of(name, vendor))]


def profile_of(spec: Spec) -> Profile | None:
    """The spec's hardware profile; None where it can't be found any more."""
    try:
        return load_profile(spec.cluster.profile)
    except ProfileError:
        return None


def release_of_spec(spec: Spec, target: str) -> Release:
    """The release that the spec names or, where it names none, the framework's default on its chips.

    Raises
    ------
    UnsupportedError
        when nothing launches with that name.
    """
    profile = profile_of(spec)
    release = spec.search.release(profile.vendor if profile is not None else None, target)
    if release is None:
        raise UnsupportedError(Message("stack.has_no_release", framework=target), path="/to")
    return release
