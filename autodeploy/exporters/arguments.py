"""Launch arguments as data: blocks of flags with values, checked against the release's parser as they are added."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from autodeploy.errors import UnsupportedError
from autodeploy.messages import Message

if TYPE_CHECKING:
    from autodeploy.stack.releases import Release


@dataclass(frozen=True, slots=True)
class ShellVariable:
    """A value that the script takes from a variable of its own."""

    name: str


Value = str | int | float | ShellVariable


@dataclass(slots=True)
class LaunchArguments:
    """Arguments of one launch of a release, in named blocks, and notes on what no flag can say.

    unsaid : fields of the model that matter to time or memory and that the release has no flag for.
    """

    release: Release
    blocks: dict[str, list[tuple[str, tuple[Value, ...]]]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    unsaid: list[str] = field(default_factory=list)

    @property
    def target(self) -> str:
        """The framework."""
        return self.release.framework

    def knows(self, flag: str, value: str | None = None) -> bool:
        """Whether the release's parser has the flag, with that value."""
        return self.release.registers(flag, value)

    def add(self, block: str, flag: str, *values: Value) -> None:
        """Adds a flag once.

        Raises
        ------
        UnsupportedError
            when the release's parser does not have the flag, or refuses the values.
        """
        registered = self.release.flags.get(flag)
        fault = (
            Message("common.unknown_key", name=flag)
            if registered is None
            else registered.fault([_plain(value) for value in values])
        )
        if fault is not None:
            raise UnsupportedError(
                Message("common.cannot_launch_this_plan", release=self.release.title, reason=fault),
                path="/to",
                hint=f"search.target: {self.target}, search.target_release: {self.release.name}",
            )
        if not self.has(flag):
            self.blocks.setdefault(block, []).append((flag, values))

    def variables(self) -> set[str]:
        """Names of the script's variables that some flag takes its value from."""
        values = (value for lines in self.blocks.values() for _, given in lines for value in given)
        return {value.name for value in values if isinstance(value, ShellVariable)}

    def has(self, flag: str) -> bool:
        """Whether the flag is given in any block."""
        return any(flag == given for lines in self.blocks.values() for given, _ in lines)

    def numbers(self, flag: str) -> list[int]:
        """The whole numbers that a flag lists; none where it isn't given."""
        values = [
            value for lines in self.blocks.values() for given, values in lines if given == flag for value in values
        ]
        return [int(word) for value in values for word in str(value).split(",")]

    def drop(self, flag: str) -> None:
        """Takes a flag out again."""
        for name, lines in self.blocks.items():
            self.blocks[name] = [line for line in lines if line[0] != flag]

    def note(self, text: str) -> None:
        """Says once what the launch can't express or what has to be checked."""
        if text not in self.notes:
            self.notes.append(text)

    def flags(self) -> list[str]:
        """Names of all flags given, in order."""
        return [flag for lines in self.blocks.values() for flag, _ in lines]


def shell_value(value: Value) -> str:
    """The value as one word of a shell command."""
    if isinstance(value, ShellVariable):
        return f'"{_plain(value)}"'
    return shlex.quote(_plain(value))


def _plain(value: Value) -> str:
    if isinstance(value, ShellVariable):
        return f"${{{value.name}}}"
    return f"{value:g}" if isinstance(value, float) else str(value)


def shell_array(name: str, lines: list[tuple[str, tuple[Value, ...]]]) -> str:
    """A bash array: one flag with its values a line."""
    body = "\n".join("    " + " ".join([flag, *map(shell_value, values)]) for flag, values in lines)
    return f"{name}=(\n{body}\n)"
