"""Launches for the chip after today's, the Ascend 950 (A5): recognised, and refused by name.

No profile has its rates, memory or links, and a plan for today's chips would be an answer to another question.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from autodeploy.errors import UnsupportedError
from autodeploy.importers.diagnostics import not_modelled
from autodeploy.messages import Message, at_place

if TYPE_CHECKING:
    from autodeploy.importers.launch_script import LaunchScript

# Number formats that no Ascend chip before the 950 multiplies, by the flag that says them.
FORMATS = {"--fp8-recipe": frozenset({"mxfp8", "mxfp8-32x32"}), "--fp8-format": frozenset({"hif8"})}
# Public scripts say the chip between the separators of their own name and of the log's: `_A5_`.
_NAMED = re.compile(r"(?<![A-Za-z0-9])A5(?![A-Za-z0-9+])|ascend[-_ ]?950", re.IGNORECASE)
_LOG = re.compile(r"(?:\btee\s+(?:-a\s+)?|>>?\s*)([^\s|;&<>]+)")


def refuse_next_chip(script: LaunchScript, text: str, name: str) -> None:
    """Refuses a launch that its file, its log or its number format says to be for the Ascend 950.

    Parameters
    ----------
    text : the script, for the names of its logs.
    name : the file's name, without its suffix.

    Raises
    ------
    UnsupportedError
        with the word that says so.
    """
    for flag, formats in FORMATS.items():
        given = script.flags.get(flag)
        if given is not None and given.text.strip().lower() in formats:
            _refuse(f"{flag} {given.text.strip()}", (given.line, given.column))
    for word in (name, *_LOG.findall(text)):
        refuse_name(word)


def refuse_name(word: str) -> None:
    """Refuses a launch whose file or log of this name says the Ascend 950."""
    if _NAMED.search(word):
        _refuse(word[:120])


def _refuse(by: str, place: tuple[int, int] | None = None) -> None:
    raise UnsupportedError(
        at_place(not_modelled("Ascend 950", by), place),
        path="/cluster",
        hint=Message("importers.give_launch_for_a2_or_a3"),
    )
