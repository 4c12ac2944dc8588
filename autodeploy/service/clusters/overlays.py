"""Overlays of clusters and the evidence they stand on."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from pydantic import Field, ValidationError

from autodeploy.calibration.families import configuration_digest, family_digest
from autodeploy.calibration.overlays import rounded
from autodeploy.costs.inputs.build_context import profile_of
from autodeploy.costs.prediction_spread import Z80, classes_of_run, coverage, shares_node, widening
from autodeploy.kit.errors import FieldError, SpecError
from autodeploy.messages import Message
from autodeploy.messages.field_faults import quoted
from autodeploy.service.store.runs import Runs
from autodeploy.service.store.searches import Searches
from autodeploy.specs.base import Document
from autodeploy.specs.cluster import ClusterSpec
from autodeploy.specs.field_errors import field_errors
from autodeploy.specs.measured_run import MeasuredRun
from autodeploy.specs.spec import canonical_json
from hardware_profiles import list_profiles
from hardware_profiles.evidence import MOST_LOG, MOST_SCALE, MOST_SEEN

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from autodeploy.search.planner import Planner
    from autodeploy.service.clusters.calibration import StoredRun
    from autodeploy.service.store.database import Session
    from autodeploy.specs.measured_run import OutOfMemory
    from autodeploy.specs.planset import Plan
    from autodeploy.specs.spec import Spec
    from hardware_profiles import Profile


# So many clusters are kept in mind; with more of them the memory begins anew.
MAX_CACHED_CLUSTERS = 2000


def with_overlay(session: Session, spec: Spec, team: str) -> Spec:
    """The spec with its cluster's overlay written into it, so that the spec alone says what it is planned with.

    The overlay is the team's own: runs of others neither move its numbers nor are named in it.
    """
    cluster = _resolved(session, spec.cluster, team)
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


class Resting(NamedTuple):
    """A search and its team, the spec it was planned from, the profile its plans rest on, and what overlays are at."""

    search_id: str
    spec_hash: str
    profile_hash: str
    team: str
    overlays_at: object


class Freshness:
    """Tells stale plans. What it worked out it keeps: lists ask the same of the same clusters again and again."""

    def __init__(self, planner: Planner) -> None:
        self._planner = planner
        # By the hash of a spec: its cluster, also as text, an overlay that follows the ledger written as `auto`; None
        # of one that another version stored and this one cannot read.
        self._clusters: dict[str, tuple[ClusterSpec, str] | None] = {}
        # By a cluster's text, a team and what its overlays are at.
        self._hashes: dict[tuple[str, str, object], str | None] = {}

    def is_stale(self, session: Session, resting: Resting) -> bool | None:
        """Whether these plans would rest on another profile today; None where this version cannot read their spec."""
        return self.judged(session, [resting])[resting.search_id]

    def judged(self, session: Session, searches: Sequence[Resting]) -> dict[str, bool | None]:
        """The same of each of these searches."""
        clusters = self._clusters_of(session, searches)
        today = {
            (spec_hash, team): self._hash_today(session, *cluster, team, overlays_at)
            for spec_hash, team, overlays_at in {(each.spec_hash, each.team, each.overlays_at) for each in searches}
            if (cluster := clusters.get(spec_hash)) is not None
        }
        unreadable = {spec_hash for spec_hash, cluster in clusters.items() if cluster is None}
        return {
            each.search_id: None
            if each.spec_hash in unreadable
            else today.get((each.spec_hash, each.team)) not in {None, each.profile_hash}
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

    def _hash_today(
        self, session: Session, cluster: ClusterSpec, text: str, team: str, overlays_at: object
    ) -> str | None:
        """None where the profile is a file that is gone, or an override no longer fits: nothing can be said."""
        if cluster.profile not in list_profiles():  # a file may change at any time
            return self._hash_of(_resolved(session, cluster, team))
        key = text, team, overlays_at
        try:
            return self._hashes[key]
        except KeyError:
            today = self._hash_of(_resolved(session, cluster, team))
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


def _resolved(session: Session, cluster: ClusterSpec, team: str) -> ClusterSpec:
    if cluster.overlay != "auto":
        return cluster
    rows = Runs(session).overlays(team, cluster.ledger_name)
    if not rows:
        return cluster
    name = profile_of(without_overlay(cluster)).name
    row = next((row for row in rows if row.profile == name), None)
    return cluster if row is None else cluster.model_copy(update={"overlay": row.overlay})


def unnamed(value: Any, cluster: str) -> Any:
    """The same without the cluster's name in sources and notes."""
    if isinstance(value, dict):
        return {key: unnamed(each, cluster) for key, each in value.items()}
    if isinstance(value, list):
        return [unnamed(each, cluster) for each in value]
    return value.replace(f" on {cluster}", " on one cluster") if isinstance(value, str) else value


LEAST_FREEDOM = 4
"""Degrees of freedom of a class that next to nobody measured; as many as a class needs to have a spread of its own."""
LEAST_HELD = 0.6
"""Of what a card has to give; what lies beside the allocator (runtime, buffers of communicators) is below 0.4 of it."""


def evidence_of(runs: Sequence[StoredRun], profile: Profile, fitted: Collection[str]) -> dict[str, Any]:
    """The section `evidence` of a cluster's overlay; empty where its runs say nothing of memory or time.

    runs : newest first; the newest MOST_SEEN of them that speak of memory count. fitted : ids of those whose times the
        cluster's numbers were fitted to.
    """
    seen = [entry for run in runs for entry in _seen(run, profile)][:MOST_SEEN]
    scale = time_scale(runs, profile)
    timed = dict.fromkeys(family_digest(run.spec.model) for run in runs if run.id in fitted)
    if not seen and scale == 1.0 and not timed:
        return {}
    return {"memory": seen, "time_scale": scale, "timed": list(timed)[:MOST_SEEN]}


def _seen(run: StoredRun, profile: Profile) -> list[dict[str, Any]]:
    spec, plan = run.spec, run.plan
    ranks = _ranks(plan, profile)
    axes = plan.strategy.model_dump() | {"dp": plan.strategy.replicas(ranks)}
    keys = {
        "family": family_digest(spec.model),
        "configuration": configuration_digest(spec.model, spec.training.seq_length, axes),
    }
    rows = []
    if run.measured.out_of_memory is not None:
        least = least_gib(run.measured.out_of_memory, plan)
        predicted = predicted_gib(run.measured.out_of_memory, plan, ranks)
        rows.append({**keys, "log_ratio": _log(least / predicted), "at_least": True})
    elif run.measured.peak_memory_gib is not None:
        rows.append({**keys, "log_ratio": _log(run.measured.peak_memory_gib / plan.allocator_peak_gib)})
    return rows


def _ranks(plan: Plan, profile: Profile) -> int:
    return plan.num_npus_used * profile.devices_per_npu


def least_gib(met: OutOfMemory, plan: Plan) -> float:
    """Least memory that the card needed: more than it has, and the request beside all that was there."""
    limit = min(plan.memory_limit_gib, met.capacity_gib or plan.memory_limit_gib)
    asked = (met.asked_gib or 0.0) + (met.allocated_gib or 0.0)
    return max(limit, asked + plan.peak_memory_gib - plan.allocator_peak_gib)


def predicted_gib(met: OutOfMemory, plan: Plan, ranks: int) -> float:
    """The predicted peak on the card where memory ran out: of its stage, or of the fullest where none is said."""
    stage = stage_of(met, plan, ranks)
    return plan.peak_memory_gib if stage is None else plan.stages[stage].total_gib


def stage_of(met: OutOfMemory, plan: Plan, ranks: int) -> int | None:
    """The stage where memory ran out, by Megatron-LM's order of ranks."""
    if met.stage is not None or met.rank is None:
        return met.stage
    return met.rank // plan.strategy.stage_stride(ranks) % plan.strategy.pp


def time_scale(runs: Sequence[StoredRun], profile: Profile) -> float:
    """Factor on the spread of predicted times, from how far runs missed the intervals that they were told.

    Notes
    -----
    `widening` with as many degrees of freedom as the class of the runs has configurations, and one square per
    configuration: runs inside their intervals narrow nothing here.
    """
    squares: dict[str, float] = {}
    freedom = math.inf
    for run in runs:
        if run.step_s is None or run.group in squares:
            continue
        uncertainty = run.plan.uncertainty
        sigma = math.log(uncertainty.high_s / uncertainty.low_s) / (2.0 * Z80)
        middle = 0.5 * math.log(uncertainty.high_s * uncertainty.low_s)
        squares[run.group] = ((math.log(run.step_s) - middle) / sigma) ** 2 if sigma > 0.0 else 1.0
        freedom = min(freedom, _configurations(run, profile))
    if not squares:
        return 1.0
    return rounded(min(MOST_SCALE, widening(freedom, list(squares.values()))))


def _configurations(run: StoredRun, profile: Profile) -> int:
    """That the spread of a run's class rests on; of a class without records LEAST_FREEDOM."""
    shared = shares_node(_ranks(run.plan, profile), run.plan.strategy.tp, profile.ranks_per_node)
    family = profile.document.calibration.spread_of or profile.family
    names = classes_of_run({"moe": run.spec.model.is_moe, "shares_node": shared})
    entries = (coverage()["classes"].get(f"{family}/{name}") for name in names)
    return max(LEAST_FREEDOM, next((int(entry["n"]) for entry in entries if entry), LEAST_FREEDOM))


def _log(ratio: float) -> float:
    return rounded(max(-MOST_LOG, min(MOST_LOG, math.log(ratio))))


def problem_of(met: OutOfMemory, plan: Plan, ranks: int) -> FieldError | None:
    """Reason for which a report can't be of this plan; None where it can."""
    at = "/out_of_memory"
    if met.rank is not None and met.rank >= ranks:
        return FieldError(
            f"{at}/rank",
            Message("field_fault.is_too_big", value=met.rank),
            Message("field_fault.at_most", bound=ranks - 1),
        )
    stage, stages = stage_of(met, plan, ranks), len(plan.stages)
    if stage is not None and stage >= stages:
        return FieldError(
            f"{at}/stage",
            Message("field_fault.is_too_big", value=stage),
            Message("field_fault.at_most", bound=stages - 1),
        )
    reserved, limit = met.reserved_gib, plan.memory_limit_gib
    if reserved is not None and reserved + (met.asked_gib or 0.0) < LEAST_HELD * least_gib(met, plan):
        message = Message("services.card_shared", held=reserved, limit=limit)
        return FieldError(f"{at}/reserved_gib", message, Message("services.end_other_processes"))
    return None


# A measurement is checked against the plan it is said to be of.
# Beyond this factor between measured and predicted step a unit was mistaken, or it is another plan's run.
MAX_TIME_RATIO = 20.0


class MeasuredFile(Document):
    """The text of a file of measurements; operation and ranks of a collective benchmark that does not say them."""

    file: Annotated[str, Field(min_length=1, description="the text of a file of measurements")]
    op: Annotated[str | None, Field(max_length=200)] = None
    ranks: Annotated[int | None, Field(ge=2, le=200_000)] = None
    note: Annotated[str, Field(max_length=4000)] = ""


def measured_of_document(document: Any) -> MeasuredRun:
    """The measurement in a JSON body: its fields, or `{file: text}` with `op` and `ranks` where the text lacks them.

    Raises SpecError with every bad field, or the line of the text.
    """
    if not isinstance(document, Mapping):
        raise SpecError(
            Message("field_fault.is_no_mapping", value=quoted(document)),
            hint="step_time_s: 12.3, or file: the text of a log",
        )
    if "file" not in document:
        try:
            run = MeasuredRun.model_validate(document)
        except ValidationError as error:
            raise SpecError(errors=field_errors(error, model=MeasuredRun)) from error
        return run if run.original else run.model_copy(update={"original": dict(document)})
    try:
        asked = MeasuredFile.model_validate(document)
    except ValidationError as error:
        raise SpecError(errors=field_errors(error, model=MeasuredFile)) from error
    # Formats of traces, for files alone.
    from autodeploy.formats.measurements.measured_file import read_measured_text

    run = only_run(read_measured_text(asked.file, op=asked.op, ranks=asked.ranks))
    return run.model_copy(update={"note": asked.note}) if asked.note else run


def only_run(runs: tuple[MeasuredRun, ...]) -> MeasuredRun:
    """The one run of a file.

    Raises SpecError when its rows name several strategies.
    """
    if len(runs) != 1:
        raise SpecError(
            Message("services.strategies_in_one_file", count=len(runs)),
            hint=Message("services.one_run_per_plan"),
        )
    return runs[0]


def batch_of(plan: Plan) -> int:
    """Sequences of a step of the plan."""
    return plan.micro_batches * plan.strategy.micro_batch_size * (plan.strategy.dp or 1)


def measured_step_s(run: MeasuredRun, spec: Spec, plan: Plan) -> float | None:
    """Seconds of a measured step; from throughput where no time was given."""
    if run.step_time_s is not None or run.tokens_per_s_per_npu is None:
        return run.step_time_s
    return batch_of(plan) * spec.training.sample_tokens / run.tokens_per_s_per_npu / plan.num_npus_used


def check_run(run: MeasuredRun, spec: Spec, plan: Plan) -> None:
    """Refuses a measurement that is not this plan's.

    Raises SpecError naming each field that contradicts the plan.
    """
    planned: dict[str, int | None] = {
        **{name: getattr(plan.strategy, name) for name in ("tp", "pp", "vpp", "dp", "cp", "ep", "etp")},
        "micro_batch_size": plan.strategy.micro_batch_size,
        "num_npus": plan.num_npus_used,
        "seq_length": spec.training.seq_length,
        "global_batch_size": batch_of(plan),
    }
    hint = Message("services.link_to_plan")
    errors = [
        FieldError(f"/strategy/{name}", Message("services.run_says_plan", one=value, other=planned[name]), hint)
        for name, value in run.strategy.items()
        if planned.get(name) is not None and planned[name] != value
    ]
    errors += [
        FieldError(
            f"/strategy/{name}",
            Message("common.unknown_value", flag="strategy", names=", ".join(planned), value=repr(name)),
        )
        for name in run.strategy
        if name not in planned
    ]
    step_s = measured_step_s(run, spec, plan)
    if step_s is not None and not 1.0 / MAX_TIME_RATIO < step_s / plan.step_time_s < MAX_TIME_RATIO:
        # A throughput of next to nothing makes a step of more seconds than a float can say.
        message = Message(
            "services.s_measured_s_predicted", measured=min(step_s, sys.float_info.max), predicted=plan.step_time_s
        )
        errors.append(FieldError("/step_time_s", message, Message("services.check_unit")))
    if run.out_of_memory is not None:
        ranks = plan.num_npus_used * profile_of(spec.cluster).devices_per_npu
        if (problem := problem_of(run.out_of_memory, plan, ranks)) is not None:
            errors.append(problem)
    if errors:
        raise SpecError(errors=tuple(errors))
