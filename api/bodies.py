"""Reading request bodies: JSON or YAML, bounded, with errors that name the line."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from fastapi import HTTPException, Request
from fastapi.concurrency import run_in_threadpool

from api.dependencies import get_services
from api.threads import run_reading
from autodeploy.kit.errors import SpecError
from autodeploy.messages import Message
from autodeploy.messages.field_faults import quoted
from autodeploy.service.clusters.evidence import measured_of_document
from autodeploy.specs.text_files import load_json, load_yaml

if TYPE_CHECKING:
    from autodeploy.specs.measured_run import MeasuredRun

_UNSTORABLE = re.compile("[\0\ud800-\udfff]")
YAML_TYPES = frozenset({"application/yaml", "application/x-yaml", "text/yaml", "text/x-yaml"})
# Logs, tables and JSON lines are text; a JSON document is a document.
FILE_TYPES = frozenset(
    {"text/plain", "text/csv", "application/x-ndjson", "application/jsonl", "application/octet-stream"}
)


class MalformedBody(HTTPException):
    """The body is not JSON or YAML."""

    def __init__(self, detail: str) -> None:
        super().__init__(400, detail)


async def read_measurement(request: Request) -> MeasuredRun:
    """The measurement in the body: JSON or YAML, or as text the file itself.

    Raises
    ------
    HTTPException
        400 when it is not well formed, 413 when it is too large, 415 when it is another type.
    SpecError
        with the bad fields, or the line of the text.
    """
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type in FILE_TYPES:
        document: Any = {"file": _decoded(await request.body()), **_query(request)}
    else:
        document = await read_document(request)
    return await run_reading(request, get_services(request).read, measured_of_document, document)


def _query(request: Request) -> dict[str, Any]:
    """What the address says of a text: operation and ranks of a collective benchmark."""
    query: dict[str, Any] = {name: request.query_params[name] for name in ("op",) if name in request.query_params}
    ranks = request.query_params.get("ranks")
    if ranks is not None:
        if not (ranks.isascii() and ranks.isdigit() and len(ranks) <= 6):
            raise SpecError(Message("field_fault.is_no_whole_number", value=repr(ranks[:40])), path="ranks")
        query["ranks"] = int(ranks)
    return query


def _decoded(body: bytes) -> str:
    try:
        return body.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise MalformedBody(Message("api.not_utf_8_byte", place=error.start)) from error


async def read_document(request: Request) -> Any:
    """The value in the body.

    Raises
    ------
    HTTPException
        400 when it is not well formed, 413 when it is too large, 415 when it is neither JSON nor YAML.
    """
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    is_json = media_type == "application/json" or media_type.endswith("+json")
    if not is_json and media_type not in YAML_TYPES:
        raise HTTPException(415, f"{media_type[:100] or 'no content type'}: send application/json or application/yaml")
    text = _decoded(await request.body())
    try:
        if is_json:  # quick, once it is known not to be deep; YAML is read by Python
            value = await run_in_threadpool(load_json, text)
        else:
            value = await run_reading(request, get_services(request).read, load_yaml, text)
        await run_in_threadpool(_refuse_unstorable, value)
    except SpecError as error:
        raise MalformedBody(str(error)) from error
    return value


def _refuse_unstorable(value: Any) -> None:
    """Text that no database keeps (NUL, half a surrogate pair) and numbers beyond double precision."""
    rest = [value]
    while rest:
        item = rest.pop()
        if isinstance(item, dict):
            rest += [*item.keys(), *item.values()]
        elif isinstance(item, list):
            rest += item
        elif isinstance(item, str):
            if _UNSTORABLE.search(item):
                raise SpecError(Message("api.text_with_nul_character_or_half_surrogate_pair"))
        elif isinstance(item, int | float) and not abs(item) < 1e300:
            key = "field_fault.is_too_big" if item == item else "field_fault.is_not_finite"
            raise SpecError(Message(key, value=quoted(item)))
