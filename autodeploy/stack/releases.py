"""Releases of the training frameworks: which commits belong together, and what their parser registers.

A framework, the vendor of the chip and `search.target_release` give one release: plans, scripts and checks are for it.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cache, cached_property
from typing import TYPE_CHECKING

from autodeploy.kit.errors import SpecError
from autodeploy.messages import Message
from autodeploy.stack.flag_tables import RegisteredFlag, flag_table
from autodeploy.stack.frameworks import FRAMEWORKS, UNRESTRICTED
from autodeploy.stack.records import Said, known, read_records
from hardware_profiles.shipped_yaml import shipped

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_PATH = "/search/target_release"


@dataclass(frozen=True, slots=True)
class Component:
    """One repository of a release: its commit and the branch or tag that the commit was read at."""

    repository: str
    commit: str
    branch: str

    @property
    def short(self) -> str:
        """The commit in eight characters, as the sources name it."""
        return self.commit[:8]


@dataclass(frozen=True, eq=False)
class Release:
    """Commits of a framework's repositories that run together.

    vendors : of chips that it runs on, in lower case; None: any but `without`.
    is_default : whether a spec that names no release means this one, on these vendors.
    cuts_latents : whether down projections of latent attention are cut over tensor-parallel ranks, or whole on each.
    like : other releases whose rules and checkpoints are its own too.
    table : what its parser registers, for a release that has no table of its own in the package (as of a test).
    """

    name: str
    title: Said
    framework: str
    vendors: tuple[str, ...] | None
    components: dict[str, Component]
    is_default: bool = False
    cuts_latents: bool = False
    without: tuple[str, ...] = ()
    like: tuple[str, ...] = ()
    table: dict[str, RegisteredFlag] | None = field(default=None, repr=False)

    @property
    def registered(self) -> Mapping[str, RegisteredFlag]:
        """Flags and keys, by name."""
        return self.table if self.table is not None else flag_table(self.name)

    @cached_property
    def flags(self) -> Mapping[str, RegisteredFlag]:
        """Flags of its command line; empty where a file configures it."""
        return {name: flag for name, flag in self.registered.items() if name.startswith("--")}

    @cached_property
    def keys(self) -> Mapping[str, RegisteredFlag]:
        """Keys of its configuration file, by dotted path; empty where flags configure it."""
        return {name: key for name, key in self.registered.items() if not name.startswith("--")}

    @property
    def names(self) -> frozenset[str]:
        """Its own name, and those that it is like: records of rules and formats name either."""
        return frozenset({self.name, *self.like})

    def has(self, component: str) -> bool:
        """Whether the component is part of it."""
        return component in self.components

    def registers(self, flag: str, value: str | None = None) -> bool:
        """Whether its parser knows the flag, with that value."""
        parser_flag = self.registered.get(flag)
        return parser_flag is not None and (value is None or parser_flag.fault([value]) is None)

    @cached_property
    def not_searched(self) -> tuple[str, ...]:
        """Flags that it launches and no search has a value for (`not_searched.yaml`)."""
        lists = _not_searched()
        names = lists["names"] if self.has("mindspeed") else (*lists["names"], *lists["of_cuda"])
        return tuple(name for name in names if self.registers(*name.split()))

    def source(self, flag: str) -> str:
        """Place where the flag is registered: repository, commit, path and line."""
        parser_flag = self.registered[flag]
        component = self.components[parser_flag.registered_in]
        return f"{component.repository}@{component.short}:{parser_flag.source}"

    def runs_on(self, vendor: str | None) -> bool:
        """Whether it runs on chips of that vendor; where that isn't known, it may."""
        if vendor is None:
            return True
        return vendor.lower() not in self.without and (self.vendors is None or vendor.lower() in self.vendors)


@cache
def _shipped() -> tuple[Release, ...]:
    rows = ({"vendors": None, **row} for row in shipped("autodeploy.stack", "releases.yaml"))
    titled = (row | {"title": Message.of_record(f"release_title.{row['name']}", row["title"])} for row in rows)
    return read_records(Release, titled)


@cache
def _not_searched() -> Mapping[str, list[str]]:
    return dict(shipped("autodeploy.stack", "not_searched.yaml"))


_ADDED: dict[str, Release] = {}


def releases() -> tuple[Release, ...]:
    """Every release: those of the package, then those registered while the program runs."""
    return (*_shipped(), *_ADDED.values())


@contextmanager
def registered(release: Release) -> Iterator[Release]:
    """Knows another release as long as the context lasts; raises ValueError where one is registered by that name."""
    with known(_ADDED, {release.name: release}):
        yield release


def release_named(name: str) -> Release:
    """The release of that name.

    Raises SpecError when there is none; the hint names close ones.
    """
    by_name = {release.name: release for release in releases()}
    if name in by_name:
        return by_name[name]
    close = get_close_matches(name, by_name, n=1)
    raise SpecError(
        Message("field_fault.is_invalid", value=repr(name[:100])),
        path=_PATH,
        hint=close[0] if close else Message("common.one_of", names=", ".join(by_name)),
    )


def release_of(framework: str, vendor: str | None, name: str | None = None) -> Release:
    """The release that a framework means on a vendor's chips.

    vendor : None where it isn't known: the first default is meant.
    name : of the release; None: the framework's default there.

    Raises SpecError when there is no such release, or it is of another framework or for other chips.
    """
    of_framework = [each for each in releases() if each.framework == framework and each.runs_on(vendor)]
    if name is not None:
        named = release_named(name)
        if named in of_framework:
            return named
        fault = Message("stack.release_excludes_vendor", name=name, vendor=vendor)
        if named.framework != framework:
            fault = Message("stack.release_is_of", name=name, framework=named.framework)
        names = ", ".join(each.name for each in of_framework)
        of_none = Message("stack.has_no_release", framework=framework)
        raise SpecError(fault, path=_PATH, hint=Message("common.one_of", names=names) if names else of_none)
    if defaults := [each for each in of_framework if each.is_default]:
        return min(defaults, key=lambda each: each.vendors is None)  # one for this vendor by name before one for any
    raise SpecError(
        Message("stack.no_release_for_vendor", framework=framework, vendor=vendor),
        path="/search/target",
        hint=Message("common.one_of", names=", ".join((*frameworks_for(framework, vendor), UNRESTRICTED))),
    )


def framework_for(like: str, vendor: str | None) -> str:
    """The framework itself where it has a release for a vendor's chips, else the first that trains as it does."""
    have = frameworks_for(like, vendor)
    return like if like in have else (*have, like)[0]


def frameworks_for(like: str, vendor: str | None) -> tuple[str, ...]:
    """Frameworks that train as another one does and have a release for a vendor's chips, in order."""
    post_trains = like in FRAMEWORKS and FRAMEWORKS[like].post_trains
    have = {release.framework for release in releases() if release.is_default and release.runs_on(vendor)}
    return tuple(name for name, each in FRAMEWORKS.items() if name in have and each.post_trains is post_trains)
