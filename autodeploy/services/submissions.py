"""What is submitted: a spec with its identity, annotations and idempotency key, and the row that it becomes."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from autodeploy.errors import FieldError, SpecError
from autodeploy.messages import Message
from autodeploy.services.views import SearchView
from autodeploy.specs.spec import canonical_json
from autodeploy.store.clock import new_search_id
from autodeploy.store.idempotency import IdempotencyKeys
from autodeploy.store.planset_rows import stored_search
from autodeploy.store.tables import SearchRow

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from datetime import datetime

    from autodeploy.services.access import Principal
    from autodeploy.specs.spec import Spec
    from autodeploy.store.database import Session

MAX_TAGS = 20
MAX_TAG_LENGTH = 64
MAX_NOTE_LENGTH = 4000
MAX_KEY_LENGTH = 255


@dataclass(frozen=True, slots=True)
class Submission:
    """What became of a submitted spec: a new search, or (`created` False) the one its idempotency key made before."""

    search: SearchView
    created: bool


@dataclass(frozen=True, slots=True)
class Content:
    """A spec's identity: equal contents have equal results."""

    spec_hash: str
    profile_hash: str
    engine_version: str


@dataclass(frozen=True, slots=True)
class Admitted:
    """A spec that may be searched for, with what is known of its cluster, its identity and how long it will take."""

    spec: Spec
    content: Content
    expected_s: float | None


def check_annotations(tags: Iterable[str], note: str) -> tuple[str, ...]:
    """The tags, sorted and each once.

    Raises
    ------
    SpecError
        when there are too many, or text is too long or not text.
    """
    unique = tuple(sorted(set(tags)))
    errors = [
        FieldError(
            "/tags",
            Message("services.is_not_tag", value=repr(tag[:80])),
            Message("services.n_1_to_printable_characters", count=MAX_TAG_LENGTH),
        )
        for tag in unique
        if not 1 <= len(tag) <= MAX_TAG_LENGTH or not tag.isprintable()
    ]
    if len(unique) > MAX_TAGS:
        errors.append(
            FieldError(
                "/tags",
                Message("field_fault.has_entries", count=len(unique)),
                Message("field_fault.at_most", bound=MAX_TAGS),
            )
        )
    if len(note) > MAX_NOTE_LENGTH or "\0" in note:
        errors.append(
            FieldError(
                "/note", Message("services.not_note"), Message("field_fault.at_most_characters", bound=MAX_NOTE_LENGTH)
            )
        )
    if errors:
        raise SpecError(errors=tuple(errors))
    return unique


def search_of_key(session: Session, principal: str, key: str, body_hash: str) -> str | None:
    """The search that this caller's idempotency key made before.

    Raises
    ------
    SpecError
        when it made another one, or is no key.
    """
    if not key or len(key) > MAX_KEY_LENGTH or not key.isprintable():
        raise SpecError(Message("services.n_1_to_printable_characters", count=MAX_KEY_LENGTH), path="Idempotency-Key")
    row = IdempotencyKeys(session).get(principal, key)
    if row is None:
        return None
    if row.body_hash != body_hash:
        raise SpecError(
            Message("services.this_key_was_used_for_another_request"),
            path="Idempotency-Key",
            hint=Message("services.use_new_key"),
        )
    return row.search_id


def body_hash_of(content: Content, tags: tuple[str, ...], note: str, webhook: str | None) -> str:
    """What an idempotency key stands for."""
    said = [content.spec_hash, list(tags), note, *([] if webhook is None else [webhook])]
    return hashlib.sha256(canonical_json(said).encode()).hexdigest()


def new_row(spec: Spec, content: Content, note: str, now: datetime, principal: Principal) -> SearchRow:
    """A queued search of the caller's."""
    return SearchRow(
        id=new_search_id(now),
        created_at=now,
        updated_at=now,
        status="queued",
        model_name=spec.model.name,
        profile=spec.cluster.profile[-200:],
        cluster=spec.cluster.ledger_name,
        num_npus=spec.cluster.num_npus,
        seq_length=spec.training.seq_length,
        global_batch_size=spec.training.global_batch_size.value,
        spec=spec.model_dump(mode="json"),
        spec_hash=content.spec_hash,
        profile_hash=content.profile_hash,
        engine_version=content.engine_version,
        note=note,
        note_by=principal.name if note else "",
        principal=principal.key_id,
        author=principal.name,
        team=principal.team,
    )


def new_view(row: SearchRow, tags: tuple[str, ...], plans: Sequence[str] = (), *, cached: bool = False) -> SearchView:
    """What the caller is shown of it."""
    return SearchView(
        stored_search(row, plans),
        cached=cached,
        tags=tags,
        note=row.note,
        note_by=row.note_by,
        author=row.author,
        team=row.team,
    )
