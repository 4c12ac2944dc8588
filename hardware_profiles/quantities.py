"""Address any number of a profile by a dotted path: `scale_out.latency_us`, `devices.910B2.peak_tflops.bf16`.

A tier is addressed by its name; everything else by the keys of the document.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches
from typing import Any

from autodeploy.messages import Message, joined
from hardware_profiles.errors import ProfileError
from hardware_profiles.schema import KINDS, Document, Kind, ProfileDocument, Quantity, TierDocument


def _walk(node: object, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Quantity]]:
    if isinstance(node, Quantity):
        yield path, node
    elif isinstance(node, Document):
        for name in type(node).model_fields:
            yield from _walk(getattr(node, name), (*path, name))
    elif isinstance(node, Mapping):
        for key, value in node.items():
            yield from _walk(value, (*path, str(key)))
    elif isinstance(node, tuple):
        for index, value in enumerate(node):
            if isinstance(value, TierDocument):
                yield from _walk(value, (value.name,))
            else:
                yield from _walk(value, (*path, str(index)))


def quantities(document: ProfileDocument) -> dict[str, Quantity]:
    """Every number of the profile by its dotted path, in the document's order."""
    return {".".join(path): quantity for path, quantity in _walk(document, ())}


def find_quantity(table: Mapping[str, Quantity], path: str) -> Quantity:
    """The number at a dotted path; ProfileError with close matches when there is none."""
    quantity = table.get(path)
    if quantity is None:
        hint = unknown_path_hint(table, path)
        raise ProfileError(
            Message("common.unknown_key", name=repr(path)), path=json_pointer(path.split(".")), hint=hint
        )
    return quantity


def unknown_path_hint(table: Iterable[str], path: str) -> str:
    """Likely meaning of an unknown dotted path."""
    paths = list(table)
    leaf = path.rsplit(".", 1)[-1]
    same_leaf = [candidate for candidate in paths if candidate.rsplit(".", 1)[-1] == leaf]
    close = get_close_matches(path, paths, n=3, cutoff=0.5) or same_leaf[:3]
    return Message("common.did_you_mean", names=joined(close, "or")) if close else ""


def json_pointer(parts: Iterable[Any]) -> str:
    """RFC 6901 pointer of a location given as its keys and indices."""
    return "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in parts)


def weakest(kinds: Iterable[Kind]) -> Kind:
    """The weakest of the grounds: a derived number rests on the weakest of its inputs; "datasheet" for none."""
    return max(kinds, key=KINDS.index, default=KINDS[0])
