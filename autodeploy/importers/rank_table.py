"""Rank tables of HCCL (`hccl.json`, `RANK_TABLE_FILE`): which cards of which servers and supernodes take part.

Versions 1.0 (`server_list` with its devices) and 1.2 (with `super_device_id` and `super_pod_list`), as CANN's guide of
HCCL ("ranktable file configuration") and MindCluster's "hccl.json File Description" say them. A device is a rank.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from autodeploy.errors import SpecError
from autodeploy.importers.documents import load_json
from autodeploy.importers.json_lines import at_line
from autodeploy.messages import Message

MAX_TEXT = 4_000_000
MAX_VALUES = 250_000
MAX_RANKS = 20_000
MAX_NAME = 200
VERSIONS = ("1.0", "1.2")
_WHOLE = re.compile(r"\d{1,12}")
# Keys of other layouts: an older template, a table of several jobs, and version 2.0.
_OTHERS = ("group_list", "server_group_list", "rank_list")


@dataclass(frozen=True, slots=True)
class Server:
    """A node: its name, the numbers of its devices and the supernode it stands in, if any."""

    name: str
    devices: tuple[int, ...]
    supernode: str | None


@dataclass(frozen=True, slots=True)
class RankTable:
    """The nodes of a cluster, in the order of the file."""

    version: str
    servers: tuple[Server, ...]


def is_rank_table(text: str) -> bool:
    """Whether the text may be one: nothing else that is read of a cluster is JSON."""
    return text.lstrip().startswith(("{", "["))


def read_rank_table(text: str) -> RankTable:
    """The nodes that a rank table lists.

    Raises
    ------
    SpecError
        with the line, and the JSON pointer, of what can't be read.
    """
    if len(text) > MAX_TEXT:
        raise SpecError(Message("field_fault.at_most_characters", bound=f"{MAX_TEXT:,}"))
    try:
        return _table(load_json(text, max_values=MAX_VALUES))
    except SpecError as error:
        raise at_line(text, error) from error


def _table(document: Any) -> RankTable:
    if not isinstance(document, dict):
        raise SpecError(Message("importers.not_json_object"), hint="/server_list")
    for key in _OTHERS:
        if key in document:
            raise SpecError(
                Message("common.unknown_key", name=repr(key)),
                path=f"/{key}",
                hint="/server_list",
            )
    version = str(document.get("version", VERSIONS[0]))[:40]
    if version not in VERSIONS:
        raise SpecError(Message("field_fault.is_invalid", value=repr(version)), path="/version", hint="1.0 or 1.2")
    status = str(document.get("status", "completed"))[:40]
    if status != "completed":
        raise SpecError(Message("field_fault.is_invalid", value=repr(status)), path="/status", hint="status=completed")
    listed = json_objects(document.get("server_list"), "/server_list")
    count = json_whole(document.get("server_count", len(listed)), "/server_count")
    if count != len(listed):
        raise SpecError(Message("common.entries_expected", count=count, found=len(listed)), path="/server_list")
    supernode_of = _supernodes(document, version)
    seen: dict[str, set[object]] = {"rank_id": set(), "device_ip": set(), "server_id": set()}
    servers = []
    for index, server in enumerate(listed):
        path = f"/server_list/{index}"
        name = json_name(server.get("server_id"), f"{path}/server_id")
        json_once(name, seen["server_id"], f"{path}/server_id", "server_id")
        if supernode_of and name not in supernode_of:
            raise SpecError(
                Message("common.missing", word=f"{name!r} (super_pod_list)"),
                path=f"{path}/server_id",
            )
        devices = _devices(json_objects(server.get("device"), f"{path}/device"), f"{path}/device", seen)
        servers.append(Server(name, devices, supernode_of.get(name)))
    strangers = supernode_of.keys() - {server.name for server in servers}
    if strangers:
        raise SpecError(Message("common.missing", word=f"{min(strangers)!r} (server_list)"), path="/super_pod_list")
    ranks = seen["rank_id"]
    if ranks and ranks != set(range(sum(len(server.devices) for server in servers))):
        raise SpecError(Message("importers.rank_id_does_not_count_from_0_without"), path="/server_list")
    return RankTable(version, tuple(servers))


def _devices(listed: list[dict[str, Any]], path: str, seen: dict[str, set[object]]) -> tuple[int, ...]:
    devices: list[int] = []
    for index, device in enumerate(listed):
        place = f"{path}/{index}"
        number = json_whole(device.get("device_id"), f"{place}/device_id")
        if number in devices:
            raise SpecError(Message("common.given_twice", name=f"device_id {number}"), path=f"{place}/device_id")
        devices.append(number)
        if "rank_id" in device:
            json_once(json_whole(device["rank_id"], f"{place}/rank_id"), seen["rank_id"], f"{place}/rank_id", "rank_id")
        if len(seen["rank_id"]) > MAX_RANKS:
            raise SpecError(Message("field_fault.at_most_entries", bound=f"{MAX_RANKS:,}"), path=place)
        if address := device.get("device_ip"):
            json_once(json_name(address, f"{place}/device_ip"), seen["device_ip"], f"{place}/device_ip", "device_ip")
    return tuple(devices)


def _supernodes(document: dict[str, Any], version: str) -> dict[str, str]:
    """Supernode of each server; empty where the table has none."""
    if version == VERSIONS[0] and "super_pod_list" not in document:
        return {}
    supernodes: dict[str, str] = {}
    names: set[object] = set()
    for index, pod in enumerate(json_objects(document.get("super_pod_list"), "/super_pod_list")):
        path = f"/super_pod_list/{index}"
        name = json_name(pod.get("super_pod_id"), f"{path}/super_pod_id")
        json_once(name, names, f"{path}/super_pod_id", "super_pod_id")
        for place, server in enumerate(json_objects(pod.get("server_list"), f"{path}/server_list")):
            pointer = f"{path}/server_list/{place}/server_id"
            server_name = json_name(server.get("server_id"), pointer)
            if server_name in supernodes:
                raise SpecError(Message("common.given_twice", name=repr(server_name)), path=pointer)
            supernodes[server_name] = name
    return supernodes


def json_objects(value: Any, path: str) -> list[dict[str, Any]]:
    if not isinstance(value, list) or not value:
        raise SpecError(Message("field_fault.at_least_entries", count=1), path=path)
    for index, item in enumerate(value):
        if not isinstance(item, dict):
            raise SpecError(Message("importers.not_json_object"), path=f"{path}/{index}")
    return value


def json_whole(value: Any, path: str) -> int:
    """A number that stands as a text or as a number."""
    text = str(value)[:40] if not isinstance(value, bool) else "true"
    if not isinstance(value, str | int) or not _WHOLE.fullmatch(text):
        raise SpecError(Message("field_fault.is_no_whole_number", value=repr(text)), path=path)
    return int(text)


def json_name(value: Any, path: str) -> str:
    if not isinstance(value, str | int) or isinstance(value, bool) or not 1 <= len(str(value)) <= MAX_NAME:
        raise SpecError(Message("field_fault.at_most_characters", bound=MAX_NAME), path=path)
    return str(value)


def json_once(value: object, seen: set[object], path: str, what: str) -> None:
    if value in seen:
        raise SpecError(Message("common.given_twice", name=f"{what} {value}"), path=path)
    seen.add(value)
