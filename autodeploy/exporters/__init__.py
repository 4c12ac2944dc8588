"""Export of plans: launch scripts, tables, documents. One module per format, one registry."""

from autodeploy.exporters.artefact import Artefact
from autodeploy.exporters.registry import FORMATS, export

__all__ = ["FORMATS", "Artefact", "export"]
