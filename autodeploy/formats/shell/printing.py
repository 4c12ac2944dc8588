"""Output of `echo` and `printf`, the commands whose substitution is known without running anything."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from autodeploy.formats.shell.values import Value

# A command substitution around one of them, with assignments before it.
PRINTS = re.compile(r"\$\(\s*(?:[A-Za-z_]\w*=[^;\n]*;\s*)*(?:echo|printf)\s")
MAX_PRINTING = 4096
_ESCAPES = {"\\n": "\n", "\\t": "\t", "\\\\": "\\", "%%": "%"}
_CONVERSION = re.compile(r"%[sdi%]|\\[nt\\]|[^%\\]+")


def printed(words: list[Value]) -> str | None:
    """Text of a command; None of other commands, conversions beyond `%s` and `%d`, and where a word is unknown."""
    command, *arguments = [word.text for word in words] or [""]
    if any(word.unknown for word in words):
        return None
    if command == "echo":
        line_end = "" if arguments[:1] == ["-n"] else "\n"
        rest = arguments[not line_end :]
        return None if rest and re.fullmatch("-[neE]+", rest[0]) else " ".join(rest) + line_end
    if command != "printf" or not arguments or arguments[0].startswith("-"):
        return None
    tokens = _CONVERSION.findall(arguments.pop(0))
    if "".join(tokens) != words[1].text:
        return None
    conversions = sum(token[0] == "%" and token != "%%" for token in tokens)
    rounds = max(1, -(-len(arguments) // conversions)) if conversions else 1
    text = ""
    for token in tokens * rounds:
        if token[0] != "%" or token == "%%":
            text += _ESCAPES.get(token, token)
            continue
        argument = arguments.pop(0) if arguments else "" if token == "%s" else "0"
        if token != "%s" and not argument.removeprefix("-").isdecimal():
            return None
        text += argument if token == "%s" else str(int(argument[:20]))
    return text
