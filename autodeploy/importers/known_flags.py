"""Flags that any release of a framework registers, and whose launch they are."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from autodeploy.stack.releases import releases

if TYPE_CHECKING:
    from collections.abc import Collection

    from autodeploy.stack.releases import Release


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
