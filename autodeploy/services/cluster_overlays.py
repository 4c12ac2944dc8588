"""Which overlay a search on a cluster takes, and which stored plans rest on other numbers than a search today."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from autodeploy.errors import SpecError
from autodeploy.evaluation.build_context import profile_of
from autodeploy.specs.cluster import ClusterSpec
from autodeploy.specs.spec import canonical_json
from autodeploy.store.runs import Runs

if TYPE_CHECKING:
    from collections.abc import Mapping

    from autodeploy.jobs.planning import Planner
    from autodeploy.specs.spec import Spec
    from autodeploy.store.database import Session


def with_overlay(session: Session, spec: Spec) -> Spec:
    """The spec with its cluster's overlay written into it, so that the spec alone says what it is planned with."""
    cluster = _resolved(session, spec.cluster)
    return spec if cluster is spec.cluster else spec.model_copy(update={"cluster": cluster})


def without_overlay(cluster: ClusterSpec) -> ClusterSpec:
    """The cluster as shipped."""
    return cluster.model_copy(update={"overlay": "none"})


def is_ledgers(cluster: ClusterSpec) -> bool:
    """Whether the overlay is left to the cluster's runs: `auto`, or one that `auto` became."""
    if isinstance(cluster.overlay, str):
        return cluster.overlay == "auto"
    report = cluster.overlay.get("report")
    return isinstance(report, dict) and report.get("cluster") == cluster.ledger_name


class Freshness:
    """Tells stale plans in one session: each cluster's profile is hashed once."""

    def __init__(self, session: Session, planner: Planner) -> None:
        self._session = session
        self._planner = planner
        self._hashes: dict[str, str | None] = {}

    def is_stale(self, cluster_document: Mapping[str, Any], profile_hash: str) -> bool:
        """Whether a plan of this cluster and profile hash would rest on another profile today."""
        key = canonical_json(dict(cluster_document))
        if key not in self._hashes:
            self._hashes[key] = self._hash_today(ClusterSpec.model_validate(cluster_document))
        return self._hashes[key] not in {None, profile_hash}

    def _hash_today(self, cluster: ClusterSpec) -> str | None:
        """None where the profile is a file that is gone, or an override no longer fits: nothing can be said."""
        if is_ledgers(cluster):
            cluster = cluster.model_copy(update={"overlay": "auto"})
        try:
            return self._planner.profile_hash(_resolved(self._session, cluster))
        except SpecError:
            return None


def _resolved(session: Session, cluster: ClusterSpec) -> ClusterSpec:
    if cluster.overlay != "auto":
        return cluster
    rows = Runs(session).overlays(cluster.ledger_name)
    if not rows:
        return cluster
    name = profile_of(without_overlay(cluster)).name
    row = next((row for row in rows if row.profile == name), None)
    return cluster if row is None else cluster.model_copy(update={"overlay": row.overlay})
