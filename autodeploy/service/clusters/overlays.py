"""Which overlay a search on a cluster takes, and which stored plans rest on other numbers than a search today."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from pydantic import ValidationError

from autodeploy.costs.inputs.build_context import profile_of
from autodeploy.kit.errors import NotFoundError, SpecError
from autodeploy.kit.version import ENGINE_VERSION
from autodeploy.messages import Message
from autodeploy.search.ranking.measured_speed import MEASURED
from autodeploy.service.store.runs import Runs
from autodeploy.service.store.searches import Searches
from autodeploy.specs.cluster import ClusterSpec
from autodeploy.specs.spec import canonical_json
from hardware_profiles import list_profiles

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autodeploy.service.runner.planning import Planner
    from autodeploy.service.runs.service import RunService
    from autodeploy.service.store.database import Session
    from autodeploy.specs.spec import Spec


# So many clusters are kept in mind; with more of them the memory begins anew.
MAX_CACHED_CLUSTERS = 2000


def with_overlay(session: Session, spec: Spec, team: str) -> Spec:
    """The spec with its cluster's overlay written into it, so that the spec alone says what it is planned with.

    The numbers are everybody's; of the runs that they were fitted to, only those of the team are named.
    """
    cluster = _resolved(session, spec.cluster)
    if cluster is spec.cluster:
        return spec
    assert isinstance(cluster.overlay, dict)
    cluster = cluster.model_copy(update={"overlay": as_read_by(session, cluster.overlay, team)})
    return spec.model_copy(update={"cluster": cluster})


def as_read_by(session: Session, overlay: dict[str, Any], team: str) -> dict[str, Any]:
    """The overlay without runs of other teams: neither which they are nor what was measured in them."""
    report = overlay.get("report")
    if not isinstance(report, dict):
        return overlay
    own = Runs(session).ids_of_team(report.get("runs") or (), team)
    kept = report | {"runs": [run for run in report.get("runs") or () if run in own]}
    if MEASURED in report:
        kept[MEASURED] = [run for run in report[MEASURED] if run["run"] in own]
    return overlay | {"report": kept}


def without_overlay(cluster: ClusterSpec) -> ClusterSpec:
    """The cluster as shipped."""
    return cluster.model_copy(update={"overlay": "none"})


def is_ledgers(cluster: ClusterSpec) -> bool:
    """Whether the overlay is left to the cluster's runs: `auto`, or one that `auto` became."""
    if isinstance(cluster.overlay, str):
        return cluster.overlay == "auto"
    report = cluster.overlay.get("report")
    return isinstance(report, dict) and report.get("cluster") == cluster.ledger_name


class Resting(NamedTuple):
    """A search, the spec that it was planned from, the profile that its plans rest on, and what overlays are at."""

    search_id: str
    spec_hash: str
    profile_hash: str
    overlays_at: object


class Freshness:
    """Tells stale plans. What it worked out it keeps: lists ask the same of the same clusters again and again."""

    def __init__(self, planner: Planner) -> None:
        self._planner = planner
        # By the hash of a spec: its cluster, also as text, an overlay that follows the ledger written as `auto`; None
        # of one that another version stored and this one cannot read.
        self._clusters: dict[str, tuple[ClusterSpec, str] | None] = {}
        # By a cluster's text and what overlays are at.
        self._hashes: dict[tuple[str, object], str | None] = {}

    def is_stale(self, session: Session, resting: Resting) -> bool | None:
        """Whether these plans would rest on another profile today; None where this version cannot read their spec."""
        return self.judged(session, [resting])[resting.search_id]

    def judged(self, session: Session, searches: Sequence[Resting]) -> dict[str, bool | None]:
        """The same of each of these searches."""
        clusters = self._clusters_of(session, searches)
        today = {
            spec_hash: self._hash_today(session, *cluster, overlays_at)
            for spec_hash, overlays_at in {(search.spec_hash, search.overlays_at) for search in searches}
            if (cluster := clusters.get(spec_hash)) is not None
        }
        unreadable = {spec_hash for spec_hash, cluster in clusters.items() if cluster is None}
        return {
            each.search_id: None
            if each.spec_hash in unreadable
            else today.get(each.spec_hash) not in {None, each.profile_hash}
            for each in searches
        }

    def _clusters_of(self, session: Session, searches: Sequence[Resting]) -> dict[str, tuple[ClusterSpec, str] | None]:
        """The clusters of these specs; other threads may forget them meanwhile, and searches may be deleted."""
        known = self._clusters
        clusters = {search.spec_hash: known[search.spec_hash] for search in searches if search.spec_hash in known}
        unknown = {search.search_id: search.spec_hash for search in searches if search.spec_hash not in clusters}
        if not unknown:
            return clusters
        if len(self._clusters) + len(unknown) > MAX_CACHED_CLUSTERS:
            self._clusters = {}
        for search_id, document in Searches(session).clusters(list(unknown)).items():
            clusters[unknown[search_id]] = self._clusters[unknown[search_id]] = _read_cluster(document)
        return clusters

    def _hash_today(self, session: Session, cluster: ClusterSpec, text: str, overlays_at: object) -> str | None:
        """None where the profile is a file that is gone, or an override no longer fits: nothing can be said."""
        if cluster.profile not in list_profiles():  # a file may change at any time
            return self._hash_of(_resolved(session, cluster))
        key = text, overlays_at
        try:
            return self._hashes[key]
        except KeyError:
            today = self._hash_of(_resolved(session, cluster))
        if len(self._hashes) >= MAX_CACHED_CLUSTERS:
            self._hashes = {}
        self._hashes[key] = today
        return today

    def _hash_of(self, cluster: ClusterSpec) -> str | None:
        try:
            return self._planner.profile_hash(cluster)
        except SpecError:
            return None


def _read_cluster(document: Any) -> tuple[ClusterSpec, str] | None:
    try:
        cluster = ClusterSpec.model_validate(document)
    except ValidationError:
        return None
    if is_ledgers(cluster):
        cluster = cluster.model_copy(update={"overlay": "auto"})
    return cluster, canonical_json(cluster.model_dump(mode="json"))


def _resolved(session: Session, cluster: ClusterSpec) -> ClusterSpec:
    if cluster.overlay != "auto":
        return cluster
    rows = Runs(session).overlays(cluster.ledger_name)
    if not rows:
        return cluster
    name = profile_of(without_overlay(cluster)).name
    row = next((row for row in rows if row.profile == name), None)
    return cluster if row is None else cluster.model_copy(update={"overlay": row.overlay})


# A cluster's overlay for others.
# Of what the fit reports: figures over all runs, which name none.
FIGURES = ("bias_before", "bias_after", "mape_before", "mape_after", "mape_left_out")


def exported_overlay(runs: RunService, cluster: str, author: str, releases: tuple[str, ...] = ()) -> dict[str, Any]:
    """The overlay of a cluster as an overlay of a spec, which follows no ledger.

    Parameters
    ----------
    author : who stands for it.
    releases : of the software that the runs were on, as `CANN 8.3.RC1`; nothing stored says them.

    Raises
    ------
    NotFoundError
        when the cluster has no overlay.
    """
    views = [view for view in runs.clusters() if view.cluster == cluster]
    if not views:
        names = ", ".join(sorted({view.cluster for view in runs.clusters()})) or "none"
        raise NotFoundError(
            Message("services.cluster_has_no_overlay", name=cluster),
            hint=Message("common.one_of", names=names),
        )
    view = views[0]
    report: dict[str, Any] = {"author": author, "engine_version": ENGINE_VERSION}
    if releases:
        report["releases"] = list(releases)
    report |= {"measured_runs": view.num_runs, "fitted_at": view.updated_at.date().isoformat()}
    report |= {name: view.report[name] for name in FIGURES if view.report.get(name) is not None}
    numbers = {key: value for key, value in view.overlay.items() if key != "report"}
    exported: dict[str, Any] = _unnamed(numbers, cluster) if cluster != view.profile else numbers
    return {**exported, "report": report}


def _unnamed(value: Any, cluster: str) -> Any:
    """The same without the cluster's name in sources and notes."""
    if isinstance(value, dict):
        return {key: _unnamed(each, cluster) for key, each in value.items()}
    if isinstance(value, list):
        return [_unnamed(each, cluster) for each in value]
    return value.replace(f" on {cluster}", " on one cluster") if isinstance(value, str) else value
