"""What holds of step times in every world."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from autodeploy.costs.layers.unit_costs import unit_costs
from autodeploy.costs.stages.step_classes import Priced, step_classes
from autodeploy.costs.steps.estimate import Estimate, Layout, estimate_layout, template_layers
from autodeploy.costs.steps.scenarios import breakdowns_in, context_in, step_times_in
from autodeploy.search.ranking.uncertainty_set import uncertainty_set
from autodeploy.specs.strategy import ChoiceKey
from tests.support.accounting.cases import Case, candidates_of, cases, degrees, memory_choices, placements
from tests.support.examples import examples

if TYPE_CHECKING:
    from autodeploy.costs.inputs.context import Context
    from autodeploy.space.candidates import Candidates


def estimate_of(context: Context, candidate: Candidates, layout: Layout) -> Estimate:
    classes = step_classes(unit_costs(context, candidate), candidate, context)
    return estimate_layout(Priced(classes, candidate, context), layout)


@settings(max_examples=examples(8), phases=[Phase.generate], deadline=None)
@given(st.data(), cases())
def test_every_world_is_the_estimate_in_its_context_to_the_bit(data: st.DataObject, case: Case) -> None:
    """Whatever else is evaluated together with it; a world of zeros is the nominal time."""
    context = context_in(case.context, (), {})
    assert context.profile is not None
    box = uncertainty_set(context.profile, context)
    drawn = [data.draw(degrees(case)) for _ in range(2)]
    layouts = []
    for d in drawn:
        per_chunk = data.draw(placements(case.run.num_hidden_layers, d.pp, d.vpp, d.schedule))
        candidate = candidates_of([d])
        counts = tuple(c.count for c in step_classes(unit_costs(context, candidate), candidate, context).layers)
        applied = {ChoiceKey(name): np.asarray(used) for name, used in data.draw(memory_choices(per_chunk)).items()}
        layouts.append(Layout(template_layers(counts, d.pp, d.vpp, np.asarray(per_chunk), d.schedule), applied))
    draws, ends = box.draws(8), box.ends()
    some = [ends[data.draw(st.integers(0, len(ends) - 1))] for _ in range(4)]
    worlds = [dict.fromkeys((n.name for n in box.numbers), 0.0), *(box.world(draw) for draw in draws[:3]), *some]
    found = step_times_in(candidates_of(drawn), context, layouts, box.numbers, worlds)
    assert found.shape == (len(drawn), len(worlds))
    for row, (d, layout) in enumerate(zip(drawn, layouts, strict=True)):
        candidate = candidates_of([d])
        parts = breakdowns_in(candidate, context, lambda _, layout=layout: layout, box.numbers, worlds[:4])
        nominal = estimate_of(context, candidate, layout)
        assert (found[row, 0], parts[0]) == (nominal.step_time_s, nominal.breakdown)
        for column in (1, 2, 3, 4 + 2 * row, 5 + 2 * row):
            moved = context_in(context, box.numbers, worlds[column])
            there = estimate_of(moved, candidate, layout)
            assert found[row, column] == there.step_time_s
            assert column > 3 or parts[column] == there.breakdown
