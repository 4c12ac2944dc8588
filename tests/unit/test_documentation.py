"""What the documentation says is there: links, commands, specs, imports, and the pages made from the code."""

from __future__ import annotations

import ast
import importlib
import re
import shlex
from collections import Counter
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import unquote

import pytest
from ruamel.yaml import YAML

from autodeploy.specs.reading import read_spec_document
from docs import readme
from docs.commands import commands, options_of
from docs.generate import DOCS, generated
from docs.line_chart import Chart, svg
from docs.schema_tables import table, type_of

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[2]
TOP = [ROOT / name for name in ("README.md", "README.zh.md", "CHANGELOG.md", "SECURITY.md", "CONTRIBUTING.md")]
PAGES = [*TOP, *sorted(DOCS.rglob("*.md"))]
NAMES = [str(page.relative_to(ROOT)) for page in PAGES]

FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
HEADING = re.compile(r"^(#{1,6}) (.+)$", re.MULTILINE)
MARKS = re.compile(r"^#{1,6}(?= )", re.MULTILINE)
ROWS = re.compile(r"^\|.*$", re.MULTILINE)
SETTING = re.compile(r"`((?:AUTODEPLOY|POSTGRES|PYTHON)_[A-Z_]+)")
NUMBER = re.compile(r"(?<![\w.-])\d[\d,.]*(?<=\d)")
COMMAND = re.compile(r"(?:^|(?<=[`;/ ]))autodeploy( .+)?$")
EXTERNAL = ("http://", "https://", "mailto:")


class Block(NamedTuple):
    """A fenced block of a page."""

    language: str
    text: str


def text_of(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def blocks(text: str) -> list[Block]:
    return [Block(*found) for found in FENCE.findall(text)]


def prose(text: str) -> str:
    return FENCE.sub("", text)


def anchors(text: str) -> set[str]:
    """Anchors that headings get: lower case, without punctuation, with hyphens for spaces."""
    titles = (title.lower() for _, title in HEADING.findall(prose(text)))
    return {re.sub(r"[^\w\- ]", "", title).strip().replace(" ", "-") for title in titles}


def broken_links(page: Path, text: str) -> list[str]:
    broken = []
    for target in LINK.findall(prose(text)):
        if target.startswith(EXTERNAL):
            continue
        name, _, anchor = target.partition("#")
        other = (page.parent / unquote(name)).resolve() if name else page
        missing_anchor = anchor and other.suffix == ".md" and other.is_file() and anchor not in anchors(text_of(other))
        if not other.is_file() or not other.is_relative_to(ROOT) or missing_anchor:
            broken.append(target)
    return broken


def command_lines(text: str) -> Iterator[list[str]]:
    """Words after `autodeploy` of every call in shell and YAML blocks and in inline code."""
    shell = "\n".join(block.text for block in blocks(text) if block.language in {"sh", "yaml"})
    lines = shell.replace("\\\n", " ").splitlines()
    inline = re.findall(r"`([^`\n]*)`", prose(text))
    for line in (*lines, *inline):
        found = COMMAND.search(line.strip())
        if found:
            yield shlex.split(found[1] or "", comments=True)


def wrong_commands(text: str) -> list[str]:
    known = dict(commands())
    groups = {name.split()[0] for name in known if " " in name}
    wrong = []
    for words in command_lines(text):
        size = 2 if words[:1] and words[0] in groups else 1
        command = known.get(" ".join(words[:size]))
        if not words or words == ["--version"] or (len(words) == 1 and words[0] in groups):
            continue
        options = {word.partition("=")[0] for word in words[size:] if word.startswith("-") and word != "-"}
        if command is None or not options <= {*options_of(command), "--help"}:
            wrong.append(" ".join(words))
    return wrong


@cache
def made_now() -> dict[str, str]:
    """The generated pages as the code says them now."""
    return generated()


def test_generated_pages_are_current():
    stale = [
        name
        for name, text in made_now().items()
        if not (DOCS / name).is_file() or (DOCS / name).read_text(encoding="utf-8") != text
    ]
    assert stale == [], "run `make docs`"


def test_no_page_is_left_of_what_was_generated_once():
    made = set(made_now())
    there = {str(path.relative_to(DOCS)) for path in (DOCS / "reference").rglob("*.md")}
    there |= {str(path.relative_to(DOCS)) for path in (DOCS / "explanation" / "figures").glob("*.svg")}
    # docs.public_scripts makes the page from checkouts, docs.search_comparison the pictures, which show seconds.
    pictures = {f"explanation/figures/search_{name}.svg" for name in ("fates", "gap", "schedules")}
    assert there - made == {"reference/public_scripts.md", *pictures}


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_links_resolve(page):
    assert broken_links(page, text_of(page)) == []


LONGEST = 400  # lines of a page that somebody reads


def test_no_page_is_too_long_to_read():
    long = {str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md") if text_of(page).count("\n") > LONGEST}
    assert long == set()


def test_no_model_is_described_on_two_pages():
    titles = Counter(
        title
        for name in ("model", "plan", "planset", "records", "rl_plan", "spec", "strategy")
        for level, title in HEADING.findall(text_of(DOCS / "reference" / f"{name}.md"))
        if level == "##" and title.isidentifier()
    )
    assert titles.total() > 80
    assert [title for title, pages in titles.items() if pages > 1] == []


def test_a_broken_link_is_found():
    text = "[a](missing.md) [b](README.md#no-such-title) [c](README.md#why) ![d](docs/images/none.png)"
    expected = ["missing.md", "README.md#no-such-title", "docs/images/none.png"]
    assert broken_links(ROOT / "page.md", text) == expected


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_commands_exist(page):
    assert wrong_commands(text_of(page)) == []


def test_readme_shows_commands():
    shown = {words[0] for words in command_lines(text_of(ROOT / "README.md")) if words}
    assert {"plan", "estimate", "validate", "why-not", "export"} <= shown


def test_a_wrong_command_is_found():
    shell = "autodeploy plan x.yaml --fast\nautodeploy fly\nautodeploy plan x.yaml --top 3\n"
    text = f"```sh\n{shell}```\nand `autodeploy db drop`"
    assert wrong_commands(text) == ["plan x.yaml --fast", "fly", "db drop"]


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_specs_are_valid(page):
    for block in blocks(text_of(page)):
        document = YAML(typ="safe").load(block.text) if block.language == "yaml" else None
        if isinstance(document, dict) and {"model", "cluster", "training"} <= document.keys():
            assert read_spec_document(document).model.num_hidden_layers > 0


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_python_examples_import_what_is_there(page):
    for block in blocks(text_of(page)):
        if block.language != "python":
            continue
        for node in ast.walk(ast.parse(block.text)):
            if isinstance(node, ast.ImportFrom):
                module = importlib.import_module(node.module or "")
                missing = [alias.name for alias in node.names if not hasattr(module, alias.name)]
                assert missing == []


def test_make_targets_exist():
    targets = set(re.findall(r"^([a-z_]+):", text_of(ROOT / "Makefile"), re.MULTILINE))
    shell = {page: "\n".join(block.text for block in blocks(text_of(page)) if block.language == "sh") for page in PAGES}
    called = {name for text in shell.values() for name in re.findall(r"^make ([a-z_]+)", text, re.MULTILINE)}
    called |= {name for page in PAGES for name in re.findall(r"`make ([a-z_]+)`", prose(text_of(page)))}
    assert {"plan", "test"} <= called
    assert called <= targets


def test_files_named_in_text_exist():
    pattern = re.compile(
        r"`((?:autodeploy|cost_models|hardware_profiles|docs|examples|tests|api|migrations)/[\w./-]*)`"
    )
    missing = {name for page in PAGES for name in pattern.findall(text_of(page)) if not (ROOT / name).exists()}
    assert missing == set()


def test_every_page_is_reached_from_the_index():
    seen: set[Path] = set()
    waiting = [ROOT / "README.md"]
    while waiting:
        page = waiting.pop()
        if page in seen or page.suffix != ".md" or not page.is_file():
            continue
        seen.add(page)
        waiting += [
            (page.parent / link.partition("#")[0]).resolve()
            for link in LINK.findall(prose(text_of(page)))
            if not link.startswith((*EXTERNAL, "#"))
        ]
    own = {page for page in PAGES if page.name != "accuracy.md"}
    assert own - seen == set()


def of_english(link: str) -> str:
    return link.replace("_zh.png", ".png").replace("docs/zh/", "docs/")


def test_chinese_readme_has_the_same_sections():
    english, chinese = text_of(ROOT / "README.md"), text_of(ROOT / "README.zh.md")
    levels = [[len(mark) for mark, _ in HEADING.findall(prose(text))] for text in (english, chinese)]
    assert levels[0] == levels[1]
    shell = [[block.text for block in blocks(text) if block.language == "sh"] for text in (english, chinese)]
    assert shell[0] == shell[1]
    other = "README.zh.md", "README.md"
    # A picture of a page may be of its Chinese, and so may a page of the documentation.
    links = [
        [
            link.replace("_zh.png", ".png").replace("docs/zh/", "docs/")
            for link in LINK.findall(text)
            if link not in other
        ]
        for text in (english, chinese)
    ]
    assert sorted(links[0]) == sorted(links[1])


def test_deployment_in_chinese_says_the_same():
    english, chinese = (DOCS / part / "deploy.md" for part in ("how-to", "zh/how-to"))
    texts = [text_of(page) for page in (english, chinese)]
    levels, rows, settings = ([pattern.findall(prose(text)) for text in texts] for pattern in (MARKS, ROWS, SETTING))
    assert levels[0] == levels[1]
    assert blocks(texts[0]) == blocks(texts[1])
    assert [row.count("|") for row in rows[0]] == [row.count("|") for row in rows[1]]
    assert sorted(set(settings[0])) == sorted(set(settings[1]))
    links = [
        sorted(str((page.parent / link.partition("#")[0]).resolve()) for link in LINK.findall(text))
        for page, text in zip((english, chinese), texts, strict=True)
    ]
    assert links[0] == links[1]
    numbers = [[sorted(NUMBER.findall(row)) for row in of_page] for of_page in rows]
    assert numbers[0] == numbers[1]


def test_a_part_that_is_missing_is_named():
    with pytest.raises(ValueError, match="no part 'accuracy'"):
        readme.replace_parts("<!-- other -->x<!-- /other -->", {"accuracy": "y"})


def test_a_part_is_replaced_where_it_stands():
    assert readme.replace_parts("a <!-- n -->1<!-- /n --> b", {"n": "2 %"}) == "a <!-- n -->2 %<!-- /n --> b"


def test_changelog_names_the_version():
    from autodeploy.kit.version import ENGINE_VERSION

    assert f"## [{ENGINE_VERSION}]" in text_of(ROOT / "CHANGELOG.md")


def test_a_bar_in_a_cell_does_not_end_it():
    assert table(("a",), [("x | y\nz",)]).splitlines()[-1] == "| x \\| y z |"


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({"type": "integer"}, "integer"),
        ({"enum": ["a", "b"]}, "`a`, `b`"),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, "integer or null"),
        ({"type": "array", "items": {"$ref": "#/$defs/Block"}}, "list of [Block](#block)"),
        ({"type": "object", "additionalProperties": {"type": "number"}}, "mapping to number"),
    ],
)
def test_types_in_words(schema, words):
    assert type_of(schema) == words


def test_a_chart_says_its_numbers_in_words():
    text = svg(Chart("Title & more", "x", "y", [1, 2, 4], {"a < b": [1.0, 2.0, 3.0]}))
    assert "Title &amp; more" in text
    assert "a &lt; b: from 1 to 3" in text
    assert text.count("<polyline") == 1
