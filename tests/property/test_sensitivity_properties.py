"""What the uncertainty of fitted numbers does to every interval."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from autodeploy.calibration.overlays import covariance_of
from autodeploy.costs.inputs.machine import machine_of
from autodeploy.costs.layers.unit_costs import unit_costs
from autodeploy.costs.prediction_spread import spread_of
from autodeploy.costs.stages.step_classes import Priced, step_classes
from autodeploy.costs.steps.estimate import Layout, estimate_layout, template_layers
from autodeploy.costs.steps.scenarios import STEP, sensitivities
from autodeploy.search.ranking.uncertainty import parameter_variance
from autodeploy.specs.strategy import ChoiceKey
from hardware_profiles.covariance import Covariance, FittedFactor
from tests.support.accounting.cases import Case, candidates_of, cases, degrees, memory_choices, placements
from tests.support.examples import examples

if TYPE_CHECKING:
    from autodeploy.costs.inputs.context import Context
    from autodeploy.space.candidates import Candidates

RUN = {"moe": True, "ranks": 64, "shares_node": False, "tp": 8, "pp": 2, "cp": 1, "ep": 8, "seq_length": 4096}
CLASSES = ("ascend-910b", "nvidia-a100", "nvidia-h100", "some-other-chip")


def covariances(count: int) -> st.SearchStrategy[Covariance]:
    """Positive definite matrices of log factors."""
    entry = st.floats(-0.3, 0.3)
    root = st.lists(st.lists(entry, min_size=count, max_size=count), min_size=count, max_size=count)

    def made(rows: list[list[float]]) -> Covariance:
        matrix = np.array(rows) @ np.array(rows).T + 1e-4 * np.eye(count)
        return Covariance(
            source="drawn",
            factors=tuple(FittedFactor(name=f"f{n}", multiplies=(f"n{n}",)) for n in range(count)),
            log_covariance=tuple(tuple(float(x) for x in row[: n + 1]) for n, row in enumerate(matrix)),
        )

    return root.map(made)


def wider(covariance: Covariance, number: int, more: float) -> Covariance:
    """The same with one factor less certain by this variance."""
    rows = [list(row) for row in covariance.log_covariance]
    rows[number][number] += more
    return covariance.model_copy(update={"log_covariance": tuple(tuple(row) for row in rows)})


@given(
    covariances(3),
    st.lists(st.floats(-1.0, 1.0), min_size=3, max_size=3),
    st.integers(0, 2),
    st.floats(1e-3, 1.0),
    st.sampled_from(CLASSES),
)
def test_a_less_certain_factor_never_narrows_an_interval(
    covariance: Covariance, slopes: list[float], number: int, more: float, family: str
) -> None:
    slope = np.array(slopes)
    run = {**RUN, "features": []}
    before, after = (parameter_variance(c, slope) for c in (covariance, wider(covariance, number, more)))
    assert after == pytest.approx(before + more * slope[number] ** 2)
    near, far = (spread_of(family, run, v).log_sigma for v in (before, after))
    assert far >= near >= spread_of(family, run).log_sigma
    # Beyond what the class's own records had, all of it counts.
    wide = spread_of(family, run, before + 1.0).log_sigma
    assert spread_of(family, run, after + 1.0).log_sigma ** 2 == pytest.approx(wide**2 + after - before)


def at(context: Context, efficiency: dict[str, float]) -> Context:
    """The context on a machine of its profile with these efficiencies."""
    profile = context.profile
    assert profile is not None
    machine = machine_of(
        profile,
        profile.device(context.machine.name),
        context.machine.topology,
        precision=context.precision,
        release=context.release,
        efficiency=efficiency,
        features=context.features,
        software=context.host,
    )
    return replace(context, machine=machine)


def steps_s(context: Context, candidates: Candidates, layouts: list[Layout]) -> np.ndarray:
    """Of every candidate under its layout."""
    classes = step_classes(unit_costs(context, candidates), candidates, context)
    priced = [Priced(classes, candidates, context, index) for index in range(len(layouts))]
    return np.array([estimate_layout(one, layout).step_time_s for one, layout in zip(priced, layouts, strict=True)])


# Five cases with four strategies each: a second strategy of a case costs little.
@settings(max_examples=examples(5), phases=[Phase.generate], deadline=None)
@given(st.data(), cases())
def test_sensitivities_are_differences_of_the_estimate(data: st.DataObject, case: Case) -> None:
    context = at(case.context, {})
    profile = context.profile
    assert profile is not None
    factors = covariance_of(profile).factors
    values = {f"release_{band}": value for band, value in profile.release_factors.items()} | dict(profile.efficiency)
    drawn = [data.draw(degrees(case)) for _ in range(4)]
    candidates, layouts = candidates_of(drawn), []
    counts = tuple(c.count for c in step_classes(unit_costs(context, candidates), candidates, context).layers)
    for d in drawn:
        per_chunk = data.draw(placements(case.run.num_hidden_layers, d.pp, d.vpp, d.schedule))
        applied = {ChoiceKey(name): np.asarray(used) for name, used in data.draw(memory_choices(per_chunk)).items()}
        layouts.append(Layout(template_layers(counts, d.pp, d.vpp, np.asarray(per_chunk), d.schedule), applied))
    moves = [{name: values.get(name, 1.0) * float(np.exp(STEP)) for name in f.multiplies} for f in factors]
    times = np.array([steps_s(at(context, move), candidates, layouts) for move in ({}, *moves)])
    found = sensitivities(candidates, context, layouts, factors)
    np.testing.assert_allclose(found, np.log(times[1:] / times[0]).T / STEP, atol=1e-6)
    assert np.any(found < -0.1) or context.host.changing_shapes  # a late host hides what rates change
