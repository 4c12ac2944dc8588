"""Which nodes are below which leaf switch: `tor_info` of MindCluster's ConfigMap basic-tor-node-cm, version 1.0.

Read from its JSON, or from the ConfigMap as `kubectl get cm basic-tor-node-cm -o json` prints it. Source: MindCluster,
"Parameter Plane Network Topology", and the example of its guide to switch affinity.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from autodeploy.errors import SpecError
from autodeploy.importers.documents import load_json
from autodeploy.importers.json_lines import at_line
from autodeploy.importers.rank_table import MAX_TEXT, MAX_VALUES, json_name, json_objects, json_once, json_whole
from autodeploy.messages import Message

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

    Raises
    ------
    SpecError
        with the line, and the JSON pointer, of what can't be read.
    """
    if len(text) > MAX_TEXT:
        raise SpecError(Message("field_fault.at_most_characters", bound=f"{MAX_TEXT:,}"))
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
        raise SpecError(
            Message("field_fault.is_invalid", value=KEY),
            path=f"/data/{KEY}",
            hint="basic-tor-node-cm",
        )
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
