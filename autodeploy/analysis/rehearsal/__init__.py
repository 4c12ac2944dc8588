"""Rehearsals: a plan scaled down to a few nodes with the work per rank unchanged, to be launched and measured first."""

from autodeploy.analysis.rehearsal.rehearse import Rehearsal, rehearse
from autodeploy.analysis.rehearsal.shape import Shape, rehearsal_of

__all__ = ["Rehearsal", "Shape", "rehearsal_of", "rehearse"]
