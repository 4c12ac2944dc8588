"""The order of the queue, and what it depends on in the rows: who waits, who runs, on how many slots.

Keys take turns: the one with the fewest running searches, then the one that used its slots least of late, so that a key
with a thousand searches waits for itself. Within a key short searches pass long ones, for a while. One slot is kept for
short searches where there are two or more. What the command line left behind comes after what the server was asked.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from datetime import timedelta
from statistics import median
from typing import TYPE_CHECKING, Any

from sqlalchemy import bindparam, func, or_, select, text

from autodeploy.kit.version import can_run
from autodeploy.service.store.base import first_id_at
from autodeploy.service.store.migration import HEAD_REVISION
from autodeploy.service.store.searches import oldest_queued
from autodeploy.service.store.tables import LANE, LENGTHS_S, QUEUED, RUNNING, SHORT_S, ApiKeyRow, SearchRow, WorkerRow

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from datetime import datetime

    from sqlalchemy.orm import Session


WINDOW_S = 300.0
"""Time back from now over which the use of slots counts."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """A queued search. `expected_s` is None where nobody said; moments are seconds since 1970."""

    id: str
    key: str
    created_s: float
    expected_s: float | None = None
    left_behind: bool = False

    @property
    def length(self) -> int:
        """The place of its expected time among LENGTHS_S."""
        return length_of(self.expected_s)

    @property
    def is_short(self) -> bool:
        return self.expected_s is not None and self.expected_s < SHORT_S

    @property
    def turn_s(self) -> float:
        """Within a key the least is next: when it came, and what longer ones let shorter ones pass.

        A search is passed only by those that came at most as much later as it is longer, so that none waits for ever.
        """
        return self.created_s + (LENGTHS_S[self.length - 1] if self.length else 0.0)


@dataclass(frozen=True, slots=True)
class Running:
    """A search in a slot since `started_s`."""

    key: str
    started_s: float
    expected_s: float | None = None

    def is_long(self, now_s: float) -> bool:
        """Whether it was expected to be, or has turned out to be."""
        return self.expected_s is None or max(self.expected_s, now_s - self.started_s) >= SHORT_S


@dataclass(frozen=True, slots=True)
class Slots:
    """Numbers that the order depends on besides the searches that wait.

    count : searches that can run at the same time, over all live workers.
    running : those that do.
    used_s : seconds of slots that each key had within the last WINDOW_S.
    most_running : searches of a key at the same time, where its own entry in `most_of_key` says nothing; None: any.
    """

    count: int
    running: tuple[Running, ...] = ()
    used_s: Mapping[str, float] = field(default_factory=dict)
    most_running: int | None = None
    most_of_key: Mapping[str, int] = field(default_factory=dict)


def length_of(expected_s: float | None) -> int:
    """The place of an expected time among LENGTHS_S; that of SHORT_S where it is not known."""
    return bisect_right(LENGTHS_S, SHORT_S if expected_s is None else expected_s)


def eligible(heads: Iterable[Waiting], slots: Slots, now_s: float) -> tuple[Waiting, ...]:
    """Those that may run in a slot that is free now."""
    heads = tuple(heads)
    asked = tuple(head for head in heads if not head.left_behind)
    running = Counter(each.key for each in slots.running)
    long_ones = sum(each.is_long(now_s) for each in slots.running)
    keep_one = slots.count > 1 and long_ones >= slots.count - 1
    return tuple(
        head
        for head in asked or heads
        if (head.is_short or not keep_one) and not _has_all(head.key, running[head.key], slots)
    )


def _has_all(key: str, running: int, slots: Slots) -> bool:
    most = slots.most_of_key.get(key, slots.most_running)
    return most is not None and running >= most


def tied(heads: Iterable[Waiting], slots: Slots) -> tuple[Waiting, ...]:
    """Of those that may run, the ones whose keys have the fewest running."""
    heads = tuple(heads)
    running = Counter(each.key for each in slots.running)
    fewest = min((running[head.key] for head in heads), default=0)
    return tuple(head for head in heads if running[head.key] == fewest)


def first(heads: Iterable[Waiting], slots: Slots) -> Waiting | None:
    """Of those that are tied, the one whose key used its slots least, then the one whose turn it is."""
    return min(heads, key=lambda head: (slots.used_s.get(head.key, 0.0), head.turn_s, head.id), default=None)


def next_search(heads: Iterable[Waiting], slots: Slots, now_s: float) -> Waiting | None:
    """The search for a slot that is free now; None where none may run there.

    heads : all that wait, or of each key the first of each length.
    """
    return first(tied(eligible(heads, slots, now_s), slots), slots)


def used_within(spans: Iterable[tuple[float, float]], now_s: float) -> float:
    """Seconds within the last WINDOW_S of spans (start, end)."""
    return sum(max(0.0, min(end_s, now_s) - max(start_s, now_s - WINDOW_S)) for start_s, end_s in spans)


# So many searches that ended last tell how much each key used its slots.
USES_READ = 500
# Of the searches of a day that ended with plans so many tell how fast this machine is, which is within a factor of it.
ENDED = ("optimal", "feasible")
PACE_SINCE = timedelta(days=1)
PACE_READ = 15
PACE_LEAST = 3
PACE_MOST = 20.0
# Claims take turns, so that two of them never take the last turn of a key, or the slot that is kept, at once. Whoever
# holds the turn and falls silent loses it.
TURN_LOCK = 0x6175746F  # "auto"
TURN_LIMIT_S = 10

_LEFT_BEHIND = SearchRow.origin == "cli"
# The command line runs its searches in its own process, not in a slot: the first attempt is always there.
_IN_A_SLOT = or_(SearchRow.origin != "cli", SearchRow.attempts > 1)
_COLUMNS = (SearchRow.id, SearchRow.principal, SearchRow.created_at, SearchRow.expected_s, _LEFT_BEHIND)
_REVISION = text("SELECT version_num FROM alembic_version")
# Every claim asks these: to put them together takes as long as to ask them.
_TURN = text("""
    WITH limits AS MATERIALIZED (
        SELECT set_config(name, :limit, true) AS said
        FROM (VALUES ('lock_timeout'), ('idle_in_transaction_session_timeout')) AS names(name)
    )
    SELECT pg_advisory_xact_lock(:lock) FROM (SELECT count(said) FROM limits) AS limited
""")
# Lane after lane, each found by one step into the index, and of each the oldest: however many wait.
_HEADS = select(*_COLUMNS, SearchRow.engine_version).where(
    SearchRow.id.in_(
        text(f"""
            WITH RECURSIVE lanes(lane) AS (
                SELECT min({LANE}) FROM searches WHERE {QUEUED}
                UNION ALL
                SELECT (SELECT min({LANE}) FROM searches WHERE {QUEUED} AND {LANE} > lanes.lane)
                FROM lanes WHERE lanes.lane IS NOT NULL
            )
            SELECT (SELECT min(id) FROM searches WHERE {QUEUED} AND {LANE} = lanes.lane)
            FROM lanes WHERE lanes.lane IS NOT NULL
        """)
    )
)
_RUNNING = select(SearchRow.principal, SearchRow.started_at, SearchRow.expected_s).where(RUNNING, _IN_A_SLOT)
_ENDED = (
    select(SearchRow.principal, SearchRow.started_at, SearchRow.finished_at)
    .where(SearchRow.started_at.is_not(None), _IN_A_SLOT, SearchRow.finished_at > bindparam("since"))
    .order_by(SearchRow.finished_at.desc())
    .limit(USES_READ)
)
_LIVE_SLOTS = select(func.sum(WorkerRow.slots)).where(WorkerRow.seen_at > bindparam("since"))
_LIMITS = select(ApiKeyRow.id, ApiKeyRow.max_running).where(
    ApiKeyRow.id.in_(bindparam("keys", expanding=True)), ApiKeyRow.max_running.is_not(None)
)


@dataclass(frozen=True, slots=True)
class SlotRules:
    """Settings of slots.

    own : slots of whoever asks, which live workers may not have told yet.
    max_running : searches of one key at the same time, where the key says nothing; None: any.
    alive_s : a worker that was seen within so many seconds is alive.
    """

    own: int = 1
    max_running: int | None = None
    alive_s: float = 15.0


def take_turn(session: Session) -> None:
    """Waits until nobody else claims; until the end of the transaction. On SQLite a writer is alone anyway."""
    if session.get_bind().dialect.name == "postgresql":
        session.execute(_TURN, {"limit": f"{TURN_LIMIT_S}s", "lock": TURN_LOCK})


def is_current(session: Session) -> bool:
    """Whether the tables are those that this version knows."""
    return bool(session.scalar(_REVISION) == HEAD_REVISION)


def heads(session: Session) -> tuple[Waiting, ...]:
    """Of the searches that this version can run, the oldest of each key, origin and length: one of them is next."""
    return tuple(_waiting(row) for *row, version in session.execute(_HEADS) if can_run(version))


def all_waiting(session: Session, *, limit: int) -> tuple[Waiting, ...]:
    """Searches that wait, the oldest first, at most so many."""
    query = oldest_queued(*_COLUMNS).limit(limit)
    return tuple(_waiting(row) for row in session.execute(query))


def _waiting(row: Sequence[Any]) -> Waiting:
    search_id, key, created_at, expected_s, left_behind = row
    return Waiting(search_id, key, created_at.timestamp(), expected_s, bool(left_behind))


def running(session: Session, *, now: datetime) -> tuple[Running, ...]:
    """Searches that are in a slot."""
    return tuple(
        Running(key, (started_at or now).timestamp(), expected_s)
        for key, started_at, expected_s in session.execute(_RUNNING)
    )


def slots(session: Session, rules: SlotRules, keys: Iterable[str], *, now: datetime) -> Slots:
    """The slots of all live workers, what runs in them, and how many of them a key may have; without their use."""
    since = now - timedelta(seconds=rules.alive_s)
    live = session.scalar(_LIVE_SLOTS, {"since": since}) or 0
    limits = session.execute(_LIMITS, {"keys": sorted(set(keys) - {""})}).all()
    return Slots(
        count=max(live, rules.own),
        running=running(session, now=now),
        most_running=rules.max_running,
        most_of_key={key: most for key, most in limits if most is not None},
    )


def used_s(
    session: Session, waiting: Iterable[Waiting], running: Iterable[Running], *, now: datetime
) -> dict[str, float]:
    """Seconds of slots that the keys of these searches had of late, with those that run."""
    keys = {each.key for each in waiting}
    if len(keys) < 2:
        return {}
    since = now - timedelta(seconds=WINDOW_S)
    now_s = now.timestamp()
    spans: defaultdict[str, list[tuple[float, float]]] = defaultdict(list)
    for each in running:
        spans[each.key].append((each.started_s, now_s))
    for key, started_at, finished_at in session.execute(_ENDED, {"since": since}):
        if started_at is not None and finished_at is not None:
            spans[key].append((started_at.timestamp(), finished_at.timestamp()))
    return {key: used_within(spans_of_key, now_s) for key, spans_of_key in spans.items() if key in keys}


def pace(session: Session, *, now: datetime) -> float:
    """Seconds that searches of the last day took for each one expected: the median of the newest; 1 where few ended."""
    ratios = []
    for status in ENDED:
        query = (
            select(SearchRow.started_at, SearchRow.finished_at, SearchRow.expected_s)
            .where(
                SearchRow.status == status,
                SearchRow.id >= first_id_at(now - PACE_SINCE),
                SearchRow.expected_s > 0.0,
                SearchRow.started_at.is_not(None),
                SearchRow.finished_at.is_not(None),
                _IN_A_SLOT,
            )
            .order_by(SearchRow.id.desc())
            .limit(PACE_READ)
        )
        ratios += [
            (ended - began).total_seconds() / said_s
            for began, ended, said_s in session.execute(query)
            if began and ended and said_s
        ]
    if len(ratios) < PACE_LEAST:
        return 1.0
    return min(max(median(ratios), 1.0 / PACE_MOST), PACE_MOST)
