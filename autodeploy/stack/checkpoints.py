"""Formats of checkpoints: which a release saves, which of them beside training, and which layouts load them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Literal

from autodeploy.kit.errors import SpecError
from autodeploy.messages import Message, joined
from autodeploy.stack.records import read_records
from hardware_profiles.shipped_yaml import shipped

if TYPE_CHECKING:
    from autodeploy.stack.releases import Release

Reach = Literal["any", "replicas"]


@dataclass(frozen=True, slots=True)
class CheckpointFormat:
    """One format as a component saves and loads it.

    weights, optimizer : layouts that each is loaded into: any, or those that differ in the number of replicas alone.
    asynchronous : whether it is written beside training. sharded : of parameters that are sharded over replicas.
    releases, without : releases that it is of, all where both are empty.
    """

    name: str
    weights: Reach
    optimizer: Reach
    source: str
    default: bool = False
    asynchronous: bool = False
    sharded: bool = False
    releases: tuple[str, ...] = ()
    without: tuple[str, ...] = ()

    def is_of(self, release: Release) -> bool:
        """Whether the release has it."""
        return release.names.isdisjoint(self.without) and (not self.releases or bool(release.names & {*self.releases}))


@cache
def _tables() -> tuple[dict[str, tuple[CheckpointFormat, ...]], list[dict[str, Any]]]:
    """Formats by component, and commands that convert."""
    document = shipped("autodeploy.stack", "checkpoints.yaml")
    conversions = document.pop("conversions")
    return {component: read_records(CheckpointFormat, rows) for component, rows in document.items()}, conversions


def checkpoint_formats(release: Release) -> tuple[CheckpointFormat, ...]:
    """The formats that a release saves and loads; none where nothing is known of it."""
    rows = next((rows for component, rows in _tables()[0].items() if release.has(component)), ())
    return tuple(each for each in rows if each.is_of(release))


def checkpoint_format(
    release: Release,
    asked: str | None = None,
    *,
    asynchronous: bool = False,
    sharded: bool = False,
    copied: bool = False,
) -> CheckpointFormat | None:
    """The format that a launch of a release saves; None where nothing is known of the release.

    asked : the format's name; None: the default, or the one that is written beside training.
    asynchronous : whether it is to be written beside training. sharded : whether replicas share the parameters.
    copied : whether the launch keeps the optimizer's states twice. Source: MindSpeed-LLM
        features_manager/high_availability/high_availability.py, which refuses distributed checkpoints.

    Raises SpecError where the release has no such format, or does not write it beside training or copies.
    """
    of_release = checkpoint_formats(release)
    of_sharded = next((each for each in of_release if each.sharded), None)
    if not of_release or (sharded and of_sharded):
        return of_sharded
    unsharded = [each for each in of_release if not each.sharded]
    fits = [each for each in unsharded if asked in {None, each.name}]
    if not fits:
        hint = Message("common.one_of", names=", ".join(each.name for each in unsharded))
        raise SpecError(
            Message("stack.saves_no_checkpoints", release=release.title, format=asked),
            path="/run/checkpoint_format",
            hint=hint,
        )
    beside = [each for each in fits if each.asynchronous or not asynchronous]
    if not beside:
        formats = joined([each.name for each in fits], "or")
        raise SpecError(
            Message("stack.no_asynchronous_format", release=release.title, format=formats),
            path="/run/checkpoint",
            hint=Message("stack.synchronous_or_release"),
        )
    saved = next((each for each in beside if each.default), beside[0])
    if copied and saved.name == "torch_dist":
        path = "/run/checkpoint" if asked is None else "/run/checkpoint_format"
        raise SpecError(Message("stack.recovery_checkpoint_format"), path=path)
    return saved


def conversion_commands(release: Release, *, tp: int, pp: int, ep: int, etp: int) -> tuple[str, ...]:
    """The commands that convert weights, without an optimizer, into another layout; none where none is known."""
    for row in _tables()[1]:
        if release.has(row["component"]) and release.names & {*row.get("releases", [release.name])}:
            return tuple(each.format(tp=tp, pp=pp, ep=ep, etp=etp) for each in row["commands"])
    return ()
