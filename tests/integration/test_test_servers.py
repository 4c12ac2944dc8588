"""The databases that other tests stand on."""

from __future__ import annotations

import psycopg

from tests.support.postgresql import WithoutRows, libpq_dsn

A_KEY = "INSERT INTO api_keys (id, name, scope, key_hash, created_at) VALUES ('k', 'n', 'read', 'h', now())"


def table_names(dsn: str) -> list[str]:
    query = "SELECT tablename FROM pg_tables WHERE schemaname = 'public' ORDER BY 1"
    with psycopg.connect(libpq_dsn(dsn)) as connection:
        return [name for (name,) in connection.execute(query)]


def test_each_database_is_empty_and_its_own(postgres_dsn, empty_postgres_dsn):
    assert postgres_dsn != empty_postgres_dsn
    with psycopg.connect(libpq_dsn(empty_postgres_dsn)) as connection:
        connection.execute("CREATE TABLE mark (id int)")
    assert table_names(empty_postgres_dsn) == ["mark"]
    assert "mark" not in table_names(postgres_dsn)


def test_dsn_is_for_sqlalchemy_with_psycopg(empty_postgres_dsn):
    assert empty_postgres_dsn.startswith("postgresql+psycopg://")


def left(reused, *statements):
    """What the next test gets after one that did this: the number of its database, and its API keys."""
    with reused.lent() as dsn, psycopg.connect(libpq_dsn(dsn), autocommit=True) as connection:
        for statement in statements:
            connection.execute(statement)
    with reused.lent() as dsn, psycopg.connect(libpq_dsn(dsn)) as connection:
        (number,) = connection.execute("SELECT oid FROM pg_database WHERE datname = current_database()").fetchone()
        return number, connection.execute("SELECT id FROM api_keys").fetchall()


def test_a_test_finds_no_rows_of_the_one_before(migrated_database):
    first = left(migrated_database)
    assert left(migrated_database, A_KEY) == first == (first[0], [])
    # Where tables were changed it is another database.
    number, keys = left(migrated_database, A_KEY, "ALTER TABLE api_keys ADD COLUMN x int")
    assert (number != first[0], keys) == (True, [])


def test_who_is_still_connected_keeps_the_database(migrated_database, monkeypatch):
    monkeypatch.setattr("tests.support.postgresql.GONE_S", 0.05)
    before = left(migrated_database)
    with migrated_database.lent() as dsn:
        left_behind = psycopg.connect(libpq_dsn(dsn))
    after = left(migrated_database)
    assert after[0] != before[0]
    assert after[1] == []
    left_behind.close()


def test_tables_that_were_never_seen_are_not_emptied(empty_postgres_dsn):
    with psycopg.connect(libpq_dsn(empty_postgres_dsn), autocommit=True) as connection:
        connection.execute("CREATE TABLE mark (id int)")
        assert not WithoutRows()(connection)
