"""Rehearsals: a plan on few cards, with a rank's work as in the plan, to be launched and measured first."""

from autodeploy.rehearsal.rehearse import Rehearsal, rehearse
from autodeploy.rehearsal.shape import Shape, rehearsal_of

__all__ = ["Rehearsal", "Shape", "rehearsal_of", "rehearse"]
