"""A file that says how a cluster is: which kind it is, and what it says."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from autodeploy.errors import SpecError
from autodeploy.importers.benchmark_tables import is_collective_table, read_collective_table
from autodeploy.importers.documents import in_file, read_text
from autodeploy.importers.leaf_map import LeafMap, is_leaf_map, read_leaf_map
from autodeploy.importers.link_speeds import LinkSpeeds, is_link_speeds, read_link_speeds
from autodeploy.importers.measured_text import MAX_TEXT_BYTES
from autodeploy.importers.npu_topology import NpuTopology, is_npu_topology, read_npu_topology
from autodeploy.importers.rank_table import RankTable, is_rank_table, read_rank_table
from autodeploy.messages import Message
from autodeploy.specs.measured_run import MeasuredRun

if TYPE_CHECKING:
    from pathlib import Path

ClusterFile: TypeAlias = RankTable | LeafMap | NpuTopology | LinkSpeeds | MeasuredRun


def read_cluster_file(path: Path, *, op: str | None = None, ranks: int | None = None) -> ClusterFile:
    """What a file says; errors as `read_cluster_text`, with the file's name."""
    text = read_text(path, max_bytes=MAX_TEXT_BYTES)
    with in_file(path):
        return read_cluster_text(text, op=op, ranks=ranks)


def read_cluster_text(text: str, *, op: str | None = None, ranks: int | None = None) -> ClusterFile:
    """What a text says, of whichever kind it is.

    Parameters
    ----------
    op, ranks : of a collective benchmark that does not say them.

    Raises
    ------
    SpecError
        with the line of what can't be read.
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
    raise SpecError(
        Message("importers.not_importable"),
        hint=Message("importers.rank_table_hccl_json_or_map_of_switches"),
    )
