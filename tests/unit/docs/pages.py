"""What the pages of the documentation hold: their code, commands, tables, links and JSON, as text.

Knows nothing of what the code has.
"""

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[3]
PAGES = sorted(
    [
        *ROOT.glob("*.md"),
        *(ROOT / "docs").rglob("*.md"),
        *(ROOT / "services").glob("*/README.md"),
        ROOT / "bench" / "README.md",
    ],
    key=str,
)


def page_text(name: str) -> str:
    return (ROOT / "docs" / "operators" / name).read_text()


def without_blocks(text: str) -> str:
    return re.sub(r"^( *)```.*?^\1```", "", text, flags=re.DOTALL | re.MULTILINE)


def inline_code(text: str) -> list[str]:
    return re.findall(r"`([^`\n]+)`", without_blocks(text))


def shell_lines(text: str) -> Iterator[str]:
    """Lines of shell blocks, of indented blocks, and inline code."""
    for block in re.findall(r"```sh\n(.*?)```", text, flags=re.DOTALL):
        yield from block.splitlines()
    yield from (line.strip() for line in re.findall(r"^ {4}\S.*$", without_blocks(text), flags=re.MULTILINE))
    yield from inline_code(text)


def commands(text: str, program: str) -> Iterator[list[str]]:
    """Arguments of each call of a program, less assignments before it and the folder it is in."""
    for line in shell_lines(text):
        if re.match(rf"(?:[A-Z_]+=\S+ )*(?:\S*/)?{re.escape(program)} ", line):
            words = shlex.split(line, comments=True)
            while re.match(r"[A-Z_]+=", words[0]):
                words.pop(0)
            yield words[1:]


def table_rows(text: str) -> list[list[str]]:
    return [
        [cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("| ")
    ]


def section(text: str, heading: str) -> str:
    return re.split(r"^## ", text.split(f"## {heading}\n", 1)[1], maxsplit=1, flags=re.MULTILINE)[0]


def anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", without_blocks(page.read_text()), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def json_objects(text: str) -> Iterator[Any]:
    """What the JSON blocks hold, one object after another."""
    for block in re.findall(r"```json\n(.*?)```", text, flags=re.DOTALL):
        rest = block.strip()
        while rest:
            value, end = json.JSONDecoder().raw_decode(rest)
            yield value
            rest = rest[end:].lstrip()


def names_in(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for name, inner in value.items():
            yield name, inner
            yield from names_in(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from names_in(inner)
