"""What routes say in the OpenAPI document takes a second to make, and apps of one title have the same."""

from __future__ import annotations

from contextlib import contextmanager
from copy import deepcopy
from typing import TYPE_CHECKING, Any

import fastapi.applications
import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

_made: dict[str, dict[str, Any]] = {}


@contextmanager
def routes_read_once() -> Iterator[None]:
    """Apps inside the block take what the first of their title has read of its routes."""
    make = fastapi.applications.get_openapi

    def get_openapi(*, title: str, **of: Any) -> dict[str, Any]:
        if title not in _made:
            _made[title] = make(title=title, **of)
        return deepcopy(_made[title])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fastapi.applications.get_openapi", get_openapi)
        yield
