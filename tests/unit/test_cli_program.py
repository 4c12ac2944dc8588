"""A command line is made of what it asks for, and is then the same as of the whole program."""

from __future__ import annotations

import pytest
from typer.main import get_command

from autodeploy.cli.main import app, program

WHOLE = get_command(app).commands


@pytest.mark.parametrize("name", sorted(WHOLE))
def test_a_command_is_there_as_in_the_whole_program(name):
    made = get_command(program(["--quiet", name, "ls"])).commands
    assert described(made[name]) == described(WHOLE[name])
    assert len(made) < 5


def described(command):
    """Names, options and what they say, of a command or of those of a group."""
    inside = {name: described(each) for name, each in sorted(getattr(command, "commands", {}).items())}
    return [
        command.name,
        command.help,
        [(p.name, p.opts, p.help if hasattr(p, "help") else "") for p in command.params],
        inside,
    ]


@pytest.mark.parametrize("words", [[], ["--help"], ["pln", "spec.yaml"]])
def test_where_none_is_asked_for_all_are_there(words):
    assert get_command(program(words)).commands.keys() == WHOLE.keys()
