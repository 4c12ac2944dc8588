"""Who changed an overlay and when, as the overlay says it, and the warning of plans that rest on a fresh one."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from autodeploy.messages import Message

if TYPE_CHECKING:
    from autodeploy.specs.spec import Spec

# For so long whoever plans on a cluster is told that its predictions moved.
FRESH = timedelta(days=7)


def changed(overlay: dict[str, Any], by: str, now: datetime) -> dict[str, Any]:
    """The overlay with who changed it and when in its report, which no number follows."""
    return overlay | {"report": overlay.get("report", {}) | {"changed_by": by, "changed_at": now.isoformat()}}


def fresh_overlay_warning(spec: Spec, now: datetime) -> str | None:
    """What to tell of a spec whose overlay was changed in the last seven days; None without or with an older one."""
    overlay = spec.cluster.overlay
    report = overlay.get("report") if isinstance(overlay, dict) else None
    at = report.get("changed_at") if isinstance(report, dict) else None
    if not isinstance(report, dict) or not isinstance(at, str):
        return None
    try:
        moment = datetime.fromisoformat(at)
    except ValueError:  # somebody's own overlay, which may say anything
        return None
    if moment.tzinfo is None or now - moment > FRESH:
        return None
    by = str(report.get("changed_by") or "")[:100]
    said = {
        "cluster": spec.cluster.ledger_name,
        "when": f"{moment.astimezone(UTC):%Y-%m-%d %H:%M} UTC",
    }
    return Message("specs.measured_runs_changed_predictions", **said, key=by or "-")
