"""Records of one configuration: what a rank holds and runs, whatever the number of ranks. A fit weighs it once.

Sources publish one layout on many cluster sizes, and one run in several releases; each row repeats the errors of the
others, so their number says nothing.
"""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING

import numpy as np

from autodeploy.calibration.release_defaults import release_of, stack_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autodeploy.specs.record import Record
    from cost_models.arrays import Floats

OF_THE_SIZE = {"name", "num_hidden_layers"}  # of a model: sources cut its depth with the number of devices
OF_THE_RANKS = {"pp", "dp", "layers_per_stage"}  # of a strategy: the layers of a stage stand for them


def configuration_of(record: Record) -> str:
    """What tells configurations apart: chip, stack and software band, shape of the model, layers of a stage, training
    without the batch, and strategy.

    Rows that differ in devices, replicas or micro batches alone, and repeats, share it.
    """
    strategy, cluster = record.strategy, record.cluster
    parts = {
        "where": (cluster.profile, cluster.device, stack_of(record), release_of(record).band),
        "model": record.model.model_dump(mode="json", exclude=OF_THE_SIZE),
        "layers": round(record.model.num_hidden_layers / strategy.pp),
        "training": record.training.model_dump(mode="json", exclude={"global_batch_size"}),
        "strategy": strategy.model_dump(mode="json", exclude=OF_THE_RANKS),
    }
    return json.dumps(parts, sort_keys=True)


def shares_of(records: Sequence[Record]) -> Floats:
    """Weight of each record [records]: those of one configuration share one."""
    names = [configuration_of(record) for record in records]
    counts = Counter(names)
    return np.array([1.0 / counts[name] for name in names], dtype=np.float64)
