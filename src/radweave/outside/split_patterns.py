r"""Patterns by which a tokenizer of others may split a text: published ones, and any that cannot backtrack.

A regular expression can take exponential time: ``(a+)+$`` looks at a run of n letters in 2^n ways, and the library that
runs it knows no time limit. So a pattern is let through only where its time grows with the text's length:

- it is one of the published ones, letter for letter; or
- it is alternatives of letters, classes, optional parts and choices of plain words, where only the last part of each
  alternative repeats without end. What such a part has read it keeps, so no letter is read by it a second time.
"""

from __future__ import annotations

import re
from typing import Final

_WORD_ENDS: Final = "'s|'t|'re|'ve|'m|'ll|'d"
_NO_CASE_ENDS: Final = rf"(?i:{_WORD_ENDS})"
_SMALL: Final = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CAPITAL: Final = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_BLANKS: Final = r"\s*[\r\n]+|\s+(?!\S)|\s+"

PUBLISHED: Final = {
    "GPT-2": rf"{_WORD_ENDS}| ?\p{{L}}+| ?\p{{N}}+| ?[^\s\p{{L}}\p{{N}}]+|\s+(?!\S)|\s+",
    "Llama 3": (
        rf"{_NO_CASE_ENDS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_BLANKS}"
    ),
    "Qwen 2": rf"{_NO_CASE_ENDS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_BLANKS}",
    "Qwen 3.5": (
        rf"{_NO_CASE_ENDS}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}"
        rf"| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_BLANKS}"
    ),
    "Llama 4": (
        rf"[^\r\n\p{{L}}\p{{N}}]?{_CAPITAL}*{_SMALL}+{_NO_CASE_ENDS}?|[^\r\n\p{{L}}\p{{N}}]?{_CAPITAL}+{_SMALL}*"
        rf"{_NO_CASE_ENDS}?|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_BLANKS}"
    ),
    "Mistral Nemo": (
        rf"[^\r\n\p{{L}}\p{{N}}]?{_CAPITAL}*{_SMALL}+|[^\r\n\p{{L}}\p{{N}}]?{_CAPITAL}+{_SMALL}*"
        rf"|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_BLANKS}"
    ),
    "DeepSeek V3": (
        r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
        rf"| ?[\p{{P}}\p{{S}}]+[\r\n]*|{_BLANKS}"
    ),
    "BLOOM": " ?[^(\\s|[.,!?…。，、।۔،])]+",
}
"""Each ends in alternatives that take all that the ones before looked at and gave back."""

_MAX_WAYS: Final = 256
"""Ways in which the optional parts of all alternatives together may be tried at one place."""
_CLASS: Final = r"\[\^?(?:[^\[\]\\&]|\\[^\W_]\{\^?\w{1,30}\}|\\.)+\]"
_ATOM: Final = rf"(?:[^\\\[\](){{}}|+*?]|\\[pP]\{{\^?\w{{1,30}}\}}|\\[rntsSdDwWhH]|\\[^\w]|{_CLASS})"
_WORDS: Final = r"\((?:\?i?:)(?P<words>(?:[^\\\[\](){}|+*?.^$]|\|)+)\)(?P<maybe>\??)"
_PART: Final = re.compile(rf"{_WORDS}|(?P<atom>{_ATOM})(?P<times>[+*?]|\{{\d{{1,2}}(?:,\d{{0,2}})?\}})?")
_ENDLESS: Final = re.compile(r"[+*]|\{\d+,\}")


def cannot_backtrack(pattern: str) -> bool:
    """Whether a pattern takes time in proportion to the text, whatever the text is."""
    # A line end as itself, as DeepSeek's file has it, means what its escape means.
    return pattern.replace("\r", r"\r").replace("\n", r"\n") in PUBLISHED.values() or _is_plain(pattern)


def _is_plain(pattern: str) -> bool:
    total, ways, place, ended = 0, 1, 0, False
    while place < len(pattern):
        if pattern[place] == "|":
            total, ways, ended, place = total + ways, 1, False, place + 1
            continue
        part = _PART.match(pattern, place)
        if part is None or ended:
            return False
        place = part.end()
        times = part["times"] or ""
        ended = bool(_ENDLESS.fullmatch(times))
        ways *= _ways(part, times)
        if ways > _MAX_WAYS:
            return False
    return total + ways <= _MAX_WAYS


def _ways(part: re.Match[str], times: str) -> int:
    """In how many ways a part without an endless repeat may be read at one place."""
    if part["words"] is not None:
        return 1 + part["words"].count("|") + len(part["maybe"])
    least, _, most = times.strip("{}").partition(",")
    if times == "?":
        return 2
    return int(most) - int(least) + 1 if most.isdigit() and least.isdigit() and int(most) >= int(least) else 1
