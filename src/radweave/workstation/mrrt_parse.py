"""Report templates in HTML5 (IHE MRRT, as in RSNA's RadReport), read as text in the sandboxed child process.

Kept are the title, the headings of sections and fields, and default texts. Scripts, styles, links, images and other
elements are skipped and counted; only known attributes are read.
"""

from __future__ import annotations

import re
from collections import Counter
from html.parser import HTMLParser
from typing import Any, Final

from radweave.core.errors import InputError
from radweave.io import worker
from radweave.io.worker import Task

LONGEST: Final = 2_000
"""Characters of a text; as many as a sentence of a draft may have."""
MOST_LINES: Final = 200
_DEEPEST: Final = 40
_KINDS: Final = (
    ("comparison", r"comparison|prior stud"),
    ("indication", r"indication|history|clinical|reason"),
    ("technique", r"technique|procedure|protocol|examination|contrast"),
    ("impression", r"impression|conclusion|summary|opinion"),
    ("findings", r"finding|observation|result"),
)
"""Section -> pattern of its names in templates."""
_PASSED: Final = ("script", "style", "template", "svg", "math", "iframe", "object", "audio", "video", "noscript")
_VOID: Final = ("link", "img", "embed", "base", "source", "frame")
_BLOCKS: Final = ("p", "li", "div", "td", "th", "tr", "dt", "dd", "br", "fieldset", "table", "ul", "ol", "hr")
_HEADERS: Final = ("header", "h1", "h2", "h3", "h4", "h5", "h6", "legend", "caption")
_TYPED: Final = ("text", "number", "date", "time", "datetime", "")


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.title = ""
        self.lines: list[dict[str, str]] = []
        self.dropped: Counter[str] = Counter()
        self.left_out: list[str] = []
        self._inside: list[str] = []
        self._passing = 0
        self._sections: list[tuple[str, str]] = []
        self._said: list[str] = []
        self._heading = self._name = ""
        self._is_chosen = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        links = sum(name in ("href", "src", "action") or name.startswith("on") for name in values)
        if tag in _PASSED:
            self.dropped[tag] += 1
            self._passing += 1
            return
        if self._passing:
            return
        if tag in _VOID or links:
            self.dropped[tag if tag in _VOID else "links and listeners"] += 1
        if tag == "section":
            self._end_line()
            if len(self._sections) >= _DEEPEST:
                raise InputError("sections are nested too deeply", field="template", expected=f"{_DEEPEST}")
            self._open(_plain(values.get("data-section-name", "")))
        elif tag in _BLOCKS:
            self._end_line()
        elif tag == "input":
            kind = values.get("type", "").lower()
            is_on = kind in ("checkbox", "radio") and "checked" in values
            if kind in _TYPED or is_on:
                self._say(values.get("value", ""))
        elif tag == "option":
            self._is_chosen = "selected" in values
        if tag in (*_HEADERS, "label", "title", "select", "option", "head"):
            self._inside.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in ("input", *_VOID):
            self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag in _PASSED:
            self._passing = max(0, self._passing - 1)
        if self._passing:
            return
        if tag == "section":
            self._end_line()
            if self._sections:
                self._sections.pop()
        elif tag in _BLOCKS or tag in _HEADERS:
            self._end_line(is_header=tag in _HEADERS)
        if tag in self._inside:
            del self._inside[len(self._inside) - 1 - self._inside[::-1].index(tag) :]

    def handle_data(self, data: str) -> None:
        if self._passing:
            return
        where = self._inside[-1] if self._inside else ""
        if where == "title":
            self.title += data
        elif where in _HEADERS:
            self._name += data
        elif where == "label":
            self._heading += data
        elif where == "option":
            self._say(data if self._is_chosen else "")
        elif where not in ("head", "select"):
            self._say(data)

    def close(self) -> None:
        super().close()
        self._end_line()

    def _say(self, text: str) -> None:
        self._said.append(text)

    def _open(self, name: str) -> None:
        """Open a section; an unknown one inside a known one is a heading in it."""
        above = self._sections[-1][0] if self._sections else ""
        kind = _kind_of(name)
        if above and not kind:
            self._sections.append((above, name))
            return
        if not kind and name:
            self.left_out.append(name[:LONGEST])
        self._sections.append((kind, ""))

    def _end_line(self, *, is_header: bool = False) -> None:
        """End a line: a field with its heading and default text, or plain text."""
        heading, text = _plain(self._heading).rstrip(": "), _plain(" ".join(self._said)).lstrip(": ")
        name = _plain(self._name).rstrip(": ")
        self._heading, self._said = "", []
        if is_header:
            self._name = ""
        kind, inner = self._sections[-1] if self._sections else ("", "")
        if is_header and name and self._sections and not kind and _kind_of(name):
            self._sections[-1] = (_kind_of(name), "")  # a section named by its header only
        if not kind or not (heading or text):
            return
        line = {"section": kind, "heading": (heading or inner)[:LONGEST], "text": text[:LONGEST]}
        if len(self.lines) >= MOST_LINES:
            raise InputError("too many lines in a template", field="template", expected=f"at most {MOST_LINES}")
        self.lines.append(line)


def _kind_of(name: str) -> str:
    return next((kind for kind, words in _KINDS if re.search(words, name, re.IGNORECASE)), "")


def _plain(text: str) -> str:
    """One line of printable characters, without control and direction marks."""
    return "".join(sign for sign in " ".join(text.split()) if sign.isprintable())


def read_template(request: dict[str, Any]) -> worker.Message:
    """``{"title", "lines", "dropped", "left_out"}`` of the HTML in ``request``.

    Raises:
        InputError: if nothing in it is a section of a report.
    """
    reader = _Reader()
    reader.feed(request["html"])
    reader.close()
    if not reader.lines:
        raise InputError(
            "has no section of a report", field="template",
            expected="an MRRT template: section elements with data-section-name, such as Findings",
        )  # fmt: skip
    return {
        "title": _plain(reader.title)[:200], "lines": reader.lines, "dropped": dict(reader.dropped),
        "left_out": reader.left_out[:MOST_LINES],
    }, {}  # fmt: skip


TASKS: Final[dict[str, Task]] = {"template": read_template}
