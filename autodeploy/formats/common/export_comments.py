"""What the comments of an exported file name and no flag or key can: the plan, and the cluster it is for."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, get_args

from autodeploy.specs.model import HiddenAct, NormLayout
from autodeploy.specs.presets import preset_names
from autodeploy.stack.features import FEATURES
from autodeploy.stack.releases import releases

if TYPE_CHECKING:
    from autodeploy.specs.diagnostics import DiagnosticsLog
    from autodeploy.stack.releases import Release

_MARK = re.compile(r"^# autodeploy:((?: [a-z_]+=[\w./+-]+)+)\s*$", re.MULTILINE)
_PLAN = re.compile(r"^#.*\bplan (p_[a-z2-7]{8})\b", re.MULTILINE)
_LENGTH = re.compile(r"([1-9]\d{0,8})/(\d{1,15}(?:\.\d{1,17})?)")
_USES = frozenset({"exactly", "at_most"})
# What of a model some releases have no flag for: field -> the values that a mark may say.
_MODEL: dict[str, frozenset[str]] = {
    "norm_layout": frozenset(get_args(NormLayout)),
    "hidden_act": frozenset(get_args(HiddenAct)),
}


def take_marks(text: str, spec: dict[str, Any], strategy: dict[str, Any], log: DiagnosticsLog) -> None:
    """Puts marked features into the strategy, marked cluster, model and lengths into the spec; notes each."""
    if features := _marked_features(text):
        log.take("# autodeploy:", "/strategy/features", " ".join(features))
        strategy["features"] = sorted({*strategy["features"], *features})
    for name, value in _marks(text).items():
        if value in _MODEL.get(name, ()):
            log.take("# autodeploy:", f"/model/{name}", value)
            spec["model"][name] = value
    if lengths := marked_lengths(text):
        log.take("# autodeploy:", "/training/sequence_length_histogram", len(lengths))
        spec["training"]["sequence_length_histogram"] = lengths
    cluster = marked_cluster(text)
    if cluster is not None:
        log.take("# autodeploy:", "/cluster", cluster["profile"])
        spec["cluster"] = cluster


def marked_cluster(text: str) -> dict[str, Any] | None:
    """The `cluster` of a line `# autodeploy: cluster=PROFILE device=GRADE num_npus=N use=exactly`, if there is one."""
    marks = _marks(text)
    if "cluster" not in marks:
        return None
    cluster: dict[str, Any] = {"profile": marks["cluster"]}
    if "device" in marks:
        cluster["device"] = marks["device"]
    if marks.get("num_npus", "").isdigit() and len(marks["num_npus"]) < 10:
        cluster["num_npus"] = int(marks["num_npus"])
    if marks.get("use") in _USES:
        cluster["use"] = marks["use"]
    return cluster


def marked_lengths(text: str) -> dict[str, float]:
    """Lengths of packed documents and their shares, `lengths=512/0.5+2048/0.5`; none where a part is no such pair."""
    lengths = {}
    for part in _marks(text).get("lengths", "").split("+"):
        pair = _LENGTH.fullmatch(part)
        if pair is None:
            return {}
        lengths[pair[1]] = float(pair[2])
    return lengths


def marked_preset(text: str) -> str | None:
    """The preset that the same line names, `preset=NAME`, of which the file has the path alone."""
    name = _marks(text).get("preset")
    return name if name in preset_names() else None


def plan_id_of(text: str) -> str | None:
    """The id of the plan that the file was exported from, as its first comment names it."""
    match = _PLAN.search(text)
    return match[1] if match else None


def release_of_marks(text: str) -> Release | None:
    """The release that the same line names, `release=NAME`; None where it names none that is known."""
    name = _marks(text).get("release")
    return next((release for release in releases() if release.name == name), None)


def search_of_marks(text: str, target: str) -> dict[str, Any]:
    """`search` of a launch file of a framework: the framework, and a release of it that the line names."""
    release = release_of_marks(text)
    if release is None or release.framework != target or release.is_default:
        return {"target": target}
    return {"target": target, "target_release": release.name}


def _marked_features(text: str) -> list[str]:
    """Features of the same line that have no flag, `features=rect_fa+vector_sort`; unknown names are left out."""
    return [name for name in _marks(text).get("features", "").split("+") if name in FEATURES]


def _marks(text: str) -> dict[str, str]:
    match = _MARK.search(text)
    return dict(pair.split("=", 1) for pair in match[1].split()) if match else {}
