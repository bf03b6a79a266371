"""Where sentences end in a row of token ids."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_WORD_STARTS = ("Ġ", "▁", " ")
"""How byte-level and SentencePiece tokens write the space before a word."""


@dataclass(frozen=True, slots=True)
class SentenceSplitter:
    """Cuts token ids after a full stop that a new word follows, as reports are cut for their evidence.

    ``ends`` are the ids of tokens that end with a full stop, ``starts`` those that begin a word; ``decode`` gives the
    text of ids, ``encode`` the ids of a text without special tokens.
    """

    ends: frozenset[int]
    starts: frozenset[int]
    decode: Callable[[Sequence[int]], str]
    encode: Callable[[str], list[int]]

    @classmethod
    def for_tokenizer(cls, tokenizer: PreTrainedTokenizerBase) -> SentenceSplitter:
        """Look at every token of a vocabulary once."""
        tokens = tokenizer.convert_ids_to_tokens(list(range(len(tokenizer))))
        named = [(index, token) for index, token in enumerate(tokens) if token is not None]

        def decode(ids: Sequence[int]) -> str:
            text: str = tokenizer.decode(list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False)
            return text.strip()

        def encode(text: str) -> list[int]:
            ids: list[int] = tokenizer.encode(text, add_special_tokens=False, split_special_tokens=True)
            return ids

        return cls(
            ends=frozenset(index for index, token in named if token.endswith(".")),
            starts=frozenset(index for index, token in named if token.startswith(_WORD_STARTS)),
            decode=decode,
            encode=encode,
        )

    def split(self, ids: Sequence[int]) -> list[tuple[int, ...]]:
        """The sentences of a report's token ids, in order; together they are all the ids."""
        sentences: list[tuple[int, ...]] = []
        start = 0
        for end in range(1, len(ids) + 1):
            if end == len(ids) or (ids[end - 1] in self.ends and ids[end] in self.starts):
                sentences.append(tuple(ids[start:end]))
                start = end
        return sentences
