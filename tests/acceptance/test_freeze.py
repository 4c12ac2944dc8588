"""What the product answers is what it answered: small searches, scripts, imports, OpenAPI, help, stored documents.

A change that moves an answer on purpose renews the digests with `python -m tests.freeze --write` and says why in the
CHANGELOG.
"""

from __future__ import annotations

import json

import pytest

from tests.freeze import digests as frozen

pytestmark = pytest.mark.acceptance

HELD = json.loads((frozen.FOLDER / "digests.json").read_text(encoding="utf-8"))


def moved(kind: str, found: dict[str, str]) -> list[str]:
    held = HELD[kind]
    return sorted(name for name in held.keys() | found.keys() if held.get(name) != found.get(name))


def test_small_searches_answer_the_same() -> None:
    found = frozen.plan_set_digests()
    assert len(found) == 8
    assert moved("plan_sets", found) == []


def test_exported_scripts_are_the_same() -> None:
    found = {name: frozen.digest(text) for name, text in frozen.exported().items()}
    assert len(found) >= 36
    assert moved("exported", found) == []


def test_imported_files_are_read_the_same() -> None:
    found = frozen.imported_digests()
    assert len(found) >= 60
    assert moved("imported", found) == []


def test_the_openapi_document_is_the_same() -> None:
    assert frozen.openapi_digest() == HELD["openapi"]


def test_the_help_of_each_command_is_the_same() -> None:
    assert moved("help", frozen.help_digests()) == []


def test_stored_documents_of_1_0_come_back_as_they_were() -> None:
    assert frozen.stored_digest() == HELD["stored"]
