"""A cluster's overlay for others: its numbers and how well they fit, without models and runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from autodeploy.engine import ENGINE_VERSION
from autodeploy.errors import NotFoundError
from autodeploy.messages import Message

if TYPE_CHECKING:
    from autodeploy.services.runs import RunService

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
