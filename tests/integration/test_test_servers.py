"""The databases that other tests stand on."""

from __future__ import annotations

import psycopg

from tests.support.postgresql import libpq_dsn


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
