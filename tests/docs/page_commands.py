"""The commands of README, the pages and the notebooks, as a reader would type them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from docs.site.notebooks import ENDING, as_markdown
from tests.toys import ROOT

NOTEBOOKS = sorted((ROOT / "docs/tutorials").glob(f"*{ENDING}"))
PAGES = [
    ROOT / "README.md",
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "docs/methods").glob("*.md")),
    *NOTEBOOKS,
]
_FENCE = re.compile(r"^ *```")
_START = re.compile(r"(torchrun .*)?radweave |torchrun .*\\$")
"""Of a command, or of a launcher whose command is on the next line."""
_SPAN = re.compile(r"`(radweave [^`]+)`")


@dataclass(frozen=True)
class Command:
    """A command and where it stands; ``words`` are its arguments behind ``radweave``.

    In a sentence it may be a part of one: a verb and the option that the sentence is about.
    """

    page: Path
    line: int
    words: tuple[str, ...]
    in_prose: bool = False

    @property
    def place(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    def __str__(self) -> str:
        return f"{self.place} {' '.join(self.words)}"


def text_of(page: Path) -> str:
    """Of a notebook, what the site shows."""
    return as_markdown(page) if page.suffix == ENDING else page.read_text(encoding="utf-8")


def commands(page: Path) -> list[Command]:
    """Those in blocks of code, and those between backticks that have more than a verb."""
    return [*_in_blocks(page), *_in_prose(page)]


def _in_blocks(page: Path) -> Iterator[Command]:
    fenced, waiting, start = False, "", 0
    for number, line in enumerate(text_of(page).splitlines(), start=1):
        if _FENCE.match(line):
            fenced = not fenced
            continue
        if waiting:
            text = f"{waiting} {line.strip()}"
        elif (fenced or line.startswith("    ")) and _START.match(line.strip()):
            text, start = line.strip(), number
        else:
            continue
        waiting = text.removesuffix("\\").strip() if text.endswith("\\") else ""
        if not waiting:
            yield Command(page, start, _words(text))
    assert not waiting, f"{page}: the last command does not end"


def _in_prose(page: Path) -> Iterator[Command]:
    text = re.sub(r"```.*?```", lambda block: "\n" * block[0].count("\n"), text_of(page), flags=re.DOTALL)
    for span in _SPAN.finditer(text):
        command = span[1].replace("\n", " ")
        if "VERB" not in command and " ... " not in command and len(command.split()) > 2:
            yield Command(page, text[: span.start()].count("\n") + 1, _words(command), in_prose=True)


def _words(text: str) -> tuple[str, ...]:
    """The arguments: without comments, launcher, and the marks of what may be left out or repeated."""
    plain = re.sub(r"\[key=value \.\.\.\]|(?<=\w)\.\.\.|(?<= )\.\.\.(?= |$)", "", text)
    plain = re.sub(r"(?<!=)\[(-[^\]]*|[A-Z]+)\]", r"\1", plain)
    words = shlex.split(plain, comments=True)
    return tuple(words[words.index("radweave") + 1 :])
