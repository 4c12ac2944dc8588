"""What-if questions: improvements of a launch, cards for a deadline, other clusters. Pure functions."""

from autodeploy.analysis.what_if.clusters import on_offer, points_on, side_by_side
from autodeploy.analysis.what_if.improve import improve
from autodeploy.analysis.what_if.recommend import recommend

__all__ = ["improve", "on_offer", "points_on", "recommend", "side_by_side"]
