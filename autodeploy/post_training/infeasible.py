"""Why a step of post-training can't run: the rule that binds, and the nearest change."""

from __future__ import annotations

from autodeploy.errors import SpecError


class InfeasibleRlError(SpecError):
    """A step that no device can run as it is laid out.

    rule : short name of what binds. share : of what would be needed, that is there.
    """

    def __init__(self, message: str, *, rule: str, path: str, hint: str, share: float = 0.0) -> None:
        super().__init__(message, path=path, hint=hint)
        self.rule, self.share = rule, share
