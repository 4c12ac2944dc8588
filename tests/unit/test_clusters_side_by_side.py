"""The same training on several clusters with prices: days, cost, the front of both, and the cheapest in time."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Literal

import plotly.graph_objects as go
import pytest

from autodeploy.analysis.what_if.clusters import on_offer, points_on, side_by_side
from autodeploy.cli.what_if import clusters_text, offer_of
from autodeploy.kit.errors import SpecError
from autodeploy.reports import figures
from autodeploy.search import planner
from autodeploy.specs.answers import ClusterOffer
from autodeploy.specs.questions import CompareClustersRequest
from autodeploy.specs.reading import read_spec_document
from tests import factories

if TYPE_CHECKING:
    from autodeploy.specs.answers import ClusterComparison
    from autodeploy.specs.spec import Spec

A2, CM = "ascend-800t-a2", "cloudmatrix-384"
RATES = {A2: 1000.0, CM: 2000.0}


class Scaling:
    """A planner under which cards of each cluster have a rate, of which every doubling of the cards loses a tenth."""

    def _rate(self, spec: Spec) -> float:
        cards = spec.cluster.num_npus or 0
        return RATES[spec.cluster.profile] * cards * 0.9 ** (cards.bit_length() - 1)

    def fastest_s(self, spec: Spec) -> float:
        batch = spec.training.global_batch_size.value * spec.training.seq_length
        return batch / self._rate(spec)

    def plan(self, spec: Spec, *, alone: bool = False) -> Any:
        assert alone
        return SimpleNamespace(plans=(factories.plan(1, tokens_per_s=self._rate(spec)),))


def spec_of(*, search: dict[str, Any] | None = None, **cluster: Any) -> Spec:
    document = {"profile": A2, "num_npus": 64} | cluster
    training = {"seq_length": 4096, "global_batch_size": 64}
    whole = {"model": "llama2-7b", "cluster": document, "training": training, "search": search or {}}
    return read_spec_document(whole)


def asked(days: float, tokens: float, max_npus: int | None = None) -> CompareClustersRequest:
    offers = [{"profile": A2, "price_per_npu_hour": 1.0}]
    return CompareClustersRequest.about(spec_of(), days=days, tokens=tokens, max_npus=max_npus, clusters=offers)


def compared(*prices: tuple[str, float], days: float = 20.0) -> ClusterComparison:
    answers = [
        points_on(on_offer(spec_of(), offer), offer, asked(days, 1e11), planner=Scaling())  # type: ignore[arg-type]
        for offer in (ClusterOffer(profile=name, price_per_npu_hour=price) for name, price in prices)
    ]
    return side_by_side(answers, days)


def test_cost_is_card_hours_at_the_price_and_the_front_is_what_none_beats_in_both() -> None:
    found = compared((A2, 1.0), (CM, 1.9))
    points = [(answer, point) for answer in found.clusters for point in answer.points]
    assert len(points) >= 6
    for answer, point in points:
        assert point.npu_hours == pytest.approx(24.0 * point.days * point.num_npus)
        assert point.cost == pytest.approx(point.npu_hours * answer.offer.price_per_npu_hour)
        assert point.days_low < point.days < point.days_high
        assert point.meets_deadline == (point.days <= 20.0)
        beaten = any(
            other.days <= point.days
            and other.cost <= point.cost
            and (other.days, other.cost) != (point.days, point.cost)
            for _, other in points
        )
        assert point.on_front != beaten


def test_the_price_decides_which_cluster_is_cheapest() -> None:
    dear, fair = compared((A2, 1.0), (CM, 3.0)), compared((A2, 1.0), (CM, 1.5))
    assert (dear.cheapest, fair.cheapest) == (0, 1)
    for found in (dear, fair):
        best = found.best
        assert best is not None
        in_time = [point.cost for answer in found.clusters for point in answer.points if point.meets_deadline]
        assert best.cost == min(in_time)
        assert found.num_npus == best.num_npus


def test_each_cluster_is_planned_below_and_above_the_fewest_cards() -> None:
    for answer in compared((A2, 1.0), (CM, 2.0)).clusters:
        assert answer.num_npus is not None
        counts = [point.num_npus for point in answer.points]
        assert counts == sorted(counts)
        assert counts[0] < answer.num_npus < counts[-1]


def test_a_deadline_that_no_cluster_meets_is_a_result() -> None:
    found = compared((A2, 1.0), (CM, 2.0), days=0.001)
    assert found.cheapest is None
    assert found.num_npus is None
    text = clusters_text(found)
    assert "no cluster meets the 0.001-day deadline" in text
    assert "late" in text


def test_what_is_said_of_the_own_cluster_does_not_follow_to_another() -> None:
    spec = spec_of(overrides={"scale_out.gb_per_s_per_npu": 12.5}, name="hall-2", num_npus=12, device="910B3")
    same = on_offer(spec, ClusterOffer(profile=A2, device="910B3", price_per_npu_hour=1.0))
    assert same == spec
    other = on_offer(spec, ClusterOffer(profile=CM, price_per_npu_hour=1.0)).cluster
    assert (other.overrides, other.name, other.device) == ({}, None, None)
    assert other.num_npus == 16, "whole nodes of 8 cards"


def test_the_answer_says_by_how_much_the_other_is_dearer_in_both_languages() -> None:
    found = compared((A2, 1.0), (CM, 3.0))
    english, chinese = clusters_text(found), clusters_text(found, "zh")
    assert "cheapest within 20 days" in english
    assert " %" in english
    assert "≈" not in english
    assert "20 天内成本最低" in chinese
    assert "帕累托" in chinese
    nearly = compared((A2, 1.0), (CM, 2.0))
    assert "≈ +" in clusters_text(nearly)


def test_a_cluster_with_its_price_is_read() -> None:
    assert offer_of("cloudmatrix-384=2.6") == ClusterOffer(profile=CM, price_per_npu_hour=2.6)
    assert offer_of("ascend-800t-a2:910B3=1") == ClusterOffer(profile=A2, device="910B3", price_per_npu_hour=1.0)
    assert offer_of("./own:x/hall.yaml=1").profile == "./own:x/hall.yaml"
    for text in ("cloudmatrix-384", "=2", "cloudmatrix-384=", "cloudmatrix-384=-1", "cloudmatrix-384=nan", "a=b"):
        with pytest.raises(SpecError, match="is not PROFILE"):
            offer_of(text)


def test_the_real_planner_answers_for_both_clusters() -> None:
    offers = [ClusterOffer(profile=A2, price_per_npu_hour=1.2), ClusterOffer(profile=CM, price_per_npu_hour=2.6)]
    spec = spec_of(
        search={"effort": 0.02, "risk": "neutral", "top_k": 1, "fix": {"cp": 1, "vpp": 1, "micro_batch_size": 1}}
    )
    answers = [points_on(on_offer(spec, offer), offer, asked(60.0, 1e12, 128), planner=planner) for offer in offers]
    found = side_by_side(answers, 60.0)
    assert found.best is not None
    assert all(answer.num_npus is not None for answer in found.clusters)
    fewest = [answer.num_npus or 0 for answer in found.clusters]
    assert fewest[1] < fewest[0], "a card of two dies does more"


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_the_picture_has_a_point_a_plan_and_the_deadline(lang: Literal["en", "zh"]) -> None:
    found = compared((A2, 1.0), (CM, 1.9))
    figure = figures.days_and_cost(found, ["A2", "CM"], lang)
    go.Figure(data=figure.data, layout=figure.layout)  # plotly's own objects refuse what its script would not draw
    drawn = {trace["name"]: trace for trace in figure.data if "markers" in trace["mode"]}
    for title, answer in zip(("A2", "CM"), found.clusters, strict=True):
        assert list(zip(drawn[title]["x"], drawn[title]["y"], strict=True)) == [(p.days, p.cost) for p in answer.points]
    assert figure.layout["shapes"][0]["x0"] == found.days
