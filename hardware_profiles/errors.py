"""The one error of this room: a hardware profile is missing or wrong."""

from __future__ import annotations

from autodeploy.kit.errors import FieldError


class ProfileError(ValueError):
    """A hardware profile, overlay or override cannot be used.

    `path` is the JSON pointer of the first bad field ("" for the document as a whole), `hint` what to do about it;
    `problems` lists every bad field, so that all can be mended at once.
    """

    def __init__(
        self, message: str, *, path: str = "", hint: str = "", problems: tuple[FieldError, ...] | None = None
    ) -> None:
        self.problems = problems if problems is not None else (FieldError(path, message, hint),)
        self.path = path or self.problems[0].path
        self.hint = hint or self.problems[0].hint
        super().__init__(message)

    def __str__(self) -> str:
        """The message itself, which keeps its key."""
        text: str = self.args[0]
        return text

    def __reduce__(self) -> tuple[object, ...]:
        """Keep keyword arguments across process borders."""
        return _rebuild, (str(self), self.path, self.hint, self.problems)


def _rebuild(message: str, path: str, hint: str, problems: tuple[FieldError, ...]) -> ProfileError:
    return ProfileError(message, path=path, hint=hint, problems=problems)
