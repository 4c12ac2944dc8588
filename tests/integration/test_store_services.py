"""The service of searches under pressure: one key from many threads, every preset through the store."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from autodeploy.analysis.intake import read_network_spec
from autodeploy.kit.errors import ConflictError, NotFoundError, SpecError
from autodeploy.service.session import open_services
from autodeploy.service.store.database import Database
from autodeploy.specs.presets import preset_names
from autodeploy.specs.spec import Spec, spec_hash
from tests import factories, quick_planner
from tests.integration.conftest import QUICK, quick_settings

if TYPE_CHECKING:
    from autodeploy.service.session import Services

pytestmark = pytest.mark.integration


def test_one_key_from_many_threads_and_processes_makes_one_search(services, database_url):
    found: list[str] = []
    with open_services(quick_settings(database_url), planner=QUICK) as other:

        def submit(here: Services) -> None:
            found.append(here.searches.submit(factories.spec(), idempotency_key="k").search.id)

        threads = [threading.Thread(target=submit, args=(here,)) for here in (services, other) * 6]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(found) == 12
    assert len(set(found)) == 1
    assert len(services.searches.list().items) == 1


@pytest.mark.parametrize("name", preset_names())
def test_a_stored_spec_reads_back_as_itself(name):
    spec = read_network_spec(factories.spec_document(model=name), quick_planner)
    again = Spec.model_validate(spec.model_dump(mode="json"))
    assert again == spec
    assert spec_hash(again) == spec_hash(spec)


def test_an_equal_search_is_copied_with_its_own_identity(services):
    first = services.searches.plan_and_store(factories.spec(), tags=["a"])
    second = services.searches.submit(factories.spec()).search
    assert second.cached
    assert second.plan_set.search.id != first.search.id
    assert second.plan_set.search.created_at >= first.search.created_at
    same = second.plan_set.search.model_copy(update={"id": first.search.id, "created_at": first.search.created_at})
    assert second.plan_set.model_copy(update={"search": same}) == first
    services.searches.delete(first.search.id)
    assert services.searches.get(second.id).plan_set == second.plan_set
    planned = services.searches.plan_and_store(factories.spec(), reuse=True)
    assert planned.plans == first.plans


def test_refusals(services):
    searches = services.searches
    for call in (searches.get, searches.cancel, searches.delete, searches.plans, searches.status, searches.plan):
        with pytest.raises(NotFoundError):
            call("srch_none")
    done = searches.plan_and_store(factories.spec())
    with pytest.raises(ConflictError, match="finished"):
        searches.cancel(done.search.id)
    with pytest.raises(SpecError) as caught:
        searches.annotate(done.search.id, tags=["", "a\nb"], note="x" * 5000)
    assert [error.path for error in caught.value.errors] == ["/tags", "/tags", "/note"]
    with pytest.raises(SpecError):
        searches.submit(factories.spec(), idempotency_key="a\nb")


@pytest.mark.parametrize("profile", ["/etc/passwd", "own.yaml", "cloudmatrix-385"])
def test_a_queued_search_names_no_file(services, profile):
    spec = factories.spec()
    spec = spec.model_copy(update={"cluster": spec.cluster.model_copy(update={"profile": profile})})
    with pytest.raises(SpecError) as caught:
        services.searches.submit(spec)
    assert [error.path for error in caught.value.errors] == ["/cluster/profile"]


def test_postgresql_is_not_migrated_unasked(empty_postgres_dsn):
    with pytest.raises(ConflictError, match="revision none"), open_services(quick_settings(empty_postgres_dsn)):
        pass


def test_a_worker_without_jobs_that_are_sent_is_refused(sqlite_url):
    with (
        pytest.raises(SpecError, match="a worker needs") as caught,
        open_services(quick_settings(sqlite_url), as_worker=True),
    ):
        pass
    assert caught.value.errors[0].path == "AUTODEPLOY_JOBS"


def test_a_database_that_is_away_is_not_ready(tmp_path):
    url = "postgresql+psycopg://nobody@127.0.0.1:1/none"
    database = Database(url)
    assert not database.ping()
    database.close()
