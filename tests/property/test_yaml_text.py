"""YAML that is written means the same to PyYAML, with which frameworks read, and to a reader of YAML 1.2."""

from __future__ import annotations

import yaml
from hypothesis import example, given
from hypothesis import strategies as st
from ruamel.yaml import YAML

from autodeploy.kit.yaml_text import profile_text, yaml_text

NUMBERS = st.integers(-(10**12), 10**12) | st.floats(allow_nan=False, allow_infinity=False)
WORDS = st.text(st.characters(min_codepoint=32, max_codepoint=126)) | st.sampled_from(
    ["on", "No", "1:30", "0o17", "1e5", "1_000", "2024-01-01", "~", "", "=", "<<", ".inf", "0x1F", "null", "-", "y"]
)
VALUES = st.recursive(
    NUMBERS | WORDS | st.booleans() | st.none(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(WORDS, inner, max_size=4),
    max_leaves=12,
)


@given(st.dictionaries(WORDS, VALUES, max_size=6))
@example({"lr": 1e-05, "min_lr": -1e-07, "tokens": 1e20, "eps": 1.25e-05, "on": "off", "at": "12:30:45"})
def test_both_versions_read_what_was_written(document: dict[str, object]) -> None:
    text = yaml_text(document)
    assert yaml.safe_load(text) == document
    assert YAML(typ="safe").load(text) == document


@given(st.dictionaries(st.text("abc", min_size=1), NUMBERS | st.none(), max_size=6))
def test_numbers_of_profiles_are_read_alike(document: dict[str, object]) -> None:
    text = profile_text(document, "A profile.")
    assert yaml.safe_load(text) == YAML(typ="safe").load(text) == document
