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
from itertools import accumulate

from radweave.core.study import NO_SECTION, has_both_sections, split_sections

# A sentence this long is no sentence: it is cut, which keeps the time linear in the length of any text.
MAX_SENTENCE_CHARS = 2000

# Marks that may end a sentence: a full stop, "!", ";", a bullet, a question mark, a quote (CT reports list with them),
# an empty line. Whether one does is decided by what stands around it.
_MARK = re.compile(r"""[.!;•·|?"“”]|\n[ \t\r\f\v]*\n""")
_ABBREVIATIONS = re.compile(r"\b(?:vs|dr|e\.g|i\.e|approx|[a-z])$")
_OPEN_QUESTION = re.compile(r"\s*[),/?]")
_TOKEN = re.compile(r"[^\W\d_]+(?:['’][^\W\d_]+)?|\d+(?:[.,]\d+)*|(?<=\s)[-–—](?=\s)|[,:()?/&>]")
# "andor" is what cleaners that delete the slash leave behind.
_WORD_FOR = {"&": "and", "andor": "or", "–": "-", "—": "-"}

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

    def token_of(self, character: int) -> int:
        """Index of the token that a character of the sentence's own text belongs to."""
        return bisect_right(self.starts, character) - 1


def fold(text: str) -> str:
    """Lower case, character by character: the result is as long as the text, so offsets stay valid."""
    lower = text.lower()
    if len(lower) == len(text):
        return lower
    return "".join(low if len(low := char.lower()) == 1 else char for char in text)


def _ends_sentence(folded: str, start: int, end: int) -> bool:
    """True if the mark at [start, end) ends a sentence."""
    mark = folded[start]
    before, after = folded[start - 1 : start], folded[end : end + 1]
    if mark == ".":
        if after.isdigit() and not before.isalpha():
            return False  # 1.3 cm
        abbreviation = _ABBREVIATIONS.search(folded, max(0, start - 7), start)
        # "e.g." never ends a sentence, a single letter ("lobe b.") does unless another letter follows at once ("s.p.")
        return abbreviation is None or (len(abbreviation.group()) == 1 and not after.isalpha())
    if mark == "?":
        return _OPEN_QUESTION.match(folded, end) is None
    if mark in '"“”':
        return not after or after.isspace() or not before or before.isspace() or before in ".,?"
    return True


def _borders(folded: str, first: int, last: int) -> Iterator[tuple[int, int]]:
    """Character ranges of the marks that end sentences."""
    for mark in _MARK.finditer(folded, first, last):
        if _ends_sentence(folded, mark.start(), mark.end()):
            yield mark.span()


def tokenize(folded: str) -> Sentence:
    """Tokens of one folded sentence."""
    places = [match.span() for match in _TOKEN.finditer(folded)]
    tokens = [folded[start:end] for start, end in places]
    if not _WORD_FOR.keys().isdisjoint(tokens):
        tokens = [_WORD_FOR.get(token, token) for token in tokens]
    at = [0, *accumulate(len(token) + 1 for token in tokens)][:-1]
    words = " ".join(tokens) + " " if tokens else ""
    starts = tuple(start for start, _ in places)
    return Sentence(tuple(tokens), words, tuple(at), starts, tuple(end for _, end in places))


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
            end = next((stop for _, stop in _borders(folded, header.end(), len(folded))), len(folded))
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
        for mark, after in _borders(folded, first, last):
            yield from _pieces(folded, start, after if folded[mark] == "?" else mark)
            start = after
        yield from _pieces(folded, start, last)


def _pieces(folded: str, start: int, end: int) -> Iterator[tuple[int, str]]:
    while end - start > MAX_SENTENCE_CHARS:
        cut = folded.rfind(" ", start, start + MAX_SENTENCE_CHARS)
        cut = cut if cut > start else start + MAX_SENTENCE_CHARS
        yield start, folded[start:cut]
        start = cut
    if start < end:
        yield start, folded[start:end]


_SENTENCE_END = re.compile(r"(?<=[.!?])\s+")


def split_sentences(text: str) -> list[str]:
    """The sentences of a report as they are written, in order."""
    return [sentence.strip() for sentence in _SENTENCE_END.split(text) if sentence.strip()]


def sentences_by_part(text: str) -> list[tuple[str, str]]:
    """Part and text of each sentence of a report, in order, without headings."""
    parts = split_sections(text) if has_both_sections(text) else {NO_SECTION: text}
    return [(part, sentence) for part, content in parts.items() for sentence in split_sentences(content)]
