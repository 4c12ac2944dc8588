"""A YAML text of anybody's, read without aliases and only so deep."""

from __future__ import annotations

from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.composer import Composer, ComposerError
from ruamel.yaml.error import YAMLError as YAMLError
from ruamel.yaml.events import AliasEvent

from autodeploy.messages import Message

MAX_YAML_DEPTH = 20
"""A profile is five levels deep, a calibration report in an overlay perhaps ten."""


def load_bounded_yaml(text: str) -> Any:
    """Contents of a text.

    Raises YAMLError if it is no YAML, has aliases or is nested deeper than `MAX_YAML_DEPTH`.
    """
    parser = YAML(typ="safe", pure=True)
    parser.Composer = _BoundedComposer
    return parser.load(text)


class _BoundedComposer(Composer):
    """Refuses aliases, since a few nested ones can stand for billions of nodes, and deep nesting."""

    _depth = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.parser.check_event(AliasEvent):
            event = self.parser.peek_event()
            raise ComposerError(None, None, Message("profiles.no_aliases"), event.start_mark)
        if self._depth >= MAX_YAML_DEPTH:
            event = self.parser.peek_event()
            raise ComposerError(None, None, Message("profiles.nested_too_deep", depth=MAX_YAML_DEPTH), event.start_mark)
        self._depth += 1
        try:
            return super().compose_node(parent, index)
        finally:
            self._depth -= 1
