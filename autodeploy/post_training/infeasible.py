"""Why a step of post-training can't run: the rule that binds, and the nearest change."""

from __future__ import annotations

from autodeploy.errors import SpecError
from autodeploy.messages import Message
from cost_models.hbm import GIB


class InfeasibleRlError(SpecError):
    """A step that no device can run as it is laid out.

    rule : short name of what binds. share : of what would be needed, that is there.
    """

    def __init__(self, message: str, *, rule: str, path: str, hint: str, share: float = 0.0) -> None:
        super().__init__(message, path=path, hint=hint)
        self.rule, self.share = rule, share


def training_too_large(peak_bytes: float, limit_bytes: float) -> InfeasibleRlError:
    """Says that training needs more memory than a die has."""
    return InfeasibleRlError(
        Message("post_training.training_needs_gib_of_die_s_gib", needed=peak_bytes / GIB, limit=limit_bytes / GIB),
        rule="update_memory",
        path="/strategy",
        hint=Message("post_training.more_recomputation_higher_tp_pp_or_ep_or"),
    )
