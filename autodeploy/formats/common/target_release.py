"""The release of a framework that an export is for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autodeploy.kit.errors import UnsupportedError
from autodeploy.messages import Message
from autodeploy.specs.launched import unlaunched
from hardware_profiles import ProfileError, load_profile

if TYPE_CHECKING:
    from autodeploy.specs.spec import Spec
    from autodeploy.stack.releases import Release
    from hardware_profiles import Profile


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
