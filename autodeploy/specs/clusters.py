"""The same training on several clusters at their prices: the offers, and days and cost of the plans on each."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from autodeploy.specs.base import Document
from autodeploy.specs.strategy import Strategy
from autodeploy.specs.told import Text, Told
from hardware_profiles.loader import list_profiles, load_profile
from hardware_profiles.magnitudes import Price

MAX_CLUSTERS = 4  # of one comparison


class ClusterOffer(Document):
    """Cards that can be had: a profile, perhaps a chip grade, and the price of a card and hour in any currency."""

    profile: Annotated[str, Field(min_length=1, max_length=4096, description="by name")]
    device: Annotated[str, Field(max_length=64)] | None = None
    price_per_npu_hour: Annotated[Price, Field(description="of a card as the vendor counts them")]

    @property
    def title(self) -> str:
        """What a person calls the cluster: `CloudMatrix 384`, with its grade where one was asked for."""
        title = load_profile(self.profile).title if self.profile in list_profiles() else self.profile
        return title if self.device is None else f"{title} {self.device}"


class ClusterPoint(Document):
    """So many cards of a cluster with the best plan that a short search finds for them.

    `days_low` to `days_high`: the 80 % interval of the step time. `cost`: card-hours at the price of the offer, in its
    currency. `on_front`: no plan of the comparison is sooner for as little or cheaper and as soon.
    """

    num_npus: int
    strategy: Strategy
    step_time_s: float
    mfu: float
    peak_memory_gib: float
    days: float
    days_low: float
    days_high: float
    npu_hours: float
    cost: float
    meets_deadline: bool
    on_front: bool = False


class ClusterAnswer(Document):
    """One offer: the fewest cards that meet the deadline (null: none of the counts), and its plans by cards."""

    offer: ClusterOffer
    num_npus: int | None = None
    tokens: float
    message: Text
    points: tuple[ClusterPoint, ...] = ()

    @property
    def cheapest(self) -> ClusterPoint | None:
        """The plan that meets the deadline for least."""
        in_time = [point for point in self.points if point.meets_deadline]
        return min(in_time, key=lambda point: (point.cost, point.days), default=None)


class ClusterComparison(Told):
    """Offers in the order that they were given in; `cheapest` is the index of the one that meets the deadline for
    least, with `num_npus` cards.
    """

    days: float
    clusters: tuple[ClusterAnswer, ...]
    cheapest: int | None = None
    num_npus: int | None = None
    message: Text
    engine_version: str

    @property
    def best(self) -> ClusterPoint | None:
        """The cheapest plan in time of all clusters."""
        return None if self.cheapest is None else self.clusters[self.cheapest].cheapest
