"""A file that says how a cluster is: which kind it is, and what it says."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from autodeploy.formats.measurements.benchmark_tables import (
    MAX_TEXT_BYTES,
    bad_line,
    is_collective_table,
    lines_of,
    read_collective_table,
)
from autodeploy.kit.errors import SpecError
from autodeploy.messages import Message
from autodeploy.specs.measured_run import MeasuredRun
from autodeploy.specs.text_files import at_line, in_file, load_json, read_text, refuse_long

if TYPE_CHECKING:
    from pathlib import Path


# `hccn_tool -i N -speed -g`.
MAX_SPEED_MB = 3_200_000  # Mb/s
MAX_PORTS = 20_000
_SPEED = re.compile(r"(?:current )?speed\s*:\s*(\S.{0,80})?", re.IGNORECASE)
_RATE = re.compile(r"(\d{1,9}) *Mb/s", re.IGNORECASE)
_DEVICE = re.compile(r"-i\s+(\d{1,6})\b")


@dataclass(frozen=True, slots=True)
class LinkSpeeds:
    """Mbit/s, one way, by device."""

    mbit_per_s: dict[int, int]


def is_link_speeds(text: str) -> bool:
    """Whether a line says a speed."""
    return any(_SPEED.match(line.strip()) for line in text[:100_000].split("\n"))


def read_link_speeds(text: str) -> LinkSpeeds:
    """The speed of every device.

    Raises SpecError with the line of what can't be read, or of a port that is down.
    """
    speeds: dict[int, int] = {}
    named: int | None = None
    for line, content in enumerate(lines_of(text), start=1):
        if device := _DEVICE.search(content[:2000]):
            named = int(device[1])
        said = _SPEED.match(content.strip())
        if said is None:
            continue
        rate = _RATE.fullmatch((said[1] or "").strip())
        if rate is None:
            raise bad_line(
                line,
                Message("field_fault.is_invalid", value=repr((said[1] or "")[:40])),
                hint=Message("importers.port_speed_example"),
            )
        if not 1 <= int(rate[1]) <= MAX_SPEED_MB:
            raise bad_line(line, Message("common.is_outside", value=rate[1], range=f"[1, {MAX_SPEED_MB:,}] Mb/s"))
        number = len(speeds) if named is None else named
        if number in speeds:
            raise bad_line(
                line,
                Message("common.given_twice", name=f"device {number}"),
                hint=Message("importers.file_per_node"),
            )
        if len(speeds) >= MAX_PORTS:
            raise bad_line(line, Message("field_fault.at_most_entries", bound=f"{MAX_PORTS:,}"))
        speeds[number], named = int(rate[1]), None
    if not speeds:
        raise SpecError(
            Message("importers.no_measured_row"),
            hint=Message("importers.output_of", command="hccn_tool -i 0 -speed -g"),
        )
    return LinkSpeeds(speeds)


# `npu-smi info -t topo`.
MAX_DEVICES = 64
SELF = "X"
LINKS = ("HCCS", "HCCS_SW", "SIO", "PIX", "PXB", "PHB", "SYS", "NA")
_NAME = re.compile(r"(?:NPU|Phy-ID)(\d{1,4})")


@dataclass(frozen=True, slots=True)
class NpuTopology:
    """`links[i][j]`: how device `devices[i]` reaches `devices[j]`; X for itself."""

    devices: tuple[int, ...]
    links: tuple[tuple[str, ...], ...]


def is_npu_topology(text: str) -> bool:
    """Whether a line has the names of several devices."""
    return any(_is_head(line.split()) for line in text[:100_000].split("\n"))


def read_npu_topology(text: str) -> NpuTopology:
    """The matrix of links of one node.

    Raises SpecError with the line of what can't be read.
    """
    columns: list[str] = []
    rows: dict[str, tuple[int, tuple[str, ...]]] = {}
    for line, cells in enumerate((line.split() for line in lines_of(text)), start=1):
        if _is_head(cells):
            if columns:
                raise bad_line(
                    line,
                    Message("common.given_twice", name=columns[0]),
                    hint=Message("importers.file_per_node"),
                )
            columns = [cell for cell in cells if _NAME.fullmatch(cell)]
            if repeated := [name for name in columns if columns.count(name) > 1]:
                raise bad_line(line, Message("common.given_twice", name=repeated[0]))
            if len(columns) > MAX_DEVICES:
                raise bad_line(line, Message("field_fault.at_most_entries", bound=f"{MAX_DEVICES:,}"))
        elif columns and cells and _NAME.fullmatch(cells[0]):
            if cells[0] in rows:
                raise bad_line(line, Message("common.given_twice", name=cells[0]))
            rows[cells[0]] = line, _links(cells, len(columns), line)
    if not columns:
        raise SpecError(
            Message("importers.no_measured_row"), hint=Message("importers.output_of", command="npu-smi info -t topo")
        )
    if missing := [name for name in columns if name not in rows]:
        raise SpecError(
            Message("common.missing", word=missing[0]),
            hint=Message("importers.output_of", command="npu-smi info -t topo"),
        )
    for name, (line, links) in rows.items():
        if name not in columns:
            raise bad_line(line, Message("common.missing", word=name))
        for other, link in zip(columns, links, strict=True):
            if (link == SELF) != (name == other) or rows[other][1][columns.index(name)] != link:
                raise bad_line(line, Message("importers.links_differ_by_direction", one=name, other=other))
    numbers = tuple(int(name.lstrip("NPUhy-ID")) for name in columns)
    return NpuTopology(numbers, tuple(rows[name][1] for name in columns))


def _is_head(cells: list[str]) -> bool:
    """Whether these are titles: a row has a link behind its name."""
    return len(cells) > 1 and all(_NAME.fullmatch(cell) for cell in cells[:2])


def _links(cells: list[str], count: int, line: int) -> tuple[str, ...]:
    links = tuple(cells[1 : count + 1])
    if len(links) < count:
        raise bad_line(line, Message("common.entries_expected", count=count, found=len(links)))
    for link in links:
        if link not in {SELF, *LINKS}:
            raise bad_line(line, Message("field_fault.is_invalid", value=repr(link[:40])), hint=", ".join(LINKS))
    return links


# Rank tables of HCCL (`hccl.json`, `RANK_TABLE_FILE`).
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

    Raises SpecError with the line, and the JSON pointer, of what can't be read.
    """
    refuse_long(text, MAX_TEXT)
    try:
        return _table(load_json(text, max_values=MAX_VALUES))
    except SpecError as error:
        raise at_line(text, error) from error


def _table(document: Any) -> RankTable:
    if not isinstance(document, dict):
        raise SpecError(Message("importers.not_json_object"), hint="/server_list")
    for key in _OTHERS:
        if key in document:
            raise SpecError(Message("common.unknown_key", name=repr(key)), path=f"/{key}", hint="/server_list")
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
            raise SpecError(Message("common.missing", word=f"{name!r} (super_pod_list)"), path=f"{path}/server_id")
        devices = _devices(json_objects(server.get("device"), f"{path}/device"), f"{path}/device", seen)
        servers.append(Server(name, devices, supernode_of.get(name)))
    strangers = supernode_of.keys() - {server.name for server in servers}
    if strangers:
        raise SpecError(Message("common.missing", word=f"{min(strangers)!r} (server_list)"), path="/super_pod_list")
    ranks = seen["rank_id"]
    if ranks and ranks != set(range(sum(len(server.devices) for server in servers))):
        raise SpecError(Message("importers.rank_ids_not_consecutive"), path="/server_list")
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


# Which nodes are below which leaf switch.
VERSION = "1.0"
KEY = "tor_info"


@dataclass(frozen=True, slots=True)
class LeafMap:
    """Nodes below each leaf switch, in the order of the file."""

    nodes: tuple[int, ...]


def is_leaf_map(text: str) -> bool:
    """Whether the text may be one: no rank table has these words."""
    return text.lstrip().startswith("{") and ('"tor_id"' in text or f'"{KEY}"' in text)


def read_leaf_map(text: str) -> LeafMap:
    """The nodes that a map lists.

    Raises SpecError with the line, and the JSON pointer, of what can't be read.
    """
    refuse_long(text, MAX_TEXT)
    try:
        document = load_json(text, max_values=MAX_VALUES)
        inner = _data_of(document)
        return _map(document) if inner is None else read_leaf_map(inner)
    except SpecError as error:
        raise at_line(text, error) from error


def _data_of(document: Any) -> str | None:
    """The map's text in a ConfigMap; None where the document is the map."""
    data = document.get("data") if isinstance(document, dict) else None
    inner = data.get(KEY) if isinstance(data, dict) else None
    if inner is not None and (not isinstance(inner, str) or f'"{KEY}"' in inner or not is_leaf_map(inner)):
        raise SpecError(Message("field_fault.is_invalid", value=KEY), path=f"/data/{KEY}", hint="basic-tor-node-cm")
    return inner


def _map(document: Any) -> LeafMap:
    if not isinstance(document, dict):
        raise SpecError(Message("importers.not_json_object"), hint="basic-tor-node-cm")
    version = str(document.get("version", VERSION))[:40]
    if version != VERSION:
        raise SpecError(Message("field_fault.is_invalid", value=repr(version)), path="/version", hint=VERSION)
    switches: set[object] = set()
    nodes: set[object] = set()
    leaves = []
    for index, switch in enumerate(json_objects(document.get("server_list"), "/server_list")):
        path = f"/server_list/{index}"
        json_once(json_whole(switch.get("tor_id"), f"{path}/tor_id"), switches, f"{path}/tor_id", "tor_id")
        servers = json_objects(switch.get("server"), f"{path}/server")
        for place, server in enumerate(servers):
            pointer = f"{path}/server/{place}/server_ip"
            json_once(json_name(server.get("server_ip"), pointer), nodes, pointer, "server_ip")
        leaves.append(len(servers))
    return LeafMap(tuple(leaves))


ClusterFile: TypeAlias = RankTable | LeafMap | NpuTopology | LinkSpeeds | MeasuredRun


def read_cluster_file(path: Path, *, op: str | None = None, ranks: int | None = None) -> ClusterFile:
    """Contents of a file; errors as `read_cluster_text`, with the file's name."""
    text = read_text(path, max_bytes=MAX_TEXT_BYTES)
    with in_file(path):
        return read_cluster_text(text, op=op, ranks=ranks)


def read_cluster_text(text: str, *, op: str | None = None, ranks: int | None = None) -> ClusterFile:
    """Contents of a text, of whichever kind it is.

    op, ranks : of a collective benchmark that does not say them.

    Raises SpecError with the line of what can't be read.
    """
    text = text.removeprefix("\ufeff")
    if not text.strip():
        raise SpecError(Message("field_fault.is_empty"))
    if is_leaf_map(text):
        return read_leaf_map(text)
    if is_rank_table(text):
        return read_rank_table(text)
    if is_npu_topology(text):
        return read_npu_topology(text)
    if is_collective_table(text, frozenset()):
        return read_collective_table(text, op=op, ranks=ranks)
    if is_link_speeds(text):
        return read_link_speeds(text)
    raise SpecError(Message("importers.not_importable"), hint=Message("importers.cluster_file_kinds"))
