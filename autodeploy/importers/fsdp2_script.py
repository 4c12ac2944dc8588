"""Scripts that start MindSpeed-LLM's FSDP2 backend: `torchrun ... train_fsdp2.py FILE --section.key value ...`."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from autodeploy.errors import SpecError
from autodeploy.importers.documents import load_yaml, read_text
from autodeploy.importers.fsdp2_yaml import SECTIONS, TARGET, import_fsdp2
from autodeploy.importers.imported import UNNAMED, Imported
from autodeploy.importers.launch_script import LAUNCHER_OPTIONS
from autodeploy.importers.next_chip import refuse_name
from autodeploy.importers.shell_follow import follow
from autodeploy.messages import Message
from autodeploy.stack.releases import release_of

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from autodeploy.importers.shell_values import Value

PROGRAM: Final = "train_fsdp2.py"
_STARTS: Final = re.compile(r"^[^#\n]*\btrain_fsdp2\.py\b", re.MULTILINE)
_OPTION: Final = re.compile(rf"--((?:{'|'.join(SECTIONS)})\.\w+)(?:=(.*))?", re.DOTALL)
_TRUE, _FALSE = frozenset({"yes", "true", "t", "y", "1"}), frozenset({"no", "false", "f", "n", "0"})


def is_fsdp2_script(text: str) -> bool:
    """Whether a script starts the backend."""
    return _STARTS.search(text) is not None


def import_fsdp2_script(
    text: str,
    variables: Mapping[str, str] | None = None,
    name: str | None = None,
    otherwise: str = UNNAMED,
    base_dir: Path | None = None,
) -> Imported:
    """The spec that a script of the backend trains; its YAML is looked for beside it. As `import_fsdp2`.

    Raises
    ------
    SpecError
        where the file that the script names is not there, or a value can't be read.
    """
    refuse_name(otherwise)
    followed = follow(text, variables)
    words = next((words for _, words in followed.commands if any(_is_program(word) for word in words)), None)
    if words is None:
        raise SpecError(
            Message("common.missing", word=PROGRAM),
            hint=Message("importers.give_script_with_command"),
        )
    at = next(index for index, word in enumerate(words) if _is_program(word))
    named = words[at + 1].text if len(words) > at + 1 and not words[at + 1].text.startswith("--") else ""
    document, source = _file(named, otherwise, base_dir)
    given = _options(words[at + 1 + bool(named) :])
    merged = {name: dict(value) if isinstance(value, dict) else value for name, value in document.items()}
    for key, values in given.items():
        section, _, field = key.partition(".")
        merged.setdefault(section, {})[field] = _typed(key, values)
    return import_fsdp2(merged, source + text, name, otherwise, base_dir, _ranks(words[:at]))


def _is_program(word: Value) -> bool:
    return word.text.rpartition("/")[2] == PROGRAM


def _file(named: str, stem: str, base_dir: Path | None) -> tuple[Mapping[str, Any], str]:
    """The YAML that the script names, else the one of the script's own name, and its text."""
    if not named:
        return {}, ""
    last = named.rpartition("/")[2]
    for name in (last, f"{stem}.yaml") if base_dir is not None and "$" not in last else ():
        path = base_dir / name if base_dir is not None else None
        if path is not None and path.is_file():
            text = read_text(path)
            document = load_yaml(text, boolean_words=True)
            return (document if isinstance(document, dict) else {}), text + "\n"
    raise SpecError(Message("importers.is_not_beside_script", file=named[:200]), path="/parallel")


def _options(words: list[Value]) -> dict[str, list[Value]]:
    """Values of each `--section.key`, the last of each key counts."""
    options: dict[str, list[Value]] = {}
    current: list[Value] | None = None
    for word in words:
        match = _OPTION.fullmatch(word.text)
        if match:
            current = options[match[1]] = []
            if match[2] is not None:
                current.append(word)
        elif word.text.startswith("--"):
            current = None
        elif current is not None:
            current.append(word)
    return options


def _typed(key: str, values: list[Value]) -> Any:
    """What the backend's parser makes of the words; an option alone is true, what isn't known stays as it stands."""
    registered = release_of(TARGET, None).keys.get(key)
    texts = [_text(value) for value in values]
    if registered is not None and registered.nargs == "+":
        return texts
    text = texts[0] if texts else "true"
    if registered is None or any(value.unknown for value in values):
        return text
    if registered.type == "bool" and text.lower() in _TRUE | _FALSE:
        return text.lower() in _TRUE
    try:
        return int(text) if registered.type == "int" else float(text) if registered.type == "float" else text
    except ValueError:
        path = "/" + key.replace(".", "/")
        raise SpecError(
            Message("common.takes_not", name=f"--{key}", kind=Message("field_fault.a_number"), value=repr(text[:40])),
            path=path,
        ) from None


def _text(value: Value) -> str:
    match = _OPTION.fullmatch(value.text)
    return (match[2] or "") if match else value.text


def _ranks(words: list[Value]) -> int | None:
    """Processes of the launcher; None where one of its numbers isn't known."""
    sizes: dict[str, int] = {}
    for index, word in enumerate(words):
        name, _, text = word.text.partition("=")
        if name in LAUNCHER_OPTIONS:
            text = text or (words[index + 1].text if len(words) > index + 1 else "")
            if not text.isdigit() or not 0 < int(text[:9]) < 10_000_000:
                return None
            sizes[LAUNCHER_OPTIONS[name]] = int(text[:9])
    if "ranks" in sizes:
        return sizes["ranks"]
    return sizes["ranks_per_node"] * sizes.get("nodes", 1) if "ranks_per_node" in sizes else None
