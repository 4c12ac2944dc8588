"""Reads a local checkout of a public repository and lists how its training scripts are understood.

    python -m docs.public_scripts PATH --repo owner/name --commit SHA --files 'examples/mcore/*/pretrain_*.sh'

replaces that repository's section of docs/reference/public_scripts.md. Nothing of a script is run or copied: the page
names files and counts flags.
"""

from __future__ import annotations

import argparse
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from autodeploy.formats.import_document import import_file
from autodeploy.kit.errors import SpecError
from docs.schema_tables import code, table

if TYPE_CHECKING:
    from collections.abc import Iterable

PAGE = Path(__file__).resolve().parent / "reference" / "public_scripts.md"
HEAD = """# Public scripts and how they are read

Training scripts and configurations of public repositories, read by `autodeploy import` without edits. *Understood* are
the flags or keys whose effect is known; of those, *taken* became part of the spec, *told* change the result and are not
modelled, which every plan of the spec says, and the others change neither time nor memory. Of what is *kept* nobody
knows what it does: it is told, too. What is no pre-training of all parameters is refused by name.
Made from local checkouts by `python -m docs.public_scripts PATH --repo owner/name --commit SHA --files PATTERN`; a
section is replaced by the next run over its repository.
"""
SECTION = re.compile(r"^## .*?(?=^## |\Z)", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True, slots=True)
class Read:
    """One file: flags or keys understood, taken, told and kept, or why it is refused."""

    path: str
    understood: int
    taken: int
    told: int
    kept: tuple[str, ...]
    refused: str = ""


def read_script(path: Path, root: Path) -> Read:
    """How one file is understood."""
    name = path.relative_to(root).as_posix()
    try:
        imported = import_file(path)
    except SpecError as error:
        return Read(name, 0, 0, 0, (), str(error.errors[0].message))
    notes = imported.diagnostics
    taken = {note.source for note in notes.taken}
    told = {note.source for note in notes.unmodelled}
    ignored = {note.source for note in notes.ignored} | told
    kept = tuple(sorted(flag.name for flag in imported.kept))
    return Read(name, len(taken | ignored) - len(kept), len(taken), len(told), kept)


def section(repo: str, commit: str, reads: Iterable[Read]) -> str:
    """The Markdown of one repository."""
    reads = list(reads)
    good = [read for read in reads if not read.refused]
    address = f"https://github.com/{repo}/blob/{commit}"

    def named(read: Read) -> str:
        return f"[{read.path}]({address}/{read.path})"

    rows = [(named(read), str(read.understood), str(read.taken), str(read.told), str(len(read.kept))) for read in good]
    kept = Counter(name for read in good for name in read.kept)
    text = f"## {repo}\n\nCommit `{commit}`: {len(good)} of {len(reads)} files are read.\n\n"
    text += table(("file", "understood", "taken", "told", "kept"), rows)
    if kept:
        most = ", ".join(f"{code(name)} ({count})" for name, count in sorted(kept.items(), key=lambda n: (-n[1], n[0])))
        text += f"\nKept, with the number of files: {most}\n"
    refused = [(named(read), read.refused) for read in reads if read.refused]
    if refused:
        text += "\nRefused by name, not guessed:\n\n" + table(("file", "why"), refused)
    return text


def with_section(page: str, repo: str, text: str) -> str:
    """The page with that repository's section replaced or added, sections in the order of their names."""
    sections = {text.split("\n", 1)[0][3:]: text.strip() for text in SECTION.findall(page)}
    sections[repo] = text.strip()
    return HEAD + "".join(f"\n{sections[name]}\n" for name in sorted(sections))


def main() -> None:
    """Reads the checkout and rewrites the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("path", type=Path, help="the checkout")
    parser.add_argument("--repo", required=True, help="owner/name")
    parser.add_argument("--commit", required=True)
    parser.add_argument("--files", action="append", required=True, help="pattern of files, may be repeated")
    parser.add_argument("-o", "--output", type=Path, default=PAGE)
    given = parser.parse_args()
    paths = sorted({path for pattern in given.files for path in given.path.glob(pattern)})
    text = section(given.repo, given.commit, [read_script(path, given.path) for path in paths])
    page = given.output.read_text(encoding="utf-8") if given.output.exists() else ""
    given.output.write_text(with_section(page, given.repo, text), encoding="utf-8")


if __name__ == "__main__":
    main()
