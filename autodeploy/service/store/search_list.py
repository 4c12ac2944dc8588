"""A page of the list of searches, however it is filtered and sorted, at a bounded cost.

First the beginning of the order is walked along its index: where the filters leave many rows, a page is full soon. If
it is not, they leave few, or leave them at the end of the order: then what they leave is gathered from the index that
holds all that lists filter and sort by, and sorted. Rows themselves are read for the page alone.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from sqlalchemy import and_, case, func, literal, literal_column, or_, select, text, tuple_

from autodeploy.kit.errors import SpecError
from autodeploy.messages import Message
from autodeploy.service.store.base import first_id_at
from autodeploy.service.store.searches import indexed_status
from autodeploy.service.store.tables import WHOLE_NUMBERS, SearchRow, TagRow
from autodeploy.specs.planset import STATUSES

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from sqlalchemy import ColumnElement, Select
    from sqlalchemy.orm import InstrumentedAttribute, Session

NEWEST = "-created_at"
# What a list may be sorted by, as its items name it: by creation, by words that many share, by figures.
WORDS: dict[str, InstrumentedAttribute[Any]] = {
    "model": SearchRow.model_name,
    "profile": SearchRow.profile,
    "status": SearchRow.status,
}
SORTS: dict[str, InstrumentedAttribute[Any]] = {
    "created_at": SearchRow.id,
    **WORDS,
    "num_npus": SearchRow.num_npus,
    "seq_length": SearchRow.seq_length,
    "global_batch_size": SearchRow.global_batch_size,
    "best_step_time_s": SearchRow.best_step_time_s,
    "best_tokens_per_s_per_npu": SearchRow.best_tokens_per_s_per_npu,
    "best_mfu": SearchRow.best_mfu,
    "gap": SearchRow.gap,
}
# The leading columns of the index of lists, by their filters.
RANGES: dict[str, InstrumentedAttribute[Any]] = {
    "team": SearchRow.team,
    "status": SearchRow.status,
    "profile": SearchRow.profile,
    "model": SearchRow.model_name,
    "author": SearchRow.author,
}
# So many rows are walked: of the newest, which lie side by side, and of those sorted by a figure, which do not.
WALKED_NEWEST, WALKED_FIGURES = 8000, 2000
# So many searches of a tag are looked up one by one.
MAX_TAGGED_LOOKUPS = 4000
# A word that so many have, or none, is rare: they are looked up, too.
MAX_RARE = 500
# So many words are listed one by one, in the order of words.
MAX_WORDS = 10
# In so many ranges the index of lists is read at most: a step into it takes as long as to read dozens of its entries.
MAX_RANGES = 8000
# Rows of so many words more are sorted together where the first may have none.
SORTED_WORDS = 4


@dataclass(frozen=True, slots=True)
class SearchFilter:
    """Searches that a list names; None does not restrict. `author`: the name of the key that asked for it."""

    model: str | None = None
    profile: str | None = None
    status: str | None = None
    tag: str | None = None
    created_after: datetime | None = None
    created_before: datetime | None = None
    author: str | None = None
    team: str | None = None


@dataclass(frozen=True, slots=True)
class _Order:
    """An order of the list, and the last row seen of it: its keys, the first of them None where it has no value."""

    column: InstrumentedAttribute[Any]
    down: bool
    after: tuple[Any, ...] | None

    @property
    def by_id(self) -> bool:
        return self.column is SearchRow.id

    @property
    def by_word(self) -> bool:
        return any(self.column is word for word in WORDS.values())

    @property
    def has_gaps(self) -> bool:
        """Whether rows without a value come after those with one."""
        return bool(SearchRow.__table__.c[self.column.key].nullable)

    @property
    def in_gap(self) -> bool:
        """Whether the last row seen is one of these."""
        return self.after is not None and self.after[0] is None

    @property
    def ties(self) -> tuple[Any, ...]:
        """Columns that order equal values; an index of a figure has the moment, which is shorter than an id.

        Rows without a value are in no such index, and in the order of ids.
        """
        return (SearchRow.id,) if self.by_id or self.by_word else (SearchRow.created_at, SearchRow.id)

    @property
    def keys(self) -> tuple[Any, ...]:
        return self.ties if self.by_id else (self.column, *self.ties)

    def behind(self, keys: tuple[Any, ...], values: tuple[Any, ...]) -> ColumnElement[bool]:
        """Whether a row comes after the one with these values."""
        row, last = _row(keys, values)
        return row < last if self.down else row > last  # type: ignore[no-any-return]

    def until(self, keys: tuple[Any, ...], values: tuple[Any, ...]) -> ColumnElement[bool]:
        """Whether a row does not."""
        row, last = _row(keys, values)
        return row >= last if self.down else row <= last  # type: ignore[no-any-return]

    def directed(self, *columns: Any) -> list[ColumnElement[Any]]:
        return [column.desc() if self.down else column.asc() for column in columns]


def _row(keys: tuple[Any, ...], values: tuple[Any, ...]) -> tuple[Any, Any]:
    typed = [literal(value, key.type) for key, value in zip(keys, values, strict=True)]
    return (keys[0], typed[0]) if len(keys) == 1 else (tuple_(*keys), tuple_(*typed))


def page(
    session: Session, columns: tuple[Any, ...], where: SearchFilter, sort: str, *, limit: int, after: str | None
) -> Sequence[Any]:
    """Up to `limit` rows of these columns in the order of `sort`, its name with `-` before it to begin at the end.

    Rows without the value come last in either direction. Equal values are in the order of their creation.

    columns : with the id among them.

    Raises SpecError when `after` is no longer there, so that nobody knows where to continue.
    """
    order = _order(session, where, sort, after)
    ids = _ids(session, where, order, limit)
    rows = {row.id: row for row in session.execute(select(*columns).where(SearchRow.id.in_(ids)))} if ids else {}
    return [rows[search_id] for search_id in ids if search_id in rows]


def _order(session: Session, where: SearchFilter, sort: str, after: str | None) -> _Order:
    order = _Order(SORTS[sort.removeprefix("-")], sort.startswith("-"), None)
    if after is None:
        return order
    if order.by_id:
        return _Order(order.column, order.down, (after,))
    last = select(*order.keys).where(SearchRow.id == after)
    row = session.execute(last if where.team is None else last.where(SearchRow.team == where.team)).one_or_none()
    if row is None:
        raise SpecError(Message("store.page_gone"), path="after")
    return _Order(order.column, order.down, tuple(row))


def _ids(session: Session, where: SearchFilter, order: _Order, limit: int) -> list[str]:
    found, complete = (
        _first_words(session, where, order, limit) if order.by_word else _first(session, where, order, limit)
    )
    if complete:
        return found
    conditions = _ranges(session, where)
    if where.tag is not None and _is_few(session, tagged := _tagged(where.tag), MAX_TAGGED_LOOKUPS):
        return _gathered(session, [*conditions, SearchRow.id.in_(tagged)], order, limit)
    return _gathered(session, conditions, order, limit, where.tag)


def _first(session: Session, where: SearchFilter, order: _Order, limit: int) -> tuple[list[str], bool]:
    """The page, from the rows of what is rare or the beginning of the order, and whether that is all of it."""
    if where.tag is not None and _is_few(session, tagged := _tagged(where.tag), MAX_TAGGED_LOOKUPS):
        return _gathered(session, [*_filters(where), SearchRow.id.in_(tagged)], order, limit), True
    found, complete = _walked(session, where, order, limit)
    if not complete and (rare := _of_rare(session, where, order, limit)) is not None:
        return rare, True
    return found, complete


def _of_rare(session: Session, where: SearchFilter, order: _Order, limit: int) -> list[str] | None:
    """The page from the rows of a rare word; None where all words are common."""
    words = _words(session, where)
    rare = next((word == value for word, value in words if _is_rare(session, word, value)), None)
    if rare is None:
        return None
    # By the index of that word alone: SQLite does not know which of several is rare.
    return _gathered(session, [*_filters(where, unindexed=True), rare], order, limit, where.tag)


def _is_rare(session: Session, word: ColumnElement[Any], value: str) -> bool:
    """True if at most `MAX_RARE` searches have it: if the one after these, in its index's order, has another.

    Asked for as an order, so that PostgreSQL walks that index and not a wider one that it expects them to be spread in.
    """
    last = select(word).where(word >= value).order_by(word).offset(MAX_RARE).limit(1)
    return session.scalar(last) != value


def _first_words(session: Session, where: SearchFilter, order: _Order, limit: int) -> tuple[list[str], bool]:
    """The same in an order of words: the lists of the first words, one after the other."""
    (name,) = (name for name, column in WORDS.items() if column is order.column)
    wanted = getattr(where, name)
    found: list[str] = []
    after = None if order.after is None else order.after[-1:]
    word = wanted or (order.after[0] if order.after else _next_word(session, order, None))
    begun = word
    for _ in range(MAX_WORDS):
        if word is None:
            return found, True
        by_id = _Order(SearchRow.id, order.down, after)
        named: dict[str, Any] = {name: word}
        of_word, rest = replace(where, **named), limit - len(found)
        # Asked first: of a rare word the beginning of the order has nothing.
        rare = _of_rare(session, of_word, by_id, rest)
        more, complete = _first(session, of_word, by_id, rest) if rare is None else (rare, True)
        if not complete and wanted is None and not (where.team or where.profile or where.author):
            if word == begun:
                found = _of_word(session, of_word, by_id, limit)
                if len(found) == limit:
                    return found, True
            return _first_sorted(session, where, order, limit, word)
        found += more
        if not complete or wanted is not None or len(found) == limit:
            return found, complete
        word, after = _next_word(session, order, word), None
    return found, False


def _first_sorted(
    session: Session, where: SearchFilter, order: _Order, limit: int, word: str
) -> tuple[list[str], bool]:
    """The page from the rows up to that word and a few more, sorted: sorting all takes longer than finding them."""
    for _ in range(0 if where.status is None else SORTED_WORDS):
        word = _next_word(session, order, word) or word
    conditions = _ranges(session, where, order, word)
    found = _with_tag(session, conditions, where.tag, order, limit)
    return found, len(found) == limit


def _of_word(session: Session, where: SearchFilter, by_id: _Order, limit: int) -> list[str]:
    """The same of rows that all have one word: they need no sorting by it."""
    return _with_tag(session, _ranges(session, where), where.tag, by_id, limit)


def _with_tag(
    session: Session, conditions: list[ColumnElement[bool]], tag: str | None, order: _Order, limit: int
) -> list[str]:
    """The page of the rows with these conditions; a tag is looked up for the first of them alone."""
    if tag is not None:
        conditions = [SearchRow.id.in_(_sorted(conditions, order, MAX_TAGGED_LOOKUPS))]
    return _gathered(session, conditions, order, limit, tag)


def _next_word(session: Session, order: _Order, word: str | None) -> str | None:
    """The one after it, or the first."""
    if order.column is SearchRow.status:
        words = sorted(STATUSES, reverse=order.down)
        return next((each for each in words if word is None or (each < word if order.down else each > word)), None)
    column = indexed_word(order.column)
    query = select(func.max(column) if order.down else func.min(column))
    if word is not None:
        query = query.where(column < word if order.down else column > word)
    found: str | None = session.scalar(query)
    return found


def _filters(where: SearchFilter, *, unindexed: bool = False) -> list[ColumnElement[bool]]:
    """The conditions of all filters but that of tags.

    unindexed : changed, a column is no longer one of an index: that of the order is walked.
    """
    equal = {SearchRow.team: where.team, SearchRow.profile: where.profile, SearchRow.author: where.author}
    equal |= {SearchRow.model_name: where.model, SearchRow.status: where.status}
    conditions = [
        (func.coalesce(column, "") if unindexed or column is SearchRow.status else column) == value
        for column, value in equal.items()
        if value is not None
    ]
    if where.created_after is not None:
        conditions.append(SearchRow.created_at >= where.created_after)
    if where.created_before is not None:
        conditions.append(SearchRow.created_at < where.created_before)
    return conditions


def _ranges(
    session: Session, where: SearchFilter, order: _Order | None = None, until: str = ""
) -> list[ColumnElement[bool]]:
    """The conditions of all filters but that of tags, as ranges of the index of lists: of a column before the last that
    is filtered, all values are named where none is asked for, so that what is read of the index is what is found.

    order, until : an order of words and one of them: no row after those of that word is wanted, nor one before those
        of the last seen.
    """
    asked = [getattr(where, name) for name in RANGES]
    bounded = [order is not None and column is order.column for column in RANGES.values()]
    last = max((place for place, value in enumerate(asked) if value is not None or bounded[place]), default=-1)
    named: dict[str, Sequence[str]] = {}
    ranges = 1
    for place, (name, column) in enumerate(list(RANGES.items())[: last + 1]):
        values = (asked[place],) if asked[place] is not None else _values(session, column, MAX_RANGES // ranges)
        if values is None:
            break
        if bounded[place] and order is not None:
            begun = order.after[0] if order.after else (max if order.down else min)(values, default=until)
            least, most = sorted((begun, until))
            values = [value for value in values if least <= value <= most]
        named[name] = values
        ranges *= max(1, len(values))
    ranged: list[ColumnElement[bool]] = [RANGES[name].in_(values) for name, values in named.items()]
    if order is not None and not any(RANGES[name] is order.column for name in named):
        ranged.append(order.until((order.column,), (until,)))
    rest: dict[str, Any] = dict.fromkeys(named)
    return [*ranged, *_filters(replace(where, **rest))]


def _values(session: Session, column: InstrumentedAttribute[Any], most: int) -> Sequence[str] | None:
    """All values of a leading column of the index of lists, each found by one step into an index; None: too many."""
    if column is SearchRow.status:
        return STATUSES if len(STATUSES) <= most else None
    word = column.key if column is SearchRow.team else f"({column.key} || '')"
    query = text(f"""
        WITH RECURSIVE words(word) AS (
            SELECT min({word}) FROM searches
            UNION ALL
            SELECT (SELECT min({word}) FROM searches WHERE {word} > words.word) FROM words WHERE words.word IS NOT NULL
        )
        SELECT word FROM words WHERE word IS NOT NULL LIMIT :most
    """)
    values = session.scalars(query, {"most": most + 1}).all()
    return values if len(values) <= most else None


def _words(session: Session, where: SearchFilter) -> list[tuple[ColumnElement[Any], str]]:
    """Filtered columns with an index of their own, as it has them, and the values asked for."""
    equal = {SearchRow.profile: where.profile, SearchRow.author: where.author, SearchRow.model_name: where.model}
    words = [(indexed_word(column), value) for column, value in equal.items() if value is not None]
    return words if where.status is None else [*words, (indexed_status(session), where.status)]


def indexed_word(column: InstrumentedAttribute[Any]) -> ColumnElement[Any]:
    """The column as the index of its rare words has it."""
    return column + literal_column("''")


def _tagged(tag: str) -> Select[Any]:
    return select(TagRow.search_id).where(TagRow.tag == tag)


def _is_tagged(tag: str, search_id: Any = SearchRow.id) -> ColumnElement[bool]:
    """Looked up for each row among the tags of its search, which lie side by side for searches that do.

    With an offset PostgreSQL does not join the rows with all that have the tag instead.
    """
    named = indexed_word(TagRow.tag) == tag  # changed, the column is not that of the index of tags
    return select(TagRow.tag).where(TagRow.search_id == search_id, named).offset(0).exists()


def _is_few(session: Session, ids: Select[Any], most: int) -> bool:
    """Whether these are at most so many searches; looks at no more than that."""
    limited = ids.limit(most + 1).subquery()
    return (session.scalar(select(func.count()).select_from(limited)) or 0) <= most


def _walked(session: Session, where: SearchFilter, order: _Order, limit: int) -> tuple[list[str], bool]:
    """The beginning of the order as far as the page goes, and whether that is all that belongs there."""
    filters = _filters(where, unindexed=True)
    if order.by_id:
        return _walked_by_creation(session, where, filters, order, limit)
    if where.tag is not None:
        filters.append(_is_tagged(where.tag))
    query = select(SearchRow.id)
    keys = order.column, SearchRow.created_at
    found: list[str] = []
    if not order.in_gap:
        place: list[ColumnElement[bool]] = [order.column.is_not(None)] if order.has_gaps else []
        if order.after is not None:
            place.append(order.behind(order.keys, order.after))
        found, whole = _stretch(session, query, place, filters, order, keys, limit, WALKED_FIGURES)
        if len(found) == limit or not (whole and order.has_gaps):
            return found, whole or len(found) == limit
    place = [order.behind((SearchRow.id,), order.after[-1:])] if order.after is not None and order.in_gap else []
    rest, empty = limit - len(found), [*filters, order.column.is_(None)]
    more, whole = _stretch(session, query, place, empty, order, (SearchRow.id,), rest, WALKED_NEWEST)
    return found + more, whole or len(more) == rest


def _walked_by_creation(
    session: Session, where: SearchFilter, filters: list[ColumnElement[bool]], order: _Order, limit: int
) -> tuple[list[str], bool]:
    """The same where ids are the order."""
    search_id, query = SearchRow.id, select(SearchRow.id)
    place: list[ColumnElement[bool]] = []
    if where.tag is not None:
        search_id, query = TagRow.search_id, select(TagRow.search_id)
        place.append(TagRow.tag == where.tag)
        if filters:
            query = query.join(SearchRow, SearchRow.id == search_id)
    if order.after is not None:
        place.append(order.behind((search_id,), order.after))
    # Ids sort by creation, so they bound the part of the list that is read.
    if where.created_after is not None:
        place.append(search_id >= first_id_at(where.created_after))
    if where.created_before is not None:
        place.append(search_id < first_id_at(where.created_before + timedelta(milliseconds=1)))
    found, whole = _stretch(session, query, place, filters, order, (search_id,), limit, WALKED_NEWEST)
    return found, len(found) == limit or whole


def _stretch(
    session: Session,
    query: Select[Any],
    place: list[ColumnElement[bool]],
    filters: list[ColumnElement[bool]],
    order: _Order,
    keys: tuple[Any, ...],
    limit: int,
    walked: int,
) -> tuple[list[str], bool]:
    """Ids in the first `walked` rows of an index's part, and whether the part is no longer; without filters in all.

    place : the part. keys : what the index is ordered by.
    """
    ordered = order.directed(*keys, *([] if len(keys) == 1 else [SearchRow.id]))
    end = None
    if filters:
        part = select(*keys).where(*place).order_by(*order.directed(*keys))
        end = session.execute(part.offset(walked).limit(1)).one_or_none()
    if end is not None:
        valued = [(key, value) for key, value in zip(keys, end, strict=True) if value is not None]
        if keys[0].key in WHOLE_NUMBERS:  # many are equal: no statistics tell how few rows come before one of them
            place = [SearchRow.id.in_(select(SearchRow.id).where(*place).order_by(*ordered).limit(walked))]
        else:
            place = [*place, order.until(*zip(*valued, strict=True))]
    return list(session.scalars(query.where(*place, *filters).order_by(*ordered).limit(limit))), end is None


def _gathered(
    session: Session, conditions: list[ColumnElement[bool]], order: _Order, limit: int, tag: str | None = None
) -> list[str]:
    """The page of all rows with these conditions, and with that tag, sorted."""
    return list(session.scalars(_sorted(conditions, order, limit, tag)))


def _sorted(conditions: list[ColumnElement[bool]], order: _Order, limit: int, tag: str | None = None) -> Select[Any]:
    if order.after is not None:
        conditions = [*conditions, _behind(order)]
    row: Any = SearchRow.__table__.c
    if tag is not None:  # in the order of ids, in which each finds its tags beside those of the one before
        kept = dict.fromkeys(row[key.key] for key in order.keys)
        row = select(*kept).where(*conditions).order_by(SearchRow.id).subquery().c
        conditions = [_is_tagged(tag, row.id)]
    column = row[order.column.key]
    # Changed, the column is no longer that of an index: none is walked to the end.
    first: Any = func.coalesce(column, "") if order.by_id or order.by_word else column + 0
    ties = () if order.by_id else tuple(row[tie.key] for tie in order.ties)
    if order.has_gaps:
        ties = (case((column.is_not(None), row.created_at)), row.id)
    ordered: list[ColumnElement[Any]] = order.directed(first, *ties)
    if order.has_gaps:
        ordered[0] = ordered[0].nulls_last()
    return select(row.id).where(*conditions).order_by(*ordered).limit(limit)


def _behind(order: _Order) -> ColumnElement[bool]:
    assert order.after is not None
    if order.in_gap:
        return and_(order.column.is_(None), order.behind((SearchRow.id,), order.after[-1:]))
    behind = order.behind(order.keys, order.after)
    return or_(order.column.is_(None), behind) if order.has_gaps else behind
