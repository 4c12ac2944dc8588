"""Plans as files that something else reads: launch scripts, tables, documents. One module a format, one registry."""

from autodeploy.exporters.artefact import Artefact
from autodeploy.exporters.registry import FORMATS, export

__all__ = ["FORMATS", "Artefact", "export"]
