"""Snippets of shell scripts from a grammar of word expansion, and the words that bash makes of them."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path
    from random import Random

MARK = "p"  # the command whose words are looked at
VALUES = ("", "a", "a b", " a", "b ", "  ", "a  b c", "hello", "-n", "k=v", "a\tb", "x\ny", "--lr 1e-4 --seq 8 ")
PLAIN = ("a", "--lr", "x=1", "7", "-", "b.c", "/d", ":", "a:b", "^", "@", "%2", "a]b")
QUOTED = ("", " ", "a b", "  x", "#", "it", "q;r", "{", "a  ", "&", "(", ">", "*", "~")
NUMBERS = ("0", "1", "2", "3", "9", " -1", " -2", " -9", "$n", "n+1", "$((1+1))", "")
DEFAULTS = (":-", "-", ":+", "+")


class Snippets:
    """A source of snippets: each sets variables and arrays, maybe in a function with arguments, and calls `p`."""

    def __init__(self, random: Random) -> None:
        self._random = random

    def snippet(self) -> str:
        """A few assignments and one to three commands."""
        calls = "\n".join(self._line() for _ in range(self._random.randint(1, 3)))
        arguments = " ".join(self._literal() for _ in range(self._random.choice((0, 0, 1, 2, 3))))
        return f"{self._setting()}\nf() {{\n{calls}\n}}\nf {arguments}\n"

    def _one(self, *choices: str) -> str:
        return self._random.choice(choices)

    def _literal(self) -> str:
        value = self._one(*VALUES)
        return f"'{value}'" if self._random.random() < 0.5 else f'"{value}"'

    def _array(self) -> str:
        return "(" + " ".join(self._literal() for _ in range(self._random.choice((0, 0, 1, 2, 3, 4)))) + ")"

    def _setting(self) -> str:
        lines = [f"x={self._literal()}", f"y={self._literal()}", "unset u", f"n={self._one('1', '2')}"]
        lines += [f"A={self._array()}", f"B={self._array()}"]
        more = ("y+=$x", "x+='  c'", "A+=('p  q' r)", 'B=("${A[@]}")', "B=($x)", 'y="${A[@]}"', "y=${A[*]}", "y=$x$y")
        lines += self._random.sample((*more, "A=z", "A+=w", "B=(${A[@]} end)", "y=${u:-$x}"), k=2)
        return "\n".join([*lines, *(["unset A"] if self._random.random() < 0.15 else [])])

    def _line(self) -> str:
        if self._random.random() < 0.15:
            return f'z={self._word(2)}\n{MARK} "$z" $z'
        if self._random.random() < 0.15:
            return f'C=({self._word(2)} {self._word(2)})\n{MARK} "${{C[@]}}" "${{#C[@]}}"'
        return f"{MARK} " + " ".join(self._word(2) for _ in range(self._random.randint(1, 3)))

    def _word(self, depth: int) -> str:
        return "".join(self._piece(depth) for _ in range(self._random.choice((1, 1, 2, 3))))

    def _piece(self, depth: int) -> str:
        kind = self._random.random()
        if kind < 0.15:
            return self._one(*PLAIN)
        if kind < 0.25:
            return f"'{self._one(*QUOTED, chr(92), '$x')}'"
        if kind < 0.32:
            return self._one(r"\ ", r"\"", r"\'", r"\$", r"\\", r"\a", "\\\n")
        if kind < 0.36:
            return self._one(r"$'a\tb'", r"$'it\'s'", r"$'\\'", r"$'\x41\101'", "$''", "$'q r'", '$"a b"', r"$'\n'")
        if kind < 0.66:
            return self._parameter(depth)
        count, elements = self._random.choice((0, 1, 1, 2, 3)), self._random.random() < 0.5
        return '"' + "".join(self._in_quotes(depth, elements=elements) for _ in range(count)) + '"'

    def _in_quotes(self, depth: int, *, elements: bool) -> str:
        """What stands between double quotes; beside elements nothing but texts and plain variables.

        bash splits `"${*:2}$@"` and `"${@:-a b}"`, and has words for `"$@${x:0:0}"`: nothing that a script relies on.
        """
        kind = self._random.random()
        if kind < 0.2:
            return self._one(*PLAIN, *QUOTED)
        if kind < 0.3:
            return self._one(r"\"", r"\\", r"\$", r"\a", r"\ ", "'", "'a b'", "\\\n")
        if not elements:
            return self._scalar(depth, quoted=True)
        return self._plain() if kind < 0.5 else self._elements()

    def _plain(self) -> str:
        return self._one(
            "${x}", "${y}", "${u}", "${A}", "$1", "${2}", "$#", "$((n + 2))", "${A[0]}", "${#x}", "${B[*]}"
        )

    def _elements(self) -> str:
        every = self._one("A[@]", "B[@]", "@")
        kind = self._random.random()
        if kind < 0.5:
            return f"${{{every}}}"
        # From the first argument on, and without negative lengths.
        bounds = self._one("1", "2", " -1", "$n", "n+1", "9") + self._one("", "", ":0", ":1", ":2", ":$n")
        return f"${{{every}:{bounds}}}" if kind < 0.85 else f"${{{every}+}}"

    def _parameter(self, depth: int) -> str:
        kind = self._random.random()
        if kind < 0.2:
            return self._one("$@", "$*", "${A[*]}", "${B[*]:1}", "${*: -1}")
        return self._elements() if kind < 0.45 else self._scalar(depth, quoted=False)

    def _scalar(self, depth: int, *, quoted: bool) -> str:
        name = self._one("x", "y", "u", "A[0]", "A[1]", "A[-1]", "A[7]", "A", "1", "2", "x", "y")
        kind = self._random.random()
        if kind < 0.3:
            return self._plain()
        if kind < 0.4:
            return f"${{#{self._one('x', 'y', 'A[@]', 'B[*]', 'A[0]', '@', 'u', 'A')}}}"
        if kind < 0.55 or depth == 0:
            length = self._one("", "", ":0", ":1", ":3", ": -1", ":n", ":")
            return f"${{{name}:{self._one(*NUMBERS)}{length}}}"
        operator = self._one(*DEFAULTS)
        if self._random.random() < 0.1:
            name, operator = self._one("x", "u", "y"), self._one(":=", "=")
        if not quoted and self._random.random() < 0.1:
            every = self._one("$@", "${A[@]}", "${B[@]}")
            return f'${{{name}{operator}"{every}"}}'
        count = self._random.choice((0, 1, 1, 2))
        return f"${{{name}{operator}{''.join(self._operand(depth - 1, quoted=quoted) for _ in range(count))}}}"

    def _operand(self, depth: int, *, quoted: bool) -> str:
        kind = self._random.random()
        if kind < 0.3:
            return self._one(" ", "a b", "  c", "d ", "a", "e\tf")
        if kind < 0.38:
            return self._one(r"\}", r"\ ", r"\a", "'a b'", "'q'")
        if kind < 0.6:
            return self._one('""', '"a b"', '" c"')
        return self._scalar(depth, quoted=quoted)


def words_in_bash(snippets: list[str], folder: Path) -> list[list[list[str]] | None]:
    """The words of each call of `p`; None where bash reports an error."""
    for number, snippet in enumerate(snippets):
        (folder / f"{number}.sh").write_text(snippet)
    runner = (
        f'{MARK}() {{ printf \'%s\\0\' "$#" "$@"; }}\n'
        f"set -f\nfor ((i = 0; i < {len(snippets)}; i++)); do\n"
        'errors=$( { (. "./$i.sh") >&3; } 2>&1 3>"$i.out" )\n[ -z "$errors" ] || : >"$i.bad"\ndone\n'
    )
    subprocess.run(
        ["bash", "--norc", "-c", runner, "$0"], cwd=folder, env={"PATH": "/usr/bin:/bin"}, check=False, timeout=300
    )
    found: list[list[list[str]] | None] = []
    for number in range(len(snippets)):
        if (folder / f"{number}.bad").exists():
            found.append(None)
            continue
        fields = (folder / f"{number}.out").read_bytes().decode().split("\0")[:-1]
        calls = []
        while fields:
            count = int(fields[0])
            calls.append(fields[1 : count + 1])
            fields = fields[count + 1 :]
        found.append(calls)
    return found
