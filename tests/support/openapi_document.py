"""What routes and types say in the OpenAPI document takes a second to make, and apps of one title have the same."""

from __future__ import annotations

from contextlib import contextmanager
from copy import deepcopy
from typing import TYPE_CHECKING, Any

import fastapi.applications
import pytest

import api.openapi

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pydantic import BaseModel

_made: dict[str, dict[str, Any]] = {}
_inputs: dict[tuple[Any, ...], dict[str, Any]] = {}


@contextmanager
def routes_read_once() -> Iterator[None]:
    """Apps inside the block take what the first of their title has read of its routes, and of what may be sent."""
    make, define = fastapi.applications.get_openapi, api.openapi.input_definitions

    def get_openapi(*, title: str, **of: Any) -> dict[str, Any]:
        if title not in _made:
            _made[title] = make(title=title, **of)
        return deepcopy(_made[title])

    def input_definitions(models: Iterable[type[BaseModel]], ref_template: str) -> dict[str, Any]:
        asked = (*models, ref_template)
        if asked not in _inputs:
            _inputs[asked] = define(asked[:-1], ref_template)
        return deepcopy(_inputs[asked])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fastapi.applications.get_openapi", get_openapi)
        patch.setattr("api.openapi.input_definitions", input_definitions)
        yield
