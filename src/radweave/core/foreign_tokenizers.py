"""Checks of foreign tokenizer.json files: known steps, with bounded growth of a text and bounded time.

A tokenizer's steps run in this process on each text. Replacing a letter by a hundred, six times over, turns a line into
terabytes; a pattern with nested repeats takes exponential time. No published tokenizer does either.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, Final

from radweave.core.errors import InputError

# Patterns that split a text. A regular expression can take exponential time (``(a+)+$`` reads n letters in 2^n ways),
# and the library that runs it has no time limit. A pattern is accepted if its time is linear in the text's length:
#
# - it is one of the published ones, letter for letter; or
# - it consists of alternatives of letters, classes, optional parts and choices of plain words, in which only the last
#   part of each alternative repeats without a bound. Such a part keeps its letters, so none is read twice.

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
"""Each ends in alternatives that match all letters that earlier ones tried and gave back."""

_MAX_WAYS: Final = 256
"""Limit of combinations of optional parts of all alternatives at one position."""
_CLASS: Final = r"\[\^?(?:[^\[\]\\&]|\\[^\W_]\{\^?\w{1,30}\}|\\.)+\]"
_ATOM: Final = rf"(?:[^\\\[\](){{}}|+*?]|\\[pP]\{{\^?\w{{1,30}}\}}|\\[rntsSdDwWhH]|\\[^\w]|{_CLASS})"
_WORDS: Final = r"\((?:\?i?:)(?P<words>(?:[^\\\[\](){}|+*?.^$]|\|)+)\)(?P<maybe>\??)"
_PART: Final = re.compile(rf"{_WORDS}|(?P<atom>{_ATOM})(?P<times>[+*?]|\{{\d{{1,2}}(?:,\d{{0,2}})?\}})?")
_ENDLESS: Final = re.compile(r"[+*]|\{\d+,\}")


def cannot_backtrack(pattern: str) -> bool:
    """True if the pattern takes linear time for every text."""
    # A raw line end, as in DeepSeek's file, equals its escape.
    return pattern.replace("\r", r"\r").replace("\n", r"\n") in PUBLISHED.values() or _is_plain(pattern)


def _is_plain(pattern: str) -> bool:
    total, ways, position, ended = 0, 1, 0, False
    while position < len(pattern):
        if pattern[position] == "|":
            total, ways, ended, position = total + ways, 1, False, position + 1
            continue
        part = _PART.match(pattern, position)
        if part is None or ended:
            return False
        position = part.end()
        times = part["times"] or ""
        ended = bool(_ENDLESS.fullmatch(times))
        ways *= _ways(part, times)
        if ways > _MAX_WAYS:
            return False
    return total + ways <= _MAX_WAYS


def _ways(part: re.Match[str], times: str) -> int:
    """Number of ways to match a part without an endless repeat at one position."""
    if part["words"] is not None:
        return 1 + part["words"].count("|") + len(part["maybe"])
    least, _, most = times.strip("{}").partition(",")
    if times == "?":
        return 2
    return int(most) - int(least) + 1 if most.isdigit() and least.isdigit() and int(most) >= int(least) else 1


MAX_BYTES: Final = 64 << 20
"""Limit of tokenizer.json; a vocabulary of 262,144 words takes 33 MB."""
_MAX_TEXT: Final = 4096
_MAX_PROMPT: Final = 1 << 20
_MAX_STEPS: Final = 32
_MAX_ADDED: Final = 10_000
"""Added tokens; Gemma 3 has 6,415. Their loading time is quadratic in their number."""
_MAX_ENTRIES: Final = 10 * _MAX_ADDED
"""Values except words and merges; an added token has seven."""
_MAX_WORDS: Final = 1_000_000
"""Words, or merges; XLM-V has 901,629 words, Gemma 3 514,906 merges."""
_MAX_GROWTH: Final = 8
"""Limit of the letters that all replacements together make of one."""
_MAX_TEMPLATE: Final = 64
_MAX_PADDED: Final = 131_072
_ONE_ATOM: Final = re.compile(
    r"(?:\\?[^\\\[\](){}|]|\\[\[\](){}|\\]|\[(?:[^\[\]\\]|\\.)*\])(?:[+*?]|\{\d{0,4},?\d{0,4}\})?"
)
"""A pattern that cannot backtrack: one letter or class, optionally repeated."""

_KINDS: Final = {
    "normalizer": {
        "NFC", "NFD", "NFKC", "NFKD", "Nmt", "Lowercase", "Strip", "StripAccents", "BertNormalizer", "Prepend",
        "Replace", "Precompiled", "ByteLevel", "Sequence",
    },
    "pre_tokenizer": {
        "ByteLevel", "Digits", "Split", "Metaspace", "BertPreTokenizer", "Whitespace", "WhitespaceSplit",
        "Punctuation", "CharDelimiterSplit", "UnicodeScripts", "Sequence",
    },
    "decoder": {
        "ByteLevel", "WordPiece", "Metaspace", "BPEDecoder", "CTC", "Fuse", "Strip", "Replace", "ByteFallback",
        "Sequence",
    },
    "post_processor": {"TemplateProcessing", "ByteLevel", "BertProcessing", "RobertaProcessing", "Sequence"},
}  # fmt: skip


def refuse_endless_steps(content: dict[str, Any], path: Path) -> None:
    """Refuse a tokenizer.json whose steps, tokens or template could take unbounded time or memory.

    Raises:
        InputError: naming the field.
    """
    if path.stat().st_size > MAX_BYTES:
        raise InputError("too large for a tokenizer", file=path, got=f"{path.stat().st_size} bytes")
    for field, kinds in _KINDS.items():
        steps = list(_steps(content.get(field), path, field))
        for step in steps:
            if not isinstance(step.get("type"), str) or step["type"] not in kinds:
                raise InputError(
                    "a step of this kind is not run", file=path, field=field, got=ascii(step.get("type"))[:40]
                )
        _refuse_growth(steps, path, field)
        _refuse_slow_splits(steps, path, field)
        _refuse_template(steps, path, field)
    model = content.get("model")
    rest = (
        {**content, "model": {k: v for k, v in model.items() if k not in ("vocab", "merges")}}
        if isinstance(model, dict)
        else content
    )
    refuse_long_texts(rest, path)
    vocab = model.get("vocab") if isinstance(model, dict) else None
    rows = vocab if isinstance(vocab, list) else []
    words = vocab if isinstance(vocab, dict) else [row[0] for row in rows if isinstance(row, list) and row]
    refuse_many_words(words, path, "model.vocab")
    merges = model.get("merges") if isinstance(model, dict) else None
    if isinstance(merges, list) and len(merges) > _MAX_WORDS:
        raise InputError("too many merges", file=path, field="model.merges", expected=f"at most {_MAX_WORDS}")
    padding = content.get("padding")
    fixed = (padding.get("strategy") or {}) if isinstance(padding, dict) else {}
    if isinstance(fixed, dict) and not 0 <= _number(fixed.get("Fixed")) <= _MAX_PADDED:
        raise InputError("pads to a giant length", file=path, field="padding", expected=f"at most {_MAX_PADDED}")


def refuse_many_words(words: Collection[Any], path: Path, field: str | None = None) -> None:
    """Refuse a vocabulary of very many words, or of a very long one.

    Raises:
        InputError: naming the limit.
    """
    if len(words) > _MAX_WORDS:
        raise InputError("too many words", file=path, field=field, got=len(words), expected=f"at most {_MAX_WORDS}")
    if any(len(str(word)) > _MAX_TEXT for word in words):
        raise InputError("a word is too long", file=path, field=field, expected=f"at most {_MAX_TEXT} letters")


def refuse_long_texts(content: Any, path: Path) -> None:
    """Refuse texts and field names far longer than any token, and more added tokens than in any tokenizer.

    Raises:
        InputError: naming the field.
    """
    waiting: list[tuple[str, Any]] = [("", content)]
    entries = 0
    while waiting:
        field, value = waiting.pop()
        count = len(value) if isinstance(value, (dict, list)) else 0
        entries += count
        if count > _MAX_ADDED or entries > _MAX_ENTRIES:
            raise InputError(
                "too many tokens", file=path, field=field or None, got=entries, expected=f"at most {_MAX_ADDED}"
            )
        if isinstance(value, dict):
            for key, inner in value.items():
                if len(key) > _MAX_TEXT:
                    raise InputError("a name is too long", file=path, field=field or None)
                waiting.append((key, inner))
        elif isinstance(value, list):
            waiting.extend((field, inner) for inner in value)
        elif isinstance(value, str):
            longest = _MAX_PROMPT if field in ("chat_template", "template", "precompiled_charsmap") else _MAX_TEXT
            if len(value) > longest:
                raise InputError(
                    "a text is too long",
                    file=path,
                    field=field,
                    got=f"{len(value)} letters",
                    expected=f"at most {longest}",
                )


def _steps(step: Any, path: Path, field: str, depth: int = 0) -> Iterator[dict[str, Any]]:
    """A step and, in order, the steps of a sequence."""
    if step is None:
        return
    if not isinstance(step, dict) or depth > _MAX_STEPS:
        raise InputError("not a step of a tokenizer", file=path, field=field)
    yield step
    lists = [step.get(key) or [] for key in ("normalizers", "pretokenizers", "decoders", "processors")]
    if not all(isinstance(each, list) for each in lists):
        raise InputError("not a list of steps", file=path, field=field)
    inner = [value for each in lists for value in each]
    if len(inner) > _MAX_STEPS:
        raise InputError("too many steps", file=path, field=field, expected=f"at most {_MAX_STEPS}")
    for each in inner:
        yield from _steps(each, path, field, depth + 1)


def _refuse_growth(steps: list[dict[str, Any]], path: Path, field: str) -> None:
    growth = 1.0
    for step in steps:
        if step["type"] == "Prepend" and len(str(step.get("prepend"))) > _MAX_GROWTH:
            raise InputError("puts too much before a text", file=path, field=field)
        if step["type"] != "Replace":
            continue
        pattern = step.get("pattern")
        pattern = pattern if isinstance(pattern, dict) else {}
        if "Regex" in pattern and not _ONE_ATOM.fullmatch(str(pattern["Regex"])):
            raise InputError("replaces by a pattern that may take for ever", file=path, field=field)
        growth *= max(1.0, len(str(step.get("content"))) / max(1, len(str(pattern.get("String") or "x"))))
    if growth > _MAX_GROWTH:
        raise InputError(
            "makes a text many times longer", file=path, field=field, expected=f"at most {_MAX_GROWTH} times"
        )


def _refuse_slow_splits(steps: list[dict[str, Any]], path: Path, field: str) -> None:
    for step in steps:
        pattern = step.get("pattern") if step["type"] == "Split" else None
        if isinstance(pattern, dict) and "Regex" in pattern and not cannot_backtrack(str(pattern["Regex"])):
            raise InputError(
                "splits a text by a pattern that may take for ever",
                file=path,
                field=f"{field}.pattern.Regex",
                got=ascii(str(pattern["Regex"]))[:60],
                expected="a published tokenizer's, or alternatives in which only the last part repeats without end",
            )


def _refuse_template(steps: list[dict[str, Any]], path: Path, field: str) -> None:
    for step in steps:
        special = step.get("special_tokens")
        lists = [step.get("single"), step.get("pair")]
        lists += (
            [token.get("ids") for token in special.values() if isinstance(token, dict)]
            if isinstance(special, dict)
            else []
        )
        if any(isinstance(values, list) and len(values) > _MAX_TEMPLATE for values in lists):
            raise InputError("puts too many tokens around a text", file=path, field=field)


def _number(value: Any) -> int:
    return value if isinstance(value, int) else 0
