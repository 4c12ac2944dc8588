"""A file of any format as its readers get it: text, syntax, document, and what belongs to it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, Literal

from autodeploy.formats.common.import_result import UNNAMED
from autodeploy.formats.shell.follow import SCRIPT_SUFFIXES
from autodeploy.specs.text_files import MAX_LAUNCH_CHARACTERS, load_json, load_toml, load_yaml, refuse_long

if TYPE_CHECKING:
    from pathlib import Path

SCRIPT_SIGNS = ("#!/", "torchrun", "actor_rollout_ref.", "--tensor-model-parallel-size", "--num-layers ")

_BOOLEAN_WORD = re.compile(r"\b(?:yes|no|on|off)\b", re.IGNORECASE)
_TOML_SECTION = re.compile(r"^\[parallelism\]\s*$", re.MULTILINE)


@dataclass(frozen=True)
class Source:
    """A text that is to be imported.

    filename : helps where the content alone doesn't tell, by its suffix; its stem names a model without a name.
    variables : of a launch script, as its environment would set them.
    name : the model's name where the file has none.
    base_dir : where files are looked for that the text names; absent, it may name none.
    experiment : the document beside a task that runs it.
    """

    text: str
    filename: str = ""
    variables: Mapping[str, str] | None = None
    name: str | None = None
    base_dir: Path | None = None
    experiment: Mapping[str, Any] = field(default_factory=dict)

    @property
    def suffix(self) -> str:
        """Of the file's name, in lower case."""
        return PurePath(self.filename).suffix.lower()

    @property
    def otherwise(self) -> str:
        """Name of a model without one: that of its file."""
        return PurePath(self.filename).stem[:200] or UNNAMED

    @cached_property
    def syntax(self) -> Literal["toml", "script", "json", "yaml"]:
        """By the suffix of the file or, where it has none, by what stands in it."""
        if self.suffix == ".toml" or (not self.suffix and _TOML_SECTION.search(self.text)):
            return "toml"
        if self.suffix in SCRIPT_SUFFIXES:
            return "script"
        if self.suffix not in {".json", ".yaml", ".yml"} and any(sign in self.text for sign in SCRIPT_SIGNS):
            return "script"
        is_json = self.suffix == ".json" or (self.suffix not in {".yaml", ".yml"} and self.text.lstrip()[:1] == "{")
        return "json" if is_json else "yaml"

    @cached_property
    def document(self) -> Mapping[str, Any]:
        """The mapping that the text is; empty of a script, and where it is none.

        Raises SpecError with what is wrong, and where.
        """
        if self.syntax == "script":
            refuse_long(self.text, MAX_LAUNCH_CHARACTERS)
            return {}
        if self.syntax == "toml":
            return load_toml(self.text)
        read = load_json(self.text, constants=True) if self.syntax == "json" else load_yaml(self.text)
        return read if isinstance(read, Mapping) else {}

    @cached_property
    def of_framework(self) -> Mapping[str, Any]:
        """The document as a framework's parser reads it, whose `yes` and `off` are truth values."""
        if not _BOOLEAN_WORD.search(self.text):
            return self.document
        read = load_yaml(self.text, boolean_words=True)
        return read if isinstance(read, Mapping) else {}
