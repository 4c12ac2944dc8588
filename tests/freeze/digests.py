"""Digests of PlanSets, exported scripts, imported files, the OpenAPI document, help texts and stored documents."""

from __future__ import annotations

import hashlib
import json
import re
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import yaml

import autodeploy
from api.app import create_app
from autodeploy.formats.import_document import import_document
from autodeploy.formats.registry import FORMATS, export
from autodeploy.kit.errors import AutoDeployError
from autodeploy.kit.settings import Settings
from autodeploy.search.planner import timeline
from autodeploy.service.store.database import Database
from autodeploy.service.store.dump import export_lines, import_lines
from autodeploy.service.store.migration import ready_database, upgrade
from autodeploy.specs.presets import preset_names
from autodeploy.specs.spec import Spec
from docs.commands import commands

if TYPE_CHECKING:
    from collections.abc import Iterator

    from autodeploy.specs.planset import Plan, PlanSet

FOLDER = Path(__file__).parent
ROOT = FOLDER.parent.parent
STORED = FOLDER / "stored_1_0.jsonl"
NUMBER = re.compile(r"\d+\.\d+(?:e-?\d+)?")
DIGITS = 10
# Differ between two runs of one search.
OF_ONE_RUN = ("timing", "cached", "progress", "tags", "note")


@cache
def renamed() -> dict[str, str]:
    """Names that users see and that were changed on purpose, old to new."""
    names: dict[str, str] = yaml.safe_load((FOLDER / "names.yaml").read_text(encoding="utf-8")) or {}
    return names


def digest(document: object) -> str:
    """SHA-256 of a document or a text, after the committed renames; 16 hexadecimal digits.

    Numbers count to DIGITS digits: exponentials of numpy differ in the last bit with and without AVX-512.
    """
    text = document if isinstance(document, str) else json.dumps(document, sort_keys=True, ensure_ascii=False)
    text = NUMBER.sub(_rounded, text)
    for old, new in renamed().items():
        text = text.replace(old, new)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _rounded(number: re.Match[str]) -> str:
    short = len(number[0]) <= DIGITS  # versions too: they stay as they are
    return number[0] if short else str(float(f"{float(number[0]):.{DIGITS}g}"))


def searched(name: str) -> PlanSet:
    """The PlanSet of a file's spec, searched once a process."""
    return _searched(name, "specs.yaml")


@cache
def _searched(name: str, file: str) -> PlanSet:
    specs: dict[str, Any] = yaml.safe_load((FOLDER / file).read_text(encoding="utf-8"))
    return autodeploy.plan(specs[name])


def names_in(file: str = "specs.yaml") -> list[str]:
    """Names of the specs of a file."""
    return list(yaml.safe_load((FOLDER / file).read_text(encoding="utf-8")))


def plan_set_digests(file: str = "specs.yaml") -> dict[str, str]:
    """Digest of each search of a file, without what differs between equal searches."""
    found = {}
    for name in names_in(file):
        document = _searched(name, file).model_dump(mode="json")
        document["search"] = {k: v for k, v in document["search"].items() if k not in {"id", "created_at"}}
        found[name] = digest({k: v for k, v in document.items() if k not in OF_ONE_RUN})
    return found


@cache
def exported() -> dict[str, str]:
    """Text of every format that takes a plan of the small searches, by search, rank and format."""
    texts = {}
    for name in names_in():
        plan_set = searched(name)
        for rank, plan in enumerate(plan_set.plans[:2], 1):
            for to in FORMATS:
                text = _export(plan_set, plan, to)
                if text is not None:
                    texts[f"{name}.{rank}.{to}"] = text
    return texts


def _export(plan_set: PlanSet, plan: Plan, to: str) -> str | None:
    if to in {"json", "html", "markdown"}:  # hold the moment of the search, or how long it took
        return None
    try:
        return export(
            plan_set, plan, to, timeline=lambda: timeline(Spec.model_validate(plan_set.search.spec), plan.strategy)
        ).text
    except AutoDeployError:
        return None


def foreign_files() -> Iterator[tuple[str, str]]:
    """Files to import: shipped launch files, presets as `config.json`, examples, and what was exported."""
    for path in sorted((ROOT / "tests" / "launch_files").rglob("*")):
        if path.suffix in {".sh", ".yaml"} and path.name != "official_model_flags.yaml":
            yield path.name, path.read_text(encoding="utf-8")
    for path in sorted((ROOT / "examples").glob("*.yaml")):
        yield path.name, path.read_text(encoding="utf-8")
    suffix = {"mindformers": "yaml", "mindspeed-llm-fsdp2": "yaml", "torchtitan-npu": "toml", "mindspeed-rl": "yaml"}
    for name, text in exported().items():
        to = name.rsplit(".", 1)[1]
        if FORMATS[to].launches and not to.endswith("-flags"):
            yield f"{name}.{suffix.get(to, 'sh')}", text
    for name in preset_names()[:12]:
        yield f"{name}.yaml", (ROOT / "autodeploy" / "specs" / "models" / f"{name}.yaml").read_text(encoding="utf-8")


def imported_digests() -> dict[str, str]:
    """Digest of each imported file: the spec and the findings, or the refusal."""
    found = {}
    for name, text in foreign_files():
        try:
            read = import_document(text, name, base_dir=Path())
        except AutoDeployError as error:
            found[name] = digest(f"{type(error).__name__}: {error}")
            continue
        found[name] = digest([read.kind, read.document, str(read.diagnostics)])
    return found


def openapi_digest() -> str:
    """Digest of the OpenAPI document."""
    with TemporaryDirectory() as folder:
        settings = Settings(database_url=f"sqlite:///{folder}/api.db")
        ready_database(settings.database_url).close()
        return digest(create_app(settings).openapi())


def help_digests() -> dict[str, str]:
    """Digest of each command's help, arguments and options."""
    return {
        words: digest(
            [
                each.help,
                [[p.name, p.opts, p.secondary_opts, str(p.default), getattr(p, "help", "")] for p in each.params],
            ]
        )
        for words, each in commands()
    }


def stored_digest() -> str:
    """Digest of a database of 1.0, read into a new one and written out again."""
    lines = [json.loads(line) for line in STORED.read_text(encoding="utf-8").splitlines()]
    with TemporaryDirectory() as folder:
        database = Database(f"sqlite:///{folder}/stored.db")
        upgrade(database)
        import_lines(database, lines)
        written = list(export_lines(database))
        database.close()
    return digest(sorted(json.dumps(line, sort_keys=True) for line in written[1:]))


def digests() -> dict[str, Any]:
    """All digests that the suite holds the product to."""
    return {
        "plan_sets": plan_set_digests(),
        "exported": {name: digest(text) for name, text in exported().items()},
        "imported": imported_digests(),
        "openapi": openapi_digest(),
        "help": help_digests(),
        "stored": stored_digest(),
    }
