"""Patterns by which foreign tokenizers split texts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tokenizers import Regex, pre_tokenizers

from radweave.core.errors import InputError
from radweave.core.foreign_tokenizers import PUBLISHED, cannot_backtrack
from radweave.data.tokenizer import BpeTokenizerConfig, encode, load_tokenizer, save_tokenizer

ENDLESS = [
    r"(a+)+$", r"(a|aa)+$", r"(?:a|a)*b", r"(a*)*b", r"^(\w+\s?)*$", r"a*a*b", r".*.*x", r"a+b", r"a{2,}b", r"a+*",
    r"(\w+)\1", r"(?=a+)b", r"(?<=a)b", r"x(?i:a|b)+", r"[a&&[b]]+", r"[[a]b]+", r"a?" * 20, r"a{0,99}" * 3, r"(?:a",
]  # fmt: skip
PLAIN = [
    r"\s+", r"\d", r"[0-9][0-9][0-9]", r"\p{N}{1,3}", r"[一-龥]+", r"\n|\t|[.,]", r" ?\p{L}+|(?i:'s|'t)?", r"[^\p{L}]",
    r"<\|startoftext\|>|<\|endoftext\|>|'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+",
]  # fmt: skip


@pytest.mark.parametrize("pattern", ENDLESS)
def test_backtracking_patterns_are_detected(pattern: str) -> None:
    assert not cannot_backtrack(pattern)


@pytest.mark.parametrize("pattern", [*PUBLISHED.values(), *PLAIN])
def test_published_and_plain_patterns_split_long_texts(pattern: str) -> None:
    assert cannot_backtrack(pattern)
    split = pre_tokenizers.Split(Regex(pattern), "isolated")
    for text in ("a", "A", " ", "\n ", "'", "!", "aA1 !", "é"):
        long = text * 3000 + "x"
        assert "".join(piece for piece, _ in split.pre_tokenize_str(long)) == long


def test_a_raw_line_end_equals_its_escape() -> None:
    """DeepSeek V3's tokenizer.json holds line ends where the other files hold their escapes."""
    assert cannot_backtrack(PUBLISHED["DeepSeek V3"].replace(r"\r", "\r").replace(r"\n", "\n"))
    assert not cannot_backtrack("(\n+)+$")


def tokenizer_with(pattern: str, folder: Path) -> Path:
    save_tokenizer(BpeTokenizerConfig(vocab_size=300).build(["Clear lungs."]), folder)
    content = json.loads((folder / "tokenizer.json").read_text())
    split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    content["pre_tokenizer"]["pretokenizers"].insert(0, split)
    (folder / "tokenizer.json").write_text(json.dumps(content))
    return folder


def test_a_tokenizer_with_a_backtracking_pattern_is_refused(tmp_path: Path) -> None:
    folder = tokenizer_with(r"(a+)+$", tmp_path)
    with pytest.raises(InputError, match=r"tokenizer\.json.*pre_tokenizer\.pattern.*may take for ever.*\(a\+\)\+") as e:
        load_tokenizer(folder)
    assert "\n" not in str(e.value)


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_pattern_tokenizes_a_report(name: str, tmp_path: Path) -> None:
    tokenizer = load_tokenizer(tokenizer_with(PUBLISHED[name], tmp_path))
    text = "No effusion. 12 mm nodule\nin the left lung's apex."
    assert tokenizer.decode(encode(tokenizer, text)) == text
