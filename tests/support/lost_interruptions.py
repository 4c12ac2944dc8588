"""Interruptions of a search that Python drops: in a destructor or a callback of the garbage collector nothing can be
raised. The search repeats them, so that a test in which one was dropped has not failed.
"""

from __future__ import annotations

import sys
from typing import Any

from autodeploy.kit.deadline import Overdue


def forgive() -> None:
    """Tells pytest of every exception that Python drops, but of these."""
    tell = sys.unraisablehook

    def tell_others(dropped: Any) -> None:
        if not isinstance(dropped.exc_value, Overdue):
            tell(dropped)

    sys.unraisablehook = tell_others
