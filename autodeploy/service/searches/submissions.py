"""Submitted specs: a spec with its identity, annotations and idempotency key, and the row that it becomes."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from math import sqrt
from typing import TYPE_CHECKING, Final

from autodeploy.kit.errors import FieldError, SpecError
from autodeploy.messages import Message
from autodeploy.service.searches.views import SearchView
from autodeploy.service.store.base import new_search_id
from autodeploy.service.store.events import IdempotencyKeys
from autodeploy.service.store.plan_rows import stored_search
from autodeploy.service.store.tables import SearchRow
from autodeploy.specs.spec import canonical_json
from hardware_profiles import load_profile

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from datetime import datetime

    from autodeploy.kit.settings import Settings
    from autodeploy.search.branch_and_bound.search_space import SearchSize
    from autodeploy.service.requests.callers import Principal
    from autodeploy.service.store.database import Session
    from autodeploy.specs.search import SearchSpec
    from autodeploy.specs.spec import Spec


# What an operator, or a key, allows one search to ask for.
def within_caps(spec: Spec, settings: Settings, principal: Principal) -> Spec:
    """The spec, its time limit lowered to what is allowed where it says none of its own.

    Raises SpecError with every field that asks for more than is allowed.
    """
    own = principal.max_time_limit_s
    most_s = settings.max_time_limit_s if own is None else own
    search, errors = spec.search, []
    if search.time_limit_s > most_s:
        if "time_limit_s" in search.model_fields_set:
            limit = (
                Message("services.server_limit", most=most_s)
                if own is None
                else Message("services.key_limit", most=most_s)
            )
            errors.append(FieldError("/search/time_limit_s", limit))
        else:
            spec = spec.model_copy(update={"search": search.model_copy(update={"time_limit_s": most_s})})
    if not isinstance(search.effort, str) and search.effort > settings.max_effort:
        message = Message("services.server_limit", most=settings.max_effort)
        errors.append(FieldError("/search/effort", message))
    if _cards(spec) > settings.max_cards:
        place = "/cluster/num_npus" if spec.cluster.blocks is None else "/cluster/blocks"
        errors.append(FieldError(place, Message("services.server_card_limit", most=settings.max_cards)))
    if errors:
        raise SpecError(errors=tuple(errors))
    return spec


def _cards(spec: Spec) -> int:
    blocks = spec.cluster.blocks
    if blocks is None:
        return spec.cluster.num_npus or 0
    return sum(block.nodes for block in blocks) * load_profile(spec.cluster.profile).npus_per_node


# How long a search will take, from its size alone.
# Plans are made of a few hundred candidates at most; what each takes grows with the layers.
PLANS_S: Final = 3.9
REFERENCE_LAYERS: Final = 80
LAYERS_POWER: Final = 1.1
FEW_CANDIDATES: Final = 1500
# Every candidate is swept and bounded; the fewer, the better the bounds of the others.
SWEEP_S: Final = 0.014
# The part of the work that no effort changes.
FIXED_SHARE: Final = 0.37
NEUTRAL_SHARE: Final = 0.72
RECOVERIES: Final = 3  # searches, one for each way to meet failures
# The least memory is looked for in every candidate, and hardly depends on the effort.
MEMORY_PLANS_SHARE: Final = 0.6
MEMORY_SWEEP_S: Final = 0.00043
# A fast search for plans alone, for one more phase of the run.
PHASE_SHARE: Final = 0.4
# A search over its time limit still ranks and explains what it has.
AFTER_LIMIT_S: Final = 1.0


def expected_s(size: SearchSize, search: SearchSpec) -> float:
    """Seconds that a search takes on one core of the machine of the fit, at most what its time limit allows."""
    few = min(1.0, size.candidates / FEW_CANDIDATES)
    plans_s: float = PLANS_S * few * (size.layers / REFERENCE_LAYERS) ** LAYERS_POWER
    sweep_s = SWEEP_S * sqrt(size.candidates)
    time_s = (plans_s + sweep_s) * (FIXED_SHARE + (1.0 - FIXED_SHARE) * size.effort)
    time_s *= 1.0 + PHASE_SHARE * size.phases
    if search.risk_terms.rule == "neutral":
        time_s *= NEUTRAL_SHARE
    if search.objective == "peak_memory":
        time_s = MEMORY_PLANS_SHARE * plans_s + MEMORY_SWEEP_S * size.candidates
    if search.objective == "time_to_train":
        time_s *= RECOVERIES
    return min(time_s, search.time_limit_s + AFTER_LIMIT_S)


MAX_TAGS = 20
MAX_TAG_LENGTH = 64
MAX_NOTE_LENGTH = 4000
MAX_KEY_LENGTH = 255


@dataclass(frozen=True, slots=True)
class Submission:
    """Result of a submission: a new search, or (`created` False) the one its idempotency key made before."""

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

    Raises SpecError when there are too many, or text is too long or not text.
    """
    unique = tuple(sorted(set(tags)))
    errors = [
        FieldError(
            "/tags",
            Message("services.is_not_tag", value=repr(tag[:80])),
            Message("services.printable_characters", count=MAX_TAG_LENGTH),
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

    Raises SpecError when it made another one, or is no key.
    """
    if not key or len(key) > MAX_KEY_LENGTH or not key.isprintable():
        raise SpecError(Message("services.printable_characters", count=MAX_KEY_LENGTH), path="Idempotency-Key")
    row = IdempotencyKeys(session).get(principal, key)
    if row is None:
        return None
    if row.body_hash != body_hash:
        raise SpecError(
            Message("services.idempotency_key_reused"),
            path="Idempotency-Key",
            hint=Message("services.use_new_key"),
        )
    return row.search_id


def body_hash_of(content: Content, tags: tuple[str, ...], note: str, webhook: str | None) -> str:
    """Hash of the request that an idempotency key stands for."""
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
    """View of it for the caller."""
    return SearchView(
        stored=stored_search(row, plans),
        cached=cached,
        tags=tags,
        note=row.note,
        note_by=row.note_by,
        author=row.author,
        team=row.team,
    )
