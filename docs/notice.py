"""Writes NOTICE: the packages that an installed AutoDeploy uses, with their licences as their own metadata state them.

Run by `make docs`. No package's code is part of AutoDeploy's wheel: pip installs each with its own licence files.
"""

from __future__ import annotations

import tomllib
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent
NOTICE = ROOT / "NOTICE"
OPTIONAL = "postgres"
CLASSIFIERS = {
    "Apache Software License": "Apache-2.0",
    "BSD License": "BSD-3-Clause",
    "ISC License (ISCL)": "ISC",
    "MIT License": "MIT",
}
# Spelled in words by packages whose metadata are older than SPDX expressions.
SPELLINGS = {
    "3-Clause BSD License": "BSD-3-Clause",
    "Apache 2.0": "Apache-2.0",
    "BSD": "BSD-2-Clause",
    "ISC License": "ISC",
}


class Dependency(NamedTuple):
    """A package that is installed with AutoDeploy."""

    name: str
    licence: str  # SPDX expression
    optional: bool  # with the extra `postgres` alone


def licence_of(package: metadata.PackageMetadata) -> str:
    """SPDX expression of a package, from its expression, its licence field or its classifiers."""
    (stated,) = (package.get_all("License-Expression") or package.get_all("License") or [""])[:1]
    if stated and len(stated) < 80:
        return SPELLINGS.get(stated, str(stated))
    classifiers = [line.split(" :: ")[-1] for line in package.get_all("Classifier") or [] if "License ::" in line]
    return " OR ".join(CLASSIFIERS[each] for each in classifiers)


def needed(requirements: list[str]) -> set[str]:
    """Names of all installed packages that the requirements bring, each with its own requirements."""
    names: set[str] = set()
    waiting = [Requirement(line) for line in requirements]
    while waiting:
        requirement = waiting.pop()
        name = canonicalize_name(requirement.name)
        key = "".join((name, *sorted(requirement.extras)))
        if key in names:
            continue
        names |= {key, name}
        for line in metadata.requires(name) or []:
            other = Requirement(line)
            extras = ("", *requirement.extras)
            if any(other.marker is None or other.marker.evaluate({"extra": extra}) for extra in extras):
                waiting.append(other)
    return {name for name in names if _installed(name)}


def _installed(name: str) -> bool:
    try:
        metadata.distribution(name)
    except metadata.PackageNotFoundError:
        return False
    return True


def dependencies() -> list[Dependency]:
    """Every run-time dependency, by name."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    always = needed(project["dependencies"])
    every = always | needed(project["optional-dependencies"][OPTIONAL])
    return [Dependency(name, licence_of(metadata.metadata(name)), name not in always) for name in sorted(every)]


def notice() -> str:
    """The text of the file."""
    rows = dependencies()
    width = max(len(row.name) for row in rows) + 2

    def listed(optional: bool) -> list[str]:
        return [f"    {row.name:<{width}}{row.licence}" for row in rows if row.optional == optional]

    lines = [
        "AutoDeploy",
        "Copyright The AutoDeploy authors",
        "",
        "Licensed under the Apache License, Version 2.0; see LICENSE.",
        "",
        "AutoDeploy contains no source code of other projects. It runs with the packages below, which pip",
        "installs beside it, each under its own licence and with its own licence files.",
        "",
        "Always:",
        "",
        *listed(optional=False),
        "",
        f"With the extra `{OPTIONAL}`:",
        "",
        *listed(optional=True),
        "",
        "Names of models, chips and frameworks are trademarks of their owners. Published measurements in",
        "autodeploy/calibration/records are facts, cited with their sources.",
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Write the file where it differs."""
    text = notice()
    if not NOTICE.exists() or NOTICE.read_text(encoding="utf-8") != text:
        NOTICE.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
