"""One side of a published comparison, run: a strategy estimated, or the best plan of a search."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from autodeploy.analysis.ablation.cases import laid_over
from autodeploy.kit.errors import SpecError
from autodeploy.messages import Message
from autodeploy.search.planner import estimate, plan, predict, prepare
from autodeploy.search.prepared import context_for
from autodeploy.search.ranking.levelled_layers import levelled
from autodeploy.specs.reading import read_spec_document
from autodeploy.stack.features import FEATURES
from autodeploy.stack.frameworks import UNRESTRICTED

if TYPE_CHECKING:
    from autodeploy.search.planner import Predicted, Prepared
    from autodeploy.specs.planset import Plan
    from autodeploy.specs.published_effects import Case, Effect, Side
    from autodeploy.specs.spec import Spec
    from autodeploy.specs.strategy import Strategy


# The prediction of a published strategy, with its layers levelled where its features do so.
def with_balanced_layers(prepared: Prepared, strategy: Strategy, features: frozenset[str]) -> Predicted:
    """The prediction of a strategy whose layers go where its stages are level, as of `levelled`."""
    return predict(prepared, levelled(strategy, context_for(prepared, strategy, features)), features)


@dataclass(frozen=True)
class Run:
    """A plan, its spec and the features that are on; of pre-training also what the plan was made from."""

    spec: Spec
    features: frozenset[str]
    plan: Plan
    made_from: Predicted | None = None

    @property
    def predicted(self) -> Predicted:
        """Inputs of the plan.

        Raises SpecError for reinforcement learning, whose plans are made from several predictions.
        """
        if self.made_from is None:
            raise SpecError(Message("ablation.pre_training_only"), path="/effects")
        return self.made_from


@dataclass(frozen=True)
class Change:
    """Another value of one input. path : of the case, as its inputs name it. factor : `value` multiplies what is."""

    path: str
    value: Any
    factor: bool = False

    def of(self, case: Case) -> Case:
        """The case with its own value replaced; what its sides state stays."""
        if self.factor:
            return case
        root, *rest = self.path.split("/")
        if root == "features":
            return case.model_copy(update={root: tuple(self.value)})
        return case.model_copy(update={root: laid_over(getattr(case, root), _nested(rest, self.value))})

    def times(self, root: str, document: dict[str, Any]) -> dict[str, Any]:
        """The document under a root with the value of its path multiplied, whoever states it."""
        if not self.factor or not self.path.startswith(f"{root}/"):
            return document
        *above, name = self.path.split("/")[1:]
        parent: Any = document
        for each in above:
            parent = parent.get(each, {})
        if name not in parent:
            return document
        value = parent[name] * self.value
        return laid_over(document, _nested([*above, name], round(value) if isinstance(parent[name], int) else value))


def _nested(names: list[str], value: Any) -> Any:
    for name in reversed(names):
        value = {name: value}
    return value


class Runs:
    """Runs each side once, however many figures are read off it."""

    def __init__(self) -> None:
        self._known: dict[str, Run] = {}

    def of(self, case: Case, side: Side, change: Change | None = None) -> Run:
        """The run of one side of an effect, with one input changed.

        Raises SpecError if the case's spec or strategy is not valid, or its search finds no plan.
        """
        case = case if change is None else change.of(case)
        document = laid_over(case.spec, side.spec)
        strategy = laid_over(case.strategy, side.strategy)
        if change is not None:
            document, strategy = change.times("spec", document), change.times("strategy", strategy)
        features = frozenset((*case.features, *side.features))
        key = repr((document, strategy if side.search is None else None, sorted(features), side.search))
        if key not in self._known:
            self._known[key] = _run(document, strategy, features, side.search)
        return self._known[key]

    def both(self, case: Case, effect: Effect, change: Change | None = None) -> tuple[Run, Run]:
        """Baseline and variant of an effect."""
        return self.of(case, effect.baseline, change), self.of(case, effect.variant, change)


def _run(
    document: dict[str, Any], strategy: dict[str, Any], features: frozenset[str], search: dict[str, Any] | None
) -> Run:
    """The estimate of `strategy`, or of the best plan of a search with these features on and all others off."""
    base = laid_over({"search": {"target": UNRESTRICTED}}, document)
    if search is None:
        spec = read_spec_document(base | {"strategy": strategy})
        assert spec.strategy is not None
        if spec.training.rl is not None:
            return Run(spec, features, estimate(spec, features=features))
        return _made(spec, features, with_balanced_layers(prepare(spec), spec.strategy, features))
    switches = {name: "auto" if name in features else "off" for name in FEATURES}
    spec = read_spec_document(laid_over(base, {"search": laid_over({"features": switches, "top_k": 1}, search)}))
    result = plan(spec)
    if not result.plans:
        raise SpecError(Message("common.no_plan_fits"), path="/search")
    if spec.training.rl is not None:
        return Run(spec, features, result.plans[0])
    return _made(spec, features, predict(prepare(spec), result.plans[0].strategy))


def _made(spec: Spec, features: frozenset[str], predicted: Predicted) -> Run:
    return Run(spec, features, predicted.plan, predicted)
