"""What a record ran, as a row of the coverage table."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

from autodeploy.calibration.families import family_of
from autodeploy.calibration.overlays import rounded
from autodeploy.calibration.profile_fit import configuration_of
from autodeploy.calibration.record_prediction import measured_step_s, record_candidate, runnable, tokens_of
from autodeploy.costs.prediction_spread import run_of_axes
from autodeploy.costs.workload.flops import mfu
from autodeploy.specs.software import features_of
from hardware_profiles.loader import load_profile

if TYPE_CHECKING:
    from autodeploy.specs.record import Record


def run_row(record: Record) -> dict[str, Any]:
    """What a record ran, in the axes of the coverage table."""
    profile = load_profile(record.cluster.profile, calibrated=False)
    ranks = int(record.cluster.num_npus or 1) * profile.devices_per_npu
    axes = record_candidate(runnable(record, profile), ranks, profile.vendor).axes_at(0)
    return {
        "id": record.id,
        "configuration": hashlib.sha256(configuration_of(record).encode()).hexdigest()[:8],
        "model": record.model.name,
        "model_family": family_of(record),
        "family": profile.family,
        "vendor_family": profile.family.split("-")[0],
        "device": record.cluster.device or profile.default_device,
        "npus": record.cluster.num_npus,
        "precision": record.training.precision,
        "mfu": None if (share := mfu_of(record)) is None else rounded(share, 4),
        **run_of_axes(
            axes,
            moe=record.model.is_moe,
            ranks=ranks,
            node_ranks=profile.ranks_per_node,
            seq_length=record.training.seq_length,
            features=features_of(record),
        ),
    }


def mfu_of(record: Record) -> float | None:
    """Measured utilisation in the convention of plans; None where the chip has no peak of the format or no time."""
    profile = load_profile(record.cluster.profile, calibrated=False)
    peak = profile.device(record.cluster.device).peak_flops.get(record.training.precision)
    step_s = measured_step_s(record)
    if peak is None or step_s is None:
        return None
    ranks = int(record.cluster.num_npus or 1) * profile.devices_per_npu
    return mfu(record.model, record.training.seq_length, tokens_of(record) / step_s / ranks, peak)
