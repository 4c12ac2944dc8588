"""A record as a run that can be priced: what contradicts the cluster, the model or the chip gives way, and is said.

It ran, so no rule refuses it. Where two fields of a record can't both be true, the one that the speed hangs on more
stands: degrees over the number of cards, cards over dp, the model's layers over a list of stages.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from autodeploy.calibration.release_defaults import stack_of
from autodeploy.errors import SpecError
from autodeploy.evaluation.steps.one_strategy import layout_of
from autodeploy.messages import Message
from autodeploy.specs.record_reading import Diagnoses
from cost_models.schedule import chunks_in_words, kinds, schedule_problem

if TYPE_CHECKING:
    from autodeploy.specs.record import Record
    from autodeploy.specs.strategy import Strategy
    from hardware_profiles.profile import Profile


def runnable(record: Record, profile: Profile) -> Record:
    """The record without contradictions, each a diagnosis more.

    Raises
    ------
    SpecError
        if most of its stages would hold nothing: such a run has not been.
    """
    _refuse_empty_stages(record)
    diagnoses = Diagnoses()
    update: dict[str, Any] = {}
    peaks, precision = profile.device(record.cluster.device).peak_flops, record.training.precision
    if precision not in peaks and "bf16" in peaks:
        diagnoses.say("/training/precision", f"the chip has no {precision} peak; read as bf16")
        update["training"] = record.training.model_copy(update={"precision": "bf16"})
    ranks = int(record.cluster.num_npus or 1) * profile.devices_per_npu
    strategy = record.strategy
    needed = strategy.tp * strategy.pp * strategy.cp
    if record.cluster.num_npus is not None and ranks < needed:
        cards = -(-needed // profile.devices_per_npu)
        update["cluster"] = record.cluster.model_copy(update={"num_npus": cards})
        diagnoses.say("/cluster/num_npus", f"tp x pp x cp is {needed} on {ranks} ranks; read as {cards} cards")
        ranks = cards * profile.devices_per_npu
    changes = _strategy(record, ranks, diagnoses) | _every_second_product(record, diagnoses)
    if changes:
        update["strategy"] = strategy.model_copy(update=changes)
    return record.model_copy(update={**update, "diagnoses": (*record.diagnoses, *diagnoses.found)})


def _every_second_product(record: Record, diagnoses: Diagnoses) -> dict[str, Any]:
    """Selective recomputation of torchtitan, by operator (`autodeploy.workload.by_operator`).

    Layers of other models than dense ones with grouped-query attention call other products: what is no product is taken
    as computed again.
    """
    recompute = record.strategy.recompute
    if stack_of(record) != "torchtitan" or recompute.granularity != "selective" or recompute.per_stage is not None:
        return {}
    if "by_operator" in recompute.modules:
        return {}
    if record.model.is_moe or record.model.is_mla or not record.strategy.fsdp:
        diagnoses.say("/strategy/recompute/modules", "by operator; read as norms and activations")
        return {"recompute": recompute.model_copy(update={"modules": ("norm", "activation")})}
    diagnoses.say("/strategy/recompute/modules", "read as by operator, which is what torchtitan has", widens=False)
    return {"recompute": recompute.model_copy(update={"modules": ("by_operator",)})}


def _refuse_empty_stages(record: Record) -> None:
    """Embedding, head and prediction modules may have stages of their own; nothing else but layers can."""
    model = record.model
    parts = model.num_hidden_layers + model.num_nextn_predict_layers + 2
    for name in ("pp", "vpp"):
        if (count := getattr(record.strategy, name)) > parts:
            raise SpecError(
                Message("calibration.more_stages_than_layers", name=name, count=count, layers=model.num_hidden_layers),
                path=f"/strategy/{name}",
            )


def _strategy(record: Record, ranks: int, diagnoses: Diagnoses) -> dict[str, Any]:
    """Fields of the strategy that give way."""
    strategy = record.strategy
    changes: dict[str, Any] = {}
    cut = strategy.tp * strategy.pp * strategy.cp
    replicas = max(1, ranks // cut)
    if strategy.dp is not None and strategy.dp != replicas:
        diagnoses.say("/strategy/dp", f"{strategy.dp} is not {ranks} ranks over tp x pp x cp; {replicas} follows")
        changes["dp"] = None
    if ranks % cut:
        diagnoses.say("/cluster/num_npus", f"{ranks % cut} of {ranks} ranks are left over by tp x pp x cp {cut}")
    share = strategy.micro_batch_size * replicas
    batch = record.training.global_batch_size.value
    if batch % share:
        text = f"{batch} sequences are no multiple of micro batch x dp {share}; the fullest replica sets the time"
        diagnoses.say("/training/global_batch_size", text)
    changes |= _schedule(strategy, -(-batch // share), diagnoses)
    if strategy.layers_per_stage is not None:
        try:
            layout_of(strategy.model_copy(update=changes), (record.model.num_hidden_layers,))
        except SpecError as error:
            diagnoses.say("/strategy/layers_per_stage", f"{error}; spread evenly")
            changes["layers_per_stage"] = None
    return changes


def _schedule(strategy: Strategy, micro_batches: int, diagnoses: Diagnoses) -> dict[str, Any]:
    """The interleaved schedule, of as many chunks, where the named one can't have this shape."""
    kind = kinds.schedule(strategy.schedule)
    if kind.chunks is None:
        return {}
    problem = schedule_problem(kind.name, strategy.pp, kind.chunks, micro_batches)
    if problem is None and strategy.vpp in (1, kind.chunks):
        return {}
    other = kinds.plain(kind.chunks).name
    said = problem or f"{kind.name} has {chunks_in_words(kind)} a stage"
    diagnoses.say("/strategy/schedule", f"{said}; read as {other}")
    return {"schedule": other, "vpp": max(strategy.vpp, kind.chunks) if strategy.pp > 1 else 1}
