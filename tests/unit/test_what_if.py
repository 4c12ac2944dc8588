"""What would be otherwise: improvements of a launch, and the cards of a deadline."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from autodeploy.analysis.launch_checks.launch import Launch, launch_of
from autodeploy.analysis.what_if.improve import improve
from autodeploy.analysis.what_if.recommend import card_counts, recommend
from autodeploy.cli.what_if import improve_text, recommendation_text, token_count
from autodeploy.formats.import_document import import_file
from autodeploy.kit.errors import SpecError
from autodeploy.reports.wording import change_name
from autodeploy.search import planner
from autodeploy.specs.questions import Budget
from autodeploy.specs.reading import read_spec_document
from autodeploy.specs.strategy import Strategy
from tests import factories

if TYPE_CHECKING:
    from autodeploy.specs.answers import Improvement, ImproveReport
    from autodeploy.specs.spec import Spec

SCRIPT = Path(__file__).parents[1] / "launch_files" / "mindspeed_moe.sh"


@cache
def launch() -> Launch:
    found = launch_of(import_file(SCRIPT), "cloudmatrix-384")
    search = found.spec.search.model_copy(update={"risk": "neutral"})
    return replace(found, spec=found.spec.model_copy(update={"search": search}))


@cache
def improved() -> ImproveReport:
    return improve(launch(), planner=planner)


# -- improve -------------------------------------------------------------------------------------------------------


def test_the_three_best_changes_come_by_gain_and_are_of_different_kinds() -> None:
    report = improved()
    assert report.plan == planner.estimate(launch().spec)
    for found in (report.improvements, report.keeping_layout):
        assert 0 < len(found) <= 3
        gains = [each.gain_pct for each in found]
        assert gains == sorted(gains, reverse=True)
        assert min(gains) > 0.0
        assert len({each.name.partition(":")[0] for each in found}) == len(found)
    assert report.tried > 10
    assert report.best_gain_pct is not None


def every(report: ImproveReport) -> list[Improvement]:
    return [*report.improvements, *report.keeping_layout]


def test_a_change_written_into_the_launch_is_predicted_as_promised() -> None:
    spec = launch().spec
    assert spec.strategy is not None
    on = spec.strategy.named_features
    assert on is not None
    for each in every(improved()):
        fields = {k: v for k, v in each.changes.items() if k != "features"}
        document = spec.strategy.model_dump(mode="json") | {"dp": None} | fields
        written = spec.model_copy(update={"strategy": Strategy.model_validate(document)})
        features = on | frozenset(each.changes.get("features", ()))
        features |= {"selective_recompute"} if "recompute" in fields else frozenset()
        again = planner.estimate(written, features=features)
        assert again.step_time_s == pytest.approx(each.step_time_s, rel=1e-9), each.name
        assert again.fits
        expected = 100.0 * (again.tokens_per_s_per_npu / improved().plan.tokens_per_s_per_npu - 1.0)
        beside = 1.0 + each.memory_gain_pct / 100.0
        assert 100.0 * ((1.0 + each.gain_pct / 100.0) * beside - 1.0) == pytest.approx(expected)
        rules = planner.launch_rules(written, features=features)
        assert set(rules.broken) <= set(improved().broken_rules), each.name


def test_a_checkpoint_loads_where_no_shard_moves() -> None:
    before = improved().plan
    assert all(each.keeps_checkpoint_layout for each in improved().keeping_layout)
    for each in every(improved()):
        degrees = [(p.strategy.tp, p.strategy.pp, p.strategy.vpp, p.strategy.ep) for p in (before, each.plan)]
        layers = [[stage.layers for stage in p.stages] for p in (before, each.plan)]
        if each.keeps_checkpoint_layout:
            assert degrees[0] == degrees[1]
            assert layers[0] == layers[1]
        else:
            assert degrees[0] != degrees[1] or layers[0] != layers[1]


def test_a_launch_that_does_not_fit_is_told_what_makes_it_fit() -> None:
    spec = read_spec_document(
        {
            "model": "llama2-7b",
            "cluster": {"profile": "ascend-800t-a2", "num_npus": 8},
            "training": {"seq_length": 4096, "global_batch_size": 64},
            "strategy": {"tp": 2, "micro_batch_size": 8},
            "search": {"risk": "neutral"},
        }
    )
    report = improve(Launch(spec), planner=planner)
    assert not report.plan.fits
    assert report.improvements
    assert all(each.plan.fits for each in report.improvements)
    assert "DOES NOT FIT by" in improve_text(report)


def test_an_improvement_is_shown_with_what_it_sets() -> None:
    text = improve_text(improved())
    for each in every(improved()):
        assert change_name("en", each.name) in text
        assert all(flag in text.replace("\n  ", " ") for flag in each.add_flags)
    assert "loads" in text


def test_the_flags_of_an_improvement_turn_the_script_into_it(tmp_path: Path) -> None:
    """Its own flags are taken out and put in, those for the place of layers too; the script then launches that plan."""
    for each in every(improved()):
        assert each.add_flags or each.drop_flags, each.name
        gone = {*each.drop_flags, *(flag.split()[0] for flag in each.add_flags)}
        lines = [
            line for line in SCRIPT.read_text().splitlines() if line.split()[:1] == [] or line.split()[0] not in gone
        ]
        text = "\n".join(lines).replace("$GPT_ARGS", "$GPT_ARGS " + " ".join(each.add_flags))
        mended = tmp_path / "mended.sh"
        mended.write_text(text + "\n")
        again = launch_of(import_file(mended), "cloudmatrix-384")
        plan = planner.estimate(again.spec)
        assert plan.fits
        assert plan.step_time_s == pytest.approx(each.step_time_s, rel=0.01), each.name
        assert [stage.layers for stage in plan.stages] == [stage.layers for stage in each.plan.stages]


def test_flags_are_named_as_they_stand_in_the_script() -> None:
    """What the script lacks is not taken out; layers that do nothing go where the layout says all."""
    moved = [each for each in every(improved()) if any("--pipeline-model-parallel-layout" in f for f in each.add_flags)]
    assert moved
    for each in moved:
        assert "--num-layers 22" in each.add_flags
        assert {"--noop-layers", "--num-layers-per-virtual-pipeline-stage"} <= {*each.drop_flags}
    assert all(flag in SCRIPT.read_text() for each in every(improved()) for flag in each.drop_flags)


def test_nothing_to_improve_is_refused() -> None:
    spec = launch().spec.model_copy(update={"strategy": None})
    with pytest.raises(SpecError, match="strategy is required"):
        improve(Launch(spec), planner=planner)


# -- recommend -----------------------------------------------------------------------------------------------------


class Linear:
    """A planner under which a card does a thousand tokens a second, in plans `slow` times what the sweep estimates."""

    def __init__(self, slow: float = 1.0, fits_from: int = 1) -> None:
        self._slow, self._fits_from = slow, fits_from
        self.planned: list[int] = []

    def fastest_s(self, spec: Spec) -> float | None:
        cards = spec.cluster.num_npus or 0
        batch = spec.training.global_batch_size.value * spec.training.seq_length
        return batch / (1000.0 * cards) if cards >= self._fits_from else None

    def plan(self, spec: Spec, *, alone: bool = False) -> Any:
        assert alone
        cards = spec.cluster.num_npus or 0
        self.planned.append(cards)
        rate = 1000.0 * cards / self._slow
        plans = (factories.plan(1, tokens_per_s=rate),) if cards >= self._fits_from else ()
        return SimpleNamespace(plans=plans)


def spec_of() -> Spec:
    return read_spec_document(
        {
            "model": "llama2-7b",
            "cluster": {"profile": "ascend-800t-a2", "num_npus": 64},
            "training": {"seq_length": 4096, "global_batch_size": 64},
            "search": {"risk": "neutral"},
        }
    )


@pytest.mark.parametrize("slow", [0.95, 1.0, 1.04])
@pytest.mark.parametrize("days", [0.9, 3.0, 11.0, 30.0])
def test_the_fewest_cards_are_those_of_every_count_tried(slow: float, days: float) -> None:
    tokens = 1e11
    found = recommend(spec_of(), Budget(days=days, tokens=tokens), planner=Linear(slow))  # type: ignore[arg-type]
    needed = tokens / (days * 86_400.0)
    enough = [count for count in card_counts(8, 1024) if 1000.0 * count / slow >= needed]
    assert found.num_npus == (enough[0] if enough else None)


def test_cards_on_which_nothing_fits_are_not_recommended() -> None:
    fake = Linear(fits_from=100)
    found = recommend(spec_of(), Budget(days=1000.0, tokens=1e9), planner=fake)  # type: ignore[arg-type]
    assert found.num_npus == 112
    assert len(fake.planned) <= 6


def test_counts_are_whole_nodes_with_small_factors() -> None:
    assert list(card_counts(8, 130)) == [8 * n for n in (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 14, 15, 16)]


def test_the_real_planner_meets_the_deadline_and_fewer_cards_do_not() -> None:
    found = recommend(spec_of(), Budget(days=60.0, tokens=1e12), planner=planner)
    assert found.num_npus is not None
    assert found.plan is not None
    assert found.plan.days is not None
    assert found.plan.days <= 60.0
    before = max(count for count in card_counts(8, 1024) if count < found.num_npus)
    days = {row.num_npus: row.days for row in found.scaling}
    assert (days[before] or 0.0) > 60.0, "the next smaller number was looked at"
    assert found.scaling[0].efficiency == 1.0
    text = recommendation_text(found)
    assert f"{found.num_npus:,} cards meet the 60-day deadline: " in text


def test_a_deadline_that_none_meets_is_a_result() -> None:
    found = recommend(spec_of(), Budget(days=0.001, tokens=1e15, max_npus=64), planner=Linear())  # type: ignore[arg-type]
    assert found.num_npus is None
    assert found.plan is None
    assert "no number of cards up to" in found.message


def test_tokens_have_to_come_from_somewhere() -> None:
    with pytest.raises(SpecError, match="tokens is required"):
        recommend(spec_of(), Budget(days=1.0), planner=Linear())  # type: ignore[arg-type]


@pytest.mark.parametrize(("text", "value"), [("13T", 13e12), ("500b", 5e11), ("1.5e12", 1.5e12), ("2 m", 2e6)])
def test_token_counts_are_read(text: str, value: float) -> None:
    assert token_count(text) == value


@pytest.mark.parametrize("text", ["", "T", "-3T", "0", "1e99", "5 bananas"])
def test_what_is_no_token_count_is_refused(text: str) -> None:
    with pytest.raises(SpecError):
        token_count(text)
