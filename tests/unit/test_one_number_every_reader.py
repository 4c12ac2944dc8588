"""A number of a profile changed in its YAML changes every reader at once; the same input gives the same bytes."""

from __future__ import annotations

from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import yaml

from autodeploy.calibration.record_prediction import predict_record
from autodeploy.calibration.shipped.tables import shipped_records
from autodeploy.calibration.validation import validate
from autodeploy.cli.validate import report_text, unmeasured_text
from autodeploy.cli.validate_html import report_html
from autodeploy.costs.layers.unit_costs import unit_costs
from autodeploy.costs.stages.step_classes import step_classes
from autodeploy.costs.stages.step_parts import p2p_s
from autodeploy.costs.steps.one_strategy import candidate_of
from autodeploy.costs.sweep.sweep import sweep
from autodeploy.search.planner import estimate, prepare, profile_hash
from autodeploy.specs.spec import Spec, parse_spec
from hardware_profiles import load_profile
from hardware_profiles.shipped_yaml import load_shipped_yaml

if TYPE_CHECKING:
    from autodeploy.specs.record import Record

DATA = Path(__file__).resolve().parents[2] / "hardware_profiles" / "data"
NAME = "ascend-800t-a2"
# Dotted path, and by what its value is multiplied; each slows the step down.
CHANGES = (
    ("efficiency.gemm_peak_fraction", 0.7),
    ("efficiency.attention_forward", 0.5),
    ("efficiency.hbm", 0.5),
    ("hccs.efficiency", 0.5),
    ("scale_out.gb_per_s_per_npu", 0.3),
    ("devices.910B2.peak_tflops.bf16", 0.7),
    ("release_factors.current", 1.3),
)


@cache
def shipped_document() -> Any:
    return load_shipped_yaml((DATA / f"{NAME}.yaml").read_text(encoding="utf-8"))


def changed_profile(folder: Path, path: str, factor: float) -> Path:
    """The shipped YAML with one value written differently."""
    document = deepcopy(shipped_document())
    tiers = {tier["name"]: tier for tier in document["tiers"]}
    *parents, leaf = path.split(".")
    node = document
    for depth, key in enumerate(parents):
        node = tiers[key] if depth == 0 and key in tiers else node[key]
    node[leaf]["value"] = float(node[leaf]["value"]) * factor
    file = folder / f"{path}.yaml"
    file.write_text(yaml.dump(document, Dumper=yaml.CSafeDumper), encoding="utf-8")
    return file


@cache
def record() -> Record:
    """A run on several nodes with tensor and data parallelism and even stages, on release band current."""
    found = [r for r in shipped_records() if r.cluster.profile == NAME and r.framework == "mindspeed-llm"]
    even = (r for r in found if r.strategy.layers_per_stage is None)
    several = next(r for r in even if int(r.cluster.num_npus or 0) >= 16 and r.strategy.tp > 1)
    return several.model_copy(
        update={"date": "2025-06-01", "cluster": several.cluster.model_copy(update={"device": None})}
    )


def spec_on(profile: str) -> Spec:
    of = record()
    return parse_spec(
        {
            "model": of.model,
            "cluster": {"profile": profile, "num_npus": of.cluster.num_npus},
            "training": of.training,
            "strategy": of.strategy.model_dump(exclude={"features"}, exclude_none=True),
        }
    )


def readings(profile: str) -> dict[str, float]:
    """What each reader makes of the numbers: estimate, solver's coefficients, sweep, a record's validation."""
    spec = spec_on(profile)
    assert spec.strategy is not None
    context = prepare(spec).context
    candidate = candidate_of(
        spec.strategy,
        world=context.world,
        global_batch=context.global_batch,
        moe=spec.model.is_moe,
        vendor=context.machine.vendor,
    )
    classes = step_classes(unit_costs(context, candidate), candidate, context)
    of = record().model_copy(update={"cluster": record().cluster.model_copy(update={"profile": profile})})
    (row,) = validate([of]).rows
    assert row.predicted is not None, row.skipped
    return {
        "estimate": estimate(spec).step_time_s,
        "solver": float(p2p_s(candidate, context)[0])
        + float(sum(np.sum(c.cost.forward.total_s) + np.sum(c.tail.total_s) for c in classes.layers)),
        "sweep": float(np.min(sweep(candidate, context).step_time_s)),
        "validate": row.predicted.step_time_s,
        "record": predict_record(of).step_time_s,
    }


@cache
def shipped_readings() -> dict[str, float]:
    return readings(str(DATA / f"{NAME}.yaml"))


@pytest.mark.parametrize(("path", "factor"), CHANGES)
def test_a_changed_number_changes_every_reader_at_once(tmp_path: Path, path: str, factor: float) -> None:
    before = shipped_readings()
    changed = str(changed_profile(tmp_path, path, factor))
    assert load_profile(changed).quantity(path).value == pytest.approx(
        factor * load_profile(str(DATA / f"{NAME}.yaml")).quantity(path).value
    )
    after = readings(changed)
    slower = {name: after[name] / before[name] for name in before}
    assert min(slower.values()) > 1.0 + 1e-4, slower
    assert slower["validate"] == slower["record"]
    # To 1e-9 where both have the same layout (`tests/property/test_independent_accounting.py`); here the estimate's is
    # the record's and the sweep's its template.
    assert after["sweep"] == pytest.approx(after["estimate"], rel=0.04)
    assert slower["sweep"] == pytest.approx(slower["estimate"], rel=0.02)
    assert profile_hash(spec_on(changed).cluster) != profile_hash(spec_on(str(DATA / f"{NAME}.yaml")).cluster)


def test_validating_twice_gives_the_same_bytes() -> None:
    records = [r for r in shipped_records() if r.cluster.profile == NAME][:6]

    def rendered() -> tuple[str, str, str]:
        report = validate(records)
        table = report_text(report.model_dump(mode="json")) + unmeasured_text(report.unmeasured)
        return report.model_dump_json(indent=2), table, report_html(report, records)

    first, second = rendered(), rendered()
    assert first == second
    assert "Shapes and message sizes without a measured efficiency" in first[1]
    assert "Shapes and message sizes without a measured efficiency" in first[2]
