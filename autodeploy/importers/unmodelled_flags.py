"""Flags that change the result of a launch and are not modelled: the third class, beside read ones and idle ones."""

from __future__ import annotations

from autodeploy.importers.flag_effects import flag_effects


def unmodelled_reason(flag: str, value: str) -> str | None:
    """What a prediction does without this flag; None where it changes nothing that is predicted."""
    effect = flag_effects().get(flag)
    return None if effect is None else effect.of_value(value)
