"""Report text to sentences of tokens that know their place in the text.

Case, the kind of white space and single line breaks carry no meaning here, so that a wrapped, an upper-case and a
plain copy of a report read the same; an empty line does end a sentence. De-identification marks ("XXXX", "___") are
ordinary words that match nothing.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass

# A sentence this long is no sentence: it is cut, which keeps the time linear in the length of any text.
MAX_SENTENCE_CHARS = 2000

# Full stops end a sentence, except inside numbers ("1.3 cm"), after a few abbreviations and between single letters
# ("e.g.", "s.p."). A double quote beside a space, a bullet and a semicolon part sentences, as CT reports use them.
_BOUNDARY = re.compile(
    r"""(?<!\bvs)(?<!\bdr)(?<!\be\.g)(?<!\bi\.e)(?<!\bapprox)\.(?!\d)(?!(?<=\b[a-z]\.)[a-z]\b)
      | (?<=[^\W\d_])\.(?=\d)
      | [!;•·|]
      | \?(?!\s*[),/?])
      | (?:(?<=\s)|(?<=^)|(?<=[.,?]))["“”](?=\s|\w) | ["“”](?=\s|$)
      | \n[ \t\r\f\v]*\n""",
    re.VERBOSE,
)
_TOKEN = re.compile(r"[^\W\d_]+(?:['’][^\W\d_]+)?|\d+(?:[.,]\d+)*|(?<=\s)[-–—](?=\s)|[,:()?/&>]")
_WORD_FOR = {"&": "and", "–": "-", "—": "-"}

# Sections that tell what was asked or done, not what was seen. The first group may name findings to look for.
_REQUEST = (
    "indications?|(?:clinical )?(?:history|information|indication)|reason for (?:the )?(?:exam|examination|study)"
)
_SILENT = _REQUEST + "|techniques?|comparisons?|procedures?(?: comments)?|exam|examination"
_SPOKEN = "findings?(?: and impression)?|impressions?|conclusions?|opinion|summary|report|results?|interpretation"
_HEADER = re.compile(rf"(?<![\w-])(?:(?P<silent>{_SILENT})|(?P<spoken>{_SPOKEN}))\s*:")
_REQUEST_HEADER = re.compile(rf"(?:{_REQUEST})\s*:")


@dataclass(frozen=True, slots=True)
class Sentence:
    """One sentence: its words joined by single blanks, and where each stands.

    ``words`` ends with a blank. Token i begins at ``at[i]`` in ``words`` and covers the characters
    [``starts[i]``, ``ends[i]``) of the sentence's own text.
    """

    tokens: tuple[str, ...]
    words: str
    at: tuple[int, ...]
    starts: tuple[int, ...]
    ends: tuple[int, ...]

    def token_at(self, position: int) -> int:
        """Index of the token that ``words[position]`` belongs to."""
        return bisect_right(self.at, position) - 1


def fold(text: str) -> str:
    """Lower case, character by character: the result is as long as the text, so offsets stay valid."""
    lower = text.lower()
    if len(lower) == len(text):
        return lower
    return "".join(low if len(low := char.lower()) == 1 else char for char in text)


def tokenize(folded: str) -> Sentence:
    """Tokens of one folded sentence."""
    tokens: list[str] = []
    at: list[int] = []
    starts: list[int] = []
    ends: list[int] = []
    position = 0
    for match in _TOKEN.finditer(folded):
        token = match.group()
        token = _WORD_FOR.get(token, token)
        tokens.append(token)
        at.append(position)
        starts.append(match.start())
        ends.append(match.end())
        position += len(token) + 1
    words = " ".join(tokens) + " " if tokens else ""
    return Sentence(tuple(tokens), words, tuple(at), tuple(starts), tuple(ends))


def spoken_ranges(folded: str) -> list[tuple[int, int]]:
    """Character ranges of the text that report something: everything but request and technique sections.

    A silent section ends at the next header that is not silent. Without one, only the first sentence of a request is
    left out: a lone "Comparison:" in front of findings must not hide them.
    """
    if ":" not in folded:
        return [(0, len(folded))]
    headers = list(_HEADER.finditer(folded))
    ranges: list[tuple[int, int]] = []
    start = 0
    for number, header in enumerate(headers):
        if header.group("silent") is None or header.start() < start:
            continue
        later = [other for other in headers[number + 1 :] if other.group("spoken") is not None]
        if later:
            end = later[0].start()
        elif _REQUEST_HEADER.match(folded, header.start()):
            stop = _BOUNDARY.search(folded, header.end())
            end = stop.end() if stop else len(folded)
        else:
            continue
        ranges.append((start, header.start()))
        start = end
    ranges.append((start, len(folded)))
    return [(first, last) for first, last in ranges if first < last]


def sentences(folded: str) -> Iterator[tuple[int, str]]:
    """Offset and text of every sentence, in order; the text is a slice of ``folded`` without the end mark.

    A question mark stays with its sentence: it says that the finding before it is doubtful.
    """
    for first, last in spoken_ranges(folded):
        start = first
        for boundary in _BOUNDARY.finditer(folded, first, last):
            end = boundary.end() if boundary.group().startswith("?") else boundary.start()
            yield from _pieces(folded, start, end)
            start = boundary.end()
        yield from _pieces(folded, start, last)


def _pieces(folded: str, start: int, end: int) -> Iterator[tuple[int, str]]:
    while end - start > MAX_SENTENCE_CHARS:
        cut = folded.rfind(" ", start, start + MAX_SENTENCE_CHARS)
        cut = cut if cut > start else start + MAX_SENTENCE_CHARS
        yield start, folded[start:cut]
        start = cut
    if start < end:
        yield start, folded[start:end]
