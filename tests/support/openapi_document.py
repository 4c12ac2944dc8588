"""What routes and types say in the OpenAPI document takes a second to make, and apps of one title have the same."""

from __future__ import annotations

from contextlib import contextmanager
from copy import deepcopy
from typing import TYPE_CHECKING, Any

import pytest
from fastapi.openapi.utils import get_openapi as read_routes

from autodeploy.analysis.intake import input_definitions as define

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pydantic import BaseModel

_made: dict[str, dict[str, Any]] = {}
_inputs: dict[tuple[Any, ...], dict[str, Any]] = {}


@contextmanager
def routes_read_once() -> Iterator[None]:
    """Apps inside the block take what the first of their title has read of its routes, and of what may be sent."""

    def get_openapi(*, title: str, **of: Any) -> dict[str, Any]:
        if title not in _made:
            _made[title] = read_routes(title=title, **of)
        return deepcopy(_made[title])

    def input_definitions(models: Iterable[type[BaseModel]], ref_template: str) -> dict[str, Any]:
        asked = tuple(models)
        if (asked, ref_template) not in _inputs:
            _inputs[asked, ref_template] = define(asked, ref_template)
        return deepcopy(_inputs[asked, ref_template])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fastapi.applications.get_openapi", get_openapi)
        patch.setattr("api.http.openapi.input_definitions", input_definitions)
        yield
