"""What would be otherwise: the best changes of a launch, and the cards that a deadline takes. Pure functions."""

from autodeploy.what_if.improve import improve
from autodeploy.what_if.recommend import recommend

__all__ = ["improve", "recommend"]
